"""A Plan in words and figures: rewrites, sweeps, bytes and the roofline."""

from __future__ import annotations

from collections import Counter
from math import prod

from ...plan.base import by
from ...units import amount, counted, duration, operations
from .cores import get_num_threads
from .describe import Account, describe, fallbacks
from .plan import Plan, SweepPlan
from .roofline import Load, Rates, assumed_rates, caller_bytes, loads, packed_weights, tile_statistics
from .slab import Slab
from .tile_cost import step_cycles
from .winograd import AxisMethod, Together


def explain(plan: Plan, rates: Rates | None = None) -> str:
    """All a kernel engineer asks; `rates` are assumed where none are given."""
    rates = rates or assumed_rates(plan)
    lines = [
        f"pipeline on {plan.dtype.name}, {plan.algorithm}, {plan.machine.isa}, {counted(get_num_threads(), 'thread')}"
    ]
    lines += plan.preamble()
    for number, parts in enumerate(zip(plan.sweeps, describe(plan), loads(plan), strict=True)):
        lines += _sweep(plan, number, *parts, rates)
    lines += ["unusual arrays:", *(f"  {when}: {how}" for when, how in fallbacks(plan))]
    return "\n".join([*lines, *_totals(plan, rates)])


def tiles(plan: Plan, planned: SweepPlan) -> int:
    """Tiles of the whole batch: the pieces of work that threads draw."""
    return prod(planned.tiling.counts) * -(-plan.trace.values[0][0] // planned.where.beside)


def scratch_of_all(plan: Plan) -> int:
    """Bytes of tile memory for all threads of the greediest sweep."""
    return max(planned.tiling.scratch * min(get_num_threads(), tiles(plan, planned)) for planned in plan.sweeps)


def _sweep(plan: Plan, number: int, planned: SweepPlan, account: Account, load: Load, rates: Rates) -> list[str]:
    tiling, registers = planned.tiling, planned.register_tile
    rows = [
        ("stages", _shared(account.stages)),
        *(("steps" if at == 0 else "", step) for at, step in enumerate(account.steps)),
        ("ends", account.ends),
        ("tile", f"{by(tiling.tile)} of {by(planned.sweep.result[2:])} voxels: {_count(plan, planned)}"),
    ]
    if registers is not None and tiling.slab is not None:
        lanes = plan.machine.lanes(plan.dtype.number_bytes)
        rest = f", last block {registers.rest} rows" if registers.rest else ""
        shape = f"{registers.rows} rows (output channels) x {registers.columns} columns (vectors of {lanes})"
        rows.append(("registers", shape + rest))
        rows.append(("slab", _slab(tiling.slab)))
        channels = plan.simplified.values[plan.rewritten.pipeline.conv_index + 1][1]
        if tiling.part is not None and tiling.part.channels < channels:
            steps = "all steps" if tiling.method.direct else "the steps behind the convolution"
            rows.append(("parts", f"{tiling.part.channels} of {channels} channels at a time, through {steps}"))
        rows += [("winograd" if at == 0 else "", text) for at, text in enumerate(_winograd(plan, planned, rates))]
    if planned.where.beside > 1:
        rows.append(("samples", f"{planned.where.beside} beside each other in a tile"))
    arithmetic, memory = load.seconds(rates)
    rows += [
        ("scratch", f"{amount(tiling.scratch)} for a thread, whose L2 cache has {amount(plan.machine.l2)}"),
        ("moves", f"{amount(load.read)} read, {amount(load.written)} written"),
        (
            "roofline",
            f"{load.intensity:.1f} FLOP per byte: {load.binds(rates)} binds "
            f"(arithmetic {duration(arithmetic)}, memory {duration(memory)})",
        ),
    ]
    head = f"sweep {number + 1} of {len(plan.sweeps)}: {planned.structure.name}"
    return [head, *(f"  {name:<9} {text}" for name, text in rows)]


def _winograd(plan: Plan, planned: SweepPlan, rates: Rates) -> list[str]:
    """Schemes of each axis, what they save and what they cost; nothing for direct summation."""
    method, blocking = planned.tiling.method, planned.tiling.blocking
    if method.direct or blocking is None:
        return []
    lines = []
    for name, axis in zip(("depth", "height", "width"), method.axes, strict=True):
        phases = [f"phase {group.outputs[0]}: {_scheme(group)}" for group in axis.groups()]
        plain = axis.together * AxisMethod(axis.axis, 1, axis.points).products
        lines.append(f"{name}: {', '.join(phases)}; {axis.products} products for {plain}")
    products, transforms = step_cycles(planned.structure.steps, planned.where, planned.tiling)
    share = transforms / (products + transforms)
    rate = rates.flops * float(method.saving) * (1 - share)
    saving = f"{float(method.saving):.2f} times fewer products"
    lines.append(f"{saving}; transforms take {100 * share:.0f}% of the convolution")
    lines.append(f"expected {rate / 1e9:.0f} GFLOP/s of direct summation, at {rates.flops / 1e9:.0f} that are made")
    chunk = f"{blocking.positions} positions at once, {blocking.blocks} blocks of output channels"
    lines.append(f"{chunk}, {amount(planned.tiling.chunk)} of transformed inputs and products")
    return lines


def _scheme(group: Together) -> str:
    names = [f"F({scheme.outputs},{scheme.taps})" if not scheme.plain else "plain" for scheme in group.schemes]
    return " + ".join(name if count == 1 else f"{count} x {name}" for name, count in Counter(names).items())


def _slab(slab: Slab) -> str:
    copies = f"; {slab.copies} copies, one for each shift along the width" if slab.copies > 1 else ""
    return f"{slab.depth}x{slab.height} rows, pitch {slab.pitch}; a channel every {slab.channel} numbers{copies}"


def _shared(stages: tuple[str, ...]) -> str:
    why = "; each reads no more than the tile before it" if len(stages) > 1 else ""
    return (", ".join(stages) or "none, a copy") + why


def _count(plan: Plan, planned: SweepPlan) -> str:
    return f"{by(planned.tiling.counts)} tiles in a sample, {tiles(plan, planned)} in all"


def _totals(plan: Plan, rates: Rates) -> list[str]:
    each = caller_bytes(plan)
    named = {name: size for name, size in each.items() if size or name != "operands"}
    once, sweeps = sum(each.values()), loads(plan)
    moved = sum(load.bytes for load in sweeps)
    least = sum(max(load.seconds(rates)) for load in sweeps)
    parts = " + ".join(map(amount, named.values()))
    return [
        f"needed  {operations(plan.work.needed)}",
        f"nominal {operations(plan.work.nominal)}",
        f"{' + '.join(named)} {amount(once)} ({parts}), {_intensity(plan, once)} FLOP per byte",
        f"moved by all sweeps {amount(moved)}, {_intensity(plan, moved)} FLOP per byte",
        f"intermediate values {amount(plan.intermediate)} beside the output, "
        f"statistics of tiles {amount(tile_statistics(plan))}",
        f"packed weights {amount(packed_weights(plan))}",
        f"scratch {amount(plan.scratch)} for a thread, {amount(scratch_of_all(plan))} for all",
        f"rates {rates.source}: {rates.flops / 1e9:.0f} GFLOP/s and {rates.bytes / 1e9:.1f} GB/s, "
        f"balanced at {rates.balance:.1f} FLOP per byte",
        f"at these rates at least {duration(least)}",
    ]


def _intensity(plan: Plan, size: int) -> str:
    return f"{plan.work.needed / size:.1f}"
