"""The vocabulary: every stage a pipeline may hold, with PyTorch's names and meaning of parameters.

To add one: a class here, its meaning in `reference.py`, its emitter in `emit/`, a row in `tests/spec/stage_rows.py`
(docs/adding_a_stage.md). Values are always (B, C, D, H, W): a reduction keeps its axis with size 1, and `keepdim=False`
drops it from the pipeline's result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, field
from typing import Any, ClassVar

from ..errors import ArgumentError, ArgumentTypeError, ShapeError, described
from .checks import Triple, flag, integer, is_a, one_of, real, triple
from .shapes import AXES, Box, ConvAxis, PoolAxis, Shape, check_extent
from .stage import Operand, Stage, stage, whole

MOST_CHANNELS, MOST_TAPS = 2**24, 2**16  # what is planned one by one: phases, and blocks of channels

SPATIAL = frozenset(AXES)
CHANNELS = frozenset({"channels"})


@stage(kw_only=True)
class ConvTranspose3d(Stage):
    """Transposed convolution; the weight given at the call, (Cin, Cout/groups, Kd, Kh, Kw), says the kernel's size."""

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
        return _triple(self.stride), _triple(self.padding), _triple(self.output_padding), _triple(self.dilation)

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


def _triple(value: Any) -> Triple:
    d, h, w = value  # __post_init__ has made a triple of it
    return d, h, w


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
        return _triple(self.kernel_size), _triple(self.stride), _triple(self.padding)

    def axes(self, shape: Shape) -> tuple[PoolAxis, PoolAxis, PoolAxis]:
        rows = zip(shape[2:], *self.triples, strict=True)
        d, h, w = (PoolAxis(*row, self.ceil_mode) for row in rows)
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
    """Largest value of each window; NaN travels. Padding counts as -inf."""

    ceil_mode: bool = field(default=False, kw_only=True)  # PyTorch has its dilation in this place


@stage()
class AvgPool3d(_Pool):
    """Mean of each window. With padding, zeros count too unless count_include_pad is False; divisor_override, a whole
    number, takes the place of all counts."""

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
        return axis.size >= axis.kernel  # as in PyTorch, whatever the padding


# --- stages that couple a whole axis: reductions and normalisations ---------------------------------------------------


# Numbers of the axes of a value.
OVER = {"channels": (1,), "spatial": (2, 3, 4), "depth": (2,), "height": (3,), "width": (4,)}


def _coupled_box(over: str, box: Box, shape: Shape) -> Box:
    full = whole(shape)
    c, d, h, w = (full[axis] if axis + 1 in OVER[over] else box[axis] for axis in range(4))
    return c, d, h, w


@stage()
class _Over(Stage):
    """A stage along `over`: "channels", or "spatial" (depth, height and width together)."""

    over: str = "channels"

    def __post_init__(self) -> None:
        self._set(over=one_of(self.name, "over", self.over, ("channels", "spatial")))

    @property
    def couples(self) -> frozenset[str]:  # type: ignore[override]
        return SPATIAL if self.over == "spatial" else frozenset({self.over})

    def reads(self, box: Box, shape: Shape, operands: Sequence[tuple[int, ...]]) -> Box:
        return _coupled_box(self.over, box, shape)


@stage()
class _Reduction(_Over):
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
    """Sum over channels, space or one axis."""


@stage()
class Mean(_Reduction):
    """Mean over channels, space or one axis."""


@stage()
class Max(_Reduction):
    """Largest value over channels, space or one axis; NaN travels."""


@stage()
class LogSumExp(_Reduction):
    """log(sum(exp(x))) over channels, space or one axis."""


@stage()
class Softmax(_Over):
    """exp(x - m) / sum(exp(x - m)), m the maximum.

    `shift` replaces the maximum by a constant and `scale` (a number or "channel") multiplies the result: rewrites set
    both where that changes nothing but the cost.
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


@stage()
class LayerNorm(_Over):
    """(x - mean) / sqrt(var + eps) over each voxel's channels, or along each row (over="width"); biased variance."""

    eps: float = 1e-5
    affine: bool = False

    def __post_init__(self) -> None:
        self._set(
            over=one_of(self.name, "over", self.over, ("channels", "width")),
            eps=real(self.name, "eps", self.eps, minimum=0.0),
            affine=flag(self.name, "affine", self.affine),
        )

    def operands(self) -> tuple[Operand, ...]:
        return _affine(self.affine, "channel" if self.over == "channels" else "width")


def _affine(affine: bool, kind: Any = "channel") -> tuple[Operand, ...]:
    return (Operand("weight", kind), Operand("bias", kind)) if affine else ()


@stage()
class GroupNorm(Stage):
    """Normalises groups of channels of a sample together with all their voxels; biased variance."""

    num_groups: int
    _: KW_ONLY
    eps: float = 1e-5
    affine: bool = False

    couples: ClassVar[frozenset[str]] = CHANNELS | SPATIAL

    def __post_init__(self) -> None:
        self._set(
            num_groups=integer(self.name, "num_groups", self.num_groups, 1),
            eps=real(self.name, "eps", self.eps, minimum=0.0),
            affine=flag(self.name, "affine", self.affine),
        )

    def operands(self) -> tuple[Operand, ...]:
        return _affine(self.affine)

    def out_shape(self, shape: Shape, operands: Sequence[tuple[int, ...]]) -> Shape:
        if shape[1] % self.num_groups:
            raise ShapeError(
                self.name, "num_groups", self.num_groups, f"must divide the {shape[1]} channels", "Choose a divisor"
            )
        return shape

    def reads(self, box: Box, shape: Shape, operands: Sequence[tuple[int, ...]]) -> Box:
        return whole(shape)


@stage(kw_only=True)
class InstanceNorm(Stage):
    """Normalises each channel of each sample over its voxels; biased variance."""

    eps: float = 1e-5
    affine: bool = False

    couples: ClassVar[frozenset[str]] = SPATIAL

    def __post_init__(self) -> None:
        self._set(eps=real(self.name, "eps", self.eps, minimum=0.0), affine=flag(self.name, "affine", self.affine))

    def operands(self) -> tuple[Operand, ...]:
        return _affine(self.affine)

    def reads(self, box: Box, shape: Shape, operands: Sequence[tuple[int, ...]]) -> Box:
        return _coupled_box("spatial", box, shape)


@stage(kw_only=True)
class BatchNorm(Stage):
    """Batch normalisation in inference: (x - running_mean) / sqrt(running_var + eps), then weight and bias."""

    eps: float = 1e-5
    affine: bool = False

    def __post_init__(self) -> None:
        self._set(eps=real(self.name, "eps", self.eps, minimum=0.0), affine=flag(self.name, "affine", self.affine))

    def operands(self) -> tuple[Operand, ...]:
        return (Operand("running_mean", "channel"), Operand("running_var", "channel"), *_affine(self.affine))


# --- arithmetic with a second value -----------------------------------------------------------------------------------


@stage()
class Keep(Stage):
    """Gives the value at this point a name, so that a later Add, Subtract, Multiply, Divide or Recall can use it."""

    label: str

    def __post_init__(self) -> None:
        _check_name(self)
        if self.label in Binary.RESERVED:
            raise ArgumentError(self.name, "label", self.label, "is a reserved word", "Choose another name")


@stage()
class Recall(Stage):
    """Makes a kept value, or the pipeline's input "x", the current one again."""

    label: str

    def __post_init__(self) -> None:
        _check_name(self)

    @property
    def uses(self) -> str:
        return self.label

    def meet(self, shape: Shape, other: Shape) -> Shape:
        return other


def _check_name(stage: Keep | Recall) -> None:
    if not is_a(stage.label, str) or not stage.label.isidentifier():
        raise ArgumentError(stage.name, "label", stage.label, "must be a name such as 'skip'", "Write an identifier")


def _shape_of(value: Any) -> tuple[Any, ...]:
    """Of an array; of anything else ()."""
    try:
        return tuple(getattr(value, "shape", ()))
    except Exception:  # a foreign object may raise anything, and is refused where it is read as a number
        return ()


@stage()
class Binary(Stage):
    """value (op) other. `other` is a number; "channel": a vector (C,) given at the call; "tensor": an array of the
    value's shape (1 repeats) given at the call; "x": the pipeline's input; or the label of an earlier Keep."""

    other: float | str

    RESERVED: ClassVar[tuple[str, ...]] = ("channel", "tensor", "x")

    def __post_init__(self) -> None:
        shape = _shape_of(self.other)
        if shape:
            raise ArgumentTypeError(
                self.name,
                "other",
                described(f"array of shape {shape}"),
                "must be a number or a word",
                "Write 'channel' or 'tensor', and give the array at the call",
            )
        if not is_a(self.other, str):
            self._set(other=real(self.name, "other", self.other, nan=True))

    @property
    def label(self) -> str | None:
        """The earlier value it uses, if it uses one."""
        return self.other if isinstance(self.other, str) and self.other not in ("channel", "tensor") else None

    @property
    def uses(self) -> str | None:
        return self.label

    def meet(self, shape: Shape, other: Shape) -> Shape:
        """A kept value may have size 1 where the current one has not, and the other way round."""
        if any(v != o and 1 not in (v, o) for v, o in zip(shape, other, strict=True)):
            raise ShapeError(
                self.name,
                "other",
                self.other,
                f"names a value of shape {other}, which does not fit the current shape {shape}",
                "Sizes must be equal, or 1 on an axis to repeat",
            )
        b, c, d, h, w = (o if v == 1 else v for v, o in zip(shape, other, strict=True))
        return b, c, d, h, w

    def sides(self, value: Any, other: Any) -> tuple[Any, Any]:
        """What stands left and right of the sign."""
        return value, other

    def operands(self) -> tuple[Operand, ...]:
        if self.other == "channel":
            return (Operand("other", "channel", number=True),)
        return (Operand("other", "tensor"),) if self.other == "tensor" else ()


@stage()
class Add(Binary):
    """value + other"""


@stage()
class _Ordered(Binary):
    """One whose sides must not be swapped, unless `reverse` asks for it."""

    reverse: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(reverse=flag(self.name, "reverse", self.reverse))

    def sides(self, value: Any, other: Any) -> tuple[Any, Any]:
        return (other, value) if self.reverse else (value, other)


@stage()
class Subtract(_Ordered):
    """value - other; other - value if `reverse`"""


@stage()
class Multiply(Binary):
    """value * other"""


@stage()
class Divide(_Ordered):
    """value / other; other / value if `reverse`"""


# --- pointwise functions ----------------------------------------------------------------------------------------------


@stage()
class Clamp(Stage):
    """min(max(x, min), max), one- or two-sided; NaN travels."""

    min: float | None = None
    max: float | None = None

    def __post_init__(self) -> None:
        low, high = (
            None if bound is None else real(self.name, name, bound)
            for name, bound in (("min", self.min), ("max", self.max))
        )
        self._set(min=low, max=high)
        if low is None and high is None:
            raise ArgumentError(self.name, "min, max", None, "at least one bound must be given", "Write min= or max=")
        if low is not None and high is not None and low > high:
            raise ArgumentError(
                self.name, "min, max", (low, high), "min must not be greater than max", "Swap the bounds"
            )


@stage()
class GELU(Stage):
    """x * Phi(x), exact with erf; approximate="tanh" for the tanh formula."""

    approximate: str = "none"

    def __post_init__(self) -> None:
        self._set(approximate=one_of(self.name, "approximate", self.approximate, ("none", "tanh")))


@stage()
class ReLU(Stage):
    """max(x, 0); NaN travels."""


@stage()
class LeakyReLU(Stage):
    """x where x > 0, else negative_slope * x."""

    negative_slope: float = 0.01

    def __post_init__(self) -> None:
        self._set(negative_slope=real(self.name, "negative_slope", self.negative_slope))


@stage()
class PReLU(Stage):
    """x where x > 0, else weight * x; weight has one number, or one for each channel."""

    def operands(self) -> tuple[Operand, ...]:
        return (Operand("weight", "slope", number=True),)


@stage()
class Sigmoid(Stage):
    """1 / (1 + exp(-x))"""


@stage()
class Tanh(Stage):
    """tanh(x)"""


@stage()
class SiLU(Stage):
    """x * sigmoid(x)"""


@stage()
class HardSwish(Stage):
    """x * clamp(x + 3, 0, 6) / 6"""


@stage()
class HardTanh(Stage):
    """x clamped to [min_val, max_val]; NaN travels."""

    min_val: float = -1.0
    max_val: float = 1.0

    def __post_init__(self) -> None:
        low = real(self.name, "min_val", self.min_val)
        high = real(self.name, "max_val", self.max_val)
        self._set(min_val=low, max_val=high)
        if low > high:
            raise ArgumentError(
                self.name, "min_val, max_val", (low, high), "min_val must not be greater than max_val", "Swap them"
            )


@stage()
class Mish(Stage):
    """x * tanh(softplus(x))"""


@stage()
class Softplus(Stage):
    """log(1 + exp(beta * x)) / beta, and x itself where beta * x > threshold."""

    beta: float = 1.0
    threshold: float = 20.0

    def __post_init__(self) -> None:
        beta = real(self.name, "beta", self.beta)
        self._set(beta=beta, threshold=real(self.name, "threshold", self.threshold))
        if not 2.0**-100 <= abs(beta) <= 2.0**100:
            raise ArgumentError(self.name, "beta", beta, "must be between 2^-100 and 2^100 in size", "Write 1.0, say")


@stage()
class Exp(Stage):
    """exp(x)"""


@stage()
class Log(Stage):
    """log(x); NaN where x < 0."""
