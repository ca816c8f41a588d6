"""Rows as a run writes them, with chosen times: for tests of what is drawn and compared."""

from __future__ import annotations

from typing import Any

from convt3d import Pipeline
from convt3d.bench.cases import Case
from convt3d.bench.record import SCHEMA
from convt3d.spec.text import read_stages

ORIGIN = {
    "schema": SCHEMA,
    "when": "2026-01-02T03:04:05Z",
    "commit": "0123456789ab",
    "machine": {"cpu": "Some CPU", "isa": "avx2"},
    "versions": {"convt3d": "0.1.0", "torch": None},
}


def small_case(**changes: Any) -> Case:
    """Something every contender can run at once."""
    given = {"suite": "models", "name": "k3 s2 8->4 @3x4x5", "w": (8, 4, 3, 3, 3), "x": (2, 8, 3, 4, 5), "threads": 2}
    text = changes.pop("pipeline", "ConvTranspose3d(stride=2, padding=1, output_padding=1) -> LayerNorm() -> GELU()")
    return Case(pipeline=Pipeline(*read_stages(text)), **{**given, **changes})


def row(times: dict[str, list[float]], gemm: list[float] | None = None, **changes: Any) -> dict[str, Any]:
    """A row of the small case: contender -> its seconds; no seconds: it was wrong."""
    case = small_case()
    rounds = len(times["convt3d"])
    contenders = {
        name: {"status": "ok", "note": "", "error_units": 1.5, "first_seconds": 0.1, "seconds": seconds}
        if seconds
        else {"status": "wrong", "note": "off by 1 where 0.1 is allowed", "error_units": 1e6}
        for name, seconds in times.items()
    }
    contenders["convt3d"] |= {"extra_bytes": 3 << 20, "first_call": {"empty": 0.25, "warm": 0.05}}
    plan = case.plan
    facts = {
        "quick": False,
        "y": plan.trace.output,
        "needed_flop": plan.work.needed,
        "nominal_flop": plan.work.nominal,
        "bytes": 40_000,
        "rates": {"gemm": gemm or [100e9] * rounds, "copy": [10e9] * rounds, "registers": [120e9] * rounds},
        "foreign": [0.0] * rounds,
        "contenders": contenders,
    }
    return {**ORIGIN, **case.document(), **facts, **changes}
