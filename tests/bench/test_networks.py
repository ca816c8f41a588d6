"""The suite of whole networks: a row has everyone who gives eager's result, and says of others why not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from convt3d.bench import measure_networks  # noqa: E402
from convt3d.bench.networks import NETWORKS  # noqa: E402
from convt3d.cli.main import main  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    assert main(["bench", "--suite", "networks", "--quick", "--filter", "vae", "--output", str(path)]) == 0
    (row,) = map(json.loads, path.read_text().splitlines())
    assert row["name"] == "vae-decoder"
    assert {name: one["status"] for name, one in row["contenders"].items()} == {
        "torch": "ok",
        "convt3d": "ok",
        "torch-channels-last": "ok",
    }
    assert all(one["extra_bytes"] is None or one["extra_bytes"] >= 0 for one in row["contenders"].values())
    assert "vae-decoder" in capsys.readouterr().out


def test_who_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(measure_networks.CONTENDERS, "openvino", lambda model, x: lambda: model(x) + 1)
    row = measure_networks.measure_network(NETWORKS["vae-decoder"], ["openvino"], True, 1)
    assert row["contenders"]["openvino"]["status"] == "wrong"
    assert "seconds" not in row["contenders"]["openvino"]


def test_a_package_that_is_missing() -> None:
    network = replace(NETWORKS["3d-gan"], package="no_such_package")
    row = measure_networks.measure_network(network, ["convt3d"], True, 1)
    assert row["contenders"]["convt3d"] == {"status": "not installed", "note": "no_such_package"}


def test_other_suites_are_measured_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--suite", "networks", "--suite", "small"]) != 0
    assert "by themselves" in capsys.readouterr().err
