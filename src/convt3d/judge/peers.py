"""Who a kernel is timed beside: some contenders of `convt3d bench`, on the arrays of a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..bench.cases import Arrays, Case
from ..bench.contenders import find_contender
from ..bench.contenders.base import Absent, Contender
from ..bench.rounds import timed
from ..cpu.plan.cores import get_num_threads
from ..front.pipeline import Pipeline
from ..front.verify import Storage
from ..spec.dtypes import DType
from ..spec.problems import Problem

EAGER, CHANNELS_LAST, OWN = "torch eager", "torch channels_last", "convt3d"
CONTENDERS = {OWN: "convt3d", EAGER: "torch", CHANNELS_LAST: "torch-channels-last"}


@dataclass(frozen=True)
class Peer:
    contender: Contender
    problem: Problem
    case: Case

    def run(self, arrays: Mapping[str, Storage]) -> tuple[Storage, float, str]:
        """Its result, seconds, and what is to be said about them."""
        ready = self.contender.prepare(self.case, Arrays(arrays["input"], operands_of(self.problem, arrays)))
        with ready.around():
            result, seconds = timed(ready)
        return ready.stored(result), seconds, ready.note


def peers(problem: Problem, values: Mapping[str, Any], dtype: DType) -> dict[str, Peer]:
    """Those that are installed."""
    shapes, pipeline = problem.shapes(values), Pipeline(*problem.pipeline(values).stages)
    case = Case("judge", problem.slug, pipeline, shapes["input"], shapes["kernel"], dtype, get_num_threads())
    found = {shown: find_contender(name) for shown, name in CONTENDERS.items()}
    return {name: Peer(one, problem, case) for name, one in found.items() if not isinstance(one, Absent)}


def operands_of(problem: Problem, arrays: Mapping[str, Storage]) -> tuple[Storage, ...]:
    """In the pipeline's order, vectors 1-D."""
    own = ((name, arrays[name]) for name in problem.operand_names)
    return tuple(array if name == "kernel" else array.reshape(-1) for name, array in own)
