"""`convt3d list` and `convt3d show`: which problems there are, and everything a problem file says."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from ..front.solutions import problems
from ..spec.problems import Problem, short_name
from .choose import compact
from .report import OK, emit, emit_json
from .terminal import Screen


def list_problems(args: argparse.Namespace) -> int:
    documents = [_summary(problem) for problem in problems.values()]
    if args.json:
        emit_json(documents)
        return OK
    rows = [[short_name(d["slug"]), d["computes"], str(d["arity"]), d["slug"]] for d in documents]
    table = Screen(sys.stdout).table(["name", "computes", "arguments", "slug"], rows, right={2}, spare=[3])
    emit(f"{table}\n`convt3d show NAME` prints a problem, `convt3d run NAME` runs it.")
    return OK


def show_problem(args: argparse.Namespace) -> int:
    problem = problems[args.slug]
    if args.json:
        emit_json(_document(problem))
        return OK
    screen = Screen(sys.stdout)
    shapes = {name: problem.shapes(values) for name, values in _sizes(problem).items()}
    sections = [
        (f"{problem.title} ({problem.difficulty}; {', '.join(problem.tags)})", problem.statement.strip()),
        ("Signature", signature(problem)),
        ("Pipeline (benchmark)", "\n".join(map(repr, problem.pipeline(problem.benchmark).stages))),
        ("Sizes and scalars", _value_table(screen, _sizes(problem))),
        ("Shapes", _value_table(screen, shapes)),
        ("Cases", "\n".join(f"{case.name}: {case.why}\n    {compact(case.values)}" for case in problem.cases)),
    ]
    emit("\n\n".join(f"{screen.paint(title, 'bold')}\n{text}" for title, text in sections))
    return OK


def signature(problem: Problem) -> str:
    """The C-like signature of the problem's text, one parameter on each line."""
    lines = [
        f"    {'const ' if p.const else ''}{p.type}{'*' if p.pointer else ''} {p.name}" for p in problem.parameters
    ]
    return "solution(\n" + ",\n".join(lines) + "\n) -> None"


def _sizes(problem: Problem) -> dict[str, Mapping[str, Any]]:
    return {"benchmark": problem.benchmark, "sample": problem.sample}


def _value_table(screen: Screen, columns: Mapping[str, Mapping[str, Any]]) -> str:
    names = list(next(iter(columns.values())))
    rows = [[name, *(_shown(column[name]) for column in columns.values())] for name in names]
    return screen.table(["", *columns], rows, right=range(1, len(columns) + 1))


def _shown(value: Any) -> str:
    return " x ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _summary(problem: Problem) -> dict[str, Any]:
    return {
        "slug": problem.slug,
        "title": problem.title,
        "difficulty": problem.difficulty,
        "tags": problem.tags,
        "arity": len(problem.parameters),
        "computes": ", ".join(stage.name for stage in problem.pipeline(problem.benchmark).stages),
    }


def _document(problem: Problem) -> dict[str, Any]:
    sizes = _sizes(problem)
    return {
        **_summary(problem),
        "statement": problem.statement,
        "parameters": [vars(parameter) for parameter in problem.parameters],
        **sizes,
        "cases": [
            {"name": case.name, "why": case.why, "values": case.values, "shapes": problem.shapes(case.values)}
            for case in problem.cases
        ],
        "shapes": {name: problem.shapes(values) for name, values in sizes.items()},
        "pipeline": [repr(stage) for stage in problem.pipeline(problem.benchmark).stages],
    }
