"""The sizes and scalars a command line asks for: a named set of the problem, changed by NAME=VALUE."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import ArgumentError, ArgumentTypeError
from ..spec.problem_file import Values
from ..spec.problems import Problem


def named_values(problem: Problem, size: str) -> Values:
    """`sample`, `benchmark`, or the values of a case."""
    known: dict[str, Values] = {"sample": problem.sample, "benchmark": problem.benchmark}
    known |= {case.name: case.values for case in problem.cases}
    if size not in known:
        raise ArgumentError(problem.slug, "--size", size, "names no set of sizes", nearest(size, known))
    return known[size]


def settings(problem: Problem, texts: Sequence[str]) -> dict[str, int | float]:
    """NAME=VALUE texts as numbers of the parameters' types."""
    kinds = {parameter.name: parameter.type for parameter in problem.parameters if not parameter.pointer}
    chosen: dict[str, int | float] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise ArgumentError(problem.slug, "--set", text, "must be NAME=VALUE", "Write for example --set depth=8")
        if name not in kinds:
            raise ArgumentError(problem.slug, "--set", text, f"{name} is no parameter", nearest(name, kinds))
        chosen[name] = _number(problem, name, kinds[name], value)
    return chosen


def _number(problem: Problem, name: str, kind: str, text: str) -> int | float:
    integral = kind == "size_t"
    try:
        return int(text) if integral else float(text)
    except ValueError:
        rule = "must be an integer" if integral else "must be a number (inf and nan are allowed)"
        raise ArgumentTypeError(problem.slug, name, text, rule, f"Write for example --set {name}=2") from None


def nearest(word: str, known: Iterable[str]) -> str:
    words = list(known)
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    return f"The nearest is {near[0]!r}" if near else f"Use one of {', '.join(words)}"


def compact(values: Values) -> str:
    """All values in one line: three numbers for depth, height, width as 2x3x1, or once if they are equal."""
    triples = {name[:-2]: [f"{name[:-2]}_{axis}" for axis in "dhw"] for name in values if name.endswith("_d")}
    members: dict[str, tuple[str, list[str]]] = {
        member: (name, names) for name, names in triples.items() for member in names
    }
    members |= {axis: ("volume", ["depth", "height", "width"]) for axis in ("depth", "height", "width")}
    parts: dict[str, str] = {}
    for name in values:
        short, names = members.get(name, (name, [name]))
        parts[short] = _by([values[member] for member in names])
    return ", ".join(f"{name} {value}" for name, value in parts.items())


def _by(numbers: Sequence[Any]) -> str:
    texts = [f"{number:g}" if isinstance(number, float) else str(number) for number in numbers]
    return texts[0] if len(set(texts)) == 1 else "x".join(texts)
