"""Which algorithm computes the convolution, axis by axis: direct summation, or minimal multiplication where it costs
less."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import inf, prod

from ...plan.passes import Conv, Pass
from ...spec.checks import one_of
from ...spec.pipeline import Pipeline, Trace
from .geometry import conv_axes
from .machine import Machine
from .schemes import EXACT_POINTS, MOST_POINTS, AxisMethod, Method, axis_methods
from .tile_cost import choose, convolution_cost, cost
from .tiles import Tiling, Tilings

ALGORITHMS = ("auto", "direct", "minimal")
PRECISIONS = ("full", "fast")


@dataclass(frozen=True)
class Options:
    """What a caller may ask for.

    algorithm: "auto" takes what the cost model says is faster, "direct" sums products one by one, "minimal" takes
    minimal multiplication wherever there is a plan for it that fits the caches. precision: "full" rounds no worse than
    direct summation, "fast" allows schemes of more outputs and points, whose errors are some ten times larger
    (docs/math.md has the figures).
    """

    algorithm: str = "auto"
    precision: str = "full"

    def __post_init__(self) -> None:
        one_of("options", "algorithm", self.algorithm, ALGORITHMS)
        one_of("options", "precision", self.precision, PRECISIONS)

    @property
    def points(self) -> int:
        return EXACT_POINTS if self.precision == "full" else MOST_POINTS


AUTO, DIRECT = Options(), Options("direct")


def choose_method(pipeline: Pipeline, trace: Trace, one: Pass, machine: Machine, item: int, options: Options) -> Tiling:
    """The tiling of the pass with the method that costs least."""
    axes = conv_axes(pipeline, trace)
    d, h, w = (AxisMethod(axis, 1, options.points) for axis in axes)
    direct = choose(pipeline, trace, one, machine, item, Method((d, h, w)))
    if options.algorithm == "direct" or not any(isinstance(op, Conv) for op in one.ops):
        return direct
    candidates = _minimal_methods(pipeline, trace, one, machine, item, options, direct.tile)
    tilings = [choose(pipeline, trace, one, machine, item, method) for method in candidates]
    if options.algorithm == "auto" or not tilings:
        tilings.append(direct)
    return min(tilings, key=lambda tiling: cost(trace, one, tiling, machine, item))


_TRIED = 3
_CHUNK_CACHES = 8  # transformed inputs and products of a chunk may be this many times the second-level cache


def _minimal_methods(
    pipeline: Pipeline,
    trace: Trace,
    one: Pass,
    machine: Machine,
    item: int,
    options: Options,
    tile: tuple[int, int, int],
) -> list[Method]:
    """The best by the cost of the convolution alone, in tiles like those of direct summation.

    Each axis is plain or makes m outputs together, the same m for all that do: mixtures were hardly ever faster, and
    every method is code of its own that varying volumes would ask for.
    """

    def rough(method: Method) -> float:
        tilings = Tilings(pipeline, trace, one, machine, item, method)
        d, h, w = (
            min(size, -(-length // period) * period)
            for size, length, period in zip(one.result[2:], tile, tilings.periods, strict=True)
        )
        tiling = tilings.of((d, h, w))
        if tiling.chunk > _CHUNK_CACHES * machine.l2:
            return inf
        return convolution_cost(trace, one, tiling, machine, item) * prod(tiling.counts)

    channels_in, per_out = trace.operands[pipeline.conv_index][0][:2]
    if channels_in // pipeline.conv.groups * per_out < _FEWEST_PAIRS:
        return []
    d, h, w = (axis_methods(axis, options.points) for axis in conv_axes(pipeline, trace))
    choices = (Method(axes) for axes in product(d, h, w) if len({axis.outputs for axis in axes} - {1}) == 1)
    ranked = sorted((rough(method), number, method) for number, method in enumerate(choices) if _is_small(method))
    return [method for cycles, _, method in ranked[:_TRIED] if cycles < inf]


_MOST_GROUPS = 512
_FEWEST_PAIRS = 8  # of input and output channels in a group: below, transforms cost more than they save


def _is_small(method: Method) -> bool:
    """Long strides and dilations have very many phases, which would take longer to plan than to sum."""
    return prod(len(axis.groups()) for axis in method.axes) <= _MOST_GROUPS
