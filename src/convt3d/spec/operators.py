"""The operators, each declared once: its arguments, the pipeline they mean, and what help says of them.

The functions of both fronts, the schemas and modules of PyTorch and the five problems follow from OPERATORS. To add
one: a row there, and a `def` with its signature in front/functions.py and torch/functions.py;
tests/spec/test_operators.py says what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from .checks import real
from .pipeline import Pipeline
from .stage import Stage
from .stages import (
    GELU,
    Add,
    AvgPool3d,
    Clamp,
    Conv3d,
    ConvTranspose3d,
    LayerNorm,
    MaxPool3d,
    Multiply,
    Softmax,
    Sum,
)

REQUIRED: Any = object()
# window: a triple that is no symbol; padding: a triple, "same" or "valid"
Kind: TypeAlias = Literal["tensor", "triple", "window", "padding", "integer", "real", "word"]


@dataclass(frozen=True)
class Argument:
    """One argument: how it is written, and what it means."""

    name: str
    kind: Kind
    text: str
    default: Any = REQUIRED
    optional: bool = False  # whether None says that there is none
    by_name: bool = False  # whether it is given by name only

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


@dataclass(frozen=True, eq=False)
class Operator:
    """`build` takes the arguments by name; of a tensor, whether it is given. `tensors` are those after the input, in
    the order of the pipeline's slots. `renamed` says what arguments here are called where the stages name them."""

    name: str
    slug: str | None  # of its problem, if it is one
    summary: str
    result: str
    arguments: tuple[Argument, ...]
    build: Callable[[Mapping[str, Any]], Pipeline]
    tensors: tuple[str, ...]
    example: tuple[str, tuple[int, ...]]  # more arguments, and the shape of the result
    renamed: Mapping[str, str] = field(default_factory=dict)

    names: tuple[str, ...] = field(init=False)
    places: tuple[tuple[int, bool], ...] = field(init=False)  # of `tensors` among the arguments; required ones

    def __post_init__(self) -> None:
        names = tuple(argument.name for argument in self.arguments)
        places = [names.index(name) for name in self.tensors]
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "places", tuple((place, self.arguments[place].required) for place in places))

    @property
    def tail(self) -> list[Argument]:
        """Numbers and words of the stages around the convolution."""
        return [each for each in self.arguments if each.kind != "tensor" and each.name not in _CONV]

    def lower(self, arguments: Sequence[Any]) -> tuple[Pipeline, list[Any]]:
        """The pipeline that all `arguments` in order mean, and its tensors after the input."""
        parameters, tensors = list(arguments), []
        parameters[0] = True
        for place, required in self.places:
            given = parameters[place] = required or arguments[place] is not None
            if given:
                tensors.append(arguments[place])
        return self.pipeline(parameters), tensors

    def pipeline(self, parameters: Sequence[Any]) -> Pipeline:
        """Remembered: checking parameters and hashing stages would take longer than a small kernel."""
        try:
            key = (self.name, *map(_exactly, parameters))
            found = _known.get(key)
        except Exception:  # a symbol, say: fine as an argument, but not as a key; foreign objects may raise anything
            return self.build(dict(zip(self.names, parameters, strict=True)))
        if found is None:
            found = shared(self.build(dict(zip(self.names, parameters, strict=True))))
            if len(_known) >= 1024:
                _known.clear()
            _known[key] = found
        return found


_known: dict[Any, Pipeline] = {}
_shared: dict[Pipeline, Pipeline] = {}


def shared(pipeline: Pipeline) -> Pipeline:
    """The one object for all equal pipelines: plans are looked up by it, and comparing stages takes time."""
    if len(_shared) >= 1024:
        _shared.clear()
    return _shared.setdefault(pipeline, pipeline)


def _exactly(argument: Any) -> Any:
    """A key that tells 1 from True and 1.0, and 0.0 from -0.0."""
    if isinstance(argument, (tuple, list)):
        return tuple(map(_exactly, argument))
    return (type(argument), argument.hex() if isinstance(argument, float) else argument)


# --- arguments that several have --------------------------------------------------------------------------------------

_INPUT = Argument("input", "tensor", "(B, Cin, D, H, W), or unbatched (Cin, D, H, W); any strides.")
_WEIGHT = Argument("weight", "tensor", "(Cin, Cout/groups, Kd, Kh, Kw), as PyTorch has it; of the input's type.")
_NORM = (
    Argument("norm_weight", "tensor", "(Cout,): multiplies the normalised channels.", None, True, True),
    Argument("norm_bias", "tensor", "(Cout,): is added to them.", None, True, True),
    Argument("eps", "real", "Added to the variance.", 1e-5, by_name=True),
    Argument(
        "approximate", "word", 'Of GELU: "none" is exact, with erf; "tanh" is the tanh formula.', "none", False, True
    ),
)


def _bias(by_name: bool = True) -> Argument:
    return Argument("bias", "tensor", "(Cout,): is added to the convolution's channels.", None, True, by_name)


def _geometry(stride: int, padding: int, output_padding: int, by_name: bool = False) -> tuple[Argument, ...]:
    """`by_name` is about output_padding alone."""
    return (
        Argument("stride", "triple", "Voxels of the output from one of the input to the next.", stride),
        Argument("padding", "triple", "Voxels cut off from each end of each axis.", padding),
        Argument(
            "output_padding",
            "triple",
            "Voxels added at the far end of each axis; smaller than max(stride, dilation).",
            output_padding,
            by_name=by_name,
        ),
    )


def _rest(by_name: bool = True) -> tuple[Argument, ...]:
    return (
        Argument("groups", "integer", "Blocks of channels that do not meet; divides Cin.", 1, by_name=by_name),
        Argument(
            "dilation", "triple", "Voxels of the output from one tap of the kernel to the next.", 1, False, by_name
        ),
    )


_CONV = ("stride", "padding", "output_padding", "groups", "dilation")
_FORWARD = (
    Argument("weight", "tensor", "(Cout, Cin/groups, Kd, Kh, Kw), as PyTorch has it; of the input's type."),
    _bias(by_name=False),
    Argument("stride", "triple", "Voxels of the input from one of the output to the next.", 1),
    Argument("padding", "padding", 'Voxels added at each end of each axis; "same" keeps the size (stride 1).', 0),
    Argument("dilation", "triple", "Voxels of the input from one tap of the kernel to the next.", 1),
    Argument("groups", "integer", "Blocks of channels that do not meet; divides Cin and Cout.", 1),
    Argument(
        "padding_mode",
        "word",
        'What the added voxels are: "zeros", "reflect", "replicate" or "circular".',
        "zeros",
        by_name=True,
    ),
)
_SHAPE = "(B, Cout, D', H', W')"
_NORM_NAMES = {"multiply_other": "norm_weight", "add_other": "norm_bias", "kernel_size": "average-pool kernel"}
_CLAMP_NAMES = {"min": "clamp_min", "max": "clamp_max", "min, max": "clamp_min, clamp_max"}


def _conv(given: Mapping[str, Any]) -> ConvTranspose3d:
    return ConvTranspose3d(**{name: given[name] for name in (*_CONV, "bias")})


def _layer_norm(given: Mapping[str, Any]) -> list[Stage]:
    """Either of weight and bias may be absent, so each is a stage of its own."""
    weight = [Multiply("channel")] if given["norm_weight"] else []
    return [LayerNorm("channels", given["eps"]), *weight, *([Add("channel")] if given["norm_bias"] else [])]


def _number(stage: type[Add | Multiply], value: Any) -> Stage:
    """Adds or multiplies by a number; a word, which the stage would take, is none."""
    return stage(real(stage.__name__, "other", value, nan=True))


# --- the operators ----------------------------------------------------------------------------------------------------

_ALL = (
    Operator(
        "conv_transpose3d_max_max_sum",
        "conv-transpose3d-max-max-sum",
        "conv_transpose3d + bias -> max-pool 2 -> max-pool 3 -> sum over channels.",
        "(B, 1, D', H', W')",
        (_INPUT, _WEIGHT, _bias(by_name=False), *_geometry(2, 2, 0, by_name=True), *_rest()),
        lambda given: Pipeline(_conv(given), MaxPool3d(2), MaxPool3d(3), Sum("channels")),
        ("weight", "bias"),
        ("padding=0", (2, 1, 1, 1, 1)),
        {"kernel_size": "max-pool kernel"},
    ),
    Operator(
        "conv_transpose3d_sum_layernorm_avgpool_gelu",
        "conv-transpose3d-sum-layernorm-avgpool-gelu",
        "conv_transpose3d -> + sum_weight -> LayerNorm over channels -> average-pool 2 -> GELU.",
        _SHAPE,
        (
            _INPUT,
            _WEIGHT,
            Argument("sum_weight", "real", "The number that is added.", 1.0),
            *_geometry(2, 1, 1),
            _bias(),
            *_NORM,
            *_rest(),
        ),
        lambda given: Pipeline(
            _conv(given),
            _number(Add, given["sum_weight"]),
            *_layer_norm(given),
            AvgPool3d(2),
            GELU(given["approximate"]),
        ),
        ("weight", "bias", "norm_weight", "norm_bias"),
        ("sum_weight=0.5", (2, 4, 3, 4, 5)),
        {"other": "sum_weight", **_NORM_NAMES},
    ),
    Operator(
        "conv_transpose3d_avgpool_clamp_softmax_multiply",
        "conv-transpose3d-avgpool-clamp-softmax-multiply",
        "average-pool of input -> conv_transpose3d -> clamp -> softmax over the voxels of each channel -> * scale.",
        _SHAPE,
        (
            _INPUT,
            _WEIGHT,
            Argument("scale", "tensor", "(Cout,) or (1, Cout, 1, 1, 1): multiplies the channels."),
            *_geometry(2, 1, 1),
            Argument("pool_kernel", "window", "Size and stride of the average-pool's window.", 2),
            Argument("clamp_min", "real", "Lower bound; None for none.", 0.0, True),
            Argument("clamp_max", "real", "Upper bound; None for none.", 1.0, True),
            _bias(),
            *_rest(),
        ),
        lambda given: Pipeline(
            AvgPool3d(given["pool_kernel"]),
            _conv(given),
            Clamp(given["clamp_min"], given["clamp_max"]),
            Softmax("spatial"),
            Multiply("channel"),
        ),
        ("weight", "bias", "scale"),
        ("ones(4, **kind)", (2, 4, 2, 4, 4)),
        {"multiply_other": "scale", "kernel_size": "pool_kernel", **_CLAMP_NAMES},
    ),
    Operator(
        "conv_transpose3d",
        "conv-transpose-3d-asym-input-sq-kernel",
        "Transposed 3-D convolution, as `torch.nn.functional.conv_transpose3d`.",
        f"{_SHAPE}; D' = (D - 1) * stride - 2 * padding + dilation * (Kd - 1) + output_padding + 1",
        (_INPUT, _WEIGHT, _bias(by_name=False), *_geometry(1, 0, 0), *_rest(by_name=False)),
        lambda given: Pipeline(_conv(given)),
        ("weight", "bias"),
        ("stride=2, padding=1", (2, 4, 5, 7, 9)),
    ),
    Operator(
        "conv3d",
        None,
        "3-D convolution, as `torch.nn.functional.conv3d`.",
        f"{_SHAPE}; D' = (D + 2 * padding - dilation * (Kd - 1) - 1) // stride + 1",
        (_INPUT, *_FORWARD),
        lambda given: Pipeline(
            Conv3d(**{name: given[name] for name in ("bias", *(a.name for a in _FORWARD[2:]))}),
        ),
        ("weight", "bias"),
        ("padding=1", (2, 4, 3, 4, 5)),
    ),
    Operator(
        "conv_transpose3d_layernorm_gelu_scaling",
        "conv-transpose3d-layernorm-gelu-scaling",
        "conv_transpose3d -> LayerNorm over channels -> GELU -> * scaling_factor.",
        _SHAPE,
        (
            _INPUT,
            _WEIGHT,
            Argument("scaling_factor", "real", "The number that the result is multiplied by.", 1.0),
            *_geometry(2, 1, 0),
            _bias(),
            *_NORM,
            *_rest(),
        ),
        lambda given: Pipeline(
            _conv(given),
            *_layer_norm(given),
            GELU(given["approximate"]),
            _number(Multiply, given["scaling_factor"]),
        ),
        ("weight", "bias", "norm_weight", "norm_bias"),
        ("scaling_factor=0.5", (2, 4, 5, 7, 9)),
        {"other": "scaling_factor", **_NORM_NAMES},
    ),
)
OPERATORS: Mapping[str, Operator] = {operator.name: operator for operator in _ALL}
