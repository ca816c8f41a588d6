"""Reductions of channels, space or one axis; softmax, which is the same along such an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY

from ..checks import flag, is_a, one_of, real
from ..shapes import Box, Shape
from ..stage import OVER, SPATIAL, Operand, Stage, coupled_box, stage


@stage()
class Along(Stage):
    """A stage along `over`: "channels", or "spatial" (depth, height and width together)."""

    over: str = "channels"

    def __post_init__(self) -> None:
        self._set(over=one_of(self.name, "over", self.over, ("channels", "spatial")))

    @property
    def couples(self) -> frozenset[str]:  # type: ignore[override]
        return SPATIAL if self.over == "spatial" else frozenset({self.over})

    def reads(self, box: Box, shape: Shape, operands: Sequence[tuple[int, ...]]) -> Box:
        return coupled_box(self.over, box, shape)


@stage()
class _Reduction(Along):
    """Along "channels", "spatial", or one of "depth", "height", "width"; keepdim=False drops it from the result."""

    keepdim: bool = True

    def __post_init__(self) -> None:
        self._set(
            over=one_of(self.name, "over", self.over, tuple(OVER)),
            keepdim=flag(self.name, "keepdim", self.keepdim),
        )

    def out_shape(self, shape: Shape, operands: Sequence[tuple[int, ...]]) -> Shape:
        b, c, d, h, w = (1 if axis in self.reduces else size for axis, size in enumerate(shape))
        return b, c, d, h, w

    @property
    def reduces(self) -> tuple[int, ...]:
        return OVER[self.over]

    @property
    def drops(self) -> tuple[int, ...]:
        return () if self.keepdim else self.reduces


@stage()
class Sum(_Reduction):
    """Sum over channels, space or one axis.

    Parameters
    ----------
    over : str, default 'channels'
        "channels", "spatial" (depth, height and width together), or one of "depth", "height", "width".
    keepdim : bool, default True
        False drops the axis from the pipeline's result.

    Raises
    ------
    convt3d.ArgumentError
        An axis that is none of these.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Sum("spatial", keepdim=False)
    Sum(over='spatial', keepdim=False)
    """


@stage()
class Mean(_Reduction):
    """Mean over channels, space or one axis.

    Parameters
    ----------
    over : str, default 'channels'
        "channels", "spatial" (depth, height and width together), or one of "depth", "height", "width".
    keepdim : bool, default True
        False drops the axis from the pipeline's result.

    Raises
    ------
    convt3d.ArgumentError
        An axis that is none of these.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Mean("spatial", keepdim=False)
    Mean(over='spatial', keepdim=False)
    """


@stage()
class Max(_Reduction):
    """Largest value over channels, space or one axis; NaN travels.

    Parameters
    ----------
    over : str, default 'channels'
        "channels", "spatial" (depth, height and width together), or one of "depth", "height", "width".
    keepdim : bool, default True
        False drops the axis from the pipeline's result.

    Raises
    ------
    convt3d.ArgumentError
        An axis that is none of these.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Max("spatial", keepdim=False)
    Max(over='spatial', keepdim=False)
    """


@stage()
class LogSumExp(_Reduction):
    """log(sum(exp(x))) over channels, space or one axis.

    Parameters
    ----------
    over : str, default 'channels'
        "channels", "spatial" (depth, height and width together), or one of "depth", "height", "width".
    keepdim : bool, default True
        False drops the axis from the pipeline's result.

    Raises
    ------
    convt3d.ArgumentError
        An axis that is none of these.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.LogSumExp("spatial", keepdim=False)
    LogSumExp(over='spatial', keepdim=False)
    """


@stage()
class Softmax(Along):
    """exp(x - m) / sum(exp(x - m)), m the maximum.

    Parameters
    ----------
    over : str, default 'channels'
        "channels", or "spatial" (depth, height and width together).
    shift : float, optional
        Takes the place of the maximum: rewrites set it where that changes nothing but the cost.
    scale : float or 'channel', optional
        Multiplies the result; rewrites set it, too.

    Raises
    ------
    convt3d.ArgumentError
        A value outside its range.
    convt3d.ArgumentTypeError
        A value of another kind, or an unknown parameter.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Softmax("spatial")
    Softmax(over='spatial')
    """

    _: KW_ONLY
    shift: float | None = None
    scale: float | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        scale = self.scale
        self._set(
            shift=None if self.shift is None else real(self.name, "shift", self.shift),
            scale=scale
            if scale is None or (is_a(scale, str) and scale == "channel")
            else real(self.name, "scale", scale, nan=True),
        )

    def operands(self) -> tuple[Operand, ...]:
        return (Operand("scale", "channel", number=True),) if self.scale == "channel" else ()
