"""`convt3d demo`: the five operators at their benchmark shapes, timed and checked, in about a minute."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ..cpu.plan.machine import machine
from ..cpu.runtime.memory import physical_memory
from ..front.solutions import problems
from ..spec.dtypes import float32
from ..spec.problems import Problem, short_name
from ..units import amount, counted, duration
from .measure import Outcome, measure, prepare, random_arrays, wanted_memory
from .report import CHECK_FAILED, OK, emit, emit_json
from .terminal import Progress, Screen

SECONDS = 8.0  # for the larger run of one operator
SEED = 0


def demo(args: argparse.Namespace) -> int:
    outcomes: dict[str, Outcome] = {}
    with Progress(sys.stderr) as progress:
        for number, problem in enumerate(problems.values()):
            done, share = number / len(problems), 1 / len(problems)
            name = short_name(problem.slug)
            progress.begin(f"{name}: one sample", done, done + share / 2, SECONDS / 2)
            outcome = _run(problem, 1)
            batch = 1 if args.quick else _affordable(problem, outcome.best)
            if batch > 1:
                progress.begin(f"{name}: {batch} samples", done + share / 2, done + share, batch * outcome.best)
                outcome = _run(problem, batch)
            outcomes[problem.slug] = outcome
    facts = machine().describe()
    passed = all(outcome.check.passed for outcome in outcomes.values())
    if args.json:
        rows = [{"slug": slug, "batch": _batch(o), **o.document()} for slug, o in outcomes.items()]
        emit_json({"machine": facts, "operators": rows, "passed": passed})
    else:
        emit(_text(Screen(sys.stdout), facts, outcomes))
    return OK if passed else CHECK_FAILED


def _run(problem: Problem, batch: int) -> Outcome:
    values = {**problem.benchmark, "batch_size": batch}
    return measure(prepare(problem, values, float32, random_arrays(problem, values, float32, SEED)), 1, SEED)


def _affordable(problem: Problem, seconds: float) -> int:
    """The benchmark's batch, or as many samples as fit the time and half of the memory."""
    batch = min(int(problem.benchmark["batch_size"]), max(1, int(SECONDS / seconds)))
    memory = physical_memory()
    one = wanted_memory(problem, {**problem.benchmark, "batch_size": 1}, float32)
    return batch if memory is None else max(1, min(batch, memory // (2 * one)))


def _batch(outcome: Outcome) -> int:
    return outcome.plan.trace.output[0]


def _text(screen: Screen, facts: dict[str, Any], outcomes: dict[str, Outcome]) -> str:
    title = f"{facts['cpu']}, {facts['isa']}, {counted(facts['threads'], 'thread')}, {float32.name}, benchmark volumes"
    rows = [
        [
            short_name(slug),
            f"{_batch(outcome)} of {problems[slug].benchmark['batch_size']}",
            duration(outcome.best),
            f"{outcome.needed_rate:.1f}",
            "unknown" if outcome.extra_bytes is None else amount(outcome.extra_bytes),
            f"{outcome.check.voxels}",
            f"{outcome.check.worst:.1e} <= {outcome.check.tolerance:.1e}"
            if outcome.check.passed
            else f"{outcome.check.worst:.1e} > {outcome.check.tolerance:.1e}",
            screen.verdict(outcome.check.passed),
        ]
        for slug, outcome in outcomes.items()
    ]
    headers = ["operator", "batch", "time", "GFLOP/s", "extra memory", "voxels", "worst error", "check"]
    return f"{screen.paint(title, 'bold')}\n{screen.table(headers, rows, right={1, 2, 3, 4, 5}, spare=[5, 4, 6])}"
