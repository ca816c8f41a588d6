"""PTX run on the CPU: single instructions, faults by their names, and Triton's own output for the kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.triton import compiling_environment, need_compiled

from convt3d.judge.ptx.machine import launch
from convt3d.judge.ptx.memory import Fault, Region
from convt3d.judge.ptx.numbers import bfloat16_bits, fused, rounded_tf32
from convt3d.judge.ptx.text import Unknown, read

ROOT = Path(__file__).resolve().parents[2]
HEAD = """
.extern .shared .align 16 .b8 room[];
.visible .entry kernel(.param .u64 .ptr .global .align 1 kernel_param_0, .param .u32 kernel_param_1)
.reqntid 64
{
    .reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<40>; .reg .b64 %rd<20>;
    ld.param.b64 %rd1, [kernel_param_0];
    ld.param.b32 %r1, [kernel_param_1];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ctaid.x;
    mad.lo.s32 %r4, %r3, 64, %r2;
    mad.wide.s32 %rd2, %r4, 4, %rd1;
    shl.b32 %r5, %r2, 2;
    mov.b32 %r6, room;
    add.s32 %r7, %r6, %r5;
"""


def run(body: str, memory: Any, number: int = 0, blocks: int = 2) -> Any:
    """The array after 2 blocks of 64 threads: %rd2 is each thread's own place, %r7 its place in shared memory."""
    kernel = read(f"{HEAD}{body}\n    ret;\n}}\n")
    place = memory.ctypes.data
    given = {"kernel_param_0": np.array(place, np.uint64), "kernel_param_1": np.array(number % 2**32, np.uint32)}
    launch(kernel, given, (blocks, 1, 1), 256, [Region(place, place + memory.nbytes, "`x`")])
    return memory


def numbers(count: int = 128) -> Any:
    return np.arange(count, dtype=np.float32)


def test_threads_of_all_blocks_have_places_of_their_own() -> None:
    got = run("ld.global.b32 %r8, [%rd2]; add.f32 %r9, %r8, 0f3F800000; st.global.b32 [%rd2], %r9;", numbers())
    np.testing.assert_array_equal(got, numbers() + 1)


def test_branches_that_part_and_meet() -> None:
    """Threads loop as often as their number says; the sum is theirs."""
    body = """
    mov.b32 %r8, 0; mov.b32 %r9, 0;
    setp.eq.b32 %p1, %r2, 0; @%p1 bra DONE;
LOOP:
    add.s32 %r8, %r8, 1; add.s32 %r9, %r9, %r8;
    setp.lt.s32 %p2, %r8, %r2; @%p2 bra LOOP;
DONE:
    st.global.b32 [%rd2], %r9;
    """
    got = run(body, np.zeros(128, np.int32))
    np.testing.assert_array_equal(got, np.tile(np.arange(64) * np.arange(1, 65) // 2, 2))


def test_a_barrier_orders_shared_memory() -> None:
    body = """
    st.shared.b32 [%r7], %r2;
    bar.sync 0;
    sub.s32 %r8, 63, %r2; shl.b32 %r8, %r8, 2; add.s32 %r8, %r8, %r6;
    ld.shared.b32 %r9, [%r8];
    st.global.b32 [%rd2], %r9;
    """
    np.testing.assert_array_equal(run(body, np.zeros(128, np.int32)), np.tile(np.arange(64)[::-1], 2))
    with pytest.raises(Fault, match=r"race: .*another has written, with no barrier between"):
        run(body.replace("bar.sync 0;", ""), np.zeros(128, np.int32))


COPY = """
    cp.async.ca.shared.global [%r7], [%rd2], 4;
    cp.async.commit_group;
    cp.async.wait_group 0;
    bar.sync 0;
    ld.shared.b32 %r8, [%r7];
    st.global.b32 [%rd2], %r8;
"""


def test_an_asynchronous_copy_is_there_after_the_wait() -> None:
    np.testing.assert_array_equal(run(COPY, numbers()), numbers())
    with pytest.raises(Fault, match=r"race: .*a wait is missing"):
        run(COPY.replace("cp.async.wait_group 0;", ""), numbers())
    with pytest.raises(Fault, match=r"race: .*a wait is missing"):
        run(COPY.replace("wait_group 0", "wait_group 1"), numbers())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param("st.global.b32 [%rd2+4], %r2;", "out of bounds: .*0 bytes after the end of `x`", id="an overrun"),
        pytest.param("ld.global.b32 %r8, [%rd2+-4];", "out of bounds: .*4 bytes before `x`", id="before the beginning"),
        pytest.param("ld.global.b32 %r8, [%rd2+2];", "crash: .*no multiple", id="not aligned"),
        pytest.param("st.shared.b32 [%r7+4], %r2;", "out of bounds: .*256 bytes, and byte 259", id="shared memory"),
        pytest.param("st.global.b32 [%rd1], %r4;", "race: .*two threads write different", id="one place, many threads"),
        pytest.param(
            "ld.global.b32 %r8, [%rd1]; add.s32 %r8, %r4, 1; st.global.b32 [%rd2], %r8;",
            "race: .*another has read",
            id="blocks meet",
        ),
        pytest.param(
            "setp.lt.s32 %p1, %r2, 32; @%p1 bra A; bar.sync 0; bar.sync 0; bra B; A: bar.sync 0; B: bar.sync 0;",
            "",
            id="as many barriers on both ways",
        ),
        pytest.param(
            "setp.lt.s32 %p1, %r2, 33; @%p1 shfl.sync.bfly.b32 %r8, %r2, 1, 31, -1;",
            "barrier: .*not there",
            id="a shuffle",
        ),
    ],
)
def test_faults_have_names(body: str, words: str) -> None:
    if not words:
        run(body, numbers())
        return
    with pytest.raises(Fault, match=words):
        run(body, numbers())


def test_what_is_not_known_is_said() -> None:
    with pytest.raises(Unknown, match=r"no `frobnicate\.f32`"):
        run("frobnicate.f32 %r8, %r9;", numbers())


@pytest.mark.parametrize(("kind", "width"), [("s32", 32), ("u32", 32), ("s64", 64), ("u64", 64)])
def test_integers_are_those_of_c(kind: str, width: int) -> None:
    rng = np.random.default_rng(5)
    signed = kind.startswith("s")
    low, high = (-(2 ** (width - 1)), 2 ** (width - 1)) if signed else (0, 2**width)
    values = [int(rng.integers(low, high - 1, dtype=np.int64 if signed else np.uint64)) for _ in range(6)]
    values += [low, high - 1, 7 if not signed else -7, 1]
    for a in values:
        for b in values[::-1]:
            found = [_one(f"{name}.{kind}", a, b, kind) for name in ("add", "mul.hi", "mul.lo", "div", "rem")]
            quotient = abs(a) // abs(b) if b else None
            quotient = -quotient if quotient is not None and (a < 0) != (b < 0) else quotient
            expected = [a + b, a * b >> width, a * b, quotient, None if quotient is None else a - quotient * b]
            for got, exact in zip(found, expected, strict=True):
                assert exact is None or (got - exact) % 2**width == 0, (a, b, found, expected)


def _one(opcode: str, a: int, b: int, kind: str) -> int:
    """One instruction on two numbers."""
    width = int(kind[1:])
    memory = np.array([a % 2**width, b % 2**width, 0, 0], f"u{width // 8}")
    base, size = ("%rd1", width // 8)
    r = "%r" if width == 32 else "%rd"
    body = f"""
    setp.ne.b32 %p1, %r4, 0; @%p1 ret;
    ld.global.b{width} {r}8, [{base}]; ld.global.b{width} {r}9, [{base}+{size}];
    {opcode} {r}10, {r}8, {r}9;
    st.global.b{width} [{base}+{2 * size}], {r}10;
    """
    return int(run(body, memory, blocks=1)[2])


def test_a_fused_product_is_rounded_once() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(400).astype(np.float32) for _ in range(2))
    c = (-(a.astype(np.float64) * b) * (1 + rng.uniform(-1e-6, 1e-6, 400))).astype(np.float32)  # cancels
    c[::3] *= 1e9
    got = fused(a, b, c).astype(np.float32)
    for x, y, z, r in zip(*(map(float, one) for one in (a, b, c, got)), strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        near = np.float32(r)
        gap = min(abs(Fraction(float(np.nextafter(near, np.float32(side)))) - exact) for side in (-np.inf, np.inf))
        assert abs(Fraction(r) - exact) <= gap


def test_roundings() -> None:
    bits = np.array([0x3F801000, 0x3F800FFF, 0xBF801000, 0x7F800000], np.uint32)
    np.testing.assert_array_equal(rounded_tf32(bits), np.array([0x3F802000, 0x3F800000, 0xBF802000, 0x7F800000]))
    values = np.array([1.00390625, 1.01171875, 1.0 + 2**-8 + 2**-40, np.nan])  # two ties, one just above
    assert bfloat16_bits(values).tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7FFF]


# --- Triton's kernels -----------------------------------------------------------------------------------------------

FEW = "layernorm-gelu-scaling-float16 or recalled or second_call"  # recalled: two warps share the sums of a channel


def of_kernels(capability: int, *chosen: str) -> str:
    """Tests of the kernels, as PTX for this capability."""
    need_compiled()
    environment = {**compiling_environment(), "TRITON_INTERPRET": "0", "CONVT3D_TEST_PTX": str(capability)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests")))},
        capture_output=True,
        text=True,
        timeout=7200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


@pytest.mark.parametrize("capability", [80, 90])
def test_compiled_kernels_give_the_answer(capability: int) -> None:
    """mma.sync, ldmatrix and cp.async of sm_80, wgmma of sm_90."""
    assert "passed" in of_kernels(capability, "tests/gpu/test_kernels.py", "-k", FEW)


@pytest.mark.exhaustive
@pytest.mark.parametrize("capability", [80, 90])
def test_all_compiled_kernels_give_the_answer(capability: int) -> None:
    """Everything that the interpreter is tested with: operators, borders, groups, types, statistics, NaN; and the
    operators in all combinations of them."""
    files = "tests/gpu/test_kernels.py", "tests/gpu/test_campaign.py"
    assert "passed" in of_kernels(capability, *files, "-m", "exhaustive or not exhaustive")
