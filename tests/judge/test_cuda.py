"""CUDA on the CPU: what a GPU would compute, and each mistake called by its name."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.kernels_cuda import FURTHER, SOURCE, STYLES

from convt3d.judge import nvrtc
from convt3d.judge.cuda import compilations, host_source, with_lines
from convt3d.judge.languages import compiler_of
from convt3d.judge.nvrtc import device_source, facts, library
from convt3d.judge.verdict import BARRIER, COMPILE_ERROR, CRASH, NOT_ALLOWED, NOT_RUN, OUT_OF_BOUNDS, RACE, WRONG_VALUES


def loaded(text: str, folder: Path) -> Any:
    """A function that calls the text's `solution` and returns input, output and fault."""
    compiler = compiler_of("cpp")
    if compiler is None:
        pytest.skip("no compiler for C++ on this machine")
    source, caller, library = (str(folder / name) for name in ("kernel.cu", "call.cpp", "kernel.so"))
    Path(source).write_text(host_source(text))
    Path(caller).write_text("")
    for command in compilations(compiler, source, caller, library, []):
        subprocess.run(command, check=True)
    device = ctypes.CDLL(library)
    device.convt3d_device_fault.restype = ctypes.c_char_p
    x = np.zeros(256 + 8, np.float32)
    x = x[-x.ctypes.data % 32 // 4 :][:256]
    x[:] = np.random.default_rng(7).uniform(0.5, 1.5, 256)

    def run(which: int) -> tuple[Any, Any, str]:
        y = np.full(256, np.nan, np.float32)
        device.solution(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), which)
        return x, y, with_lines(device.convt3d_device_fault().decode(), library)

    return run


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return loaded(SOURCE, tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="module")
def styles(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return loaded(STYLES, tmp_path_factory.mktemp("styles"))


@pytest.fixture(scope="module")
def further(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return loaded(FURTHER, tmp_path_factory.mktemp("further"))


@pytest.fixture(params=["1", "2", "5"], ids=["forwards", "backwards", "mixed"])
def order(request: pytest.FixtureRequest) -> None:
    """Of blocks and threads."""
    ctypes.CDLL(None).setenv(b"OMP_NUM_THREADS", request.param.encode(), 1)


def test_blocks_warps_and_atomics_compute_what_they_should(device: Any, order: None) -> None:
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


def test_lanes_see_each_other(device: Any, order: None) -> None:
    x, y, fault = device(2)
    assert not fault
    np.testing.assert_array_equal(y[:32], np.r_[x[0], x[:31]])
    np.testing.assert_array_equal(y[32:64], np.r_[x[1:16], x[15], x[17:32], x[31]])
    assert (y[64:96] == x[3]).all()
    assert (y[96:128] == 105).all()
    assert (y[128:160] == 11).all()


def test_narrow_types_round_as_they_should(device: Any, order: None) -> None:
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
def test_mistakes_have_names(device: Any, order: None, which: int, word: str, piece: str, place: str) -> None:
    fault = device(which)[2]
    assert fault.startswith(f"{word}: ")
    assert piece in fault
    if place and shutil.which("addr2line"):
        lines = [1 + at for at, line in enumerate(SOURCE.split("\n")) if place in line]
        assert any(f"line {line}" in fault for line in lines), f"{fault} {lines}"
    assert not device(0)[2]  # the next call is a new one


def test_groups_of_threads(styles: Any, order: None) -> None:
    x, y, fault = styles(0)
    assert not fault
    tiles = x[:64].reshape(8, 8)
    np.testing.assert_allclose(y[:64].reshape(8, 8), tiles.sum(1, keepdims=True).repeat(8, 1), rtol=1e-6)
    shifted = np.concatenate([tiles[:, 1:], tiles[:, 7:]], 1) + 100 * np.arange(8)[:, None]
    shifted[1] += 1000
    np.testing.assert_allclose(y[64:128].reshape(8, 8), shifted, rtol=1e-6)
    np.testing.assert_array_equal(y[128:192].reshape(8, 8), np.arange(1, 9)[None].repeat(8, 0))
    thirds = [[lane for lane in range(32) if (32 * warp + lane) % 3 == 0] for warp in range(2)]
    for warp, lanes in enumerate(thirds):
        for lane in range(32):
            together = 100 * len(lanes) + lanes.index(lane) if lane in lanes else 32 - len(lanes)
            assert y[192 + 32 * warp + lane] == together


def test_copies_arrive_when_they_are_waited_for(styles: Any, order: None) -> None:
    x, y, fault = styles(1)
    assert not fault
    np.testing.assert_array_equal(y[:64], x[:64] + np.where(np.arange(64) % 2 == 0, 0, x[64:128][::-1]))
    _, y, fault = styles(20)  # nobody waits: what was there before
    assert not fault
    assert np.isnan(y[:64]).all()
    x, y, fault = styles(2)
    assert not fault
    np.testing.assert_array_equal(y[:64], x[:64][::-1] + x[64:128][::-1])
    x, y, fault = styles(3)
    assert not fault
    np.testing.assert_array_equal(y[:64], x[:64][::-1])


def test_streams_tensor_cores_and_pairs(styles: Any, order: None) -> None:
    x, y, fault = styles(4)
    assert not fault
    np.testing.assert_array_equal(y[:128], np.tile(1 + x[:64], 2))
    x, y, fault = styles(5)
    assert not fault
    matrix = x.reshape(16, 16).astype(np.float16).astype(np.float64)
    np.testing.assert_allclose(y.reshape(16, 16), 2 * (1 + matrix @ matrix.T), rtol=1e-6)
    x, y, fault = styles(6)
    assert not fault
    half = x[:64].astype(np.float16)
    square = (half.astype(np.float64) ** 2 + 1).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(y[:64], square + np.float32(5))
    four = x[:64].reshape(16, 4)
    np.testing.assert_array_equal(y[64:128], np.tile(four[:, 0] + four[:, 3], 4) + np.float32(496))
    assert not styles(7)[2]


@pytest.mark.parametrize(
    ("which", "word", "piece"),
    [
        pytest.param(21, RACE, "shared memory", id="a pipeline nobody waits for"),
        pytest.param(22, RACE, "shared memory", id="a barrier that may not be there yet"),
        pytest.param(23, BARRIER, "arrivals that never come", id="a barrier that expects too many"),
        pytest.param(24, RACE, "a launch in another stream wrote, and no event", id="streams that nothing orders"),
        pytest.param(25, RACE, "cudaMemsetAsync writes global memory that a launch", id="a copy in another stream"),
        pytest.param(26, RACE, "shared memory", id="fragments loaded too early"),
        pytest.param(27, COMPILE_ERROR, "uses 52000 bytes of static shared memory", id="static shared memory"),
        pytest.param(28, NOT_RUN, "grid.sync() needs all blocks at once", id="a barrier of the grid"),
        pytest.param(29, CRASH, "at most 128 threads: its __launch_bounds__", id="more threads than a constant"),
        pytest.param(30, CRASH, "at most 32 threads: its __launch_bounds__", id="more threads than a macro"),
        pytest.param(31, RACE, "shared memory", id="a shuffle is no barrier of memory"),
    ],
)
def test_mistakes_of_larger_kernels_have_names(styles: Any, order: None, which: int, word: str, piece: str) -> None:
    fault = styles(which)[2]
    assert fault.startswith(f"{word}: ")
    assert piece in fault
    assert "offset" not in fault or not shutil.which("addr2line")
    assert not styles(7)[2]


def test_what_people_write_besides(further: Any, order: None) -> None:
    """Templates with concepts, lambdas, arguments that cannot be copied, vectors, less common functions."""
    x, y, fault = further(0)
    assert not fault
    np.testing.assert_array_equal(y, 4 * x)
    x, y, fault = further(1)
    assert not fault
    np.testing.assert_array_equal(y.reshape(64, 4), x.reshape(64, 4)[:, ::-1])
    _, y, fault = further(2)
    assert not fault
    dot = 2 * 3 + 2 + 1 - 1 + 4
    assert y[:8].tolist() == [10.5, 1.0, 8 + 0x1188, dot + 3, 2 + 4, 2, 5, 1.0]
    x, y, fault = further(3)
    assert not fault
    np.testing.assert_allclose(y[:2], [x[:32].sum(), x[32:48].sum()], rtol=1e-6)
    x, y, fault = further(4)
    assert not fault
    np.testing.assert_array_equal(y[:32], x[31::-1])
    for which in (5, 6):
        x, y, fault = further(which)
        assert not fault
        np.testing.assert_array_equal(y, 2 * x)


@pytest.mark.parametrize(
    ("which", "place"),
    [
        pytest.param(20, 1, id="lanes that never were"),
        pytest.param(22, 0, id="lanes that have ended"),
        pytest.param(30, 0, id="shared memory nobody has written"),
    ],
)
def test_numbers_from_nowhere_show(further: Any, order: None, which: int, place: int) -> None:
    """A GPU gives what it likes: NaN here, so that no result is right by chance."""
    _, y, fault = further(which)
    assert not fault
    assert np.isnan(y[place])


@pytest.mark.parametrize(
    ("which", "word", "piece"),
    [
        pytest.param(21, RACE, "shared memory", id="__syncwarp is missing"),
        pytest.param(23, OUT_OF_BOUNDS, "behind the end of static shared memory", id="an overrun by a pointer"),
        pytest.param(24, OUT_OF_BOUNDS, "of 0 bytes of dynamic shared memory", id="a launch without shared memory"),
        pytest.param(25, CRASH, "needs a multiple of 16 bytes, and this one is 4", id="a load that is not aligned"),
        pytest.param(26, CRASH, "needs a multiple of 16 bytes, and this one is 8", id="a store that is not aligned"),
        pytest.param(27, NOT_RUN, "a kernel without its type", id="a kernel as void*"),
        pytest.param(31, NOT_RUN, "a kernel launches another one", id="a launch in a kernel"),
        pytest.param(28, CRASH, "through a null pointer", id="cudaMalloc failed and nobody looked"),
        pytest.param(29, CRASH, "in memory that cudaFree has taken back", id="cudaFree came first"),
    ],
)
def test_further_mistakes_have_names(further: Any, order: None, which: int, word: str, piece: str) -> None:
    _, _, fault = further(which)
    assert fault.startswith(f"{word}: ")
    assert piece in fault


@pytest.mark.parametrize(
    ("text", "call"),
    [
        (
            "a::k<f<int>, 2> <<< g, b >>> (x, f(y))",
            'Launch( g, b ).run("a::k<f<int>, 2>", [&]() CONVT3D_UNSEEN { a::k<f<int>, 2> (x, f(y)); })',
        ),
        ("/* <<< */ k<<<1, 2>>>(\n x);", 'Launch(1, 2).run("k", [&]() CONVT3D_UNSEEN { k(\n x); });'),
        ("// k<<<1, 2>>>(x)", "// k<<<1, 2>>>(x)"),
        ("void k() { extern __shared__ __align__(16) unsigned char all[]; }", "unsigned char* all = (unsigned char*)"),
        ("void k() { extern __shared__ alignas(8) T all[]; }", "T* all = (T*)convt3d_device::dynamic_shared();"),
        ("void k() { extern __shared__ float all[][33]; }", "float (*all)[33] = (float (*)[33])"),
        ("namespace a { extern __shared__ float all[]; }", "static float* all; static const convt3d_device::Dynamic"),
        ("extern int other[];", "extern int other[];"),
        ("__global__ void __launch_bounds__(64) k(int n) {} k<<<1, 2>>>(3)", "{ k(3); }, 64)"),
        ("#define N 32\n__launch_bounds__(2 * N, 3) void k() {} a::k<1><<<1, 2>>>()", "a::k<1>(); }, 64)"),
        (
            "__launch_bounds__(SIZE) void k() {} k<<<1, 2>>>()",
            "{ k(); })",
        ),  # a number that is known to the compiler only
    ],
)
def test_launches_become_calls(text: str, call: str) -> None:
    assert call in host_source(text)


def example(name: str) -> str:
    if compiler_of("cpp") is None:
        pytest.skip("no compiler for C++ on this machine")
    return (Path(__file__).parents[2] / "examples" / "kernels" / f"{name}.cu").read_text()


SLUG = "conv-transpose-3d-asym-input-sq-kernel"


def test_a_file_of_many_launches_takes_no_longer_than_it_must() -> None:
    """Of a million characters, with brackets that never close: seconds, not hours."""
    start = time.process_time()
    for text in ("k<<<1, 1>>>(x); " * 30_000, "k<<<1, 1>>>( " * 1_000, "k<<< " * 20_000, "extern __shared__ " * 5_000):
        host_source(text)
    assert time.process_time() - start < 20


@pytest.mark.parametrize(
    ("name", "right", "wrong", "word", "piece"),
    [
        pytest.param(
            "conv_transpose", "(voxels + 255) / 256", "voxels / 256", WRONG_VALUES, "never written", id="too few blocks"
        ),
        pytest.param(
            "conv_transpose",
            "if (at >= voxels) return;",
            "if (at >= voxels) return;\n    y[0] = 0;",
            RACE,
            "writes global memory at line",
            id="a race that gives the right numbers",
        ),
        pytest.param(
            "conv_transpose",
            "    cudaDeviceSynchronize();",
            "    output[0] = output[1];",
            CRASH,
            "the host reads memory of the device at line",
            id="the host uses the device's pointers",
        ),
        pytest.param(
            "conv_transpose",
            "sum_t sum = 0;",
            "sum_t sum;",
            WRONG_VALUES,
            "voxels are wrong",
            id="a sum nobody has set",
        ),
        pytest.param(
            "conv_transpose",
            "__global__ void conv_transpose",
            '__attribute__((no_sanitize("thread"))) __global__ void conv_transpose',
            NOT_ALLOWED,
            "names `no_sanitize`",
            id="it keeps the judge from looking",
        ),
        pytest.param(
            "max_max_sum", "    __syncthreads();\n", "", RACE, "reads shared memory at line", id="no barrier at all"
        ),
        pytest.param(
            "max_max_sum",
            "    if (lane == 0)",
            "    if (lane < 16) __syncthreads();\n    if (lane == 0)",
            BARRIER,
            "at another barrier",
            id="a barrier for some",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "layernorm_gelu_scaling",
            "out_channels * sizeof(sum_t)",
            "(out_channels - 1) * sizeof(sum_t)",
            OUT_OF_BOUNDS,
            "dynamic shared memory",
            id="an overrun of shared memory",
        ),
        pytest.param(
            "avgpool_clamp_softmax_multiply",
            "channels * voxels * sizeof(sum_t)",
            "(channels * voxels - 1) * sizeof(sum_t)",
            OUT_OF_BOUNDS,
            "bytes of cudaMalloc",
            id="an overrun of a workspace",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "sum_layernorm_avgpool_gelu",
            "if (at >= count) return;",
            "",
            OUT_OF_BOUNDS,
            "elements behind `input`",
            id="a grid that is too large",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_examples_with_a_mistake(judge: Any, name: str, right: str, wrong: str, word: str, piece: str) -> None:
    text = example(name)
    assert text.count(right) == 1
    slug = re.findall("problem: (.*)", text)[0]
    case = "unequal-everything" if word == WRONG_VALUES else "sample"
    verdict = judge(text.replace(right, wrong), slug, ".cu", cases=(case,)).verdict
    assert verdict.word == word, verdict
    assert piece in verdict.reason


def test_the_judge_runs_cuda_in_16_bits(judge: Any) -> None:
    verdict = judge(example("conv_transpose"), SLUG, ".cu", dtype="float16", cases=("sample",)).verdict
    assert verdict.passed, verdict


def test_bank_conflicts_and_registers_are_told(judge: Any) -> None:
    """Each thread hands its sum to its neighbour, 8 words apart: 8 rounds for one."""
    hand_over = """__shared__ float room[256 * 8 + 8];
    room[threadIdx.x * 8] = (float)sum;
    __syncthreads();
    y[at] = (real)room[threadIdx.x * 8];"""
    early = "const bool over = at >= voxels;\n    if (over) return;"
    text = (
        example("conv_transpose").replace("if (at >= voxels) return;", early).replace("y[at] = (real)sum;", hand_over)
    )
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


STANDARD = """#include <array>
#include <concepts>
#include <limits>
#include <type_traits>
#include <utility>
template <std::floating_point T>
__global__ void filled(T* y, auto count)
{
    std::array<T, 3> few{1, 2, 3};
    if constexpr (std::is_same_v<T, float>) y[threadIdx.x] = std::numeric_limits<T>::max() + few[count % 3];
}
extern "C" void solution(float* y) { filled<float, int><<<1, 32>>>(y, 3); }
"""


def test_nvrtc_knows_what_device_code_takes_of_the_standard_library(tmp_path: Path) -> None:
    place = library()
    if place is None:
        pytest.skip("NVRTC is not installed")
    (tmp_path / "mine.cu").write_text(STANDARD)
    said = subprocess.run(
        [sys.executable, nvrtc.__file__, place, tmp_path / "mine.cu", *(f"-I{one}" for one in nvrtc.includes())],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    ).stdout
    found = [json.loads(line) for line in said.splitlines()]
    assert [one["architecture"] for one in found if one["taken"]] == list(nvrtc.ARCHITECTURES), found
    assert all(set(one["kernels"]) == {"filled"} for one in found)


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


FETCHED = """__device__ real fetched(const real* from, size_t at, size_t count)
{
    if (at / 4 * 4 + 4 > count) return from[at];
    __align__(16) float four[4];
    *reinterpret_cast<float4*>(four) = reinterpret_cast<const float4*>(from)[at / 4];
    return four[at % 4];
}

"""


@pytest.mark.parametrize(
    ("right", "wrong", "word", "piece"),
    [
        pytest.param("", "", "passed", "", id="where it may"),
        pytest.param(
            "    if (at / 4 * 4 + 4 > count) return from[at];\n",
            "",
            OUT_OF_BOUNDS,
            "bytes behind the end of `kernel`",
            id="over the end",
        ),
        pytest.param(
            "(from)[at / 4]", "(from + 1)[at / 4]", CRASH, "'float4' needs a multiple of 16 bytes", id="not aligned"
        ),
    ],
)
def test_vectors_of_four(judge: Any, right: str, wrong: str, word: str, piece: str) -> None:
    """Arrays lie as cudaMalloc gives memory, whose alignment vectors need, and their ends are seen all the same."""
    text = example("conv_transpose")
    weight = "w[(((ci * per_out + co % per_out) * d.taps + i) * h.taps + j) * v.taps + k]"
    assert text.count(weight) == 1
    fetch = f"fetched(w, {weight[2:-1]}, cin * per_out * d.taps * h.taps * v.taps)"
    text = text.replace(weight, fetch).replace("__global__", FETCHED.replace(right, wrong) + "__global__", 1)
    sizes = {"in_channels": 1, "out_channels": 3, "groups": 1, "kernel_d": 3, "kernel_h": 1, "kernel_w": 3}
    verdict = judge(text, SLUG, ".cu", cases=("sample",), changes=sizes).verdict
    assert verdict.word == word, verdict
    assert piece in verdict.reason.replace("const struct ", "")


def test_pytorch_has_no_place_in_a_file(judge: Any) -> None:
    text = "#include <torch/extension.h>\n" + example("conv_transpose")
    verdict = judge(text, SLUG, ".cu", cases=("sample",)).verdict
    assert verdict.word == COMPILE_ERROR
    assert "torch/extension.h is PyTorch's, and no tensors come here: write `solution`" in verdict.reason
    assert f"convt3d starter {SLUG} --lang cuda" in verdict.reason


def test_what_a_cpu_cannot_run_is_not_run(judge: Any) -> None:
    right = example("conv_transpose")
    assembly = right.replace("sum_t sum = 0;", 'sum_t sum = 0;\n    asm volatile("bar.sync 1, 32;");', 1)
    verdict = judge(assembly, SLUG, ".cu", cases=("sample",)).verdict
    if shutil.which("nvcc") is None and library() is None:
        assert verdict.word != NOT_RUN
    else:
        assert verdict.word == NOT_RUN
        assert "accepts it" in verdict.reason
        assert "it cannot be run on a CPU" in verdict.reason
        assert ": line 34 has assembly of a GPU" in verdict.reason
    broken = judge(right.replace("sum_t sum = 0;", "sum_t sum = nobody;"), SLUG, ".cu", cases=("sample",)).verdict
    assert broken.word == "compile error"
    assert "nobody" in broken.reason
