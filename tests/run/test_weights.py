"""Packed weights are reused only when every bit of the weights is the same: an old answer is never given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.draws import Case, make

import convt3d as ct
from convt3d.run import folded, weights
from convt3d.spec.dtypes import DTYPES

PLAIN = ct.Pipeline(ct.ConvTranspose3d(2, bias=True))
FOLDED = ct.Pipeline(ct.ConvTranspose3d(2, bias=True), ct.BatchNorm(affine=True))  # the kernel sees other weights


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pipeline", [PLAIN, FOLDED], ids=["plain", "folded"])
def test_changed_in_place(pipeline: ct.Pipeline, dtype: str) -> None:
    """One element of the same array, by the smallest possible step, in every operand."""
    case = make(pipeline, (1, 3, 3, 4, 5), (3, 4, 3, 3, 3), dtype)
    case.check()
    for operand in case.operands:
        flat = operand.reshape(-1)
        for at in (0, flat.size // 2, flat.size - 1):
            before = case.run().tobytes()
            bits = flat.view(f"u{flat.itemsize}")
            bits[at] ^= 1 << (8 * flat.itemsize - 4 if flat.itemsize > 2 else 9)
            after = case.run().tobytes()
            weights._kept.entries.clear()
            folded._kept.entries.clear()
            assert after == case.run().tobytes(), "not what packing anew gives"
            assert after != before
            bits[at] ^= 1 << (8 * flat.itemsize - 4 if flat.itemsize > 2 else 9)
            assert case.run().tobytes() == before


def test_the_sign_of_zero_and_nan_payloads_are_bits_too() -> None:
    """-0.0 == 0.0 and NaN != NaN: comparing values would be wrong in both directions."""
    pipe = ct.Pipeline(ct.ConvTranspose3d())
    x, w = np.ones((1, 1, 1, 1, 1), np.float32), np.zeros((1, 1, 1, 1, 1), np.float32)
    divide = ct.Pipeline(ct.ConvTranspose3d(), ct.Multiply(-1.0))
    assert not np.signbit(pipe(x, w)).any()
    w[...] = -0.0
    assert divide(x, w) == 0.0
    w[...] = np.nan
    assert np.isnan(pipe(x, w)).all()
    w[...] = 3.0
    assert (pipe(x, w) == 3.0).all()


@pytest.mark.parametrize("layout", ["reversed", "transposed", "broadcast"])
def test_weights_of_any_strides(layout: str) -> None:
    """They are read as what they are, not as the memory they lie in."""
    case = make(PLAIN, (1, 3, 3, 4, 5), (3, 3, 3, 3, 3))
    w: Any = case.operands[0]
    other = {
        "reversed": w[::-1, :, ::-1],
        "transposed": w.transpose(1, 0, 4, 3, 2),
        "broadcast": np.broadcast_to(w[:1, :1], w.shape),
    }[layout]
    Case(PLAIN, case.dtype, case.x, (other, case.operands[1])).check()


def test_equal_weights_are_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packing costs a pass over the weights and a sort: a model's weights do not change from call to call."""
    packs: list[int] = []
    pack = weights.pack
    monkeypatch.setattr(weights, "pack", lambda *given: packs.append(1) or pack(*given))
    case = make(PLAIN, (1, 3, 3, 4, 5), (3, 4, 3, 3, 3), seed=123)
    for _ in range(4):
        case.run()
    assert len(packs) == 1
    larger = make(PLAIN, (2, 3, 6, 5, 9), (3, 4, 3, 3, 3), seed=5)
    Case(PLAIN, case.dtype, larger.x, (case.operands[0].copy(), case.operands[1])).check()
    assert len(packs) == 1, "other volumes and equal copies share them"


def test_memory_for_packed_weights_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that goes through many models must not keep all of them."""
    monkeypatch.setattr(weights._kept.entries, "most", 20_000)
    for size in range(1, 12):
        make(PLAIN, (1, 2, 2, 2, 2), (2, size, 3, 3, 3)).run()
    kept = weights._kept.entries
    assert len(kept) == 1 or kept.total <= 20_000
