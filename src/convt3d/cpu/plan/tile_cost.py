"""Which tiling a sweep takes: the cheapest by a model of cycles.

The choice depends on shapes and the machine, never on the number of threads: statistics are summed tile by tile, so the
same tiles give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import inf, prod

from ...plan.sweeps import Sweep
from ..steps.base import Step, Where
from .rooms import round_up
from .tiles import Tiling, Tilings

CACHES = 4  # scratch of a thread may be this many times the second-level cache
_MOST_TILES = 1024  # of a sample, where larger tiles are possible
_MOST_SCRATCH = 64  # bytes of scratch that all tiles go through for each byte of the arrays
_MOST_SHARES = 8  # that a sample's tiles are balanced over: many small tiles cost more than they balance


def choose(sweep: Sweep, steps: Sequence[Step], where: Where) -> Tiling:
    """The cheapest tiling by `cost` among those whose scratch is small."""
    sizes, machine, item, method = sweep.result[2:], where.machine, where.item, where.method
    tilings = Tilings(sweep, steps, where)
    if steps[0].in_order:
        return _in_order(tilings)
    whole, limit = tilings.periods, CACHES * machine.l2

    def fits(tiling: Tiling, room: int) -> bool:
        """Also where channels are taken in parts, scratch has room for all of them. Where direct summation takes them,
        nothing else would bound it."""
        return tiling.passing <= room and (not method.direct or tiling.part is None or tiling.scratch <= limit)

    def wasteful(tiling: Tiling) -> bool:
        """Tiles that go through far more memory than the arrays have."""
        elements = prod(sweep.shape[1:]) + prod(sweep.result[1:])
        return tiling.items * tiling.scratch > _MOST_SCRATCH * item * elements

    w = sizes[2]
    if not any(
        step.needs_whole_rows for step in steps
    ):  # rows are cut only where few are too much already, and it pays
        least, room = (1, 1), machine.l2 // 2
        if not method.direct:
            least, room = (min(sizes[0], whole[0]), min(sizes[1], whole[1])), 2 * machine.l2
        parts = _parts(w, whole[2])
        w = next((n for n in parts if fits(tilings.of((*least, n)), room)), parts[-1])
        if -(-sizes[2] // w) > _MOST_TILES:
            w = _largest([tilings.of((*least, n)) for n in parts]).tile[2]
    both = (False, True) if any(step.convolves for step in steps) else (False,)
    shares = min(machine.cores, _MOST_SHARES)
    depths, heights = (_parts(size, period)[::-1] for size, period in zip(sizes, whole[:2], strict=False))

    def small(most_tiles: float) -> list[Tiling]:
        """Tilings of small scratch and not too many tiles."""
        found = []
        for width, copies, h in product(dict.fromkeys((w, sizes[2])), both, heights):
            for d in depths:
                if -(-sizes[0] // d) * -(-sizes[1] // h) * -(-sizes[2] // width) > most_tiles:
                    continue
                tiling = tilings.of((d, h, width), copies)
                if not fits(tiling, limit):
                    break  # deeper ones are larger still
                found.append(tiling)
                if (
                    tilings.shared and tiling.items < shares and 2 * tiling.passing <= machine.l2
                ):  # weights come beside it
                    found.append(tilings.of((d, h, width), copies, shares))
        return found

    options = small(_MOST_TILES) or small(inf)

    def every() -> list[Tiling]:
        return [tilings.of((d, h, w), copies) for copies, h, d in product(both, heights, depths)]

    if options:
        best = min(options, key=lambda tiling: cost(sweep, steps, where, tiling))
    else:  # as small as can be, and of those that are equally so, the largest tiles
        lone = [tiling for tiling in every() if tilings.shared and tiling.items < shares]
        parts_of = [tilings.of(tiling.tile, tiling.copies, shares) for tiling in lone]
        best = min([*every(), *parts_of], key=lambda tiling: (tiling.scratch, prod(tiling.counts)))
    return _largest(every()) if wasteful(best) else best


def _in_order(tilings: Tilings) -> Tiling:
    """Items that lie in memory as one run, or as few as can be: channels, or planes or rows of one."""
    _, channels, depth, height, width = tilings.sweep.result
    machine, item = tilings.where.machine, tilings.where.item
    everything = channels * depth * height * width
    most = max(_SHORTEST_RUN, min(machine.l2 // 2, item * everything // (4 * machine.cores))) // item
    w = min(width, most)
    h = min(height, max(1, most // w))
    d = min(depth, max(1, most // (h * w)))
    together = max(1, most // (d * h * w))
    return tilings.of((d, h, w), shares=-(-channels // together))


_SHORTEST_RUN = 64 << 10  # bytes: below, the ends of runs cost as much as they balance


def _largest(tilings: list[Tiling]) -> Tiling:
    """The largest tiles that take at most twice the scratch of the smallest. A long dilation needs a long piece of the
    input for one output already: tiles as small as that would go through it again and again."""
    room = 2 * min(tiling.scratch for tiling in tilings)
    return min((one for one in tilings if one.scratch <= room), key=lambda one: (prod(one.counts), one.scratch))


def _parts(size: int, period: int) -> list[int]:
    """size, and the sizes that cut it into 2, 3, 4, 6, 8, 12, ... nearly equal parts of whole periods."""
    parts = {1}
    for power in range(size.bit_length()):
        parts |= {2**power, 3 * 2**power}
    return sorted({min(size, round_up(-(-size // part), period)) for part in parts if part <= size}, reverse=True)


def cost(sweep: Sweep, steps: Sequence[Step], where: Where, tiling: Tiling) -> float:
    """Cycles of one sample, roughly: what the register tile needs, and what is moved around it."""
    machine, item, lanes = where.machine, where.item, where.lanes
    slow = 1 if tiling.passing <= machine.l2 else 2 if tiling.passing <= 2 * machine.l2 else 4
    moved = 6 * (slow * (tiling.moved - tiling.near) + tiling.near) / item / lanes
    share = tiling.share
    inputs = sweep.shape[1] * share.groups // where.groups
    outputs = min(share.channels, sweep.result[1])
    moved += _RUN * (_runs(tiling, inputs, "read", 0) + _runs(tiling, outputs, "write", -1))
    work = 300 + moved + sum(step_cycles(steps, where, tiling)) / share.number
    tiles = tiling.items  # of one sample: a sample's bits must not depend on how many come with it
    shares = min(machine.cores, _MOST_SHARES)
    balance = -(-tiles // shares) * shares / tiles
    alone = tiles < shares and work * tiles > _WORTH_SHARING  # some threads would have nothing to do
    return work * tiles * (balance if alone else 1 + (balance - 1) / 2)


_WORTH_SHARING = 100_000  # cycles: below, no other thread is woken up
_RUN = 400  # cycles lost where memory is not contiguous: a miss that no prefetcher saw coming


def _runs(tiling: Tiling, channels: int, what: str, step: int) -> int:
    """Contiguous pieces of an array that a tile touches: whole rows and planes join."""
    extents = [axis.longest(step, what) for axis in tiling.axes]
    whole = [axis.count == 1 for axis in tiling.axes]
    if not whole[2]:
        return channels * extents[0] * extents[1]
    return channels * (1 if whole[1] else extents[0])


def step_cycles(steps: Sequence[Step], where: Where, tiling: Tiling) -> tuple[float, float]:
    """Of a tile's products, and of the transforms around them."""
    each = [step.cost(where, tiling) for step in steps]
    return sum(products for products, _ in each), sum(transforms for _, transforms in each)
