"""`convt3d explain`: what the plan for a problem's shapes will do, and the code it runs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..cpu.plan.choice import Options
from ..cpu.plan.cores import get_num_threads
from ..cpu.plan.describe import Account, describe
from ..cpu.plan.explain import explain, scratch_of_all, tiles
from ..cpu.plan.plan import Plan, SweepPlan, make_plan
from ..cpu.plan.roofline import Load, Rates, assumed_rates, caller_bytes, loads, packed_weights, tile_statistics
from ..cpu.plan.winograd import Method
from ..front.solutions import problems
from ..gpu.explain import explain as explain_gpu
from ..gpu.plan import gpu_plan
from ..spec.dtypes import DTYPES
from .choose import named_values, settings
from .report import OK, emit, emit_json

DUMPS = ("ir", "asm", "steps")


def explain_plan(args: argparse.Namespace) -> int:
    problem = problems[args.slug]
    values = problem.checked({**named_values(problem, args.size), **settings(problem, args.set)})
    shapes = problem.shapes(values)
    operands = tuple(shapes[name] for name in problem.operand_names)
    dtype, options = DTYPES[args.dtype or "float32"], Options(args.algorithm, args.precision)
    if args.gpu is not None:
        gpu = gpu_plan(problem.pipeline(values), shapes["input"], operands, dtype, args.gpu)
        text = explain_gpu(gpu)
        emit_json({"slug": problem.slug, "values": values, "text": text}) if args.json else emit(text)
        return OK
    plan = make_plan(problem.pipeline(values), shapes["input"], operands, dtype, options)
    if args.json:
        emit_json({"slug": problem.slug, "values": values, **_document(plan, _rates(plan, args.measure), args.dump)})
    elif args.dump:
        emit(_dump_text(plan, args.dump))
    else:
        emit(explain(plan, _rates(plan, args.measure)))
    return OK


def _rates(plan: Plan, measure: bool) -> Rates:
    if not measure:
        return assumed_rates(plan)
    from ..bench.balance import measured_rates  # only --measure runs code

    return measured_rates(plan)


def _dump_text(plan: Plan, what: str) -> str:
    from .dump import dump_kernels, dump_text  # only --dump needs the emitter

    return dump_text(dump_kernels(plan), what)


def _document(plan: Plan, rates: Rates, dump: str | None) -> Mapping[str, Any]:
    sweeps = zip(plan.sweeps, describe(plan), loads(plan), strict=True)
    document = {
        "dtype": plan.dtype.name,
        "algorithm": plan.algorithm,
        "method": _method_document(plan.method),
        "isa": plan.machine.isa,
        "threads": get_num_threads(),
        "asked": [repr(stage) for stage in plan.asked.stages],
        "rewrites": [name for name, _ in plan.rewrites()],
        "runs": [repr(stage) for stage in plan.rewritten.pipeline.stages],
        "shapes": plan.simplified.values,
        "sweeps": [_sweep_document(plan, *parts, rates) for parts in sweeps],
        "needed_flop": plan.work.needed,
        "nominal_flop": plan.work.nominal,
        "bytes": caller_bytes(plan),
        "moved_bytes": sum(load.bytes for load in loads(plan)),
        "intermediate_bytes": plan.intermediate,
        "tile_statistics_bytes": tile_statistics(plan),
        "packed_weights_bytes": packed_weights(plan),
        "scratch_bytes": plan.scratch,
        "scratch_bytes_all_threads": scratch_of_all(plan),
        "rates": {**asdict(rates), "balance": rates.balance},
        "text": explain(plan, rates),
    }
    if dump:
        from .dump import dump_kernels

        document["dump"] = [kernel.document(dump) for kernel in dump_kernels(plan)]
    return document


def _method_document(method: Method) -> dict[str, Any]:
    axes = [
        {
            "outputs": axis.outputs,
            "pace": axis.walk.pace,
            "products": axis.products,
            "phases": [
                {"outputs": group.outputs, "taps": group.scheme.taps, "pieces": group.pieces} for group in axis.groups()
            ],
        }
        for axis in method.axes
    ]
    return {"saving": float(method.saving), "axes": axes}


def _sweep_document(plan: Plan, planned: SweepPlan, account: Account, load: Load, rates: Rates) -> dict[str, Any]:
    registers, slab = planned.register_tile, planned.tiling.slab
    arithmetic, memory = load.seconds(rates)
    return {
        "kernel": planned.structure.name,
        "key": planned.structure.key,
        **asdict(account),
        "register_tile": asdict(registers) if registers else None,
        "tile": planned.tiling.tile,
        "tile_counts": planned.tiling.counts,
        "tiles": tiles(plan, planned),
        "slab": asdict(slab) if slab else None,
        "scratch_bytes": planned.tiling.scratch,
        "flop": load.flop,
        "read_bytes": load.read,
        "written_bytes": load.written,
        "flop_per_byte": load.intensity,
        "arithmetic_seconds": arithmetic,
        "memory_seconds": memory,
        "binds": load.binds(rates),
    }
