"""Results only grow: rows come back as written, a cut-off last line is no harm, the latest row of a case counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.bench_rows import row

from convt3d.bench.record import append_row, commit, latest, provenance, read_latest, read_rows, version
from convt3d.errors import ArgumentError


def test_rows_come_back(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first, second = row({"convt3d": [1.0]}), row({"convt3d": [2.0], "torch": []}, name="another")
    append_row(path, first)
    before = path.read_bytes()
    append_row(path, second)
    assert path.read_bytes().startswith(before), "what was written stays as it is"
    read = read_rows(path)
    assert [one["name"] for one in read] == [first["name"], "another"]
    assert read[1]["contenders"]["torch"]["status"] == "wrong"


def test_a_row_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    append_row(path, row({"convt3d": [1.0]}))
    whole = path.read_text()
    path.write_text(whole + whole[:100])
    assert len(read_rows(path)) == 1
    path.write_text(whole[:100] + "\n" + whole)
    with pytest.raises(ArgumentError, match=r"line 1 of results\.jsonl.*is not a row of schema 1"):
        read_rows(path)


def test_the_latest_row_of_a_case_counts(tmp_path: Path) -> None:
    old, other, new = row({"convt3d": [1.0]}), row({"convt3d": [1.0]}, dtype="float64"), row({"convt3d": [3.0]})
    found = latest([old, other, new])
    assert [one["dtype"] for one in found] == ["float32", "float64"]
    assert found[0]["contenders"]["convt3d"]["seconds"] == [3.0]
    quick = row({"convt3d": [4.0]}, quick=True)
    assert latest([quick, new, quick]) == [new], "a quick one never replaces a full one"


def test_the_calm_rounds_count(tmp_path: Path) -> None:
    """Whatever ran once, outside of rounds, stays."""
    path = tmp_path / "results.jsonl"
    times = {"convt3d": [1.0, 9.0, 1.1, 1.2], "jax": [50.0]}
    append_row(path, row(times, gemm=[1e9, 2e9, 3e9, 4e9], foreign=[0.0, 0.9, 0.01, 0.0]))
    (found,) = read_latest([path])
    assert found["contenders"]["convt3d"]["seconds"] == [1.0, 1.1, 1.2]
    assert found["contenders"]["jax"]["seconds"] == [50.0]
    assert found["rates"]["gemm"] == [1e9, 3e9, 4e9]
    assert found["foreign"] == [0.0, 0.01, 0.0]


def test_a_file_that_is_not_there_or_empty(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="cannot be read"):
        read_rows(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ArgumentError, match="holds no row"):
        read_latest([tmp_path / "empty.jsonl"])


def test_every_row_says_where_it_comes_from() -> None:
    origin = provenance()
    assert origin["machine"]["cpu"]
    assert origin["versions"]["numpy"] == version("numpy")
    assert version("no-such-package") is None
    assert commit() is None or len(commit() or "") in (12, 13)
