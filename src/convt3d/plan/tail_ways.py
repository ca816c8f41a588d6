"""Which stages a gradient passes together on its way back, in one chain; and which of them open such a chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..spec import stages as s
from ..spec.pipeline import Pipeline
from ..spec.stage import Stage
from .tail_links import TrainedBatchNorm


@dataclass(frozen=True)
class Segment:
    """Stages that a gradient passes together, `first` to before `last`, by their places in the pipeline. Values are
    computed again from value `start`, which enters stage `start`. Without stages, nothing but value `first` is made."""

    start: int
    first: int
    last: int


NORMS = (s.LayerNorm, s.GroupNorm, s.InstanceNorm, TrainedBatchNorm)  # by statistics of the value itself
POOLS = (s.MaxPool3d, s.AvgPool3d)
REPEATED = (s.Sum, s.Mean)  # their gradient is repeated
REDUCTIONS = (s.Sum, s.Mean, s.Max, s.LogSumExp)
_ALL_AT_ONCE = ("channels", "spatial")  # what sweeps reduce; single axes become pools where pipelines are simplified


def opens(stage: Stage) -> bool:
    """Whether the gradient of another shape becomes that of the stage's input where a chain begins: the stage is the
    last of its segment."""
    if isinstance(stage, (s.Max, s.LogSumExp)):
        return stage.over in _ALL_AT_ONCE
    return isinstance(stage, (*POOLS, *REPEATED))


def passes(stage: Stage, wanted: Sequence[bool], local: frozenset[str]) -> bool:
    """Whether a gradient passes the stage inside a chain; `wanted`: of which operands one is asked for; `local` are
    the names of values that are kept and used in one chain."""
    if isinstance(stage, s.Binary):
        return stage.label in local if stage.label else stage.other != "tensor" or not any(wanted)
    if isinstance(stage, (s.Keep, s.Recall)):
        return stage.label in local
    if isinstance(stage, s.LayerNorm):
        return stage.over == "channels"
    if isinstance(stage, s.Softmax):
        return stage.over in _ALL_AT_ONCE and stage.scale is None and stage.shift is None
    from .tails import BACK  # which is written with what stands here

    known = isinstance(stage, TrainedBatchNorm) or type(stage) in BACK.entries
    return known and not isinstance(stage, (*POOLS, *REDUCTIONS, s.Convolution))


def can_repeat(stage: Stage) -> bool:
    """Whether the stage is computed again on the way to a later one."""
    if isinstance(stage, REDUCTIONS):
        return stage.over in _ALL_AT_ONCE
    return not isinstance(stage, s.Convolution)


@lru_cache(maxsize=1024)
def local_labels(pipeline: Pipeline) -> frozenset[str]:
    """Names of values that only stages of one chain use: nothing between changes the shape."""
    keeps = {stage.label: at for at, stage in enumerate(pipeline.stages) if isinstance(stage, s.Keep)}
    local = frozenset(keeps)
    while True:  # a label that is not local cuts the chains of others
        found = frozenset(label for label in local if _is_local(pipeline, label, keeps[label], local))
        if found == local:
            return local
        local = found


def _is_local(pipeline: Pipeline, label: str, start: int, local: frozenset[str]) -> bool:
    uses = [at for at, stage in enumerate(pipeline.stages) if stage.uses == label]
    between = pipeline.stages[start + 1 : max(uses, default=start) + 1]
    return all(passes(stage, (True,), local) for stage in between)


def needs(stage: Stage, wanted: bool) -> str:
    """Values that the gradient of a stage takes: "v" enters it, "r" leaves it, "u" is a norm's before its weights."""
    if isinstance(stage, s.Binary):
        reverse = isinstance(stage, s.Divide) and stage.reverse
        asked = wanted or stage.label is not None
        return "v" if reverse or (asked and isinstance(stage, (s.Multiply, s.Divide))) else ""
    if isinstance(stage, (s.Keep, s.Recall)):
        return ""
    if isinstance(stage, NORMS):
        return "u"
    if isinstance(stage, s.BatchNorm):
        return "v" if wanted else ""
    return "r" if isinstance(stage, (s.ReLU, s.Sigmoid, s.Tanh, s.Exp, s.Softmax)) else "v"
