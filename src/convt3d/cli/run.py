"""`convt3d run`: one problem on random arrays or arrays from a file, timed and checked."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

from ..cpu.plan.choice import Options
from ..front.solutions import problems
from ..spec.dtypes import DTYPES
from ..units import amount, counted, duration, operations
from .choose import compact, named_values, settings
from .files import check_writable, derived_values, read_arrays, stored, write_array
from .measure import Outcome, measure, prepare, random_arrays
from .report import CHECK_FAILED, OK, emit, emit_json
from .terminal import Progress, Screen


def run(args: argparse.Namespace) -> int:
    problem = problems[args.slug]
    base, chosen = named_values(problem, args.size), settings(problem, args.set)
    if args.output:
        check_writable(problem, args.output)
    with Progress(sys.stderr) as progress:
        progress.begin("preparing the arrays")
        if args.input:
            found = read_arrays(problem, args.input)
            values = problem.checked(derived_values(problem, found, base, chosen))
            dtype, arrays = stored(problem, found, DTYPES[args.dtype] if args.dtype else None)
        else:
            values = problem.checked({**base, **chosen})
            dtype = DTYPES[args.dtype or "float32"]
            arrays = random_arrays(problem, values, dtype, args.seed)

        def before(turn: int, last: float | None) -> None:
            text = "checking" if turn == args.repeat else f"run {turn + 1} of {args.repeat}"
            progress.begin(text, turn / (args.repeat + 1), (turn + 1) / (args.repeat + 1), last)

        options = Options(args.algorithm, args.precision)
        outcome = measure(prepare(problem, values, dtype, arrays, options), args.repeat, args.seed, before)
        saved = _save(args.output, problem, outcome) if args.output else None
    document = {
        "slug": problem.slug,
        "values": values,
        "seed": None if args.input else args.seed,
        **outcome.document(),
        "output": saved,
    }
    emit_json(document) if args.json else emit(_text(Screen(sys.stdout), document, outcome))
    return OK if outcome.check.passed else CHECK_FAILED


def _save(path: str, problem: Any, outcome: Outcome) -> dict[str, str]:
    """bfloat16 has no .npy form; every bfloat16 is a float32."""
    dtype = outcome.plan.dtype
    widened = dtype.name == "bfloat16"
    array = dtype.widen(outcome.result).astype(np.float32) if widened else outcome.result
    write_array(problem, path, array)
    return {"path": path, "dtype": array.dtype.name}


def _text(screen: Screen, document: dict[str, Any], outcome: Outcome) -> str:
    check, saved, plan = outcome.check, document["output"], outcome.plan
    rows = [
        ["values", compact(document["values"])],
        ["type", plan.dtype.name],
        ["algorithm", plan.algorithm],
        ["result", " x ".join(map(str, plan.trace.output))],
        ["kernels", f"ready in {duration(outcome.kernel_seconds)}"],
        ["time", f"{duration(outcome.best)}" + (f" (best of {len(outcome.seconds)})" if outcome.seconds[1:] else "")],
        ["needed", _work(plan.work.needed, outcome.best)],
        ["nominal", _work(plan.work.nominal, outcome.best)],
        ["extra memory", "unknown" if outcome.extra_bytes is None else amount(outcome.extra_bytes)],
        ["checked", f"{counted(check.voxels, 'voxel')} against the meaning"],
        ["worst error", f"{check.worst:.3g} (tolerance {check.tolerance:.3g})"],
        ["check", screen.verdict(check.passed)],
    ]
    if saved:
        note = " (bfloat16 stored as float32, which loses nothing)" if plan.dtype.name == "bfloat16" else ""
        rows.append(["saved", f"{saved['path']}{note}"])
    return screen.table(["", document["slug"]], rows)


def _work(flop: int, seconds: float) -> str:
    return f"{operations(flop)}, {operations(flop / seconds, 'FLOP/s')}"
