"""The five problems: what their files say, the pipeline each of them means, and arrays to try it on.

problem = PROBLEMS["conv-transpose3d-layernorm-gelu-scaling"]
pipeline = problem.pipeline(problem.benchmark)
arrays = problem.make_inputs(problem.sample, numpy.random.default_rng(0))
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentTypeError, ShapeError, UnknownProblemError, described, named
from .checks import Triple, integer, is_a, real
from .pipeline import Pipeline
from .problem_file import SIZE, ProblemFile, Values, load
from .stages import GELU, Add, AvgPool3d, Clamp, ConvTranspose3d, LayerNorm, MaxPool3d, Multiply, Softmax, Sum

Array: TypeAlias = npt.NDArray[np.float64]

# The parameters that are the sizes of each tensor. `kernel` holds out_channels / groups; `scale` is (1, Cout, 1, 1, 1).
TENSOR_AXES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "input": ("batch_size", "in_channels", "depth", "height", "width"),
        "kernel": ("in_channels", "out_channels", "kernel_d", "kernel_h", "kernel_w"),
        "conv_bias": ("out_channels",),
        "scale": ("out_channels",),
    }
)

# What the stages call their arguments, and what the problems call them.
_ARGUMENT_NAMES = {
    **{name: f"{name}_d, {name}_h, {name}_w" for name in ("stride", "padding", "output_padding", "dilation")},
    "x": "input",
    "w": "kernel",
    "bias": "conv_bias",
    "multiply_other": "scale",
    "out": "output",
    "min": "clamp_min",
    "max": "clamp_max",
    "min, max": "clamp_min, clamp_max",
}

_AT_LEAST_ONE = ("stride_", "dilation_", "groups", "pool_kernel")


@dataclass(frozen=True, eq=False)
class Problem(ProblemFile):
    """A problem file and its meaning. `values` are the sizes and scalars `solution` takes, by name."""

    build: Callable[[Values], Pipeline]

    @property
    def operand_names(self) -> tuple[str, ...]:
        """The tensors after `input`, in the order of the pipeline's slots."""
        return tuple(p.name for p in self.parameters if p.pointer and p.name not in ("input", "output"))

    @property
    def argument_names(self) -> Mapping[str, str]:
        """For `errors.named`: this problem's names of what the stages call otherwise."""
        pool = {"kernel_size": "pool_kernel"} if "pool_kernel" in self.sample else {}
        return {**_ARGUMENT_NAMES, **pool}

    def pipeline(self, values: Mapping[str, Any]) -> Pipeline:
        with named(self.slug, self.argument_names):
            return self.build(self.checked(values))

    def shapes(self, values: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor parameter, `output` among them."""
        values = self.checked(values)
        shapes = {name: tuple(values[axis] for axis in TENSOR_AXES[name]) for name in ("input", *self.operand_names)}
        cin, cout, *taps = shapes["kernel"]
        shapes["kernel"] = (cin, _per_group(self.slug, cout, values.get("groups", 1)), *taps)
        if "scale" in shapes:
            shapes["scale"] = (1, cout, 1, 1, 1)
        with named(self.slug, self.argument_names):
            trace = self.build(values).trace(shapes["input"], [shapes[name] for name in self.operand_names])
        return {**shapes, "output": trace.output}

    def checked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Plain numbers in the problem's order: exactly its sizes and scalars, each of the right kind."""
        kinds = {p.name: p.type for p in self.parameters if not p.pointer}
        for name in (*values, *kinds):
            if name not in values or name not in kinds:
                rule = f"is {'missing' if name in kinds else 'unknown'}; the problem has {', '.join(kinds)}"
                received = values[name] if name in values else described("no value")
                raise ArgumentTypeError(self.slug, name, received, rule, "Give a number for each of them")
        return {name: self._number(name, kind, values[name]) for name, kind in kinds.items()}

    def _number(self, name: str, kind: str, value: Any) -> int | float:
        if kind == SIZE:
            return integer(self.slug, name, value, 1 if name.startswith(_AT_LEAST_ONE) else 0)
        return real(self.slug, name, value, nan=True)

    def make_inputs(self, values: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Array]:
        """Random signed tensors, `output` left out, for which no stage saturates: the convolution's result has the
        spread of a standard normal, or of the clamp's bounds, so that some of its voxels lie between them."""
        shapes = self.shapes(values)
        arrays = {name: rng.standard_normal(shapes[name]) for name in shapes if name != "output"}
        arrays["kernel"] *= _spread(values) / math.sqrt(_terms(values))
        if "scale" in arrays:
            scale = arrays["scale"]
            arrays["scale"] = np.copysign(rng.uniform(0.5, 1.5, scale.shape), scale)  # a 0 would hide its channel
        return arrays


def _per_group(slug: str, cout: int, groups: int) -> int:
    if cout % groups:
        rule = f"must divide the {cout} output channels"
        raise ShapeError(slug, "groups", groups, rule, "Choose a divisor of in_channels and out_channels")
    return cout // groups


def _terms(values: Mapping[str, Any]) -> float:
    """How many products of standard normals an average result voxel sums, a pool's average counted as a shrinking."""
    taps = math.prod(max(1.0, values[f"kernel_{axis}"] / values[f"stride_{axis}"]) for axis in "dhw")
    return float(values["in_channels"] / values.get("groups", 1) * taps / values.get("pool_kernel", 1) ** 3)


def _spread(values: Mapping[str, Any]) -> float:
    """Wide enough to reach into the clamp's range and out of it, unless the softmax would then be all 0 and 1."""
    low, high = values.get("clamp_min", -math.inf), values.get("clamp_max", math.inf)
    bounds = [abs(bound) for bound in (low, high) if math.isfinite(bound) and bound]
    if not bounds:
        return 1.0
    nearest = 0.0 if low <= 0.0 <= high else min(bounds)
    return float(max(nearest, min(max(bounds), 4.0)))


# --- what each problem means ------------------------------------------------------------------------------------------


def _axes(values: Values, name: str) -> Triple:
    d, h, w = (int(values[f"{name}_{axis}"]) for axis in "dhw")
    return d, h, w


def _conv(values: Values) -> ConvTranspose3d:
    return ConvTranspose3d(_axes(values, "stride"), _axes(values, "padding"), _axes(values, "output_padding"))


def _max_max_sum(values: Values) -> Pipeline:
    conv = ConvTranspose3d(_axes(values, "stride"), _axes(values, "padding"), bias=True)
    return Pipeline(conv, MaxPool3d(2), MaxPool3d(3), Sum("channels"))


def _sum_layernorm_avgpool_gelu(values: Values) -> Pipeline:
    return Pipeline(_conv(values), Add(values["sum_weight"]), LayerNorm(), AvgPool3d(2), GELU())


def _avgpool_clamp_softmax_multiply(values: Values) -> Pipeline:
    pool = AvgPool3d(int(values["pool_kernel"]))
    clamp = Clamp(values["clamp_min"], values["clamp_max"])
    return Pipeline(pool, _conv(values), clamp, Softmax("spatial"), Multiply("channel"))


def _asym_input_sq_kernel(values: Values) -> Pipeline:
    stride, padding, output_padding, dilation = (
        _axes(values, name) for name in ("stride", "padding", "output_padding", "dilation")
    )
    return Pipeline(ConvTranspose3d(stride, padding, output_padding, int(values["groups"]), dilation))


def _layernorm_gelu_scaling(values: Values) -> Pipeline:
    return Pipeline(_conv(values), LayerNorm(), GELU(), Multiply(values["scaling_factor"]))


_MEANINGS: dict[str, Callable[[Values], Pipeline]] = {
    "conv-transpose3d-max-max-sum": _max_max_sum,
    "conv-transpose3d-sum-layernorm-avgpool-gelu": _sum_layernorm_avgpool_gelu,
    "conv-transpose3d-avgpool-clamp-softmax-multiply": _avgpool_clamp_softmax_multiply,
    "conv-transpose-3d-asym-input-sq-kernel": _asym_input_sq_kernel,
    "conv-transpose3d-layernorm-gelu-scaling": _layernorm_gelu_scaling,
}


def short_name(slug: str) -> str:
    """What tells one problem from another: all of them are transposed convolutions."""
    return slug.removeprefix("conv-transpose3d-").removeprefix("conv-transpose-3d-")


_SLUGS = {short_name(slug): slug for slug in _MEANINGS}

# --- the table of them ------------------------------------------------------------------------------------------------

AnyProblem = TypeVar("AnyProblem", bound=Problem)


class ProblemTable(Mapping[str, AnyProblem], Generic[AnyProblem]):
    """Slug -> problem, in the order of the published problems; a file is read when its problem is first asked for."""

    def __init__(self, kind: type[AnyProblem]) -> None:
        self._kind = kind
        self._read: dict[str, AnyProblem] = {}

    def __getitem__(self, slug: str) -> AnyProblem:
        """By its slug, or the short name of it."""
        slug = _SLUGS.get(slug, slug) if is_a(slug, str) else slug
        if not is_a(slug, str) or slug not in _MEANINGS:
            text = slug[:100] if is_a(slug, str) else ""
            near = difflib.get_close_matches(text, [*_SLUGS, *_MEANINGS], n=1, cutoff=0.3)
            remedy = f"The nearest is {near[0]!r}" if near else "Use one of them"
            raise UnknownProblemError("problems", "slug", slug, f"must be one of {', '.join(_SLUGS)}", remedy)
        if slug not in self._read:
            path = resources.files(__package__) / "problem_data" / f"{slug}.md"
            file = load(path.read_text(encoding="utf-8"), str(path), complete=True)
            self._read[slug] = self._kind(**vars(file), build=_MEANINGS[slug])
        return self._read[slug]

    def __iter__(self) -> Iterator[str]:
        return iter(_MEANINGS)

    def __len__(self) -> int:
        return len(_MEANINGS)

    def __repr__(self) -> str:
        return f"<problems {', '.join(self)}>"


PROBLEMS = ProblemTable(Problem)
