"""`convt3d bench FILE`: somebody's kernel judged, then timed beside PyTorch and convt3d."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..bench.balance import measured_rates
from ..cpu.plan.plan import Plan, make_plan
from ..cpu.plan.roofline import caller_bytes
from ..errors import ArgumentError
from ..judge.cases import changed_values
from ..judge.check import check
from ..judge.languages import language_of, problem_of
from ..judge.peers import EAGER, OWN
from ..judge.timing import KERNEL, Timing, time_file
from ..spec.dtypes import DType
from ..spec.problems import Problem
from ..units import duration
from .choose import compact, named_values, settings
from .judge_check import ended_by_signal, options_of
from .judge_words import protections_off, quoted, reason_of
from .measure import check_memory
from .report import CHECK_FAILED, OK, emit, emit_json
from .terminal import Progress, Screen


def bench_file(args: argparse.Namespace) -> int:
    if language_of(args.file) == "cuda":
        rule = "is run on the CPU, which tells whether it is right, and nothing about its time on a GPU"
        raise ArgumentError("bench", "FILE", args.file, rule, "Use `convt3d check`")
    options, problem = options_of(args), problem_of(args.file, args.problem)
    values = changed_values(problem, named_values(problem, args.size), settings(problem, args.set))
    check_memory(problem, values, options.dtype)
    timing = None
    with Progress(sys.stderr) as progress, ended_by_signal():
        progress.begin("checking first", 0.0, 0.3)
        judgement = check(args.file, problem, options)
        if judgement.verdict.passed:

            def before(number: int) -> None:
                share = 0.3 + 0.7 * number / (args.repeat + 1)
                progress.begin(f"round {number} of {args.repeat}", share, share)

            timing = time_file(args.file, problem, values, options, args.repeat, before)
    verdict = timing.verdict if timing else judgement.verdict
    timed = timing is not None and verdict.passed
    document = {
        "file": args.file,
        "slug": problem.slug,
        "language": judgement.language,
        "dtype": options.dtype.name,
        "size": args.size,
        "set": list(args.set),
        "values": values,
        "verdict": verdict.word,
        "passed": verdict.passed,
        "case": verdict.case,
        "reason": verdict.reason,
        "seed": judgement.seed,
        "unprotected": dict(judgement.unprotected),
        **(_figures(timing, _plan(problem, values, options.dtype)) if timing and timed else {}),
    }
    emit_json(document) if args.json else emit(_text(Screen(sys.stdout), document))
    return OK if verdict.passed else CHECK_FAILED


def _plan(problem: Problem, values: Mapping[str, Any], dtype: DType) -> Plan:
    shapes = problem.shapes(values)
    operands = tuple(shapes[name] for name in problem.operand_names)
    return make_plan(problem.pipeline(values), shapes["input"], operands, dtype)


def _figures(timing: Timing, plan: Plan) -> dict[str, Any]:
    """Every figure of a contender follows from its median."""
    ratios, best = timing.ratios, timing.best_peer
    medians = {name: timing.median(name) for name in timing.seconds}
    rates, flop, moved = measured_rates(plan), plan.work.needed, sum(caller_bytes(plan).values())
    least = max(flop / rates.flops, moved / rates.bytes)
    return {
        "rounds": len(timing.seconds[KERNEL]),
        "seconds": medians,
        "all_seconds": timing.seconds,
        "ratio_to_torch_eager": ratios.get(EAGER),
        "best_peer": best,
        "ratio_to_best_peer": ratios[best] if best else None,
        "ratio_to_convt3d": ratios.get(OWN),
        "ratios": ratios,
        "needed_flop": flop,
        "bytes": moved,
        "rates": asdict(rates),
        "roofline_seconds": least,
        "needed_gflops": {name: flop / seconds / 1e9 for name, seconds in medians.items()},
        "of_roofline": {name: least / seconds for name, seconds in medians.items()},
        "not_timed": timing.missing,
        "notes": timing.notes,
    }


def _text(screen: Screen, document: dict[str, Any]) -> str:
    verdict = screen.verdict(True) if document["passed"] else screen.paint(document["verdict"], "bold", "red")
    head = screen.table(
        ["", document["slug"]],
        [
            ["verdict", verdict],
            ["reason", reason_of(document) + (f" (case {document['case']})" if document["case"] else "")],
            ["file", f"{document['file']} ({document['language']}, {document['dtype']})"],
            ["size", ", ".join([document["size"], *document["set"]])],
            ["values", compact(document["values"])],
            *map(list, protections_off(document)),
        ],
    )
    if "seconds" not in document:
        return "\n\n".join(filter(None, [head, quoted(document)]))
    rows = [
        [
            name,
            duration(seconds),
            "" if name == KERNEL else f"{document['ratios'][name]:.3g}x",
            f"{document['needed_gflops'][name]:.3g}",
            f"{document['of_roofline'][name]:.1%}",
        ]
        for name, seconds in sorted(document["seconds"].items(), key=lambda item: float(item[1]))
    ]
    title = ["contender", f"median of {document['rounds']}", "over yours", "GFLOP/s", "of roofline"]
    table = screen.table(title, rows, right={1, 2, 3, 4})
    rates = document["rates"]
    bound = "arithmetic" if document["needed_flop"] / rates["flops"] > document["bytes"] / rates["bytes"] else "memory"
    notes = [
        f"roofline: {duration(document['roofline_seconds'])}, bound by {bound}: the larger of "
        f"{document['needed_flop'] / 1e9:.3g} GFLOP needed at {rates['flops'] / 1e9:.3g} GFLOP/s and "
        f"{document['bytes'] / 1e9:.3g} GB of arrays at {rates['bytes'] / 1e9:.3g} GB/s, both measured here",
        *(f"not timed: {name}: {why}" for name, why in document["not_timed"].items()),
        *(f"{name}: {words}" for name, words in document["notes"].items()),
    ]
    return "\n".join([head, "", table, *notes])
