"""Drawn pipelines on every instruction set: what the compiled kernels compute is what the stages mean.

Each draw has its own seed: a failure names it, and `drawn(np.random.default_rng(seed), dtype)` brings it back. `make
soak` draws thousands.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.draws import drawn, relaid
from helpers.tilings import drawn_tiles

from convt3d.cpu.plan.machine import machine

TYPES = ("float32", "float64", "float16", "bfloat16")
PER_TEST = 10


def check(chunk: int, offset: int) -> None:
    for number in range(PER_TEST):
        seed = offset + chunk * PER_TEST + number
        rng = np.random.default_rng(seed)
        case = drawn(rng, TYPES[seed % len(TYPES)])
        out = relaid(rng, np.empty(case.output, case.dtype.storage))
        case.check(out, f"seed {seed}: ")


@pytest.mark.parametrize("chunk", range(6))
def test_native(chunk: int) -> None:
    """The instruction set users get here."""
    check(chunk, 0)


@pytest.mark.parametrize("chunk", range(3))
def test_any_tiles(chunk: int) -> None:
    """Small volumes are one tile; here they are cut into many of any size, as the cost model might do one day."""
    with drawn_tiles(chunk):
        check(chunk, 30_000)


@pytest.mark.parametrize("chunk", range(2))
@pytest.mark.parametrize("isa", ["avx2", "baseline"])
def test_lower_instruction_sets(chunk: int, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer lanes and registers give other tiles, other tails, and on the baseline no fma and no masked stores."""
    if machine().isa in ("neon", "baseline") or (machine().isa == "avx2" and isa == "avx2"):
        pytest.skip("not below this machine's instruction set")
    monkeypatch.setenv("CONVT3D_ISA", isa)
    assert machine().isa == isa
    check(chunk, 10_000 if isa == "avx2" else 20_000)
