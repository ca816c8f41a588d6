"""Says in words and figures what a Plan will do."""

from __future__ import annotations

from math import prod

from .plan import Plan


def explain(plan: Plan) -> str:
    lines = [f"pipeline on {plan.dtype.name}, {plan.algorithm}"]
    lines += _stages("asked", plan)
    for step in plan.rewritten.steps:
        lines.append(f"  rewrite {step.name}")
    conv = plan.simplified.values[plan.rewritten.pipeline.conv_index + 1]
    if plan.reach != conv[2:]:
        lines.append(f"  rewrite unread_outputs: {_by(conv[2:])} -> {_by(plan.reach)} of the convolution are computed")
    if plan.phase_pool is not None:
        pool = plan.rewritten.pipeline.stages[plan.phase_pool]
        lines.append(f"  rewrite pool_over_phases: {pool!r} combines phases voxel by voxel")
    if plan.rewritten.steps:
        lines += _stages("runs", plan)
    moved = sum(prod(shape) for shape in (plan.trace.values[0], plan.trace.output)) * plan.dtype.itemsize
    lines += [
        f"needed  {plan.work.needed / 1e9:.3f} GFLOP",
        f"nominal {plan.work.nominal / 1e9:.3f} GFLOP",
        f"input + output {moved / 1e6:.2f} MB, {plan.work.needed / moved:.1f} FLOP per byte",
        f"scratch {plan.scratch / 1e6:.2f} MB",
    ]
    return "\n".join(lines)


def _stages(title: str, plan: Plan) -> list[str]:
    pipeline, trace = (plan.asked, plan.trace) if title == "asked" else (plan.rewritten.pipeline, plan.simplified)
    names = ["input", *map(repr, pipeline.stages)]
    width = max(map(len, names))
    return [f"{title}:", *(f"  {name:<{width}}  {_by(shape)}" for name, shape in zip(names, trace.values, strict=True))]


def _by(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))
