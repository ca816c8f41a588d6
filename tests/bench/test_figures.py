"""Figures are taken within a round: a machine that is twice as slow for one round changes no ratio and no share."""

from __future__ import annotations

import pytest
from helpers.bench_rows import row

from convt3d.bench.figure import draw_figure
from convt3d.bench.figures import contender_figures, disturbed, fastest_peer, geometric_mean, row_figures
from convt3d.bench.page import draw_page
from convt3d.bench.summary import summary
from convt3d.bench.table import HEADERS, peer_names, table_row

TIMES = {"convt3d": [1e-3, 2e-3, 1e-3], "torch": [3e-3, 6e-3, 3e-3], "openvino": [5e-4, 1e-3, 5e-4], "jax": []}


def test_a_slow_round_changes_no_ratio() -> None:
    found = row(TIMES, gemm=[100e9, 50e9, 100e9])
    torch = contender_figures(found, "torch")
    assert torch.ratio is not None
    assert (torch.ratio.value, torch.ratio.spread) == (pytest.approx(3.0), pytest.approx(0.0))
    own = contender_figures(found, "convt3d")
    assert own.of_gemm is not None
    assert own.of_gemm.value == pytest.approx(found["needed_flop"] / 1e-3 / 100e9)
    assert own.of_gemm.spread == pytest.approx(0.0)
    assert own.seconds is not None
    assert (own.seconds.value, own.seconds.spread) == (1e-3, pytest.approx(0.5e-3))


def test_the_roofline_is_the_tighter_limit() -> None:
    """40 kB at 10 GB/s take 4 us; the FLOPs at 100 GFLOP/s take less, until the matrix product gets slow."""
    found = row({"convt3d": [1e-4] * 3})
    share = contender_figures(found, "convt3d").of_roofline
    assert share is not None
    assert share.value == pytest.approx(4e-6 / 1e-4)
    slow = row({"convt3d": [1e-4] * 3}, gemm=[1e9] * 3)
    share = contender_figures(slow, "convt3d").of_roofline
    assert share is not None
    assert share.value == pytest.approx(found["needed_flop"] / 1e9 / 1e-4)


def test_one_call_meets_the_median_of_the_others() -> None:
    found = row({**TIMES, "torch": [8e-3]})
    ratio = contender_figures(found, "torch").ratio
    assert ratio is not None
    assert ratio.value == pytest.approx(8.0)


def test_the_fastest_peer() -> None:
    figures = row_figures(row(TIMES))
    peer = fastest_peer(figures)
    assert peer is not None
    assert peer.name == "openvino"
    assert fastest_peer(row_figures(row({"convt3d": [1.0]}))) is None
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)


def test_a_disturbed_row_says_so() -> None:
    calm, busy = row(TIMES), row(TIMES, foreign=[0.5, 0.6, 0.0], name="a busy case")
    assert (disturbed(calm), disturbed(busy)) == (0.0, 0.5)
    assert "because other processes were busy: 1 of 2 cases." in summary([calm, busy])
    assert "a busy case" not in draw_figure([calm, busy])
    assert "others took 50% of the processor meanwhile" in draw_page([calm, busy])
    assert "others took" not in draw_page([calm])


def test_the_table() -> None:
    found = row(TIMES)
    peers = peer_names([found])
    assert peers == ["torch", "openvino", "jax"]
    cells = table_row(found, peers)
    assert len(cells) == len(HEADERS) + len(peers)
    assert cells[1] == "1 ms"
    assert cells[-3:] == ["3.00", "0.50", "WRONG"]
    assert "3 MiB" in cells
    assert "250 ms / 50 ms" in cells
    assert table_row(row({"convt3d": [], "torch": [1.0]}), ["torch"])[1] == "WRONG"
