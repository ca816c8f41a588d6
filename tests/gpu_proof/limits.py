"""What GPUs offer: the limits of a multiprocessor, from which occupancy follows, and the rates of data sheets.

Limits were checked against NVIDIA's white papers and tuning guides of Ampere, Hopper and Blackwell, units of allocation
against its occupancy calculator (cuda_occupancy.h, which Triton brings along), tensor memory against the documents of
NVIDIA's Tilus. Rates are NVIDIA's own without sparsity (those with sparsity halved), of the documents that
`Device.source` names, as others reproduce them. Times computed from them are estimates: no kernel reaches them, and
none of this was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

WARP = 32  # threads
PARTITIONS = 4  # of a multiprocessor: warps and registers are dealt out to them
REGISTER_UNIT = 8  # registers of a thread are given out in eights
SHARED_UNIT = 128  # bytes
RESERVED_SHARED = 1024  # bytes of every block that the system keeps for itself


@dataclass(frozen=True)
class Generation:
    """One multiprocessor of a compute capability."""

    capability: int  # 80 for 8.0
    warps: int
    blocks: int
    registers: int
    shared: int  # bytes, of all blocks together
    tensor_columns: int = 0  # of tensor memory; 0: there is none


@dataclass(frozen=True)
class Occupancy:
    """How many blocks share a multiprocessor, the share of its warps they fill, and what keeps a further one out."""

    blocks: int
    share: float
    limit: str


@dataclass(frozen=True)
class Device:
    """A GPU by its data sheet: bytes and operations in a second, by the kind of product."""

    name: str
    generation: Generation
    multiprocessors: int
    bytes: float
    flops: Mapping[str, float]
    source: str
    cache: int  # bytes of the second level, which all multiprocessors share
    cached: float  # bytes in a second that come out of it

    def seconds(self, flop: float, kind: str, moved: float) -> tuple[float, float]:
        """Of arithmetic and of memory, each at its full rate."""
        return flop / self.flops[kind], moved / self.bytes


SM80 = Generation(80, warps=64, blocks=32, registers=65536, shared=164 * 1024)
SM90 = Generation(90, warps=64, blocks=32, registers=65536, shared=228 * 1024)
SM100 = Generation(100, warps=64, blocks=32, registers=65536, shared=228 * 1024, tensor_columns=512)
GENERATIONS: Mapping[int, Generation] = MappingProxyType({one.capability: one for one in (SM80, SM90, SM100)})


def _rates(**tera: float) -> Mapping[str, float]:
    """float32 makes six products of bfloat16 numbers of each."""
    rates = {kind: rate * 1e12 for kind, rate in tera.items()}
    return MappingProxyType({**rates, "bfloat16": rates["float16"], "float32": rates["float16"] / 6})


# IEEE float32 runs beside the tensor cores. The second level: about two thirds of the 5120 bytes a cycle that the
# A100's white paper names, by assumption, and the H100's with its clock; for the B200 no more than a guess.
DEVICES = (
    Device(
        "A100",
        SM80,
        108,
        2.039e12,
        _rates(float64=19.5, ieee=19.5, tf32=156.0, float16=312.0),
        "NVIDIA A100 Tensor Core GPU data sheet, A100 80GB SXM",
        40 << 20,
        4.8e12,
    ),
    Device(
        "H100",
        SM90,
        132,
        3.35e12,
        _rates(float64=66.9, ieee=66.9, tf32=494.7, float16=989.4),
        "NVIDIA H100 Tensor Core GPU architecture white paper and data sheet, H100 SXM5",
        50 << 20,
        5.5e12,
    ),
    Device(
        "B200",
        SM100,
        148,
        7.7e12,
        _rates(float64=37.0, ieee=75.0, tf32=1100.0, float16=2250.0),
        "NVIDIA Blackwell data sheet, HGX B200, one GPU",
        126 << 20,
        8e12,
    ),
)


def occupancy(generation: Generation, warps: int, registers: int, shared: int, tensor_columns: int = 0) -> Occupancy:
    """Of blocks with `warps` warps, `registers` of each thread, `shared` bytes and columns of tensor memory."""
    per_thread = _up(max(registers, 1), REGISTER_UNIT)
    resident = generation.registers // PARTITIONS // (per_thread * WARP) * PARTITIONS
    room = {
        "warps": generation.warps // warps,
        "blocks": generation.blocks,
        "registers": resident // warps,
        "shared memory": generation.shared // (_up(shared, SHARED_UNIT) + RESERVED_SHARED),
    }
    if tensor_columns:
        room["tensor memory"] = generation.tensor_columns // tensor_columns
    limit = min(room, key=lambda name: room[name])
    return Occupancy(room[limit], room[limit] * warps / generation.warps, limit)


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
