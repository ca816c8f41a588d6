"""The table of stages: every backend has an entry for every stage, or a reason; docs/stages.md shows just that."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from convt3d.errors import UnsupportedStageError
from convt3d.spec.backends import StageTable, vocabulary
from convt3d.spec.stages import GELU, Keep, ReLU, Tanh

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = {"PyTorch": "torch", "gradient": "torch", "ONNX": "onnx", "JAX": "jax"}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import stages_page

    yield stages_page
    del sys.modules["stages_page"]


@pytest.mark.parametrize("name", ["meaning", "sweeps", "CPU", "GPU", "gradient on the CPU", *LIBRARIES])
def test_every_backend_knows_every_stage(tool: Any, name: str) -> None:
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name], reason=f"{LIBRARIES[name]} is not installed")
    table, kinds = tool.table(name), set(vocabulary().values())
    missing = {kind.__name__ for kind in kinds - set(table.entries) - set(table.reasons)}
    assert not missing, f"{table.backend} has no entry for {missing}: add them in {table.module}"
    assert set(table.entries) | set(table.reasons) == kinds
    assert not set(table.entries) & set(table.reasons)
    assert all(table.reasons.values())
    for kind in kinds:
        assert tool.shown(name, kind) == tool.cell(name, kind), "run tools/stages_page.py"


def test_the_list_names_every_backend(tool: Any) -> None:
    assert set(tool.TABLES) == {"meaning", "sweeps", "CPU", "GPU", "gradient on the CPU", *LIBRARIES}


def test_the_page_shows_every_stage(tool: Any) -> None:
    page = (ROOT / "docs" / "stages.md").read_text(encoding="utf-8")
    rows = [tool.row(kind) for kind in vocabulary().values()]
    shown = page.partition("## Backends")[0]
    assert shown == tool.HEAD + "\n".join(rows) + "\n\n", "run tools/stages_page.py"
    assert "| `BatchNorm(eps=1e-05, affine=False)` | running_mean, running_var, [weight], [bias] | Batch norm" in page


def test_a_table() -> None:
    table: StageTable[str] = StageTable("slide rule", "convt3d.far.away", {ReLU: "by eye"})
    assert table.of(Tanh, Keep)("by scale") == "by scale"
    table.unsupported(GELU, "has no such scale")
    assert (table[ReLU], table[Tanh], table[Keep]) == ("by eye", "by scale", "by scale")
    with pytest.raises(UnsupportedStageError, match=r"slide rule: stage = 'GELU': has no such scale\. "):
        table[GELU]
    del table.entries[Tanh]
    rule = r"stage = 'Tanh': has no entry in the table of slide rule\. Add one in convt3d/far/away\.py"
    with pytest.raises(UnsupportedStageError, match=rule):
        table[Tanh]
