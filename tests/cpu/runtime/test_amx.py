"""bfloat16 by tiles of AMX: the very code that is emitted runs here with emulated tile instructions, and on them where
the processor has them; the assembly for one that has is looked at everywhere."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import convt3d as ct
from convt3d.cpu.code.tile import emit
from convt3d.cpu.plan.choice import Options
from convt3d.cpu.plan.explain import explain
from convt3d.cpu.plan.machine import Machine, machine
from convt3d.cpu.plan.permission import tiles_permitted
from convt3d.cpu.plan.plan import Plan, _make_plan
from convt3d.cpu.runtime import bind
from convt3d.cpu.runtime.build import Target, compile_ir
from convt3d.cpu.runtime.execute import execute_plan
from convt3d.cpu.runtime.ready import bindings
from convt3d.spec.dtypes import bfloat16
from convt3d.spec.reference import evaluate
from convt3d.spec.text import read_stages

needs_pairs = pytest.mark.skipif(
    not machine().multiplies_bfloat16, reason="without AVX512-BF16 nothing is there to emulate tiles on"
)
needs_tiles = pytest.mark.skipif(
    not machine().multiplies_tiles, reason="this processor, or the system, has no AMX tiles: emulated ones are tested"
)

# Why each is there: tiles as deep as can be, one row block and a rest; depths that are not 16; groups; phases and a
# bias; positions several inputs wide; sums of several pieces; taps that leave the array; stages behind; results that
# are written straight.
LAYERS = [
    ("Conv3d(padding=1, bias=True)", (2, 32, 3, 4, 7), (21, 32, 3, 3, 3)),
    ("Conv3d(padding=1)", (1, 48, 2, 5, 9), (16, 48, 3, 1, 2)),
    ("Conv3d(padding=(0, 1, 1))", (1, 19, 2, 3, 4), (9, 19, 1, 3, 3)),
    ("Conv3d(groups=2, padding=1)", (1, 64, 3, 3, 5), (34, 32, 2, 2, 2)),
    ("ConvTranspose3d(stride=2, padding=1, bias=True)", (1, 32, 3, 4, 5), (32, 17, 3, 4, 3)),
    ("ConvTranspose3d(stride=(1, 2, 3), groups=2)", (1, 48, 2, 3, 7), (48, 8, 3, 2, 4)),
    ("Conv3d(stride=2, padding=1)", (1, 32, 5, 5, 23), (16, 32, 3, 3, 3)),
    ("Conv3d(stride=(1, 3, 9), dilation=(1, 2, 1))", (1, 32, 3, 9, 29), (8, 32, 2, 3, 4)),
    ("Conv3d()", (1, 640, 1, 2, 65), (16, 640, 1, 1, 1)),
    ("Conv3d(padding=1) -> LayerNorm('channels') -> GELU()", (1, 32, 3, 4, 5), (24, 32, 3, 3, 3)),
    ("ConvTranspose3d(stride=2, padding=1) -> MaxPool3d(2) -> Sum('channels')", (1, 32, 3, 4, 5), (32, 20, 3, 3, 3)),
]


def with_tiles() -> Machine:
    return replace(machine(), tiles=True)


def planned(text: str, x: tuple[int, ...], w: tuple[int, ...], host: Machine) -> Plan:
    pipe = ct.Pipeline(*read_stages(text))
    in_group = w[1] if isinstance(pipe.conv, ct.Conv3d) else w[0] // pipe.conv.groups
    deep = max(n for n in range(1, 17) if (in_group + 1) // 2 % n == 0)
    options = Options("direct", outputs=(1, 1, 1), deep=deep)
    return _make_plan(pipe, x, pipe.operand_shapes(x, w), bfloat16, options, True, host)


def check(plan: Plan, seed: int = 0) -> None:
    """Each output within the bound of sums of exact products in float32, in any order, rounded once."""
    rng = np.random.default_rng(seed)
    shapes = (plan.trace.values[0], *plan.trace.operand_shapes)
    x, *operands = (bfloat16.narrow(rng.standard_normal(shape) * 10.0 ** rng.uniform(-1, 1, shape)) for shape in shapes)
    out = bfloat16.narrow(np.full(plan.trace.output, np.nan))
    with ct.num_threads(1):
        execute_plan(plan, x, tuple(operands), out)
    wide, *rest = (bfloat16.widen(one) for one in (x, *operands))
    expected, got = evaluate(plan.asked, wide, rest), bfloat16.widen(out)
    if len(plan.asked.stages) > 1:  # a chain behind it has tests of its own
        assert np.abs(got - expected).max() <= 2e-2 * np.abs(expected).max()
        return
    bias = [np.zeros(one.shape) for one in rest[1:]]
    count = evaluate(plan.asked, np.ones(wide.shape), [np.ones(rest[0].shape), *bias])
    sizes = evaluate(plan.asked, np.abs(wide), [np.abs(one) for one in rest])
    assert (np.abs(got - expected) <= 2.0**-8 * np.abs(expected) + (count + 2) * 2.0**-24 * sizes + 2.0**-126).all()


@needs_pairs
@pytest.mark.parametrize(("text", "x", "w"), LAYERS, ids=[text for text, *_ in LAYERS])
def test_emulated(text: str, x: tuple[int, ...], w: tuple[int, ...], monkeypatch: Any) -> None:
    from helpers.amx import emulated_kernel

    monkeypatch.setattr(bind, "kernel", emulated_kernel)
    plan = planned(text, x, w, with_tiles())
    assert any("tiles" in one.structure.name for one in plan.sweeps)
    bindings.cache_clear()
    try:
        check(plan)
    finally:
        bindings.cache_clear()


@needs_tiles
@pytest.mark.parametrize(("text", "x", "w"), LAYERS, ids=[text for text, *_ in LAYERS])
def test_real(text: str, x: tuple[int, ...], w: tuple[int, ...]) -> None:
    check(planned(text, x, w, machine()))


@needs_tiles
def test_bits_do_not_depend_on_threads(rng: Any) -> None:
    plan = planned(*LAYERS[0], machine())
    shapes = (plan.trace.values[0], *plan.trace.operand_shapes)
    x, *operands = (bfloat16.narrow(rng.standard_normal(shape)) for shape in shapes)
    results = []
    for threads in (1, 3):
        results.append(np.empty(plan.trace.output, np.uint16))
        with ct.num_threads(threads):
            execute_plan(plan, x, tuple(operands), results[-1])
    assert results[0].tobytes() == results[1].tobytes()


def sapphire_rapids() -> Machine:
    """Whatever this machine is."""
    text = "+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl,+avx512bf16,+fma,+f16c,+amx-tile,+amx-bf16"
    return Machine("avx512", "sapphirerapids", text, 64, 32, 48 << 10, 2 << 20, 60 << 20, 8, 8, tiles=True)


def test_assembly_for_a_processor_that_has_them() -> None:
    """Two loads and a product for each column, no tile is moved or spilled; the sizes are set once and released."""
    host = sapphire_rapids()
    pipe = ct.Pipeline(ct.Conv3d(padding=1))
    x, w = (1, 64, 16, 32, 32), (64, 64, 3, 3, 3)
    plan = _make_plan(pipe, x, (w,), bfloat16, Options("direct"), True, host)
    assert plan.deep == 16
    (sweep,) = plan.sweeps
    dumps: dict[str, str] = {}
    target = Target.cross("x86_64-unknown-linux-gnu", host.cpu, host.features)
    compile_ir(emit(sweep.structure, host), target, dumps=dumps)
    count = {
        name: len(re.findall(rf"^\s+{name}\b", dumps["emit"], re.MULTILINE))
        for name in ("ldtilecfg", "tilerelease", "tilezero", "tileloadd", "tdpbf16ps", "tilestored")
    }
    columns = sum(range(1, 5))  # kernels of one to four columns
    assert count == {
        "ldtilecfg": 1,
        "tilerelease": 1,
        "tilezero": columns,
        "tileloadd": columns + 4,
        "tdpbf16ps": columns,
        "tilestored": columns,
    }
    assert "1024 FLOP per cycle" in explain(plan)


def test_chosen_by_cost() -> None:
    """Tiles for many channels; for few, or an awkward number of them, what there was before."""

    def plan(channels: int, out: int, host: Machine) -> Plan:
        pipe, x, w = ct.Pipeline(ct.Conv3d(padding=1)), (1, channels, 8, 16, 16), (out, channels, 3, 3, 3)
        return _make_plan(pipe, x, (w,), bfloat16, Options(), True, host)

    host = sapphire_rapids()
    assert [plan(64, 64, host).deep, plan(96, 32, host).deep, plan(40, 32, host).deep] == [16, 16, 10]
    assert [plan(34, 32, host).deep, plan(3, 32, host).deep, plan(64, 4, host).deep] == [0, 0, 0]
    assert not any(plan(64, 64, one).deep for one in (replace(host, tiles=False), replace(host, check_bounds=True)))


def test_permission_agrees_with_the_system() -> None:
    """Where /proc/cpuinfo names no tiles the system grants none; asking twice is harmless."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        named = "amx_tile" in file.read()
    assert tiles_permitted() == tiles_permitted()
    assert named or not tiles_permitted()
    assert machine().tiles <= named
