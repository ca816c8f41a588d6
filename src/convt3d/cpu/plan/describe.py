"""Says of every pass of a Plan which stages share it, what its steps are and why it ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from ...plan.passes import Chain, Conv, Finish, Pass, PhasePool, Pool, Reduce, RowNorm
from ...spec.shapes import ConvAxis
from ...spec.stage import Stage
from ...spec.stages import Binary, GroupNorm, Keep, Recall
from .plan import PassPlan, Plan
from .structure import RegisterTile

_STATISTICS = {
    "sum": "sum",
    "max": "maximum",
    "maxexp": "maximum and sum of exponentials",
    "moments": "mean and sum of squared distances",
}


@dataclass(frozen=True)
class Account:
    """One pass in words."""

    stages: tuple[str, ...]
    steps: tuple[str, ...]
    ends: str


def describe(plan: Plan) -> tuple[Account, ...]:
    """An account of each pass."""
    stages = _shared_stages(plan)
    return tuple(
        Account(shared, tuple(_Words(plan, one).steps()), _why_it_ends(plan, number, one.steps))
        for number, (shared, one) in enumerate(zip(stages, plan.passes, strict=True))
    )


def register_tile(one: PassPlan) -> RegisterTile | None:
    """The register tile of the pass's convolution."""
    return next(
        (extra.tile for op, extra in zip(one.steps.ops, one.structure.ops, strict=True) if isinstance(op, Conv)), None
    )


def by(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


# --- which stages share a pass ----------------------------------------------------------------------------------------


def _shared_stages(plan: Plan) -> list[tuple[str, ...]]:
    """The stages of each pass. One that needs statistics is in two: it makes them, and applies them."""
    stages = plan.rewritten.pipeline.stages
    finishes = _finishes(plan)
    place, shared = 0, []
    for one in plan.passes:
        names: list[str] = []
        for run, arrays in _stages_run(plan, one.steps):
            statistic = next((name.split(".")[0] for name in arrays if name.startswith("stat")), None)
            if statistic is not None:
                names.append(f"{finishes[statistic].stage.name} (applied)")
            elif (found := _find(stages, place, run)) is not None:
                names.append(stages[found].name)
                place = found + 1
        finish = one.steps.finish
        if finish is not None:
            names.append(finish.stage.name + (" (statistics)" if finish.result.startswith("stat") else ""))
            place = next(at for at in range(place, len(stages)) if stages[at] is finish.stage) + 1
        applied = [name for at, name in enumerate(names) if not name.endswith("(applied)") or name not in names[:at]]
        shared.append(tuple(applied))
    return shared


def _stages_run(plan: Plan, one: Pass) -> Iterator[tuple[Stage, tuple[str, ...]]]:
    """The stages of the steps, as they run, with the arrays they read."""
    for op in one.ops:
        if isinstance(op, (Conv, Pool, PhasePool)):
            yield plan.rewritten.pipeline.stages[op.stage], ()
        elif isinstance(op, RowNorm):
            yield op.stage, op.arrays
        elif isinstance(op, Chain):
            yield from ((link.stage, link.arrays) for link in op.links)


def _find(stages: tuple[Stage, ...], place: int, run: Stage) -> int | None:
    """The stage from `place` on that runs as `run`; None if `run` is only a part of one, as the exp of a softmax.
    A Keep or Recall between may need no step."""
    for at in range(place, len(stages)):
        tensor = (
            isinstance(stages[at], Binary) and type(stages[at]) is type(run) and getattr(run, "other", "") == "tensor"
        )
        if stages[at] is run or tensor:
            return at
        if not isinstance(stages[at], (Keep, Recall)):
            return None
    return None


def _finishes(plan: Plan) -> dict[str, Finish]:
    finishes = (one.steps.finish for one in plan.passes)
    return {finish.result: finish for finish in finishes if finish is not None}


# --- its steps --------------------------------------------------------------------------------------------------------


class _Words:
    """The steps of one pass, a line for each."""

    def __init__(self, plan: Plan, one: PassPlan) -> None:
        self.plan, self.one = plan, one

    def steps(self) -> Iterator[str]:
        one = self.one.steps
        box = by(tuple(axis.longest(0, "read") for axis in self.one.tiling.axes))
        yield f"load {box} voxels of {self._array(one.source)}"
        for op in one.ops:
            if isinstance(op, Conv):
                yield "put them into a slab, with zeros around them"
                yield self._convolve(op)
            elif isinstance(op, Pool):
                yield repr(self.plan.rewritten.pipeline.stages[op.stage])
            elif isinstance(op, PhasePool):
                yield f"{self.plan.rewritten.pipeline.stages[op.stage]!r} over the phases of each position"
            elif isinstance(op, RowNorm):
                yield self._stage(op.stage, op.arrays)
            elif isinstance(op, Chain):
                yield from (self._stage(link.stage, link.arrays) for link in op.links)
            elif isinstance(op, Reduce):
                yield f"{_STATISTICS[op.kind]}, for each channel of the tile"
            else:
                yield "put the phases together into rows"
        if one.dest is not None:
            yield f"store in {self._array(one.dest)}" + (", past the caches" if self.one.streamed else "")

    def _convolve(self, op: Conv) -> str:
        pipeline, trace = self.plan.rewritten.pipeline, self.plan.simplified
        axes = pipeline.conv.axes(trace.values[op.stage], trace.operands[op.stage][0])
        counts = [_tap_counts(axis) for axis in axes]
        fewest, most = prod(low for low, _ in counts), prod(high for _, high in counts)
        taps = f"{most}" if fewest == most else f"{fewest} to {most}"
        channels = trace.values[op.stage][1] // pipeline.conv.groups
        count = prod(axis.stride for axis in axes)
        return f"{pipeline.conv!r}: phases {count}, taps of a phase {taps}, channels of a tap {channels}"

    def _stage(self, stage: Stage, arrays: tuple[str, ...]) -> str:
        return repr(stage) + (f" with {', '.join(map(self._array, arrays))}" if arrays else "")

    def _array(self, name: str) -> str:
        kind, _, rest = name.partition(":")
        if kind == "operand":
            return self.plan.rewritten.pipeline.slots[int(rest)].name
        if kind == "stat":
            statistic, _, word = name.partition(".")
            return f"{word} of {_finishes(self.plan)[statistic].stage.name}"
        if kind == "value":
            return f"value {rest}" + (" (in the output array)" if name in self.plan.aliases else "")
        return {"x": "the input", "out": "the output"}[name]


def _tap_counts(axis: ConvAxis) -> tuple[int, int]:
    """Taps of the phase that has fewest along an axis, and of the one that has most."""
    taps = Counter(k * axis.dilation % axis.stride for k in range(axis.kernel))
    return min(taps.values()) if len(taps) == axis.stride else 0, max(taps.values())


# --- why it ends ------------------------------------------------------------------------------------------------------


def _why_it_ends(plan: Plan, number: int, one: Pass) -> str:
    if one.dest == "out":
        return "the output is complete"
    following = plan.passes[number + 1].steps
    if one.finish is not None:
        stage, per = one.finish.stage, "group of channels" if isinstance(one.finish.stage, GroupNorm) else "channel"
        then = "applies them" if one.finish.result.startswith("stat") else "starts from the result"
        tiles = prod(plan.passes[number].tiling.counts)
        return (
            f"{stage.name} over space needs all voxels of a {per}: "
            f"statistics of tiles ({tiles} a sample) are combined, then pass {number + 2} {then}"
        )
    if following.source == one.dest and following.shape != one.result:
        return f"pass {number + 2} repeats the value from {by(one.result)} to {by(following.shape)}"
    later = [(at, other.steps) for at, other in enumerate(plan.passes) if at > number]
    readers = [at + 1 for at, other in later if _reads_again(other, one.dest, at == number + 1)]
    if readers:
        return f"the value is kept: pass {' and '.join(map(str, readers))} reads it again"
    norm = next(op.stage for op in one.ops if isinstance(op, RowNorm))
    return f"{norm.name} over {norm.over} needs whole rows, and pass {number + 2} reads windows of them"


def _reads_again(one: Pass, name: str | None, following: bool) -> bool:
    """Beside the pass that follows, which may start from it, whether kept or not."""
    recalled = one.source == name and not following
    return recalled or any(name in link.arrays for op in one.ops if isinstance(op, Chain) for link in op.links)
