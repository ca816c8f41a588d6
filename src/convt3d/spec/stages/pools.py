"""Pools: MaxPool3d, AvgPool3d."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import ClassVar

from ...errors import ArgumentError, ShapeError
from ..checks import Triple, as_triple, flag, integer, triple
from ..shapes import AXES, Box, PoolAxis, PoolPart, Shape
from ..stage import SPATIAL, Stage, stage


@stage()
class _Pool(Stage):
    kernel_size: int | Triple
    stride: int | Triple | None = None
    padding: int | Triple = 0
    ceil_mode: bool = False

    couples: ClassVar[frozenset[str]] = SPATIAL

    def __post_init__(self) -> None:
        kernel = triple(self.name, "kernel_size", self.kernel_size, 1)
        padding = triple(self.name, "padding", self.padding, 0)
        self._set(
            kernel_size=kernel,
            stride=kernel if self.stride is None else triple(self.name, "stride", self.stride, 1),
            padding=padding,
            ceil_mode=flag(self.name, "ceil_mode", self.ceil_mode),
        )
        if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
            raise ArgumentError(
                self.name,
                "padding",
                padding,
                f"must be at most half of the kernel {kernel}",
                "Lower the padding, or raise the kernel",
            )

    @property
    def triples(self) -> tuple[Triple, Triple, Triple]:
        """Kernel, stride and padding, each for depth, height, width."""
        return as_triple(self.kernel_size), as_triple(self.stride), as_triple(self.padding)

    def axes(self, shape: Shape) -> tuple[PoolAxis, PoolAxis, PoolAxis]:
        rows = zip(shape[2:], *self.triples, strict=True)
        d, h, w = (row[3] if isinstance(row[3], PoolPart) else PoolAxis(*row, self.ceil_mode) for row in rows)
        return d, h, w

    def out_shape(self, shape: Shape, operands: Sequence[tuple[int, ...]]) -> Shape:
        axes = self.axes(shape)
        for name, axis in zip(AXES, axes, strict=True):
            if not self._fits(axis):
                raise ShapeError(
                    self.name,
                    "kernel_size",
                    self.kernel_size,
                    f"is larger than its input of size {axis.size} (padding {axis.padding}) along {name}",
                    "Use a smaller window or a larger volume",
                )
        d, h, w = (axis.out for axis in axes)
        return (*shape[:2], d, h, w)

    def _fits(self, axis: PoolAxis) -> bool:
        return axis.out >= 1

    def reads(self, box: Box, shape: Shape, operands: Sequence[tuple[int, ...]]) -> Box:
        d, h, w = (axis.inputs_of(*wanted) for axis, wanted in zip(self.axes(shape), box[1:], strict=True))
        return box[0], d, h, w


@stage()
class MaxPool3d(_Pool):
    """Largest value of each window; NaN travels. Padding counts as -inf.

    Parameters
    ----------
    kernel_size : int or (int, int, int)
        Size of the window.
    stride : int or (int, int, int), optional
        From one window to the next; the window's size by default.
    padding : int or (int, int, int), default 0
        Voxels added to both ends of each axis; at most half of the window.
    ceil_mode : bool, default False
        Whether a last window may reach over the end.

    Raises
    ------
    convt3d.ArgumentError
        A value outside its range.
    convt3d.ArgumentTypeError
        A value of another kind, or an unknown parameter.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.MaxPool3d(3, stride=2)
    MaxPool3d(kernel_size=3, stride=2)
    """

    ceil_mode: bool = field(default=False, kw_only=True)  # PyTorch has its dilation in this place


@stage()
class AvgPool3d(_Pool):
    """Mean of each window.

    Parameters
    ----------
    kernel_size : int or (int, int, int)
        Size of the window.
    stride : int or (int, int, int), optional
        From one window to the next; the window's size by default.
    padding : int or (int, int, int), default 0
        Voxels added to both ends of each axis; at most half of the window.
    ceil_mode : bool, default False
        Whether a last window may reach over the end.
    count_include_pad : bool, default True
        Whether zeros of the padding count.
    divisor_override : int, optional
        Takes the place of all counts.

    Raises
    ------
    convt3d.ArgumentError
        A value outside its range.
    convt3d.ArgumentTypeError
        A value of another kind, or an unknown parameter.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.AvgPool3d(2)
    AvgPool3d(kernel_size=2, stride=2)
    """

    count_include_pad: bool = True
    divisor_override: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.divisor_override
        self._set(
            count_include_pad=flag(self.name, "count_include_pad", self.count_include_pad),
            divisor_override=None if given is None else integer(self.name, "divisor_override", given, 1),
        )

    def _fits(self, axis: PoolAxis) -> bool:
        return axis.size >= axis.kernel or isinstance(axis, PoolPart)  # as in PyTorch, whatever the padding
