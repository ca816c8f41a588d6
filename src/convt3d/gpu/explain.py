"""A GpuPlan in words and figures: its kernels in order, what each reads, does and writes, and in which tiles."""

from __future__ import annotations

from collections.abc import Callable

from ..plan.base import by
from ..plan.sweeps import Link
from .plan import GpuFinish, GpuKernel, GpuPack, GpuPlan

_KINDS = {
    "dot": "convolution by blocks of products",
    "plain": "convolution, one input channel at a time",
    "depthwise": "convolution, each channel by itself",
    "load": "no convolution",
}


def explain(plan: GpuPlan) -> str:
    """The kernels that a call launches, in their order."""
    offsets = "64-bit" if plan.wide else "32-bit"
    lines = [f"pipeline on {plan.dtype.name}, Triton for sm_{plan.generation}, {plan.precision}, {offsets} offsets"]
    lines += plan.preamble()
    for number, step in enumerate(plan.steps):
        lines += _STEPS[type(step)](plan, f"kernel {number + 1} of {len(plan.steps)}", step)
    return "\n".join(lines)


def _pack(plan: GpuPlan, head: str, step: GpuPack) -> list[str]:
    return [f"{head}: packs {plan.array_name(step.operand)}", f"  numbers   {step.size}"]


def _finish(plan: GpuPlan, head: str, step: GpuFinish) -> list[str]:
    rows = [("combines", f"{step.parts} parts a sample and channel"), ("programs", str(step.shape[0] * step.groups))]
    return [f"{head}: statistics of {step.finish.stage.name}", *_rows(rows)]


def _kernel(plan: GpuPlan, head: str, kernel: GpuKernel) -> list[str]:
    piece, config = kernel.piece, kernel.config
    stages = [*map(_link, piece.before), *([repr(kernel.pool)] if kernel.pool else []), *map(_link, piece.after)]
    rows = [
        ("reads", f"{plan.array_name(piece.source)}, {by(piece.shape)}"),
        *((("stages", ", ".join(stages)),) if stages else ()),
        ("tile", f"{config.positions} positions x {config.channels} channels, {config.inputs} inputs at a time"),
        ("launch", f"{kernel.programs} programs of {config.warps} warps, {config.stages} stages of loads"),
    ]
    if piece.reduce is not None:
        rows.append(("leaves", f"{piece.reduce} of each tile"))
    if piece.dest is not None:
        rows.append(("writes", f"{plan.array_name(piece.dest)}, {by(piece.result)}"))
    if kernel.guarded:
        rows.append(("runs", "only if a weight is NaN or infinite, and then in place of the kernel before it"))
    return [f"{head}: {_KINDS[kernel.kind]}", *_rows(rows)]


_STEPS: dict[type, Callable[..., list[str]]] = {GpuPack: _pack, GpuKernel: _kernel, GpuFinish: _finish}


def _rows(rows: list[tuple[str, str]]) -> list[str]:
    return [f"  {name:<9} {text}" for name, text in rows]


def _link(link: Link) -> str:
    return repr(link.stage)
