"""Results that are stored past the caches: forced for small arrays, which usually are not. The same bits as ever."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.tilings import drawn_tiles, streamed

import convt3d as ct
from convt3d import Pipeline
from convt3d.cpu.code.tile import STORAGE, emit
from convt3d.cpu.ir.blocks import blocks_ir
from convt3d.cpu.plan import plan as planning
from convt3d.cpu.plan.machine import architecture, machine
from convt3d.cpu.runtime import execute as execution
from convt3d.cpu.runtime.build import Target, compile_ir
from convt3d.cpu.runtime.ready import Ready
from convt3d.spec.dtypes import DTYPES

ISAS = ["avx512", "avx2", "baseline"] if machine().isa == "avx512" else [machine().isa]
GUARD = 64  # elements around a result


def data(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def layouts(shape: tuple[int, ...], dtype: str) -> Iterator[tuple[str, Any, Any]]:
    """Names, whole arrays with NaN everywhere, and views of the result's shape in them."""
    size = int(np.prod(shape))
    for ahead in (0, 1, 3, 16):
        room = np.full(size + 2 * GUARD + ahead, np.nan, dtype)
        yield f"{ahead} elements on", room, room[GUARD + ahead : GUARD + ahead + size].reshape(shape)
    b, c, d, h, w = shape
    padded = np.full((b, c + 1, d, h + 2, w + 5), np.nan, dtype)
    yield "rows of a larger array", padded, padded[:, :c, :, 1 : h + 1, 2 : w + 2]
    last = np.full((b, d, h, w, c), np.nan, dtype)
    yield "channels last", last, last.transpose(0, 4, 1, 2, 3)
    turned = np.full((b, c, d, w, h), np.nan, dtype)
    yield "height last", turned, turned.transpose(0, 1, 2, 4, 3)
    backwards = np.full((b, c, d, h, w), np.nan, dtype)
    yield "backwards", backwards, backwards[:, :, :, :, ::-1]


PIPELINES = {
    "unphase": Pipeline(ct.ConvTranspose3d(stride=(1, 2, 2), padding=1)),
    "stride 1": Pipeline(ct.ConvTranspose3d(stride=1, padding=1), ct.ReLU()),
    "stride 3": Pipeline(ct.ConvTranspose3d(stride=3, padding=1, output_padding=1)),
    "many phases": Pipeline(ct.ConvTranspose3d(stride=(1, 1, 11))),
    "store a box": Pipeline(ct.ConvTranspose3d(stride=2), ct.MaxPool3d(2), ct.Sum("channels")),
    "a value between": Pipeline(ct.ConvTranspose3d(stride=2), ct.AvgPool3d(2), ct.Softmax("spatial"), ct.Multiply(2.0)),
    "norm": Pipeline(ct.ConvTranspose3d(stride=2, padding=1), ct.InstanceNorm(), ct.GELU()),
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", PIPELINES)
def test_same_bits_in_every_layout(monkeypatch: pytest.MonkeyPatch, isa: str, name: str) -> None:
    monkeypatch.setenv("CONVT3D_ISA", isa)
    pipeline = PIPELINES[name]
    cases = [("float32", (3, 5, 16)), ("float32", (2, 3, 1)), ("float64", (2, 4, 8)), ("float16", (3, 3, 17))]
    for number, (dtype, volume) in enumerate(cases if isa == ISAS[0] else cases[:2]):  # each type is compiled anew
        x, w = data((2, 3, *volume), dtype, number), data((3, 4, 3, 3, 3), dtype, 9)
        with streamed(False):
            expected = pipeline(x, w)
        for layout, whole, view in layouts(expected.shape, dtype):
            with streamed(True):
                pipeline(x, w, out=view)
            np.testing.assert_array_equal(view, expected, err_msg=f"{layout}, {dtype}")
            assert np.isnan(whole).sum() == whole.size - view.size, f"{layout}: written around the result"


@pytest.mark.parametrize("isa", ISAS)
def test_runs_of_positions_begin_and_end_anywhere(monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    """Taps that meet one input each: vectors begin where the output is aligned, and the last one ends with the run."""
    monkeypatch.setenv("CONVT3D_ISA", isa)
    pipeline = Pipeline(ct.Conv3d(bias=True))
    for number, volume in enumerate([(3, 5, 16), (2, 3, 1), (1, 1, 16), (2, 4, 4), (3, 7, 11), (1, 1, 97)]):
        for cin, cout in ((3, 29), (600, 2)) if number % 2 else ((7, 14),):
            x, w, bias = (
                data(shape, "float32", number) for shape in ((2, cin, *volume), (cout, cin, 1, 1, 1), (cout,))
            )
            exact = np.einsum("bcdhw,oc->bodhw", *(each.astype(np.float64) for each in (x, w[:, :, 0, 0, 0])))
            exact += bias.reshape(-1, 1, 1, 1)
            with streamed(False):
                expected = pipeline(x, w, bias)
            np.testing.assert_allclose(expected, exact, rtol=0, atol=2e-6 * np.abs(exact).max())
            for layout, whole, view in layouts(expected.shape, "float32"):
                with streamed(True):
                    pipeline(x, w, bias, out=view)
                np.testing.assert_array_equal(view, expected, err_msg=f"{layout}, {volume}")
                assert np.isnan(whole).sum() == whole.size - view.size, f"{layout}: written around the result"


@pytest.mark.parametrize("outputs", [3, 31])
def test_tiles_meet_where_a_vector_begins(outputs: int) -> None:
    """Tiles of whole planes: each takes the positions up to its last aligned vector, and what the one before has left.
    No matter which of them there are, and whether the result is aligned, all have the same bits."""
    pipeline = Pipeline(ct.Conv3d(bias=True))
    for volume in ((7, 4, 8), (5, 3, 16), (4, 4, 4)):
        x, w, bias = (data(shape, "float32", 1) for shape in ((2, 9, *volume), (outputs, 9, 1, 1, 1), (outputs,)))
        expected = pipeline(x, w, bias)
        exact = np.einsum("bcdhw,oc->bodhw", x, w[:, :, 0, 0, 0], dtype=np.float64) + bias.reshape(-1, 1, 1, 1)
        np.testing.assert_allclose(expected, exact, rtol=0, atol=2e-6 * np.abs(exact).max())
        for seed in range(6):
            for layout, whole, view in layouts(expected.shape, "float32"):
                with drawn_tiles(seed):
                    pipeline(x, w, bias, out=view, algorithm="direct")
                np.testing.assert_array_equal(view, expected, err_msg=f"{layout}, {volume}, tiles {seed}")
                assert np.isnan(whole).sum() == whole.size - view.size, f"{layout}: written around the result"


@pytest.mark.parametrize(
    ("isa", "dtype"), [*((isa, "float32") for isa in ISAS), (ISAS[0], "float64"), (ISAS[0], "float16")]
)
def test_channels_side_by_side(monkeypatch: pytest.MonkeyPatch, isa: str, dtype: str) -> None:
    """Squares of channels and voxels are transposed; both may end inside one. Aligned arrays are streamed."""
    monkeypatch.setenv("CONVT3D_ISA", isa)
    for number, (channels, width) in enumerate([(2, 5), (16, 16), (33, 20), (48, 1)]):
        x, w = data((1, 3, 2, 3, width), dtype, number), data((3, channels, 3, 3, 3), dtype, 9)
        for pipeline in (
            PIPELINES["stride 3"],
            PIPELINES["unphase"],
            Pipeline(ct.ConvTranspose3d(stride=2), ct.MaxPool3d(2)),
        ):
            with streamed(False):
                expected = pipeline(x, w)
            b, c, *space = expected.shape
            room = np.full(expected.size + 2 * GUARD + 64, np.nan, dtype)
            start = GUARD + (-(room.ctypes.data + GUARD * room.itemsize) % 64) // room.itemsize
            for ahead, everything in ((0, False), (0, True), (1, True)):
                room[...] = np.nan
                last = room[start + ahead : start + ahead + expected.size].reshape(b, *space, c)
                with streamed(everything):
                    pipeline(x, w, out=last.transpose(0, 4, 1, 2, 3))
                np.testing.assert_array_equal(last.transpose(0, 4, 1, 2, 3), expected)
                assert np.isnan(room).sum() == room.size - expected.size


@pytest.mark.parametrize("seed", range(6))
def test_tiles_that_cut_rows(seed: int) -> None:
    x, w = data((1, 3, 4, 5, 19), "float32", seed), data((3, 5, 3, 3, 3), "float32", seed)
    pipeline = Pipeline(ct.ConvTranspose3d(stride=2, padding=1))
    with streamed(False):
        expected = pipeline(x, w)
    for number, (layout, whole, view) in enumerate(layouts(expected.shape, "float32")):
        with streamed(True), drawn_tiles(8 * seed + number):
            pipeline(x, w, out=view)
            np.testing.assert_allclose(view, expected, rtol=1e-4, atol=1e-5, err_msg=layout)
            assert np.isnan(whole).sum() == whole.size - view.size


def test_large_results_are_streamed_and_those_in_place_are_not() -> None:
    pipeline = Pipeline(ct.ConvTranspose3d(stride=2), ct.AvgPool3d(2), ct.Softmax("spatial"), ct.Multiply(2.0))
    side = 4 * round((planning.cached_bytes(machine()) / 64) ** (1 / 3) / 4) + 8
    operands = ((4, 16, 2, 2, 2),)
    large = planning.make_plan(pipeline, (1, 4, side, side, side), operands, DTYPES["float32"])
    assert [one.streamed for one in large.sweeps if one.sweep.dest] == [True, False]
    small = planning.make_plan(pipeline, (1, 4, 4, 4, 4), operands, DTYPES["float32"])
    assert not any(one.streamed for one in small.sweeps)


def test_vectors_go_directly_where_rows_are_aligned() -> None:
    """Otherwise they are put together first, so that whole lines are stored."""
    x, w = (1, 3, 2, 4, 32), (3, 4, 2, 2, 2)
    with streamed(True):
        plan = planning.make_plan(Pipeline(ct.ConvTranspose3d(stride=2)), x, (w,), DTYPES["float32"])
    room = np.zeros(4 * 4 * 8 * 64 + 64, np.float32)
    start = -room.ctypes.data % 64 // 4
    for ahead, direct in ((0, 1), (1, 0)):
        dest = room[start + ahead : start + ahead + 4 * 4 * 8 * 64].reshape(1, 4, 4, 8, 64)
        operands = (np.zeros(w, np.float32),)
        run = execution.Run(Ready(plan, operands, DTYPES["float32"], None), np.zeros(x, np.float32), dest)
        words = execution.Call(run, run.sweeps[0]).destination()
        assert (words.streamed, words.direct, words.rows) == (1, direct, 32)


@pytest.mark.skipif(architecture() != "x86_64", reason="names of x86 instructions")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_squares_stream_too(monkeypatch: pytest.MonkeyPatch, isa: str, dtype: str) -> None:
    """Code of its own, which kernels call where channels lie side by side; the kernel has the fence."""
    monkeypatch.setenv("CONVT3D_ISA", isa)
    dumps: dict[str, str] = {}
    compile_ir(blocks_ir(STORAGE[dtype], machine()), Target.of(machine()), dumps=dumps)
    assert "movnt" in dumps["emit"]


@pytest.mark.skipif(architecture() != "x86_64", reason="names of x86 instructions")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_machine_code_streams(monkeypatch: pytest.MonkeyPatch, isa: str, dtype: str) -> None:
    """Every store that is meant to go past the caches does, and a fence follows."""
    monkeypatch.setenv("CONVT3D_ISA", isa)
    plan = planning.make_plan(PIPELINES["unphase"], (1, 3, 2, 4, 32), ((3, 4, 3, 3, 3),), DTYPES[dtype])
    text = emit(plan.sweeps[0].structure, machine())
    dumps: dict[str, str] = {}
    compile_ir(text, dumps=dumps)
    assert "sfence" in dumps["emit"]
    meant, done = (len(re.findall(word, of)) for word, of in (("store .*!nontemporal", text), ("movnt", dumps["emit"])))
    assert done >= meant > 0
