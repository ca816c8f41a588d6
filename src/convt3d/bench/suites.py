"""Suites are data: each file in suites/ lists cases in one of four forms, read here.

    {"name", "pipeline", "x", "w"}                a layer, as text and shapes; "model" names its network
    {"problem": slug, "batch_divisor": 8}         one of the five operators at its benchmark shape
    {..., "series": "volume", "values": [4, 8]}   a curve: one case for each value, which stands where "n" is written
    {"suite": "models"}                           all cases of another suite; with "quick": true, its quick ones are so

Optional in each: "threads", "isa", "dtype" (else the one that is asked for), "quick": true.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

from ..cpu.plan.cores import available_cores
from ..errors import ArgumentError
from ..front.pipeline import Pipeline
from ..spec.dtypes import DTYPES, DType
from ..spec.problems import PROBLEMS
from ..spec.text import read_stages
from .cases import Case

SUITES = {
    "seeds": "The five operators",
    "models": "Layers of real networks",
    "conv3d": "Convolutions of real networks",
    "small": "Small volumes, where the call itself costs most",
    "scaling": "Growing sizes",
    "half": "16-bit numbers beside float32",
    "training": "Forward and backward",
}
TRAINING = "training"  # the suite whose cases are run in both directions


def choose_cases(
    suites: Sequence[str], dtype: DType, threads: int | None, words: Sequence[str], quick: bool
) -> list[Case]:
    """The cases of the suites (all, if none is named) whose name holds one of the words (if there are any)."""
    for suite in suites:
        if suite not in SUITES:
            raise ArgumentError("bench", "--suite", suite, f"must be one of {', '.join(SUITES)}", "Choose one of them")
    found = [case for suite in suites or SUITES for case in read_suite(suite, dtype, threads)]
    named = [case for case in found if not words or any(word in f"{case.name} {case.model}" for word in words)]
    chosen = [case for case in named if case.quick or not quick or words]
    if not chosen:
        received = " ".join([*suites, *words])
        raise ArgumentError("bench", "--suite, --filter", received, "choose no case", "Use fewer or other words")
    return chosen


def read_suite(name: str, dtype: DType = DTYPES["float32"], threads: int | None = None) -> list[Case]:
    """`threads` counts for cases that do not name their own number; a case beyond the usable cores is left out."""
    cores = available_cores()
    text = (resources.files(__package__) / "suites" / f"{name}.json").read_text(encoding="utf-8")
    document = json.loads(text)
    shared = {"suite": name, "dtype": dtype, "peers_alone": document["peers_alone"], "training": name == TRAINING}
    cases = [case for entry in document["cases"] for case in _cases(entry, shared)]
    given = [case if case.threads else replace(case, threads=threads or cores) for case in cases]
    return [case for case in given if case.threads <= max(cores, threads or 0)]


def _cases(entry: Mapping[str, Any], shared: Mapping[str, Any]) -> Iterator[Case]:
    if "dtype" in entry:
        entry, shared = {**entry}, {**shared, "dtype": DTYPES[entry["dtype"]]}
        del entry["dtype"]
    if "suite" in entry:
        for case in read_suite(entry["suite"], shared["dtype"]):
            yield replace(case, **shared, threads=0, quick=case.quick and entry.get("quick", False))
        return
    if "problem" in entry:
        yield _problem_case(entry, shared)
        return
    for value in entry.get("values", [0]):
        filled = {key: _fill(item, value) for key, item in entry.items() if key != "values"}
        filled |= {"at": value, "name": f"{entry['name']}, {entry['series']} {value}"} if value else {}
        filled["pipeline"] = Pipeline(*read_stages(filled["pipeline"]))
        yield Case(**{"threads": 0, **shared, **filled, "x": tuple(filled["x"]), "w": tuple(filled["w"])})


def _fill(item: Any, value: int) -> Any:
    if isinstance(item, list):
        return [_fill(part, value) for part in item]
    return value if item == "n" else item


def _problem_case(entry: Mapping[str, Any], shared: Mapping[str, Any]) -> Case:
    problem = PROBLEMS[entry["problem"]]
    batch = max(1, int(problem.benchmark["batch_size"]) // entry.get("batch_divisor", 1))
    values = {**problem.benchmark, "batch_size": batch}
    shapes = problem.shapes(values)
    return Case(
        name=entry["name"],
        pipeline=Pipeline(*problem.pipeline(values).stages),
        x=shapes["input"],
        w=shapes["kernel"],
        threads=0,
        quick=entry.get("quick", False),
        **shared,
    )
