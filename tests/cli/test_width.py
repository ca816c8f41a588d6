"""A terminal of 80 columns shows every table whole: `list`, `demo`, `run`, `info`, `bench`."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import Any

import pytest
from helpers.bench_rows import row
from helpers.command import Terminal

from convt3d.cli import bench
from convt3d.cli import main as cli
from convt3d.cli.terminal import Screen, _visible


def call(terminal: Terminal, *words: str) -> str:
    """What a command prints there. The streams are pytest's own until the test itself begins."""
    with redirect_stdout(terminal):
        assert cli.main(list(words)) == 0
    return terminal.getvalue()


def width(text: str) -> int:
    return max(map(_visible, text.splitlines()))


@pytest.mark.parametrize(
    "words",
    [("list",), ("show", "max-max-sum"), ("run", "avgpool-clamp-softmax-multiply"), ("info",)],
    ids=lambda w: w[0],
)
def test_commands(terminal: Terminal, words: tuple[str, ...]) -> None:
    tables = [line for line in call(terminal, *words).splitlines() if line.startswith(("│", "┌", "├", "└"))]
    assert tables
    assert width("\n".join(tables)) <= 80


def test_demo(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    from convt3d.cli import demo

    def tiny(problem: Any, batch: int) -> Any:
        from convt3d.cli.measure import measure, prepare, random_arrays
        from convt3d.spec.dtypes import float32

        return measure(
            prepare(problem, problem.sample, float32, random_arrays(problem, problem.sample, float32, 0)), 1, 0
        )

    monkeypatch.setattr(demo, "_run", tiny)
    text = call(terminal, "demo", "--quick")
    assert "avgpool-clamp-softmax-multiply" in text.replace("\n", "")
    assert width(text.split("\n", 1)[1]) <= 80
    assert "passed" in text


def test_bench(terminal: Terminal) -> None:
    peers = ("torch", "torch-channels-last", "torch-compile", "onnxruntime", "openvino", "jax")
    times = {"convt3d": [1e-3] * 3, **{name: [(2 + at) * 1e-3] * 3 for at, name in enumerate(peers)}}
    rows = [row(times, model="A network with a long name", name="k3 s2 128->64 @12x16x32, BatchNorm, skip, ReLU")]
    rows[0]["contenders"]["openvino"] = {"status": "not installed", "note": ""}
    text = bench._table(Screen(terminal), rows)
    assert width(text) <= 80
    assert "2.00 PyTorch" in text
    assert "not installed: openvino; pip install '.[bench]'" in text.replace("\n", " ")
    wide = bench._table(Screen(io.StringIO()), rows)
    assert all(name in wide for name in ("torch-compile", "error, roundings", "jax"))
