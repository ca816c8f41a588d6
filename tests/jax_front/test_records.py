"""Calls that are done again by native code: they are, and only with the operands, threads and arrays they were for."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from helpers.command import python
from helpers.data import signed

jax = pytest.importorskip("jax", reason="jax is not installed")
import jax.numpy as jnp  # noqa: E402

import convt3d  # noqa: E402
import convt3d.jax as cj  # noqa: E402
from convt3d.jax import calls, native  # noqa: E402


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of Python."""
    asked: list[str] = []
    run = calls.run

    def counting(text: str, *rest: Any) -> None:
        asked.append(text)
        run(text, *rest)

    monkeypatch.setattr(calls, "run", counting)
    return asked


def arrays(seed: int, x: tuple[int, ...], weight: tuple[int, ...]) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return tuple(jnp.asarray(signed(rng, shape, 1.0), jnp.float32) for shape in (x, weight))  # type: ignore[return-value]


def test_python_is_asked_twice(counted: list[str]) -> None:
    """Once for the result, once for the record; other inputs need no Python, other weights do."""
    x, w = arrays(0, (1, 3, 4, 5, 7), (3, 4, 2, 2, 2))
    call = jax.jit(lambda x, w: cj.conv_transpose3d(x, w, stride=2))
    for at in range(6):
        moved = x + at
        np.testing.assert_array_equal(
            call(moved, w), convt3d.conv_transpose3d(np.asarray(moved), np.asarray(w), stride=2)
        )
    assert len(counted) == 2
    changed = w.at[-1, -1, -1, -1, -1].add(1.0)  # a single number, the last one
    for weight in (changed, w, changed, changed, w, w, w, w):
        np.testing.assert_array_equal(
            call(x, weight), convt3d.conv_transpose3d(np.asarray(x), np.asarray(weight), stride=2)
        )
    assert 2 < len(counted) < 2 + 8


def test_further_values_are_no_weights(counted: list[str]) -> None:
    x, w = arrays(1, (2, 3, 4, 5, 7), (3, 4, 2, 2, 2))
    call = jax.jit(lambda x, w, skip: cj.pipeline(x, [w, skip], "ConvTranspose3d(stride=2) -> Add('tensor') -> ReLU()"))
    pipe = convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2), convt3d.Add("tensor"), convt3d.ReLU())
    for at in range(6):
        skip = jnp.full((2, 4, 8, 10, 14), at - 2.5, jnp.float32)
        np.testing.assert_array_equal(call(x, w, skip), pipe(np.asarray(x), np.asarray(w), np.asarray(skip)))
    assert len(counted) == 2


def test_threads_that_change(counted: list[str]) -> None:
    """A record knows how many threads it was made for."""
    x, w = arrays(2, (2, 16, 8, 9, 10), (16, 16, 3, 3, 3))
    call = jax.jit(lambda x, w: cj.conv_transpose3d(x, w, stride=2))
    try:
        results = []
        for count in (1, 2, None):
            convt3d.set_num_threads(count)
            before = len(counted)
            results += [np.asarray(call(x, w)) for _ in range(4)]
            assert len(counted) - before == 2
    finally:
        convt3d.set_num_threads(None)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_samples_that_winograd_leaves_out() -> None:
    """A record whose kernel cannot compute a sample hands the call to Python."""
    x, w = arrays(3, (2, 16, 9, 10, 11), (16, 16, 3, 3, 3))
    call = jax.jit(lambda x, w: cj.conv3d(x, w, padding=1))
    for wild in (None, None, None, None, np.inf, 1e38, np.nan, None):
        given = x if wild is None else x.at[1, 2, 3, 4, 5].set(wild)
        np.testing.assert_array_equal(call(given, w), convt3d.conv3d(np.asarray(given), np.asarray(w), padding=1))


def test_donated_buffers() -> None:
    """XLA may put the result where an input was, or the next input where a result was."""
    x, w = arrays(4, (2, 4, 5, 6, 7), (4, 4, 3, 3, 3))
    expected = convt3d.conv3d(np.asarray(x), np.asarray(w), padding=1)
    call = jax.jit(lambda x, w: cj.conv3d(x, w, padding=1), donate_argnums=0)
    for _ in range(5):
        own = jnp.array(np.asarray(x))
        np.testing.assert_array_equal(call(own, w), expected)
        assert own.is_deleted()


def test_calls_at_once() -> None:
    """Threads share a record one at a time; whoever finds it taken goes another way."""
    shapes = [(1, 8, 4, 5, 6 + at) for at in range(3)]
    given = [arrays(at, shape, (8, 8, 3, 3, 3)) for at, shape in enumerate(shapes)]
    expected = [convt3d.conv_transpose3d(np.asarray(x), np.asarray(w), stride=2) for x, w in given]
    call = jax.jit(lambda x, w: cj.conv_transpose3d(x, w, stride=2))
    wrong: list[Any] = []

    def work(first: int) -> None:
        for turn in range(40):
            at = (first + turn) % len(given)
            if not np.array_equal(call(*given[at]), expected[at]):
                wrong.append((first, turn))

    threads = [threading.Thread(target=work, args=(first,)) for first in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_without_jit() -> None:
    """Our own compiled call is no function of the caller's, and goes on."""
    x, w = arrays(7, (1, 4, 4, 4, 4), (4, 4, 3, 3, 3))
    with jax.disable_jit():
        found = cj.conv3d(x, w, padding=1)
        gradient = jax.grad(lambda w: cj.conv3d(x, w, padding=1).sum())(w)
    np.testing.assert_array_equal(found, convt3d.conv3d(np.asarray(x), np.asarray(w), padding=1))
    np.testing.assert_array_equal(gradient, jax.grad(lambda w: cj.conv3d(x, w, padding=1).sum())(w))


def test_computed_again_for_gradients() -> None:
    """jax.checkpoint keeps nothing, and gives the same."""
    x, w = arrays(8, (1, 4, 4, 4, 4), (4, 3, 3, 3, 3))

    def loss(x: Any, w: Any) -> Any:
        return cj.pipeline(x, [w], "ConvTranspose3d(stride=2) -> LayerNorm() -> GELU()").sum()

    again = jax.jit(jax.grad(jax.checkpoint(loss), (0, 1)))(x, w)
    for one, other in zip(again, jax.grad(loss, (0, 1))(x, w), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_within_loops() -> None:
    """scan and while_loop call it from XLA's own threads."""
    x, w = arrays(5, (1, 4, 4, 4, 4), (4, 4, 3, 3, 3))
    call = jax.jit(lambda x, w: jax.lax.scan(lambda v, _: (jnp.tanh(cj.conv3d(v, w, padding=1)), None), x, length=7)[0])
    v = np.asarray(x)
    for _ in range(7):
        v = np.asarray(jnp.tanh(convt3d.conv3d(v, np.asarray(w), padding=1)))
    np.testing.assert_allclose(call(x, w), v, rtol=1e-5, atol=1e-6)


def test_large_weights_are_not_recorded(monkeypatch: pytest.MonkeyPatch, counted: list[str]) -> None:
    monkeypatch.setattr(calls, "_MOST_COMPARED", 10)
    x, w = arrays(9, (1, 3, 4, 5, 17), (3, 4, 2, 2, 2))
    call = jax.jit(lambda x, w: cj.conv_transpose3d(x, w, stride=2))
    for _ in range(4):
        np.testing.assert_array_equal(call(x, w), convt3d.conv_transpose3d(np.asarray(x), np.asarray(w), stride=2))
    assert len(counted) == 4


ENDING = """
import jax, jax.numpy as jnp, convt3d.jax
x, w = jnp.ones((2, 16, 24, 24, 24)), jnp.ones((16, 16, 3, 3, 3))
call = jax.jit(lambda x, w: convt3d.jax.conv3d(x, w, padding=1).sum())
for _ in range(6):
    call(x, w)  # nobody waits for the last one
"""


def test_a_process_that_ends_meanwhile() -> None:
    for _ in range(3):
        python("-c", ENDING, silent=True)


def test_no_more_memory_than_allowed(monkeypatch: pytest.MonkeyPatch, counted: list[str]) -> None:
    monkeypatch.setattr("convt3d.jax.records._MOST_BYTES", 0)
    x, w = arrays(6, (1, 3, 4, 5, 11), (3, 4, 2, 2, 2))
    call, before = jax.jit(lambda x, w: cj.conv_transpose3d(x, w, stride=2)), calls.records().nbytes
    for _ in range(4):
        np.testing.assert_array_equal(call(x, w), convt3d.conv_transpose3d(np.asarray(x), np.asarray(w), stride=2))
    assert len(counted) == 4
    assert calls.records().nbytes == before


def test_what_python_raises_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise MemoryError("no room for 3 µs")

    monkeypatch.setattr(calls, "run", fails)
    x, w = arrays(7, (1, 3, 4, 5, 13), (3, 4, 2, 2, 2))
    with pytest.raises(jax.errors.JaxRuntimeError, match="MemoryError: no room for 3 µs"):
        jax.block_until_ready(cj.conv_transpose3d(x, w))


def test_the_text_holds_nothing_of_this_process() -> None:
    """So that XLA may keep what it compiled for another one."""
    x, w = arrays(8, (1, 3, 4, 5, 3), (3, 4, 2, 2, 2))
    text = jax.jit(lambda x, w: cj.conv_transpose3d(x, w, stride=2)).lower(x, w).as_text()
    again = jax.jit(lambda x, w: cj.conv_transpose3d(x, w, stride=2)).lower(x, w).as_text()
    assert text == again
    assert "ConvTranspose3d(stride=2)" in text


def test_other_layouts_of_the_frame_are_refused() -> None:
    """Major version 0 of XLA's interface is the one that is read; the handler says so."""
    assert "store i32 0, ptr %major.at" in native.handler_ir(3)
