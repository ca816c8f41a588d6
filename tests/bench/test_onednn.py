"""PyTorch's oneDNN on processors with AMX: measured without it, said so, and nobody else is held back."""

from __future__ import annotations

import json
import os

import pytest
from helpers.bench_rows import row
from helpers.command import python

from convt3d.bench.table import notes
from convt3d.cpu.plan.host import cpu_identity
from convt3d.spec.dtypes import DTYPES

pytest.importorskip("torch")

# In a process without the limit that all tests have: the convolution ends a process that uses AMX.
MEASURE = """
import json, os
os.environ.pop("ONEDNN_MAX_CPU_ISA", None)
from convt3d.bench.cases import Case
from convt3d.bench.contenders import find_contender
from convt3d.front.pipeline import Pipeline
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.stages import ConvTranspose3d
found = {}
for dtype in ("float32", "bfloat16", "float16"):
    pipeline = Pipeline(ConvTranspose3d(stride=2, padding=1))
    case = Case("", "", pipeline, (2, 32, 8, 8, 8), (32, 64, 3, 3, 3), DTYPES[dtype])
    for name in ("torch", "torch-channels-last"):
        ready = find_contender(name).prepare(case, case.draw())
        found[f"{dtype} {name}"] = [ready.note, list(ready.stored(ready.run()).shape)]
print(json.dumps([found, "ONEDNN_MAX_CPU_ISA" in os.environ]))
"""


def test_no_type_ends_the_process() -> None:
    found, limited = json.loads(python("-c", MEASURE))
    assert not limited, "other libraries bring a oneDNN of their own"
    assert {tuple(shape) for _, shape in found.values()} == {(2, 64, 15, 15, 15)}
    amx = "amx_tile" in (cpu_identity() or "")
    for name, (note, _) in found.items():
        assert ("without AMX" in note) == (amx and not name.startswith("float32")), name


@pytest.mark.parametrize(("flags", "given", "held"), [("avx512f", None, False), ("amx_tile", "ALL", False)])
def test_it_is_held_only_where_needed(
    monkeypatch: pytest.MonkeyPatch, flags: str, given: str | None, held: bool
) -> None:
    from convt3d.bench.contenders import onednn

    monkeypatch.setattr(onednn, "cpu_identity", lambda: f"flags: {flags}")
    monkeypatch.delenv(onednn.VARIABLE, raising=False)
    if given is not None:
        monkeypatch.setenv(onednn.VARIABLE, given)
    assert onednn.hold_below_amx.__wrapped__() == held
    assert os.environ.get(onednn.VARIABLE) == given
    monkeypatch.setattr(onednn, "hold_below_amx", lambda: True)
    assert onednn.note(DTYPES["float16"])
    assert not onednn.note(DTYPES["float32"])


def test_notes_are_told_once() -> None:
    rows = [row({"convt3d": [1.0], "torch": [2.0], "torch-compile": [3.0]}) for _ in range(2)]
    for one in rows:
        for name in ("torch", "torch-compile"):
            one["contenders"][name]["note"] = "without AMX"
    assert notes(rows) == ["torch, torch-compile: without AMX"]
