"""Says of every sweep of a Plan which stages share it, what its steps are and why it ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from ...plan.base import by
from ...plan.names import OUTPUT, ArrayName, StatisticName, StatisticsName
from ...plan.sweeps import Pad, RowNorm, Sweep
from ...spec.stage import Stage
from ...spec.stages import Binary, GroupNorm, Keep, Recall
from .plan import Plan, SweepPlan
from .winograd import HUGE


@dataclass(frozen=True)
class Account:
    """One sweep in words."""

    stages: tuple[str, ...]
    steps: tuple[str, ...]
    ends: str


def describe(plan: Plan) -> tuple[Account, ...]:
    """An account of each sweep."""
    stages = _shared_stages(plan)
    return tuple(
        Account(shared, tuple(_steps(plan, planned)), _why_it_ends(plan, number, planned.sweep))
        for number, (shared, planned) in enumerate(zip(stages, plan.sweeps, strict=True))
    )


# --- which stages share a sweep ---------------------------------------------------------------------------------------


def _shared_stages(plan: Plan) -> list[tuple[str, ...]]:
    """The stages of each sweep. One that needs statistics is in two: it makes them, and applies them."""
    stages = plan.rewritten.pipeline.stages
    finishes = plan.finishes
    place, shared = 0, []
    for planned in plan.sweeps:
        names: list[str] = []
        for run, arrays in _stages_run(plan, planned.sweep):
            statistic = next((name.made for name in arrays if isinstance(name, StatisticName)), None)
            if statistic is not None:
                names.append(f"{finishes[statistic].stage.name} (applied)")
            elif (found := _find(stages, place, run)) is not None:
                names.append(stages[found].name)
                place = found + 1
        finish = planned.sweep.finish
        if finish is not None:
            names.append(finish.stage.name + (" (statistics)" if isinstance(finish.result, StatisticsName) else ""))
            place = next(at for at in range(place, len(stages)) if stages[at] is finish.stage) + 1
        applied = [name for at, name in enumerate(names) if not name.endswith("(applied)") or name not in names[:at]]
        shared.append(tuple(applied))
    return shared


def _stages_run(plan: Plan, sweep: Sweep) -> Iterator[tuple[Stage, tuple[ArrayName, ...]]]:
    """The stages of the steps, as they run, with the arrays they read."""
    for op in sweep.ops:
        yield from ((link.stage, link.arrays) for link in op.runs(plan.rewritten.pipeline))


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


def _steps(plan: Plan, planned: SweepPlan) -> Iterator[str]:
    for step in planned.structure.steps:
        yield from step.describe(plan, planned)


# --- why it ends ------------------------------------------------------------------------------------------------------


def _why_it_ends(plan: Plan, number: int, sweep: Sweep) -> str:
    if sweep.dest == OUTPUT:
        return "the output is complete"
    following = plan.sweeps[number + 1].sweep
    if sweep.finish is not None:
        stage, per = sweep.finish.stage, "group of channels" if isinstance(sweep.finish.stage, GroupNorm) else "channel"
        then = "applies them" if isinstance(sweep.finish.result, StatisticsName) else "starts from the result"
        tiles = prod(plan.sweeps[number].tiling.counts)
        return (
            f"{stage.name} over space needs all voxels of a {per}: "
            f"statistics of tiles ({tiles} a sample) are combined, then sweep {number + 2} {then}"
        )
    if following.source == sweep.dest and isinstance(next(iter(following.ops), None), Pad):
        return f"sweep {number + 2} pads the value: it reads copies of voxels that may lie anywhere"
    if following.source == sweep.dest and following.shape != sweep.result:
        return f"sweep {number + 2} repeats the value from {by(sweep.result)} to {by(following.shape)}"
    later = [(at, other.sweep) for at, other in enumerate(plan.sweeps) if at > number]
    readers = [at + 1 for at, other in later if _reads_again(other, sweep.dest, at == number + 1)]
    if readers:
        return f"the value is kept: sweep {' and '.join(map(str, readers))} reads it again"
    norm = next((op.stage for op in sweep.ops if isinstance(op, RowNorm)), None)  # others may follow it
    if norm is None:
        return f"tiles of the convolution overlap in what they read: sweep {number + 2} finds it made once"
    return f"{norm.name} over {norm.over} needs whole rows, and sweep {number + 2} reads windows of them"


def _reads_again(sweep: Sweep, name: ArrayName | None, following: bool) -> bool:
    """Beside the sweep that follows, which may start from it, whether kept or not."""
    recalled = sweep.source == name and not following
    return recalled or any(name in link.arrays for op in sweep.ops for link in op.links)


# --- what happens to unusual arrays -----------------------------------------------------------------------------------


def fallbacks(plan: Plan) -> list[tuple[str, str]]:
    """Which arrays are computed in another way, and how."""
    found = []
    if plan.rewritten.needs_tame:
        needing = [step.name for step in plan.rewritten.steps if step.prepare is not None]
        found.append(("operands with NaN, infinity or huge numbers", f"as asked, without {', '.join(needing)}"))
    if plan.rewritten.needs_tame_input:
        needing = [step.name for step in plan.rewritten.steps if step.tame_input]
        found.append(("samples with NaN, infinity or huge numbers", f"alone, as asked, without {', '.join(needing)}"))
    if not plan.method.direct:
        power = HUGE[plan.dtype.accumulate].as_integer_ratio()[0].bit_length() - 1
        huge = f"beyond 2**{power}"
        found.append((f"weights {huge}, or all below 2**-{2 * power}", "direct summation"))
        found.append((f"samples with NaN, infinity or numbers {huge}", "alone, by direct summation"))
    found.append(("weights with NaN or infinity", "direct summation of the products inside the array"))
    return found
