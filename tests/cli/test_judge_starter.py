"""`starter` and `export`: a file is written once, and its name is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

CONV = "conv-transpose-3d-asym-input-sq-kernel"
MAXES = "conv-transpose3d-max-max-sum"


def test_starter_writes_a_file_once(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("starter", MAXES, "--lang", "python")
    assert code == 0
    assert "convt3d check conv_transpose3d_max_max_sum.py" in out
    assert (tmp_path / "conv_transpose3d_max_max_sum.py").read_text().startswith(f"# convt3d problem: {MAXES}\n")
    code, _, err = run("starter", MAXES, "--lang", "python")
    assert code == 2
    assert "exists, and is not overwritten" in err
    code, out, _ = run("starter", MAXES, "--lang", "cuda", "-o", "other.cu", "--json")
    assert json.loads(out)["path"] == str(tmp_path / "other.cu")
    assert run("starter", MAXES, "--lang", "fortran")[0] == 2
    assert run("starter", MAXES, "--lang", "c", "--output", "no/folder.c")[0] == 2


def test_export_writes_a_file_once(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("export", MAXES, "--lang", "triton")
    assert code == 0
    assert "convt3d check conv_transpose3d_max_max_sum_triton.py" in out
    text = (tmp_path / "conv_transpose3d_max_max_sum_triton.py").read_text()
    assert text.startswith(f"# convt3d problem: {MAXES}\n")
    code, _, err = run("export", MAXES, "--lang", "triton")
    assert code == 2
    assert "exists, and is not overwritten" in err
    code, out, _ = run("export", CONV, "--lang", "triton", "-o", "other.py", "--json")
    assert json.loads(out) == {"slug": CONV, "language": "triton", "path": str(tmp_path / "other.py")}
    code, _, err = run("export", MAXES, "--lang", "fortran")
    assert code == 2
    assert "invalid choice: 'fortran'" in err
    code, _, err = run("export", "conv-transpose3d-max-max", "--lang", "triton")
    assert code == 2
    assert f"The nearest is '{MAXES}'" in err
    assert run("export", MAXES, "--lang", "triton", "--output", "no/folder.py")[0] == 2
