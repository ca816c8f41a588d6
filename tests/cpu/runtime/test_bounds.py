"""Code that checks its accesses: the same results, and an access outside of any array is named before it happens."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from helpers.draws import drawn, make
from helpers.jit import Compiled
from helpers.tilings import drawn_tiles
from llvmlite import ir as llvm_ir

import convt3d as ct
from convt3d.cpu.code.tile import emit
from convt3d.cpu.ir import bounds
from convt3d.cpu.ir.builder import define
from convt3d.cpu.ir.values import F32, I64, PTR, constant, vector
from convt3d.cpu.plan.machine import machine
from convt3d.cpu.plan.plan import make_plan
from convt3d.cpu.runtime import compare, packing, regions
from convt3d.cpu.runtime import execute as execution
from convt3d.cpu.runtime.compare import LARGE, same_bits
from convt3d.cpu.steps import direct
from convt3d.errors import ArgumentError, BoundsError
from convt3d.spec.dtypes import DTYPES

WIDTH, SIZE = 8, 32


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVT3D_CHECK_BOUNDS", "1")


# --- each kind of access ----------------------------------------------------------------------------------------------

VALUE = constant(vector(F32, WIDTH), [1.0] * WIDTH)
# name -> (what it does at an offset, elements before and behind the offset that it touches)
ACCESSES: dict[str, tuple[Any, int, int]] = {
    "load": (lambda b, p, at: b.load(p, at, F32), 0, 1),
    "load of a vector": (lambda b, p, at: b.load(p, at, F32, WIDTH), 0, WIDTH),
    "masked load": (lambda b, p, at: b.load(p, at, F32, WIDTH, count=b.i64(3)), 0, 3),
    "load of known lanes": (lambda b, p, at: b.load(p, at, F32, WIDTH, count=3), 0, 3),
    "strided load": (lambda b, p, at: b.load(p, at, F32, WIDTH, stride=-1), WIDTH - 1, 1),
    "gather": (lambda b, p, at: b.load(p, at, F32, WIDTH, stride=2, count=b.i64(3)), 0, 5),
    "store": (lambda b, p, at: b.store(b.lane(VALUE, 0), p, at), 0, 1),
    "store of a vector": (lambda b, p, at: b.store(VALUE, p, at), 0, WIDTH),
    "masked store": (lambda b, p, at: b.store(VALUE, p, at, count=b.i64(3)), 0, 3),
    "scatter": (lambda b, p, at: b.store(VALUE, p, at, stride=2, count=b.i64(3)), 0, 5),
    "store past the caches": (lambda b, p, at: b.store_past_caches(VALUE, p, at), 0, WIDTH),
    "through a moved pointer": (lambda b, p, at: b.load(b.at(p, 5, F32), b.sub(at, 5), F32), 0, 1),
    "atomic addition": (lambda b, p, at: b.fetch_add(b.at(p, at, F32)), 0, 2),
    "in a function": (lambda b, p, at: b.call(_function(b), p, at), 0, 1),
}


def _function(b: Any) -> Any:
    arguments = bounds.with_regions([("data", PTR), ("at", I64)])
    inner = define(b.module, "inner", arguments, internal=True, builder=bounds.CheckedBuilder)
    inner.store(inner.load(inner.args["data"], inner.args["at"], F32), inner.args["data"], inner.args["at"])
    inner.ret()
    return inner.function


@pytest.mark.parametrize("name", ACCESSES)
def test_every_access_is_checked_to_the_element(name: str) -> None:
    access, before, behind = ACCESSES[name]
    module = llvm_ir.Module()
    words = [("begin", I64), ("end", I64), ("at", I64)]
    b = define(module, "f", [("p", PTR), ("noted", PTR), *words], builder=bounds.CheckedBuilder)
    assert isinstance(b, bounds.CheckedBuilder)
    b.faults = b.args["noted"]
    b.confine(b.args["p"], b.args["begin"], b.args["end"], "data")
    access(b, b.args["p"], b.args["at"])
    b.ret()
    compiled = Compiled(module)
    run = compiled.function("f", *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3)
    room = np.full(3 * SIZE + 16, 5.0, np.float32)
    start = -(room.ctypes.data // 4) % 16 + SIZE  # aligned, as stores past the caches ask for
    data = room[start : start + SIZE]
    ends = data.ctypes.data, data.ctypes.data + data.nbytes
    step = WIDTH if name == "store past the caches" else 1
    for at in range(-2 * step, SIZE + 2 * step, step):
        inside = at - before >= 0 and at + behind <= SIZE
        untouched = room.copy()
        untouched[start : start + SIZE] = 0
        refused = pytest.raises(BoundsError, match=r"at data.* must stay inside")
        with nullcontext() if inside else refused, regions.faults("op") as noted:
            run(data.ctypes.data, noted, *ends, at)
        now = room.copy()
        now[start : start + SIZE] = 0
        np.testing.assert_array_equal(now, untouched)


# --- whole calls ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", [0, 1])
def test_drawn_pipelines_stay_inside(seed: int, dtype: str) -> None:
    case = drawn(np.random.default_rng(seed), dtype)
    case.check()
    with drawn_tiles(seed):
        case.check()


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
def test_same_bits_with_and_without_checks(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels side by side, which other code reads and writes; several threads."""
    pipeline = ct.Pipeline(ct.ConvTranspose3d(stride=1, padding=1, bias=True), ct.GELU(), ct.MaxPool3d(2))
    case = make(pipeline, (2, 18, 5, 6, 19), (18, 20, 3, 3, 3))
    x = np.ascontiguousarray(case.x.transpose(0, 2, 3, 4, 1)).transpose(0, 4, 1, 2, 3)
    out = [np.empty((2, 2, 3, 9, 20), np.float32).transpose(0, 4, 1, 2, 3) for _ in range(2)]
    with ct.num_threads(3):
        pipeline(x, *case.operands, out=out[0], algorithm=algorithm)
        monkeypatch.setenv("CONVT3D_CHECK_BOUNDS", "0")
        pipeline(x, *case.operands, out=out[1], algorithm=algorithm)
    assert out[0].tobytes() == out[1].tobytes()


@pytest.mark.usefixtures("checked")
def test_large_weights_are_compared_and_packed_inside() -> None:
    a = np.arange(LARGE // 4 + 3, dtype=np.float32)
    b = a.copy()
    assert same_bits(a, b)
    b[-1] = -1.0
    assert not same_bits(a, b)
    pipeline = ct.Pipeline(ct.ConvTranspose3d())
    make(pipeline, (1, 40, 2, 2, 2), (40, 50, 3, 3, 3)).check()


def _shifted(by: int) -> Any:
    honest = direct._tables

    def broken(*given: Any) -> Any:
        table, offsets, count = honest(*given)
        return table, offsets + by, count

    return broken


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("by", [10_000, -10_000])
def test_a_broken_table_is_named(by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets of the convolution's inputs that leave the slab: who, where, how far."""
    monkeypatch.setattr(direct, "_tables", _shifted(by))
    case = make(ct.Pipeline(ct.ConvTranspose3d(stride=2)), (1, 2, 3, 4, 5), (2, 3, 3, 3, 3))
    with pytest.raises(BoundsError) as caught:
        case.run()
    assert caught.value.operator.startswith("ct3d_f32_conv")
    assert caught.value.argument.startswith("load of ")
    assert " at x, micro.py:" in caught.value.argument
    assert "micro_kernel" in caught.value.argument
    assert "accesses" in str(caught.value)


@pytest.mark.usefixtures("checked")
def test_a_result_that_is_too_small_is_not_overrun(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = execution.Call.destination

    def stretched(self: Any) -> Any:
        words = honest(self)
        words.c += 1
        return words

    monkeypatch.setattr(execution.Call, "destination", stretched)
    case = make(ct.Pipeline(ct.ConvTranspose3d()), (1, 2, 3, 4, 5), (2, 3, 2, 2, 2))
    room = np.full((2, *case.output), 7.0, np.float32)
    with pytest.raises(BoundsError, match=r"store of .* at DestinationCall.data, "):
        case.run(room[0])
    assert (room[1] == 7.0).all()


@pytest.mark.usefixtures("checked")
def test_a_broken_recipe_of_packing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = packing._recipe

    def broken(*given: Any) -> Any:
        found = honest(*given)
        results = found.results.copy()
        results[-1, 0] += 1_000_000
        return found._replace(results=results)

    monkeypatch.setattr(packing, "_recipe", broken)
    with pytest.raises(BoundsError, match=r"pack: store of .* at PackWords.packed, pack\.py:\d+ _move"):
        make(ct.Pipeline(ct.ConvTranspose3d()), (1, 2, 3, 4, 5), (2, 3, 2, 2, 7)).run()


@pytest.mark.usefixtures("checked")
def test_a_broken_comparison_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "get_num_threads", lambda: 2)
    honest = compare.launch
    monkeypatch.setattr(compare, "launch", lambda function, table, threads: honest(function, table, threads + 1))
    with pytest.raises(BoundsError, match=r"compare: store of 1 x i64 at CompareWords\.answers"):
        same_bits(np.zeros(4000), np.zeros(4000))


# --- off --------------------------------------------------------------------------------------------------------------


def test_without_the_variable_nothing_is_checked() -> None:
    assert not machine().check_bounds
    pipeline = ct.Pipeline(ct.AvgPool3d(2), ct.ConvTranspose3d(stride=2, bias=True), ct.GELU(), ct.InstanceNorm())
    x, kernel = (1, 4, 4, 6, 8), (4, 5, 3, 3, 3)
    for one in make_plan(pipeline, x, pipeline.operand_shapes(x, kernel), DTYPES["float32"]).sweeps:
        text = emit(one.structure, machine())
        assert "faults" not in text
        assert "@inside" not in text.replace('"', "")


def test_the_variable_is_0_or_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVT3D_CHECK_BOUNDS", "yes")
    with pytest.raises(ArgumentError, match="must be 0 or 1"):
        machine()
