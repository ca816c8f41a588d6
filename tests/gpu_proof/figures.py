"""Recorded figures of compiled kernels, with which a change of the kernels is compared: what became worse fails a test.

`make gpu-figures` writes tests/gpu_proof/figures.json anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from convt3d.gpu.geometry import INT32_MAX
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
REACHED = (0.85, 0.5)  # of the tightest bound, by assumption: nothing here was measured


@dataclass(frozen=True)
class Expected:
    """Seconds: three bounds from below, and the range that is expected."""

    arithmetic: float
    memory: float
    issue: float  # each multiprocessor issues one instruction of a warp in each of its four parts and cycle

    @property
    def range(self) -> tuple[float, float]:
        bound = max(self.arithmetic, self.memory, self.issue)
        return bound / REACHED[0], bound / REACHED[1]


def expected(job: Job, rows: list[Row], device: Device) -> Expected:
    """Of all kernels of a plan, one after the other. Each program issues what stands outside of the loop once, though a
    pool's window repeats some of it, and tiles at borders count as full ones: bounds from below."""
    plan, found = job.plan(), traffic(job)
    arithmetic, memory = device.seconds(found.flop, job.arithmetic, found.moved)
    clock = device.flops["float32"] / (2 * LANES[device.generation.capability] * device.multiprocessors)
    programs = {launch.text.name.split("_", 3)[3]: launch.text.grid for launch in launches(plan)}
    issued: float = sum(
        programs[row.kernel] * row.facts.warps * (row.facts.instructions - row.facts.loop) for row in rows
    )
    dots = [row for row in rows if row.kind in ("dot", "plain") and row.config is not None and row.facts.loop]
    channels = plan.trace.values[plan.asked.conv_index + 1][1]
    for row in dots:
        assert row.config is not None
        padded = -(-channels // row.config.channels) * row.config.channels / channels
        inner = row.config.inputs if row.kind == "dot" else 1
        steps = found.flop / len(dots) * padded / (2 * row.config.positions * row.config.channels * inner)
        issued += steps * row.facts.warps * row.facts.loop
    return Expected(arithmetic, memory, issued / (device.multiprocessors * PARTITIONS * clock))


def device_of(job: Job) -> Device:
    return next(device for device in DEVICES if device.generation.capability == job.generation)


def rows(job: Job) -> list[Row]:
    return [row for row in rows_of(job) if row.kind != "guard"]
