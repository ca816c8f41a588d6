"""Packed weights are reused only when every bit of the weights is the same: an old answer is never given."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from helpers.draws import Case, make

import convt3d as ct
from convt3d.cpu.runtime import folded, weights
from convt3d.cpu.runtime.content_cache import ENTRY_BYTES
from convt3d.spec.dtypes import DTYPES

PLAIN = ct.Pipeline(ct.ConvTranspose3d(stride=2, bias=True))
FOLDED = ct.Pipeline(
    ct.ConvTranspose3d(stride=2, bias=True), ct.BatchNorm(affine=True)
)  # the kernel sees other weights


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


def test_what_is_kept_is_counted_once() -> None:
    """Copies of the caller's arrays and what was made of them; a folded kernel belongs to the cache that made it, and
    the cache of packed weights neither counts it nor keeps it from going."""
    folded._kept.entries.clear()
    weights._kept.entries.clear()
    case = make(FOLDED, (1, 3, 3, 4, 5), (3, 400, 3, 3, 3))
    case.run()
    sources, made = next(iter(folded._kept.entries._entries.values())).value
    entry = next(iter(weights._kept.entries._entries.values()))
    (witnesses, packed), size = entry.value, entry.size
    given = sum(operand.nbytes for operand in case.operands)
    assert made is not None
    numbers = given + sum(array.nbytes for array in made)
    assert 0 <= folded._kept.entries.total - ENTRY_BYTES - numbers <= 64 * (len(sources) + len(made))  # alignment
    assert [array.nbytes for array in sources] == [operand.nbytes for operand in case.operands]
    assert weights._kept.entries.total == size
    assert size - ENTRY_BYTES - 256 <= packed.weights.nbytes <= size
    assert witnesses[0]() is made[0]
    before = case.run().tobytes()
    folded._kept.entries.clear()
    del sources, made
    gc.collect()
    assert witnesses[0]() is None
    assert case.run().tobytes() == before


def test_weights_that_change_at_every_call_do_not_slow_down_others() -> None:
    """Thousands of entries: each further one looks at no other (tests/test_recent.py counts)."""
    weights._kept.entries.clear()
    w = np.ones((1, 1, 1, 1, 1), np.float32)
    x = np.ones((1, 1, 1, 1, 1), np.float32)
    for number in range(300):
        w[...] = number
        assert ct.conv_transpose3d(x, w).item() == number
    assert len(weights._kept.entries) == 300
    assert weights._kept.entries.total >= 300 * ENTRY_BYTES, "also what is not numbers takes memory"
