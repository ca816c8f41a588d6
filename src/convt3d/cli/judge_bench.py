"""`convt3d bench FILE`: somebody's kernel judged, then timed beside PyTorch and convt3d."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ..judge.check import check
from ..judge.languages import problem_of
from ..judge.peers import EAGER, OWN
from ..judge.timing import KERNEL, Timing, time_file
from ..units import duration
from .choose import compact, named_values, settings
from .judge_check import ended_by_signal, options_of, unprotected_row
from .report import CHECK_FAILED, OK, emit, emit_json
from .terminal import Progress, Screen


def bench_file(args: argparse.Namespace) -> int:
    options, problem = options_of(args), problem_of(args.file, args.problem)
    values = problem.checked({**named_values(problem, args.size), **settings(problem, args.set)})
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
    document = {
        "file": args.file,
        "slug": problem.slug,
        "language": judgement.language,
        "dtype": options.dtype.name,
        "values": values,
        "verdict": verdict.word,
        "passed": verdict.passed,
        "case": verdict.case,
        "reason": verdict.reason,
        "seed": judgement.seed,
        "unprotected": dict(judgement.unprotected),
        **(_figures(timing) if timing and verdict.passed else {}),
    }
    emit_json(document) if args.json else emit(_text(Screen(sys.stdout), document, unprotected_row(judgement)))
    return OK if verdict.passed else CHECK_FAILED


def _figures(timing: Timing) -> dict[str, Any]:
    ratios, best = timing.ratios, timing.best_peer
    return {
        "rounds": len(timing.seconds[KERNEL]),
        "seconds": {name: timing.median(name) for name in timing.seconds},
        "all_seconds": timing.seconds,
        "ratio_to_torch_eager": ratios.get(EAGER),
        "best_peer": best,
        "ratio_to_best_peer": ratios[best] if best else None,
        "ratio_to_convt3d": ratios.get(OWN),
        "ratios": ratios,
        "not_timed": timing.missing,
    }


def _text(screen: Screen, document: dict[str, Any], more: list[list[str]]) -> str:
    verdict = screen.verdict(True) if document["passed"] else screen.paint(document["verdict"], "bold", "red")
    head = screen.table(
        ["", document["slug"]],
        [
            ["verdict", verdict],
            ["reason", document["reason"] + (f" (case {document['case']})" if document["case"] else "")],
            ["file", f"{document['file']} ({document['language']}, {document['dtype']})"],
            ["values", compact(document["values"])],
            *more,
        ],
    )
    if "seconds" not in document:
        return head
    rows = [
        [name, duration(seconds), "" if name == KERNEL else f"{document['ratios'][name]:.3g}x"]
        for name, seconds in sorted(document["seconds"].items(), key=lambda item: float(item[1]))
    ]
    rows += [[name, "-", why] for name, why in document["not_timed"].items()]
    title = ["contender", f"median of {document['rounds']}", "time over yours"]
    return f"{head}\n\n{screen.table(title, rows, right={1})}"
