"""The five problems: what their files say, the pipeline each of them means, and arrays to try it on.

problem = PROBLEMS["conv-transpose3d-layernorm-gelu-scaling"]
pipeline = problem.pipeline(problem.benchmark)
arrays = problem.make_inputs(problem.sample, numpy.random.default_rng(0))
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentTypeError, ShapeError, UnknownProblemError, described, named
from .checks import integer, is_a, real
from .operators import OPERATORS, Argument, Operator
from .pipeline import Pipeline
from .problem_file import SIZE, ProblemFile, Values, load

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
    "weight": "kernel",
    "bias": "conv_bias",
    "out": "output",
}

_AT_LEAST_ONE = ("stride_", "dilation_", "groups", "pool_kernel")


@dataclass(frozen=True, eq=False)
class Problem(ProblemFile):
    """A problem file and its meaning. `values` are the sizes and scalars `solution` takes, by name."""

    operator: Operator

    def build(self, values: Values) -> Pipeline:
        """The pipeline of checked values."""
        return self.operator.pipeline([_value(each, self, values) for each in self.operator.arguments])

    @property
    def operand_names(self) -> tuple[str, ...]:
        """The tensors after `input`, in the order of the pipeline's slots."""
        return tuple(p.name for p in self.parameters if p.pointer and p.name not in ("input", "output"))

    @property
    def argument_names(self) -> Mapping[str, str]:
        """For `errors.named`: this problem's names of what the stages call otherwise."""
        return {**_ARGUMENT_NAMES, **self.operator.renamed}

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


def _value(argument: Argument, problem: ProblemFile, values: Values) -> Any:
    """What the problem says of an argument of its operator, or the default; of a tensor, whether the problem has it."""
    if argument.kind == "tensor":
        return any(_ARGUMENT_NAMES.get(argument.name, argument.name) == p.name for p in problem.parameters)
    if f"{argument.name}_d" in values:
        return tuple(values[f"{argument.name}_{axis}"] for axis in "dhw")
    return values.get(argument.name, argument.default)


_OPERATORS = {operator.slug: operator for operator in OPERATORS.values() if operator.slug}


def short_name(slug: str) -> str:
    """What tells one problem from another: all of them are transposed convolutions."""
    return slug.removeprefix("conv-transpose3d-").removeprefix("conv-transpose-3d-")


_SLUGS = {short_name(slug): slug for slug in _OPERATORS}

# --- the table of them ------------------------------------------------------------------------------------------------

AnyProblem = TypeVar("AnyProblem", bound=Problem)


class ProblemTable(Mapping[str, AnyProblem], Generic[AnyProblem]):
    """The five problems by their slugs, or the short names of them, in the order in which they were published.

    `problems[slug].solution` takes tensors, sizes and scalars in the order of the problem's text and writes `output`.
    A file is read when its problem is first asked for.

    Raises
    ------
    convt3d.UnknownProblemError
        A slug that names none of them.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.problems["max-max-sum"].title
    'ConvTranspose3D Max Max Sum'
    """

    def __init__(self, kind: type[AnyProblem]) -> None:
        self._kind = kind
        self._read: dict[str, AnyProblem] = {}

    def __getitem__(self, slug: str) -> AnyProblem:
        """By its slug, or the short name of it."""
        slug = _SLUGS.get(slug, slug) if is_a(slug, str) else slug
        if not is_a(slug, str) or slug not in _OPERATORS:
            text = slug[:100] if is_a(slug, str) else ""
            near = difflib.get_close_matches(text, [*_SLUGS, *_OPERATORS], n=1, cutoff=0.3)
            remedy = f"The nearest is {near[0]!r}" if near else "Use one of them"
            raise UnknownProblemError("problems", "slug", slug, f"must be one of {', '.join(_SLUGS)}", remedy)
        if slug not in self._read:
            path = resources.files(__package__) / "problem_data" / f"{slug}.md"
            file = load(path.read_text(encoding="utf-8"), str(path), complete=True)
            self._read[slug] = self._kind(**vars(file), operator=_OPERATORS[slug])
        return self._read[slug]

    def __iter__(self) -> Iterator[str]:
        return iter(_OPERATORS)

    def __len__(self) -> int:
        return len(_OPERATORS)

    def __repr__(self) -> str:
        return f"<problems {', '.join(self)}>"


PROBLEMS = ProblemTable(Problem)
