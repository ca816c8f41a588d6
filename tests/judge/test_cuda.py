"""CUDA on the CPU: what a GPU would compute, and each mistake called by its name."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.kernels_cuda import SOURCE

from convt3d.judge.cuda import compilations, host_source, with_lines
from convt3d.judge.languages import compiler_of
from convt3d.judge.nvrtc import device_source, facts, library
from convt3d.judge.verdict import BARRIER, CRASH, NOT_RUN, OUT_OF_BOUNDS, RACE, WRONG_VALUES


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Any:
    compiler = compiler_of("cpp")
    if compiler is None:
        pytest.skip("no compiler for C++ on this machine")
    folder = tmp_path_factory.mktemp("cuda")
    source, caller, library = (str(folder / name) for name in ("kernel.cu", "call.cpp", "kernel.so"))
    Path(source).write_text(host_source(SOURCE))
    Path(caller).write_text("")
    for command in compilations(compiler, source, caller, library, []):
        subprocess.run(command, check=True)
    loaded = ctypes.CDLL(library)
    loaded.convt3d_device_fault.restype = ctypes.c_char_p
    x = np.random.default_rng(7).uniform(0.5, 1.5, 256).astype(np.float32)

    def run(which: int) -> tuple[Any, Any, str]:
        y = np.full(256, np.nan, np.float32)
        loaded.solution(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), which)
        return x, y, with_lines(loaded.convt3d_device_fault().decode(), library)

    return run


@pytest.fixture(params=["1", "2", "5"], ids=["forwards", "backwards", "mixed"], autouse=True)
def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of blocks and threads."""
    if "device" in request.fixturenames:
        ctypes.CDLL(None).setenv(b"OMP_NUM_THREADS", request.param.encode(), 1)
    return str(request.param)


def test_blocks_warps_and_atomics_compute_what_they_should(device: Any) -> None:
    x, y, fault = device(0)
    assert not fault
    np.testing.assert_allclose(y[:2], x.reshape(2, 128).sum(1), rtol=1e-6)
    assert np.isnan(y[2:]).all()
    x, y, fault = device(1)
    assert not fault
    np.testing.assert_allclose(y[:8], x.reshape(8, 32).sum(1), rtol=1e-6)
    x, y, fault = device(3)
    assert not fault
    np.testing.assert_allclose(y[0], x.sum(), rtol=1e-5)
    assert y[1:2].view(np.int32)[0] == 127
    x, y, fault = device(5)
    assert not fault
    np.testing.assert_array_equal(y, np.float32(3) * x)
    x, y, fault = device(6)  # threads that have ended do not hold up a barrier
    assert not fault
    assert (y[:100] == x[0]).all()


def test_lanes_see_each_other(device: Any) -> None:
    x, y, fault = device(2)
    assert not fault
    np.testing.assert_array_equal(y[:32], np.r_[x[0], x[:31]])
    np.testing.assert_array_equal(y[32:64], np.r_[x[1:16], x[15], x[17:32], x[31]])
    assert (y[64:96] == x[3]).all()
    assert (y[96:128] == 105).all()
    assert (y[128:160] == 11).all()


def test_narrow_types_round_as_they_should(device: Any) -> None:
    x, y, fault = device(4)
    assert not fault
    x = x[:128]
    small, twice = (x * np.float32(1e-3)).astype(np.float16), (x.astype(np.float16) * np.float16(2)).astype(np.float32)
    np.testing.assert_array_equal(y[:128], small.astype(np.float32) + twice)
    bits = x.view(np.uint32).astype(np.uint64)
    np.testing.assert_array_equal(
        y[128:].view(np.uint32), ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32)
    )


@pytest.mark.parametrize(
    ("which", "word", "piece", "place"),
    [
        pytest.param(10, RACE, "shared memory", "part[at]", id="a barrier is missing before the sums"),
        pytest.param(11, RACE, "shared memory", "part[at] += ", id="a barrier is missing in the loop"),
        pytest.param(12, RACE, "global memory", "y[0] = (float)", id="all threads write one number"),
        pytest.param(13, RACE, "global memory", "y[7] += ", id="blocks meet in one number"),
        pytest.param(14, BARRIER, "at another barrier", "if (threadIdx.x < 32)", id="barriers in two branches"),
        pytest.param(15, BARRIER, "", "", id="lanes of a warp go different ways"),
        pytest.param(
            16, OUT_OF_BOUNDS, "index 32 of an array 'float [32]'", "few[threadIdx.x + at]", id="a fixed array"
        ),
        pytest.param(
            17,
            OUT_OF_BOUNDS,
            " bytes behind the end of 100 bytes of cudaMalloc",
            "room[threadIdx.x] = ",
            id="cudaMalloc",
        ),
        pytest.param(
            18, OUT_OF_BOUNDS, "124 bytes of dynamic shared memory", "room[threadIdx.x] = 1.0f; y", id="dynamic shared"
        ),
        pytest.param(19, CRASH, "assert(x[threadIdx.x] < 0.0f) does not hold", "", id="an assertion"),
        pytest.param(20, CRASH, "1 blocks of 1025 threads", "", id="too many threads"),
        pytest.param(21, CRASH, "0 blocks of 32 threads", "", id="no blocks"),
        pytest.param(22, CRASH, "at most 48 KiB", "", id="too much shared memory"),
    ],
)
def test_mistakes_have_names(device: Any, which: int, word: str, piece: str, place: str) -> None:
    fault = device(which)[2]
    assert fault.startswith(f"{word}: ")
    assert piece in fault
    if place and shutil.which("addr2line"):
        lines = [1 + at for at, line in enumerate(SOURCE.split("\n")) if place in line]
        assert any(f"line {line}" in fault for line in lines), f"{fault} {lines}"
    assert not device(0)[2]  # the next call is a new one


@pytest.mark.parametrize(
    ("text", "call"),
    [
        (
            "a::k<f<int>, 2> <<< g, b >>> (x, f(y))",
            'Launch( g, b ).run("a::k<f<int>, 2>", [=]() { a::k<f<int>, 2> (x, f(y)); })',
        ),
        ("/* <<< */ k<<<1, 2>>>(\n x);", 'Launch(1, 2).run("k", [=]() { k(\n x); });'),
        ("// k<<<1, 2>>>(x)", "// k<<<1, 2>>>(x)"),
        ("extern __shared__ __align__(16) unsigned char all[];", "unsigned char * all = (unsigned char *)"),
    ],
)
def test_launches_become_calls(text: str, call: str) -> None:
    assert call in host_source(text)


@pytest.fixture
def example() -> str:
    if compiler_of("cpp") is None:
        pytest.skip("no compiler for C++ on this machine")
    return (Path(__file__).parents[2] / "examples" / "kernels" / "conv_transpose.cu").read_text()


SLUG = "conv-transpose-3d-asym-input-sq-kernel"


def test_the_judge_runs_cuda(judge: Any, example: str, order: str) -> None:
    """Passed, wrong by too few blocks, and a race that gives the right numbers all the same."""
    if order != "1":
        pytest.skip("the judge tries all orders itself")
    half = judge(example, SLUG, ".cu", dtype="float16", cases=("sample",))
    assert half.verdict.passed, half.verdict
    few = judge(
        example.replace("(voxels + 255) / 256", "voxels / 256 + 0 * 255"), SLUG, ".cu", cases=("unequal-everything",)
    )
    assert few.verdict.word == WRONG_VALUES
    assert "never written" in few.verdict.reason
    racing = judge(
        example.replace("if (at >= voxels) return;", "if (at >= voxels) return;\n    y[0] = 0;"),
        SLUG,
        ".cu",
        cases=("sample",),
    )
    assert racing.verdict.word == RACE
    assert "writes global memory at line" in racing.verdict.reason


def test_bank_conflicts_and_registers_are_told(judge: Any, example: str, order: str) -> None:
    """Each thread hands its sum to its neighbour, 8 words apart: 8 rounds for one."""
    if order != "1":
        pytest.skip("counted once")
    hand_over = """__shared__ float room[256 * 8 + 8];
    room[threadIdx.x * 8] = (float)sum;
    __syncthreads();
    y[at] = (real)room[threadIdx.x * 8];"""
    early = "const bool over = at >= voxels;\n    if (over) return;"
    text = example.replace("if (at >= voxels) return;", early).replace("y[at] = (real)sum;", hand_over)
    conflicting = judge(text, SLUG, ".cu", cases=("sample",))
    assert conflicting.verdict.passed, conflicting.verdict
    assert re.search(r"takes [78]\.\d times the cycles", conflicting.notes["bank conflicts"]), conflicting.notes
    if shutil.which("addr2line"):
        assert "shared memory at line " in conflicting.notes["bank conflicts"]
    straight = judge(text.replace("threadIdx.x * 8]", "threadIdx.x]"), SLUG, ".cu", cases=("sample",))
    assert straight.notes["bank conflicts"] == "none"
    if library() is None:
        assert "nvidia-cuda-nvrtc" in straight.notes["on a GPU"]
    elif "on a GPU" not in straight.notes:  # it may take too long on a busy machine
        assert re.fullmatch(
            r"conv_transpose: \d+ registers, 0 bytes spilled, 8224 bytes of shared memory", straight.notes["on sm_80"]
        )


def test_device_code_is_what_is_left_without_the_host() -> None:
    text = """struct A { int x; };
template <int N> __global__ void k(float* y) { y[0] = N; }
static int own(int a) { return a; }
#define LAUNCH(n) k<n><<<1, 1>>>(y)
extern "C" void solution(float* y) {
    k<3> <<<1, 2>>>(y); /* } */
}
__device__ int last;
"""
    device, names = device_source(text)
    assert names == ["k<3>", "k<n>"]
    assert "solution" not in device
    assert device.count("\n") == text.count("\n")
    assert all(piece in device for piece in ("struct A", "__global__ void k", "int own", "int last"))


def test_what_ptxas_says_is_read() -> None:
    log = """ptxas info    : Compiling entry function '_Z4fillPfm' for 'sm_80'
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 80 registers, used 1 barriers, 4224 bytes smem, 552 bytes cmem[0]
ptxas info    : Compiling entry function 'plain' for 'sm_80'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
"""
    assert facts(log) == {
        "fill": {"registers": 80, "spilled": 16, "shared": 4224},
        "plain": {"registers": 12, "spilled": 0, "shared": 0},
    }


def test_what_a_cpu_cannot_run_is_not_run(judge: Any, example: str, order: str) -> None:
    if order != "1":
        pytest.skip("nothing is run")
    assembly = example.replace("sum_t sum = 0;", 'sum_t sum = 0;\n    asm volatile("bar.sync 1, 32;");', 1)
    verdict = judge(assembly, SLUG, ".cu", cases=("sample",)).verdict
    if shutil.which("nvcc") is None and library() is None:
        assert verdict.word != NOT_RUN
    else:
        assert verdict.word == NOT_RUN
        assert "accepts it" in verdict.reason
        assert "it cannot be run on a CPU" in verdict.reason
    broken = judge(example.replace("sum_t sum = 0;", "sum_t sum = nobody;"), SLUG, ".cu", cases=("sample",)).verdict
    assert broken.word == "compile error"
    assert "nobody" in broken.reason
