"""Occupancy and roofline of GPUs, against figures of NVIDIA's occupancy calculator and hand-made divisions."""

from __future__ import annotations

import pytest

from convt3d.plan.gpu_limits import DEVICES, GENERATIONS, SM80, SM90, SM100, Generation, occupancy


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


def test_a_block_that_does_not_fit() -> None:
    assert occupancy(SM80, 4, 64, 164 * 1024).blocks == 0


def test_devices_are_in_the_order_of_generations_and_name_their_source() -> None:
    assert [device.generation.capability for device in DEVICES] == list(GENERATIONS)
    for device in DEVICES:
        assert "NVIDIA" in device.source
        assert device.flops["tf32x3"] * 3 == pytest.approx(device.flops["tf32"])
        assert device.flops["float16"] == device.flops["bfloat16"] > device.flops["tf32"] > device.flops["float32"]


def test_seconds_at_full_rates() -> None:
    arithmetic, memory = DEVICES[0].seconds(312e12, "float16", 2.039e12)
    assert (arithmetic, memory) == pytest.approx((1.0, 1.0))
