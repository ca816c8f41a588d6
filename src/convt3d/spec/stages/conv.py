"""The transposed convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ...errors import ArgumentError, ShapeError, described
from ..checks import Triple, as_triple, flag, integer, triple
from ..shapes import AXES, Box, ConvAxis, Shape, check_extent
from ..stage import CHANNELS, SPATIAL, Operand, Stage, stage

MOST_CHANNELS, MOST_TAPS = 2**24, 2**16  # what is planned one by one: phases, and blocks of channels


@stage(kw_only=True)
class ConvTranspose3d(Stage):
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

    couples: ClassVar[frozenset[str]] = CHANNELS | SPATIAL

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

    def operands(self) -> tuple[Operand, ...]:
        bias = (Operand("bias", "out_channel"),) if self.bias else ()
        return (Operand("weight", "kernel"), *bias)

    def axes(self, shape: Shape, kernel: Sequence[int]) -> tuple[ConvAxis, ConvAxis, ConvAxis]:
        """The three axes for an input of `shape` and a weight of shape `kernel`."""
        rows = zip(shape[2:], kernel[2:], *self.triples, strict=True)
        d, h, w = (ConvAxis(*row) for row in rows)
        return d, h, w

    @property
    def triples(self) -> tuple[Triple, Triple, Triple, Triple]:
        """Stride, padding, output_padding and dilation, each for depth, height, width."""
        return as_triple(self.stride), as_triple(self.padding), as_triple(self.output_padding), as_triple(self.dilation)

    def out_shape(self, shape: Shape, operands: Sequence[tuple[int, ...]]) -> Shape:
        kernel = operands[0]
        if shape[1] != kernel[0]:
            raise ShapeError(
                self.name,
                "weight",
                described(f"array of shape {kernel}"),
                f"its first axis must equal the {shape[1]} channels of the input of shape {shape}",
                "The layout is (Cin, Cout/groups, Kd, Kh, Kw)" + _transposed(shape[1], kernel),
            )
        if shape[1] % self.groups:
            raise ShapeError(
                self.name,
                "groups",
                self.groups,
                f"must divide the {shape[1]} input channels",
                "Choose a divisor of Cin; the weight then is (Cin, Cout/groups, Kd, Kh, Kw)",
            )
        if max(kernel[:2]) > MOST_CHANNELS or max(kernel[2:]) > MOST_TAPS:
            raise ShapeError(
                self.name,
                "weight",
                described(f"array of shape {kernel}"),
                f"must have at most {MOST_CHANNELS:,} channels and {MOST_TAPS:,} taps along an axis",
                "Use a smaller kernel",
            )
        axes = self.axes(shape, kernel)
        for name, axis in zip(AXES, axes, strict=True):
            if axis.out < 1:
                raise ShapeError(
                    self.name,
                    "padding",
                    self.padding,
                    f"leaves an output of size {axis.out} along {name} for input size {axis.size}, "
                    f"kernel {axis.kernel}, stride {axis.stride}, dilation {axis.dilation}",
                    "Lower the padding, or raise output_padding",
                )
        d, h, w = (axis.out for axis in axes)
        return check_extent(self.name, (shape[0], kernel[1] * self.groups, d, h, w))

    def reads(self, box: Box, shape: Shape, operands: Sequence[tuple[int, ...]]) -> Box:
        (low, high), *spatial = box
        per_in, per_out = shape[1] // self.groups, operands[0][1]
        channels = (low // per_out * per_in, ((high - 1) // per_out + 1) * per_in)
        axes = self.axes(shape, operands[0])
        d, h, w = (axis.inputs_of(*wanted) for axis, wanted in zip(axes, spatial, strict=True))
        return channels, d, h, w


def _transposed(channels: int, kernel: Sequence[int]) -> str:
    """What to say of a weight that looks like one of a convolution that is not transposed."""
    if kernel[1] != channels:
        return ""
    return "; this looks like (Cout, Cin, ...), as a Conv3d has it: pass weight.swapaxes(0, 1)"
