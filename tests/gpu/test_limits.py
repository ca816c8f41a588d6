"""Occupancy and roofline of GPUs, against NVIDIA's occupancy calculator and hand-made divisions."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest
from gpu_proof.limits import DEVICES, GENERATIONS, SM80, SM90, SM100, Generation, occupancy
from helpers.triton import need_triton


@pytest.mark.parametrize(
    ("generation", "warps", "registers", "shared", "columns", "blocks", "limit"),
    [
        pytest.param(SM80, 8, 32, 0, 0, 8, "warps", id="few-registers-fill-all-warps"),
        pytest.param(SM80, 1, 16, 0, 0, 32, "blocks", id="small-blocks-meet-the-count"),
        pytest.param(SM80, 8, 128, 0, 0, 2, "registers", id="128-registers-leave-16-warps"),
        pytest.param(SM80, 8, 129, 0, 0, 1, "registers", id="129-registers-are-given-out-as-136"),
        pytest.param(SM80, 4, 168, 0, 0, 3, "registers", id="168-registers-leave-12-warps"),
        pytest.param(SM80, 4, 255, 0, 0, 2, "registers", id="the-most-registers"),
        pytest.param(SM80, 4, 64, 80 * 1024, 0, 2, "shared memory", id="two-blocks-of-80-KiB-in-164"),
        pytest.param(SM80, 4, 64, 81 * 1024 + 1, 0, 1, "shared memory", id="the-reserved-KiB-counts"),
        pytest.param(SM90, 4, 64, 113 * 1024, 0, 2, "shared memory", id="two-blocks-of-113-KiB-in-228"),
        pytest.param(SM100, 4, 64, 1024, 256, 2, "tensor memory", id="half-the-tensor-memory"),
    ],
)
def test_occupancy(
    generation: Generation, warps: int, registers: int, shared: int, columns: int, blocks: int, limit: str
) -> None:
    found = occupancy(generation, warps, registers, shared, columns)
    assert (found.blocks, found.limit) == (blocks, limit)
    assert found.share == blocks * warps / 64


CALCULATOR = """
#include <cstdio>
#include "cuda_occupancy.h"
int main() {
    int capability, warps, registers, shared, used_warps, used_registers, used_shared;
    while (scanf("%d %d %d %d %d %d %d", &capability, &warps, &registers, &shared,
                 &used_warps, &used_registers, &used_shared) == 7) {
        cudaOccDeviceProp device;
        device.computeMajor = capability / 10;
        device.computeMinor = capability % 10;
        device.maxThreadsPerBlock = 1024;
        device.maxThreadsPerMultiprocessor = 32 * warps;
        device.regsPerBlock = device.regsPerMultiprocessor = registers;
        device.warpSize = 32;
        device.numSms = 100;
        device.sharedMemPerBlock = 48 * 1024;
        device.sharedMemPerMultiprocessor = shared;
        device.sharedMemPerBlockOptin = shared - 1024;
        device.reservedSharedMemPerBlock = 1024;
        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = 1024;
        kernel.numRegs = used_registers;
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        kernel.maxDynamicSharedSizeBytes = used_shared;
        kernel.numBlockBarriers = 1;
        cudaOccDeviceState state;
        state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        cudaOccResult result;
        auto error = cudaOccMaxActiveBlocksPerMultiprocessor(
            &result, &device, &kernel, &state, 32 * used_warps, used_shared);
        printf("%d\\n", error ? -error : result.activeBlocksPerMultiprocessor);
    }
}
"""


def test_occupancy_is_that_of_nvidias_calculator(tmp_path: Path) -> None:
    """Its header comes with Triton; tensor memory, which it does not know, is left out."""
    need_triton()
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler for cuda_occupancy.h")
    spec = importlib.util.find_spec("triton")
    assert spec is not None
    include = Path(str(spec.origin)).parent / "backends" / "nvidia" / "include"
    (tmp_path / "calculator.cpp").write_text(CALCULATOR, encoding="utf-8")
    program = tmp_path / "calculator"
    command = [compiler, "-w", "-I", str(include), str(tmp_path / "calculator.cpp"), "-o", str(program)]
    subprocess.run(command, check=True, timeout=600)
    cases = [
        (one, warps, registers, shared)
        for one in GENERATIONS.values()
        for warps in (1, 2, 4, 8, 16)
        for registers in (16, 24, 32, 33, 72, 96, 128, 129, 152, 168, 176, 200, 255)
        for shared in (0, 1, 1000, 9 * 1024, 32 * 1024, 50 * 1024, 81 * 1024, 163 * 1024)
        if warps * registers <= 2048
    ]
    lines = "".join(f"{g.capability} {g.warps} {g.registers} {g.shared} {w} {r} {s}\n" for g, w, r, s in cases)
    done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True, timeout=600)
    assert [occupancy(*case).blocks for case in cases] == list(map(int, done.stdout.split()))


def test_a_block_that_does_not_fit() -> None:
    assert occupancy(SM80, 4, 64, 164 * 1024).blocks == 0


def test_devices_are_in_the_order_of_generations_and_name_their_source() -> None:
    assert [device.generation.capability for device in DEVICES] == list(GENERATIONS)
    for device in DEVICES:
        assert "NVIDIA" in device.source
        assert device.flops["float32"] * 6 == pytest.approx(device.flops["bfloat16"])
        assert device.flops["float16"] == device.flops["bfloat16"] > device.flops["tf32"] > device.flops["float32"]


def test_seconds_at_full_rates() -> None:
    arithmetic, memory = DEVICES[0].seconds(312e12, "float16", 2.039e12)
    assert (arithmetic, memory) == pytest.approx((1.0, 1.0))
