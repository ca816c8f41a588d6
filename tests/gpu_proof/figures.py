"""Recorded figures of compiled kernels, with which a change of the kernels is compared: what became worse fails a test.

`make gpu-figures` writes tests/gpu_proof/figures.json anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Any

from convt3d.gpu.geometry import INT32_MAX, GpuAxis
from convt3d.gpu.steps import GpuKernel
from convt3d.spec.problems import PROBLEMS

from .compile import launches
from .jobs import Job
from .limits import DEVICES, PARTITIONS, Device
from .report import Row, rows_of, traffic

RECORDED = Path(__file__).with_name("figures.json")
KINDS, SMS = ("float32", "float16"), (80, 90)
CHEAP = Job("conv-transpose3d-layernorm-gelu-scaling", "float16", 80)  # what `make test` compiles
SLACK = 1.05  # of registers and instructions: what a release of ptxas moves to and fro
Figures = dict[str, Any]  # of a plan: bytes, and kernels by name


def recorded_jobs() -> list[Job]:
    return [Job(slug, kind, one) for slug in PROBLEMS for kind in KINDS for one in SMS]


def name_of(job: Job) -> str:
    return f"{job.name}, {job.arithmetic}, sm_{job.generation}"


def figures_of(job: Job, rows: list[Row]) -> Figures:
    kernels = {
        row.kernel: {
            "loop": row.facts.loop,
            "instructions": row.facts.instructions,
            "registers": row.facts.registers,
            "spills": row.facts.spills,
            "shared": row.facts.shared,
        }
        for row in rows
    }
    return {"bytes": traffic(job).moved, "kernels": kernels}


def worse(now: Figures, then: Figures) -> Iterator[str]:
    """What became worse, in words."""
    if now["bytes"] > then["bytes"]:
        yield f"moves {now['bytes']} bytes instead of {then['bytes']}"
    if len(now["kernels"]) > len(then["kernels"]):
        yield f"launches {len(now['kernels'])} kernels instead of {len(then['kernels'])}"
    for name, figures in now["kernels"].items():
        before: Mapping[str, int] = then["kernels"].get(name, {})
        for what, number in figures.items():
            old = before.get(what, INT32_MAX)
            if number > (old if what in ("spills", "shared") else SLACK * old):
                yield f"{name}: {what} {number} instead of {old}"


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


def write(found: Mapping[str, Figures]) -> None:
    told = {"triton": version("triton"), "plans": dict(found)}
    RECORDED.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


# --- time -------------------------------------------------------------------------------------------------------------

LANES = {80: 64, 90: 128, 100: 128}  # float32 multiply-adds of a multiprocessor in a cycle
# Which share of a bound is reached, at best and at worst. Of tensor cores, what published kernels in 16-bit types reach
# of the data sheet's rate: FlashAttention-2 on the A100 0.5 to 0.73 (arXiv 2307.08691); on the H100 Triton's attention
# 329 to 477 TFLOP/s (pytorch/benchmark, pull request 2391; 323 to 403 in arXiv 2407.08608), cuBLAS's and CUTLASS's best
# product 780 (a note of H. He's). Of the others, by assumption.
REACHED = {80: (0.73, 0.5), 90: (0.79, 0.33)}
REACHED_OTHERS = (0.9, 0.6)


@dataclass(frozen=True)
class Expected:
    """Seconds: bounds from below, and the range that is expected."""

    arithmetic: float  # of whole tiles: what they compute beside the result is in it
    memory: float
    cached: tuple[float, float]  # the second level, if the first has all taps along the width, and if it has none
    issue: float  # each multiprocessor issues one instruction of a warp in each of its four parts and cycle
    reached: tuple[float, float]

    @property
    def range(self) -> tuple[float, float]:
        low, high = (
            max(self.arithmetic / reached, max(self.memory, cached, self.issue) / other)
            for reached, other, cached in zip(self.reached, REACHED_OTHERS, self.cached, strict=True)
        )
        return low, high


def expected(job: Job, rows: list[Row], device: Device) -> Expected:
    """Of all kernels of a plan, one after the other. Each program issues what stands outside of the loop once, though a
    pool's window repeats some of it: a bound from below."""
    plan, found = job.plan(), traffic(job)
    capability = device.generation.capability
    clock = device.flops["ieee"] / (2 * LANES[capability] * device.multiprocessors)
    programs = {launch.text.name.split("_", 3)[3]: launch.text.grid for launch in launches(plan)}
    facts = {row.kernel: row.facts for row in rows}
    issued: float = sum(programs[name] * one.warps * (one.instructions - one.loop) for name, one in facts.items())
    flop, near, far = 0.0, 0.0, 0.0
    for launch in launches(plan):
        kernel = launch.step
        if not isinstance(kernel, GpuKernel) or kernel.piece.conv is None or kernel.guarded:
            continue
        work, one = work_of(kernel), facts[launch.text.name.split("_", 3)[3]]
        waiting = idle(kernel.programs, device.multiprocessors)
        issued += work.steps * one.warps * one.loop * waiting
        flop += work.flop * waiting
        size = (2 * kernel.memory.parts) if kernel.memory.parts > 1 else plan.dtype.itemsize
        weights, inputs = (
            kernel.config.inputs * side * size for side in (kernel.config.channels, kernel.config.positions)
        )
        near += work.steps * weights + work.rows * inputs
        far += work.steps * (weights + inputs)
    arithmetic, memory = device.seconds(flop, job.arithmetic, found.moved)
    level = near / device.cached, far / device.cached
    slots = issued / (device.multiprocessors * PARTITIONS * clock)
    return Expected(arithmetic, memory, level, slots, REACHED[capability])


def idle(programs: int, multiprocessors: int) -> float:
    """How much longer the multiprocessor with most programs takes than all of them would if they shared them evenly."""
    return -(-programs // multiprocessors) * multiprocessors / programs


@dataclass(frozen=True)
class Work:
    """Of one convolution's kernel: blocks of products, those of them that begin a row of taps, and operations."""

    steps: int
    rows: int
    flop: float


def work_of(kernel: GpuKernel) -> Work:
    """Tiles, channels and blocks of inputs count as full ones, as they are computed."""
    taps = [
        [
            _taps(axis, (residue * axis.jump + member) * axis.scale + axis.number("shift"))
            for residue in range(axis.pace)
            for member in range(axis.window)
        ]
        for axis in kernel.axes
    ]
    tiles = kernel.piece.shape[0] * kernel.groups * kernel.columns * kernel.tiles
    blocks = tiles * (kernel.memory.filled // kernel.config.inputs if kernel.kind == "dot" else kernel.inputs)
    steps = blocks * prod(map(sum, taps))
    rows = blocks * prod(map(sum, taps[:2])) * sum(count > 0 for count in taps[2])
    config = kernel.config
    inner = config.inputs if kernel.kind == "dot" else 1
    return Work(steps, rows, 2.0 * steps * config.positions * config.channels * inner)


def _taps(axis: GpuAxis, output: int) -> int:
    """How many meet this output."""
    return sum((output - tap * axis.dilation) % axis.stride == 0 for tap in range(axis.kernel))


def device_of(job: Job) -> Device:
    return next(device for device in DEVICES if device.generation.capability == job.generation)


def rows(job: Job) -> list[Row]:
    return [row for row in rows_of(job) if row.kind != "guard"]
