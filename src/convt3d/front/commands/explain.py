"""`convt3d explain`: what the plan for a problem's shapes will do."""

from __future__ import annotations

import argparse

from ...plan.explain import explain
from ...plan.plan import make_plan
from ...spec.dtypes import DTYPES
from ..solutions import problems
from .choose import named_values, settings
from .report import OK, emit, emit_json


def explain_plan(args: argparse.Namespace) -> int:
    problem = problems[args.slug]
    values = problem.checked({**named_values(problem, args.size), **settings(problem, args.set)})
    shapes = problem.shapes(values)
    operands = tuple(shapes[name] for name in problem.operand_names)
    plan = make_plan(problem.pipeline(values), shapes["input"], operands, DTYPES[args.dtype or "float32"])
    text = explain(plan)
    if not args.json:
        emit(text)
        return OK
    emit_json(
        {
            "slug": problem.slug,
            "dtype": plan.dtype.name,
            "values": values,
            "algorithm": plan.algorithm,
            "asked": [repr(stage) for stage in plan.asked.stages],
            "rewrites": [step.name for step in plan.rewritten.steps],
            "runs": [repr(stage) for stage in plan.rewritten.pipeline.stages],
            "shapes": plan.simplified.values,
            "needed_flop": plan.work.needed,
            "nominal_flop": plan.work.nominal,
            "scratch_bytes": plan.scratch,
            "text": text,
        }
    )
    return OK
