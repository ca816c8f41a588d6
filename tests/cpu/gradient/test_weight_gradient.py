"""Gradients of weights by the engine: the float64 meaning, whatever the plan, layout, type and instruction set."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpu.runtime.test_guard_pages import ISAS, python
from cpu.runtime.test_offsets import FAR, sparse
from golden.golden import fixed_machine
from helpers.gradients import Draw, Geometry, check_drawn_plans, drawn, geometries, short_chains
from hypothesis import given, settings

import convt3d
from convt3d.cpu.gradient.choose import make_gradient_plan
from convt3d.cpu.gradient.run import run_plan, weight_gradient
from convt3d.cpu.plan.cores import num_threads
from convt3d.cpu.plan.host import cpu_identity
from convt3d.cpu.plan.machine import machine
from convt3d.spec import gradient as meaning
from convt3d.spec.dtypes import DTYPES

TYPES = tuple(DTYPES)
HELPERS = Path(__file__).resolve().parents[2] / "helpers"
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect, and address space without memory")


def of_layer(
    small: tuple[int, ...], large: int, kernel: int = 3, stride: int = 1, padding: int = 1, groups: int = 1, **more: Any
) -> Draw:
    """Of a layer with the same numbers along all axes."""
    rng, kind = np.random.default_rng(0), DTYPES[more.get("dtype", "float32")]
    sizes = [(size - 1) * stride - 2 * padding + kernel for size in small[2:]]
    arrays = [rng.standard_normal(shape) for shape in (small, (small[0], large, *sizes))]
    triples = [(value,) * 3 for value in (kernel, stride, padding, 1)]
    return Draw(*(kind.narrow(array) for array in arrays), *triples, groups, kind)  # type: ignore[arg-type]


# The ways a kernel can go: layers, each with the words its kernel's name must hold.
WAYS = {
    "every tap alone": (of_layer((2, 20, 5, 6, 7), 32, stride=2, kernel=1, padding=0), "large10x2__"),
    "channels of the small array along lanes": (of_layer((1, 48, 5, 5, 9), 24, stride=3), "small"),
    "one input channel, taps together": (of_layer((2, 32, 5, 6, 17), 1), "small1x2_taps"),
    "three input channels": (of_layer((1, 32, 7, 8, 21), 3), "small3x2_taps"),
    "one output channel": (of_layer((1, 1, 5, 6, 7), 32), "large1x"),
    "depthwise": (of_layer((2, 35, 5, 6, 7), 35, groups=35), "groups1x1_taps"),
    "groups of few channels": (of_layer((2, 24, 5, 6, 7), 12, groups=6), "groups"),
    "groups of many channels": (of_layer((1, 64, 3, 4, 5), 64, groups=2, stride=2, kernel=2, padding=0), "large"),
    "Winograd": (of_layer((2, 32, 8, 9, 10), 40), "winograd3x3x3"),
    "Winograd in two phases": (of_layer((1, 64, 8, 8, 8), 64, kernel=4, stride=2), "winograd2x2x2"),
    "Winograd, pieces of three and two": (of_layer((1, 64, 8, 8, 8), 64, kernel=5), "winograd3x3x3"),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_gone_and_right(way: str) -> None:
    draw, words = WAYS[way]
    assert words in make_gradient_plan(draw.problem, fixed_machine("avx512")).structure.name
    draw.check(draw.run())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("first", [0, pytest.param(100, marks=pytest.mark.exhaustive)])
def test_drawn_gradients(first: int, dtype: str) -> None:
    for seed in range(first, first + 6):
        rng = np.random.default_rng(seed)
        draw = drawn(rng, dtype)
        for algorithm in ("auto", "direct", "exact"):
            draw.check(draw.run(algorithm), f"seed {seed}, {algorithm}: ")
        check_drawn_plans(rng, draw, 2, f"seed {seed}: ")


@settings(max_examples=40)
@given(case=geometries())
def test_drawn_layers(case: Geometry) -> None:
    """Both convolutions, any parameters that make a layer."""
    rng = np.random.default_rng(case.seed)
    x = rng.standard_normal((case.batch, case.groups * case.channels[0], *case.sizes)).astype(np.float32)
    for transposed, out in ((True, case.out_of_transposed), (False, case.out_of_convolution)):
        if min(out) < 1:
            continue
        grad = rng.standard_normal((case.batch, case.groups * case.channels[1], *out)).astype(np.float32)
        pair = (x, grad) if transposed else (grad, x)
        geometry = case.kernel, case.stride, case.padding, case.dilation, case.groups
        draw = Draw(*pair, *geometry, DTYPES["float32"])
        result = draw.empty()
        weight_gradient(*pair, *geometry, draw.dtype, result, transposed=transposed)
        draw.check(result)


def test_against_pytorch() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 20, 7, 8, 9), (20, 18, 4, 3, 5)))
    weight = torch.from_numpy(w).requires_grad_()
    y = torch.nn.functional.conv_transpose3d(torch.from_numpy(x), weight, None, (2, 1, 2), 1)
    grad = torch.randn_like(y)
    y.backward(grad)
    found = np.full_like(w, np.nan)
    weight_gradient(x, grad.numpy(), (4, 3, 5), (2, 1, 2), (1, 1, 1), (1, 1, 1), 1, DTYPES["float32"], found)
    np.testing.assert_allclose(found, weight.grad.numpy(), atol=1e-3)


# --- numbers that are not finite --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", ["small", "large", "both"])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_reach_what_they_meet(way: str, where: str, special: float) -> None:
    """At corners, where some taps pair them with nothing: a zero times an infinity would be NaN there."""
    draw = WAYS[way][0]
    arrays = {"small": draw.small.copy(), "large": draw.large.copy()}
    for name in arrays if where == "both" else (where,):
        arrays[name][0, -1, 0, 0, 0] = arrays[name][-1, 0, -1, -1, -1] = special
    draw = replace(draw, **arrays)
    truth = draw.expected()
    assert not np.isfinite(truth).all()
    assert np.isfinite(truth).any() or where == "both" or draw.kernel == (1, 1, 1)
    draw.check(draw.run())


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_numbers_too_large_for_a_transform(dtype: str) -> None:
    """Sums of eight of them overflow, in a transform; direct summation never forms them."""
    draw = of_layer((1, 32, 6, 6, 6), 32, dtype=dtype)
    assert "winograd" in make_gradient_plan(draw.problem, machine()).structure.name
    huge = {"float32": 2e38, "bfloat16": 2e38, "float64": 1.5e308}[dtype]
    small = draw.dtype.widen(draw.small)
    small[0, :, 2, 2, 2:4] = huge
    large = draw.dtype.widen(draw.large) * 1e-3
    draw = replace(draw, small=draw.dtype.narrow(small), large=draw.dtype.narrow(large))
    assert np.isfinite(draw.expected()).all()
    draw.check(draw.run())


# --- bits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_any_number_of_threads_gives_the_same_bits(way: str) -> None:
    draw = WAYS[way][0]
    large = replace(draw, small=np.repeat(draw.small, 3, axis=0), large=np.repeat(draw.large, 3, axis=0))
    found = set()
    for count in (1, 2, 3, 5, 5, 2):
        with num_threads(count):
            found.add(large.run().tobytes())
    assert len(found) == 1


def test_threads_that_meet_in_many_chunks() -> None:
    """Whoever comes last adds up what the others left, in the same order."""
    draw = of_layer((3, 16, 12, 12, 12), 16)
    with short_chains():
        plan = replace(make_gradient_plan(draw.problem, machine()), chunks=7)
        found = set()
        for count in (1, 2, 3, 5, 8, 5, 3):
            out = draw.empty()
            with num_threads(count):
                assert run_plan(plan, draw.small, draw.large, out)
            found.add(out.tobytes())
            draw.check(out)
    assert len(found) == 1


@pytest.mark.parametrize("way", ["every tap alone", "one input channel, taps together", "Winograd"])
def test_errors_do_not_grow_with_the_number_of_positions(way: str) -> None:
    """Equal numbers round the same way every time: added one after the other, 2^21 of them would lose a thousandth."""
    draw = WAYS[way][0]
    shapes = [(2, draw.small.shape[1], 64, 128, 128), (2, draw.large.shape[1])]
    sizes = [
        (n - 1) * s - 2 * p + k
        for n, s, p, k in zip(shapes[0][2:], draw.stride, draw.padding, draw.kernel, strict=True)
    ]
    small = np.broadcast_to(np.float32(0.1), shapes[0])
    large = np.broadcast_to(np.float32(0.3), (*shapes[1], *sizes))
    one = replace(draw, small=small, large=large)
    found = one.run().astype(np.float64)
    pairs = [np.array([behind - first for first, behind in one.problem.ranges(axis)]) for axis in range(3)]
    count = 2.0 * pairs[0][:, None, None] * pairs[1][:, None] * pairs[2]
    truth = count * float(np.float32(0.1)) * float(np.float32(0.3))
    assert np.abs(found / truth - 1).max() < 5e-5


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("inputs", ["signed", "positive", "of large mean", "of wide range"])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (4, 2), (5, 2), (2, 1)])
def test_winograd_rounds_like_direct_summation(kernel: int, stride: int, inputs: str, transposed: bool) -> None:
    """At most twice its root mean square, and 2.5 times its maximum; gradients have both signs, inputs may have one."""
    draw = of_layer((2, 32, 11, 12, 13), 32, kernel=kernel, stride=stride)
    rng = np.random.default_rng(0)
    name = "small" if transposed else "large"
    shape = getattr(draw, name).shape
    values = {
        "signed": rng.uniform(-1, 1, shape),
        "positive": rng.uniform(0, 1, shape),
        "of large mean": 100 + rng.uniform(-1, 1, shape),
        "of wide range": rng.uniform(-1, 1, shape) * 10.0 ** rng.uniform(-4, 0, shape),
    }
    draw = replace(draw, **{name: values[inputs].astype(np.float32)})
    truth, host = draw.expected(), machine()
    problem = replace(draw.problem, transposed=transposed)
    direct, winograd = (make_gradient_plan(problem, host, algorithm) for algorithm in ("direct", "auto"))
    if winograd.method is None:
        pytest.skip("direct summation is cheaper here")
    errors = []
    for plan in (direct, winograd):
        out = draw.empty()
        assert run_plan(plan, draw.small, draw.large, out)
        error = np.abs(out - truth)
        errors.append((np.sqrt((error**2).mean()), error.max()))
    assert errors[1][0] <= 2 * errors[0][0]
    assert errors[1][1] <= 2.5 * errors[0][1]


# --- memory -----------------------------------------------------------------------------------------------------------


@LINUX
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("first", [1000, 2000])
def test_drawn_gradients_stay_inside(isa: str, first: int) -> None:
    """Arrays and scratch between unreadable pages, of all types and strides; drawn plans too."""
    seed = first + 100 * ISAS.index(isa)
    threads = str(first // 1000)
    done = python(str(HELPERS / "gradients.py"), str(seed), "10", CONVT3D_ISA=isa, CONVT3D_NUM_THREADS=threads)
    last = (done.stdout.strip().splitlines() or ["nothing"])[-1]
    assert last == "all inside", f"exit {done.returncode} after {last}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("dtype", TYPES)
def test_checked_accesses(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same bits, and no access outside of an array or a buffer."""
    for seed in range(2):
        rng = np.random.default_rng(seed)
        draw = drawn(rng, dtype)
        plain = draw.run().tobytes()
        monkeypatch.setenv("CONVT3D_CHECK_BOUNDS", "1")
        assert draw.run().tobytes() == plain
        check_drawn_plans(rng, draw, 1)
        monkeypatch.delenv("CONVT3D_CHECK_BOUNDS")


@pytest.mark.parametrize("way", ["Winograd", "depthwise", "three input channels"])
def test_checked_ways(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVT3D_CHECK_BOUNDS", "1")
    WAYS[way][0].check(WAYS[way][0].run())


@LINUX
@pytest.mark.parametrize("axis", range(5))
def test_offsets_of_64_bits(axis: int) -> None:
    """A product of index and stride in 32 bits would wrap around, and read somewhere else."""
    sizes, strides = [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]
    sizes[axis], strides[axis] = 2, FAR
    draw = of_layer(tuple(sizes), sizes[1], kernel=1, padding=0, dtype="float16")
    far = [sparse(array.shape, tuple(strides), "float16") for array in (draw.small, draw.large)]
    for array, values in zip(far, (draw.small, draw.large), strict=True):
        array[...] = values
    draw.check(replace(draw, small=far[0], large=far[1]).run())


def test_channels_last_and_results_of_any_strides() -> None:
    draw = of_layer((2, 20, 5, 6, 7), 33)
    last = replace(
        draw,
        **{
            name: np.ascontiguousarray(getattr(draw, name).transpose(0, 2, 3, 4, 1)).transpose(0, 4, 1, 2, 3)
            for name in ("small", "large")
        },
    )
    out = np.full((2, *draw.result[::-1]), np.nan, np.float32)[0].transpose()
    assert last.run(out=out) is out
    assert out.tobytes() == draw.run().tobytes()


# --- the ends ---------------------------------------------------------------------------------------------------------


def test_nothing_to_sum_is_zero() -> None:
    """No samples, no positions, or taps that all leave the array."""
    for small, large, padding in (
        ((0, 2, 3, 3, 3), (0, 2, 5, 5, 5), 0),
        ((1, 2, 0, 3, 3), (1, 2, 1, 5, 5), 0),
        ((1, 2, 1, 1, 1), (1, 2, 3, 3, 3), 9),
    ):
        out = np.full((2, 2, 3, 3, 3), np.nan, np.float32)
        arrays = np.ones(small, np.float32), np.ones(large, np.float32)
        weight_gradient(*arrays, (3, 3, 3), (1, 1, 1), (padding,) * 3, (1, 1, 1), 1, DTYPES["float32"], out)
        assert not out.any()


@pytest.mark.parametrize("far", [10**6, 2**61])
def test_absurd_dilations_and_paddings(far: int) -> None:
    """Taps that lie far apart, and a padding that brings them back: few terms, and no memory for what is between."""
    rng = np.random.default_rng(0)
    small, large = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 1, 1, 4), (2, 2, 1, 1, 9)))
    geometry = (1, 1, 3), (1, 1, 2), (0, 0, far), (1, 1, far), 1
    out = np.full((3, 2, 1, 1, 3), np.nan, np.float32)
    weight_gradient(small, large, *geometry, DTYPES["float32"], out)
    truth = meaning.weight_gradient(small.astype(np.float64), large.astype(np.float64), *geometry)
    assert truth[..., 1].any()
    np.testing.assert_allclose(out, truth, atol=1e-5)


@pytest.mark.skipif(cpu_identity() is None, reason="the system does not name the CPU's features")
def test_a_warm_start_does_not_load_llvm(tmp_path: Path) -> None:
    code = (
        "import sys, numpy\n"
        "from convt3d.cpu.gradient.bias import bias_gradient\n"
        "from convt3d.cpu.gradient.run import weight_gradient\n"
        "from convt3d.spec.dtypes import float32\n"
        "x, out = numpy.ones((1, 4, 3, 3, 3), 'f'), numpy.empty((4, 4, 3, 3, 3), 'f')\n"
        "weight_gradient(x, x, (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 1, float32, out)\n"
        "bias_gradient(x, float32, bias := numpy.empty(4, 'f'))\n"
        "print('llvmlite.binding' in sys.modules, float(out.sum()), float(bias.sum()))"
    )
    source = Path(convt3d.__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONPATH": str(source), "CONVT3D_CACHE_DIR": str(tmp_path / "cache")}

    def call() -> list[str]:
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert call() == ["True", "5488.0", "108.0"]
    assert call() == ["False", "5488.0", "108.0"]
