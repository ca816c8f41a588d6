"""A GpuPlan in words and figures: its kernels in order, what each reads, does and writes, and in which tiles."""

from __future__ import annotations

from .plan import GpuPlan


def explain(plan: GpuPlan) -> str:
    """The kernels that a call launches, in their order."""
    offsets = "64-bit" if plan.wide else "32-bit"
    lines = [f"pipeline on {plan.dtype.name}, Triton for sm_{plan.generation}, {plan.precision}, {offsets} offsets"]
    lines += plan.preamble()
    for number, step in enumerate(plan.steps):
        does, rows = step.describe(plan)
        lines.append(f"kernel {number + 1} of {len(plan.steps)}: {does}")
        lines += [f"  {name:<9} {text}" for name, text in rows]
    return "\n".join(lines)
