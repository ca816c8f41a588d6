"""The convolution and the transposed convolution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ...errors import ArgumentError, ShapeError, described
from ..checks import Triple, as_triple, flag, integer, is_a, one_of, triple
from ..shapes import AXES, Box, ConvAxis, ForwardAxis, Shape, TransposedAxis, check_extent
from ..stage import CHANNELS, SPATIAL, Operand, Stage, stage
from .padding import Pad

MOST_CHANNELS, MOST_TAPS = 2**24, 2**16  # what is planned one by one: phases, and blocks of channels


class Convolution(Stage, ABC):
    """What both have in common. A weight with the axes (Cin, Cout/groups, Kd, Kh, Kw), whatever its layout, is a
    `kernel`."""

    stride: int | Triple
    padding: int | Triple | str
    groups: int
    dilation: int | Triple
    bias: bool

    couples: ClassVar[frozenset[str]] = CHANNELS | SPATIAL
    layout: ClassVar[str]  # of the weight

    def operands(self) -> tuple[Operand, ...]:
        bias = (Operand("bias", "out_channel"),) if self.bias else ()
        return (Operand("weight", "kernel", layout=self.layout), *bias)

    @abstractmethod
    def kernel(self, weight: Sequence[int]) -> tuple[int, ...]:
        """The shape (Cin, Cout/groups, Kd, Kh, Kw) of a weight."""

    @abstractmethod
    def as_kernel(self, weight: Any) -> Any:
        """An array of weights with the axes of `kernel`: (Cin, Cout/groups, Kd, Kh, Kw)."""

    @abstractmethod
    def scale_outputs(self, weight: Any, scale: Any) -> Any:
        """The weight with each output channel multiplied by its number of `scale` (Cout,)."""

    @abstractmethod
    def axes(self, shape: Shape, weight: Sequence[int]) -> tuple[ConvAxis, ConvAxis, ConvAxis]:
        """The three axes for an input of `shape` and a weight of that shape."""

    def _refuse(self, weight: Sequence[int], rule: str, remedy: str) -> ShapeError:
        return ShapeError(self.name, "weight", described(f"array of shape {tuple(weight)}"), rule, remedy)

    def _checked_out(self, shape: Shape, weight: Sequence[int], remedy: str) -> Shape:
        """The result's shape; an error where sizes are too large or nothing is left."""
        if max(weight[:2]) > MOST_CHANNELS or max(weight[2:]) > MOST_TAPS:
            rule = f"must have at most {MOST_CHANNELS:,} channels and {MOST_TAPS:,} taps along an axis"
            raise self._refuse(weight, rule, "Use a smaller kernel")
        axes = self.axes(shape, weight)
        for name, axis in zip(AXES, axes, strict=True):
            if axis.out < 1:
                raise ShapeError(
                    self.name,
                    "padding",
                    self.padding,
                    f"leaves an output of size {axis.out} along {name} for input size {axis.size}, "
                    f"kernel {axis.kernel}, stride {axis.stride}, dilation {axis.dilation}",
                    remedy,
                )
        d, h, w = (axis.out for axis in axes)
        return check_extent(self.name, (shape[0], self.kernel(weight)[1] * self.groups, d, h, w))

    def reads(self, box: Box, shape: Shape, operands: Sequence[tuple[int, ...]]) -> Box:
        (low, high), *spatial = box
        per_in, per_out = shape[1] // self.groups, self.kernel(operands[0])[1]
        channels = (low // per_out * per_in, ((high - 1) // per_out + 1) * per_in)
        axes = self.axes(shape, operands[0])
        d, h, w = (axis.inputs_of(*wanted) for axis, wanted in zip(axes, spatial, strict=True))
        return channels, d, h, w


@stage(kw_only=True)
class ConvTranspose3d(Convolution):
    """Transposed convolution. Its sizes come from the weight given at the call, (Cin, Cout/groups, Kd, Kh, Kw).

    Parameters are given by name: PyTorch has channels and kernel sizes in the first places.

    Parameters
    ----------
    stride : int or (int, int, int), default 1
        Voxels of the output from one of the input to the next.
    padding : int or (int, int, int), default 0
        Voxels cut off from each end of each axis.
    output_padding : int or (int, int, int), default 0
        Voxels added at the far end; smaller than max(stride, dilation).
    groups : int, default 1
        Blocks of channels that do not meet; divides Cin.
    dilation : int or (int, int, int), default 1
        Voxels of the output from one tap of the kernel to the next.
    bias : bool, default False
        Whether the call takes a bias (Cout,) after the weight.

    Raises
    ------
    convt3d.ArgumentError
        A value outside its range.
    convt3d.ArgumentTypeError
        A value of another kind, or an unknown parameter.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.ConvTranspose3d(stride=(1, 2, 2), padding=1)
    ConvTranspose3d(stride=(1, 2, 2), padding=1)
    >>> convt3d.Pipeline(convt3d.ConvTranspose3d(bias=True)).operand_names
    ('weight', 'bias')
    """

    stride: int | Triple = 1
    padding: int | Triple = 0
    output_padding: int | Triple = 0
    groups: int = 1
    dilation: int | Triple = 1
    bias: bool = False

    layout: ClassVar[str] = "(Cin, Cout/groups, Kd, Kh, Kw)"

    def __post_init__(self) -> None:
        self._set(
            stride=triple(self.name, "stride", self.stride, 1),
            padding=triple(self.name, "padding", self.padding, 0),
            output_padding=triple(self.name, "output_padding", self.output_padding, 0),
            dilation=triple(self.name, "dilation", self.dilation, 1),
            groups=integer(self.name, "groups", self.groups, 1),
            bias=flag(self.name, "bias", self.bias),
        )
        strides, _, extras, dilations = self.triples
        for axis, extra, stride, dilation in zip(AXES, extras, strides, dilations, strict=True):
            if extra >= max(stride, dilation):
                raise ArgumentError(
                    self.name,
                    "output_padding",
                    self.output_padding,
                    f"must be smaller than max(stride, dilation) = {max(stride, dilation)} along {axis}",
                    "Lower output_padding, or raise the stride",
                )

    def kernel(self, weight: Sequence[int]) -> tuple[int, ...]:
        return tuple(weight)

    def as_kernel(self, weight: Any) -> Any:
        return weight

    def scale_outputs(self, weight: Any, scale: Any) -> Any:
        grouped = weight.reshape(self.groups, -1, *weight.shape[1:])
        return (grouped * scale.reshape(self.groups, 1, -1, 1, 1, 1)).reshape(weight.shape)

    def axes(self, shape: Shape, weight: Sequence[int]) -> tuple[ConvAxis, ConvAxis, ConvAxis]:
        rows = zip(shape[2:], weight[2:], *self.triples, strict=True)
        d, h, w = (TransposedAxis(*row) for row in rows)
        return d, h, w

    @property
    def triples(self) -> tuple[Triple, Triple, Triple, Triple]:
        """Stride, padding, output_padding and dilation, each for depth, height, width."""
        return as_triple(self.stride), as_triple(self.padding), as_triple(self.output_padding), as_triple(self.dilation)

    def out_shape(self, shape: Shape, operands: Sequence[tuple[int, ...]]) -> Shape:
        weight = operands[0]
        if shape[1] != weight[0]:
            raise self._refuse(
                weight,
                f"its first axis must equal the {shape[1]} channels of the input of shape {shape}",
                f"The layout is {self.layout}" + _transposed(shape[1], weight),
            )
        if shape[1] % self.groups:
            raise ShapeError(
                self.name,
                "groups",
                self.groups,
                f"must divide the {shape[1]} input channels",
                f"Choose a divisor of Cin; the weight then is {self.layout}",
            )
        return self._checked_out(shape, weight, "Lower the padding, or raise output_padding")


def _transposed(channels: int, kernel: Sequence[int]) -> str:
    """What to say of a weight that looks like one of a convolution that is not transposed."""
    if kernel[1] != channels:
        return ""
    return "; this looks like (Cout, Cin, ...), as a Conv3d has it: pass weight.swapaxes(0, 1)"


PADDING_MODES = ("zeros", "reflect", "replicate", "circular")
SAME, VALID = "same", "valid"


@stage(kw_only=True)
class Conv3d(Convolution):
    """Convolution. Its sizes come from the weight given at the call, (Cout, Cin/groups, Kd, Kh, Kw).

    Parameters are given by name: PyTorch has channels and kernel sizes in the first places.

    Parameters
    ----------
    stride : int or (int, int, int), default 1
        Voxels of the input from one of the output to the next.
    padding : int, (int, int, int), "same" or "valid", default 0
        Voxels added at each end of each axis. "same": as many as keep the size, for stride 1; "valid": none.
    groups : int, default 1
        Blocks of channels that do not meet; divides Cin and Cout.
    dilation : int or (int, int, int), default 1
        Voxels of the input from one tap of the kernel to the next.
    bias : bool, default False
        Whether the call takes a bias (Cout,) after the weight.
    padding_mode : {"zeros", "reflect", "replicate", "circular"}, default 'zeros'
        What the added voxels are.

    Raises
    ------
    convt3d.ArgumentError
        A value outside its range.
    convt3d.ArgumentTypeError
        A value of another kind, or an unknown parameter.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Conv3d(stride=(1, 2, 2), padding=1)
    Conv3d(stride=(1, 2, 2), padding=1)
    >>> convt3d.Pipeline(convt3d.Conv3d(padding="same", bias=True), convt3d.ReLU()).operand_names
    ('weight', 'bias')
    """

    stride: int | Triple = 1
    padding: int | Triple | str = 0
    groups: int = 1
    dilation: int | Triple = 1
    bias: bool = False
    padding_mode: str = "zeros"

    layout: ClassVar[str] = "(Cout, Cin/groups, Kd, Kh, Kw)"

    def __post_init__(self) -> None:
        padding = self.padding
        if is_a(padding, str):
            one_of(self.name, "padding", padding, (SAME, VALID))
        else:
            padding = triple(self.name, "padding", padding, 0)
        self._set(
            stride=triple(self.name, "stride", self.stride, 1),
            padding=padding,
            dilation=triple(self.name, "dilation", self.dilation, 1),
            groups=integer(self.name, "groups", self.groups, 1),
            bias=flag(self.name, "bias", self.bias),
            padding_mode=one_of(self.name, "padding_mode", self.padding_mode, PADDING_MODES),
        )
        if padding == SAME and as_triple(self.stride) != (1, 1, 1):
            raise ArgumentError(
                self.name, "padding", padding, "is for stride 1 only", "Write the padding as numbers, or stride=1"
            )

    def kernel(self, weight: Sequence[int]) -> tuple[int, ...]:
        cout, per_in, *taps = weight
        return per_in * self.groups, cout // self.groups, *taps

    def as_kernel(self, weight: Any) -> Any:
        cout, per_in, *taps = weight.shape
        grouped = weight.reshape(self.groups, cout // self.groups, per_in, *taps)
        return grouped.swapaxes(1, 2).reshape(self.kernel(weight.shape))

    def scale_outputs(self, weight: Any, scale: Any) -> Any:
        return weight * scale.reshape(-1, 1, 1, 1, 1)

    def paddings(self, weight: Sequence[int]) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Voxels added before and after each axis."""
        if self.padding == VALID:
            return (0, 0), (0, 0), (0, 0)
        if self.padding == SAME:
            totals = [
                dilation * (taps - 1) for dilation, taps in zip(as_triple(self.dilation), weight[2:], strict=True)
            ]
            d, h, w = ((total // 2, total - total // 2) for total in totals)
        else:
            sides: tuple[Any, ...] = as_triple(self.padding)  # of a window, both
            d, h, w = (size if isinstance(size, tuple) else (size, size) for size in sides)
        return d, h, w

    def reads(self, box: Box, shape: Shape, operands: Sequence[tuple[int, ...]]) -> Box:
        if self.padding_mode == "zeros":
            return super().reads(box, shape, operands)
        pad = Pad(self.paddings(operands[0]), self.padding_mode)
        plain = replace(self, padding=0, padding_mode="zeros")
        return pad.reads(plain.reads(box, pad.out_shape(shape, ()), operands), shape, ())

    def axes(self, shape: Shape, weight: Sequence[int]) -> tuple[ConvAxis, ConvAxis, ConvAxis]:
        rows = zip(
            shape[2:], weight[2:], as_triple(self.stride), self.paddings(weight), as_triple(self.dilation), strict=True
        )
        d, h, w = (
            ForwardAxis(size, kernel, stride, before, after - before, dilation)
            for size, kernel, stride, (before, after), dilation in rows
        )
        return d, h, w

    def out_shape(self, shape: Shape, operands: Sequence[tuple[int, ...]]) -> Shape:
        weight = operands[0]
        if weight[0] % self.groups:
            rule = f"must divide the {weight[0]} output channels of a weight of shape {tuple(weight)}"
            raise ShapeError(self.name, "groups", self.groups, rule, f"The layout is {self.layout}")
        if shape[1] != weight[1] * self.groups:
            raise self._refuse(
                weight,
                f"its second axis, times groups = {self.groups}, must equal the {shape[1]} channels of the input of "
                f"shape {shape}",
                f"The layout is {self.layout}"
                + ("; for (Cin, Cout, ...) pass weight.swapaxes(0, 1)" if weight[0] == shape[1] else ""),
            )
        for name, size, sides in zip(AXES, shape[2:], self.paddings(weight), strict=True):
            most = {"zeros": None, "replicate": None, "reflect": size - 1, "circular": size}[self.padding_mode]
            if most is not None and max(sides) > most:
                raise ShapeError(
                    self.name,
                    "padding",
                    self.padding,
                    f"must be at most {most} along {name} of size {size} where padding_mode is {self.padding_mode!r}",
                    "Lower the padding",
                )
        return self._checked_out(shape, weight, "Raise the padding, or use a smaller kernel")
