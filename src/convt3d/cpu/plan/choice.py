"""Which algorithm computes the convolution, axis by axis: direct summation, or Winograd's method where it costs
less."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import inf, prod

from ...plan.sweeps import Sweep
from ...spec.checks import one_of
from ...spec.pipeline import Pipeline, Trace
from ..steps.base import Step, Where
from ..steps.lowering import steps_of
from .geometry import conv_axes
from .pieces import Pieces, ways_to_cut
from .tile_cost import CACHES, choose, cost, step_cycles
from .tiles import Tiling, Tilings
from .winograd import EXACT_POINTS, MOST_PACE, MOST_POINTS, AxisMethod, Method, axis_methods

ALGORITHMS = ("auto", "direct", "winograd")
PRECISIONS = ("full", "fast")


@dataclass(frozen=True)
class Options:
    """What a caller may ask for.

    algorithm: "auto" takes what the cost model says is faster, "direct" sums products one by one, "winograd" takes
    Winograd's method wherever there is a plan for it that fits the caches. precision: "full" rounds no worse than
    direct summation, "fast" allows schemes of more outputs and points, whose errors are some ten times larger
    (docs/math.md has the figures). No caller gives the others. outputs: made together along each axis, for parts of a
    result whose plan has chosen them, with its pieces and deep. apart: whether a pool before the convolution has a
    sweep of its own. plain: code without the shortcuts that libraries for C leave out (docs/c_library.md). masked:
    products with what surrounds the array are left out, as weights that are not finite want it. turns: whether a
    max-pool over whole turns of phases begins with the phases. averages: whether those right after the convolution may
    go into its weights. pairs: whether those of bfloat16 numbers may be multiplied. longer: whether a transposed
    convolution takes longer strides along axes with one input, which libraries do not.
    """

    algorithm: str = "auto"
    precision: str = "full"
    outputs: tuple[int, int, int] | None = None
    apart: bool | None = None
    plain: bool = False
    masked: bool = False
    turns: bool = True
    averages: bool = True
    pairs: bool = True
    longer: bool = True
    pieces: Pieces | None = None
    deep: int = 0

    def __post_init__(self) -> None:
        one_of("options", "algorithm", self.algorithm, ALGORITHMS)
        one_of("options", "precision", self.precision, PRECISIONS)

    @property
    def points(self) -> int:
        return EXACT_POINTS if self.precision == "full" else MOST_POINTS


AUTO, DIRECT = Options(), Options("direct")
MASKED = Options("direct", masked=True)


@dataclass(frozen=True)
class Choice:
    """How a sweep is computed."""

    where: Where  # with the method of the convolution
    steps: tuple[Step, ...]
    tiling: Tiling


def choose_method(sweep: Sweep, where: Where, options: Options) -> Choice:
    """The method that costs least, and the tiling with it; `where` has direct summation."""
    direct = _direct(sweep, where, options)
    if options.algorithm == "direct" or not any(step.convolves for step in direct.steps):
        return direct
    if options.outputs is not None:
        method = _method_of(where.pipeline, where.trace, options, options.outputs)
        return direct if method.direct else _choice(sweep, replace(where, method=method))
    found = [_choice(sweep, replace(where, method=method)) for method in _methods(sweep, where, options, direct.tiling)]
    if options.algorithm == "auto" or not found:
        found.append(direct)
    return min(found, key=lambda choice: cost(sweep, choice.steps, choice.where, choice.tiling))


_OF_THE_SLAB = 8  # a slab below this part of the second-level cache is not what makes a tile too large


def _direct(sweep: Sweep, where: Where, options: Options) -> Choice:
    """Direct summation, in pieces where the slab of a whole tile would be too large and that costs less."""
    if options.outputs is not None:
        return _choice(sweep, replace(where, pieces=options.pieces, deep=options.deep))
    whole = _choice(sweep, where)
    slab, l2 = whole.tiling.slab, where.machine.l2
    heavy = slab is not None and slab.copies * slab.copy * where.item > l2 // _OF_THE_SLAB
    large = (whole.tiling.passing > l2 and heavy) or whole.tiling.axes[2].count > 1
    deep = _deep(where)
    if where.plain or not (large or deep) or not any(step.convolves for step in whole.steps):
        return whole
    ways = ways_to_cut(where.method.walks, where.in_group) if large else []
    tried = [whole, *(_choice(sweep, replace(where, pieces=pieces)) for pieces in ways)]
    if deep:
        tried.append(_choice(sweep, replace(where, deep=deep)))
    room = CACHES * where.machine.l2
    small = [choice for choice in tried if choice.tiling.scratch <= room]
    return min(small or tried, key=lambda choice: cost(sweep, choice.steps, choice.where, choice.tiling))


_FEWEST_DEEP = 8


def _deep(where: Where) -> int:
    """Pairs of channels of a product of tiles, 0 where there are no tiles or they would be used badly: as many as
    divide the channels of a group, so that none is of two taps."""
    if not where.pairs or not where.machine.multiplies_tiles or where.plain:
        return 0
    most = max(deep for deep in range(1, 17) if where.in_group % deep == 0)
    return most if most >= _FEWEST_DEEP and where.kernel[1] >= _FEWEST_DEEP else 0


def direct_method(pipeline: Pipeline, trace: Trace, options: Options) -> Method:
    return _method_of(pipeline, trace, options, (1, 1, 1))


def _method_of(pipeline: Pipeline, trace: Trace, options: Options, outputs: tuple[int, int, int]) -> Method:
    axes = zip(conv_axes(pipeline, trace), outputs, strict=True)
    d, h, w = (AxisMethod(axis, together, options.points) for axis, together in axes)
    return Method((d, h, w))


def _choice(sweep: Sweep, where: Where) -> Choice:
    steps = steps_of(sweep, where)
    return Choice(where, steps, choose(sweep, steps, where))


_TRIED = 3
_CHUNK_CACHES = 8  # transformed inputs and products of a chunk may be this many times the second-level cache


def _methods(sweep: Sweep, where: Where, options: Options, direct: Tiling) -> list[Method]:
    """The best by the cost of the convolution alone, in tiles like those of direct summation.

    Each axis is plain or makes m outputs together, the same m for all that do: mixtures were hardly ever faster, and
    every method is code of its own that varying volumes would ask for.
    """

    def rough(method: Method) -> float:
        so = replace(where, method=method)
        steps = steps_of(sweep, so)
        tilings = Tilings(sweep, steps, so)
        d, h, w = (
            min(size, -(-length // period) * period)
            for size, length, period in zip(sweep.result[2:], direct.tile, tilings.periods, strict=True)
        )
        tiling = tilings.of((d, h, w))
        if tiling.chunk > _CHUNK_CACHES * where.machine.l2:
            return inf
        return sum(step_cycles(steps, so, tiling)) * prod(tiling.counts)

    axes = conv_axes(where.pipeline, where.trace)
    if where.kernel[0] // where.groups * where.kernel[1] < _FEWEST_PAIRS or axes[2].inputs_per_output > MOST_PACE:
        return []
    d, h, w = (axis_methods(axis, options.points) for axis in axes)
    choices = (Method(axes) for axes in product(d, h, w) if len({axis.outputs for axis in axes} - {1}) == 1)
    ranked = sorted((rough(method), number, method) for number, method in enumerate(choices) if _is_small(method))
    return [method for cycles, _, method in ranked[:_TRIED] if cycles < inf]


_MOST_GROUPS, _MOST_PIECES = 512, 512
_FEWEST_PAIRS = 8  # of input and output channels in a group: below, transforms cost more than they save


def _is_small(method: Method) -> bool:
    """Long strides and dilations have very many phases, and long kernels very many pieces, which would take longer to
    plan than to sum."""
    groups = [axis.groups() for axis in method.axes]
    return (
        prod(map(len, groups)) <= _MOST_GROUPS and prod(max(g.pieces for g in axis) for axis in groups) <= _MOST_PIECES
    )
