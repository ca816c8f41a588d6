"""The convolution of taps that meet one input each: panels of positions, as they lie in the array, times the weights.

A panel is as many vectors of positions as a register tile has, of all input channels. Channels of an array may be a
power of two apart and compete for the same cache sets, so they are read and stored in runs: some panels side by side
are copied and multiplied block by block, and while the first block of output channels is at work, it carries the inputs
of the next panels, channel by channel. Where there is one block only, it reads the array itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from ..ir.frame import Kernel, Scratch
from ..ir.move import Source, in_vectors
from ..ir.values import I1, I64, PTR, Number, constant
from ..plan.geometry import READ, READ_COUNT
from ..plan.registers import RegisterTile
from ..steps.conv import ConvCall, ConvWords
from ..steps.direct import SUMMED, DirectConvolution, DirectWords, PanelWords, PhaseWords
from ..words import row_length
from .depthwise import Target
from .interleave import Planar
from .micro import micro_kernel, sum_in_pieces

if TYPE_CHECKING:
    from .conv import Channels


def lie_in_a_run(k: Kernel, conv: ConvWords, step: int, source: Source) -> ir.Value:
    """Whether positions lie side by side in the array, as they do in the slab."""
    b, words, (depth, height, width) = k.b, source.words, k.spans(step, READ_COUNT)
    return b.all_true(
        b.compare("==", conv.row, width),
        b.one_true(b.compare("==", width, 1), b.compare("==", words.w, 1)),
        b.one_true(b.compare("==", height, 1), b.compare("==", words.h, width)),
        b.one_true(b.compare("==", depth, 1), b.compare("==", words.d, conv.plane)),
    )


def multiply(
    k: Kernel,
    sets: tuple[ConvWords, DirectWords, PanelWords],
    call: ConvCall,
    number: int,
    step: DirectConvolution,
    part: Channels,
    target: Target,
    source: Source,
    in_a_run: ir.Value,
) -> None:
    """Array, or slab where positions do not lie in a run -> target (channels of the part, phases, positions); it is
    geometric step `number`. Vectors at either end may compute again what others do."""
    b, tile, words, lanes, memory = k.b, step.tile, source.words, k.lanes, source.storage.memory
    conv, direct, panel = sets
    columns = [_columns(k, tile, step.blocks, n) for n in range(1, tile.columns + 1)]
    carrying = _columns(k, tile, step.blocks, tile.columns, source)
    assert k.sample is not None
    place = zip((k.sample, *k.spans(number, READ)), (words.b, words.d, words.h, words.w), strict=True)
    origin, out = b.at(words.data, k.dot(*place), memory), target.buffer
    kept, each, run = panel.panels, tile.columns * lanes, panel.panels.pitch
    once = _read_once(k, conv, part, target, source, in_a_run)
    copied = b.all_true(in_a_run, b.raw.not_(once))
    start, begin, end = _span(k, conv, panel, number, target, source, in_a_run)
    apart = b.select(copied, kept.pitch, b.select(once, words.c, conv.slab.pitch))
    with b.loop(*part.groups) as g:
        x = b.at(origin, b.mul(b.mul(g, conv.in_group), words.c), memory)
        slab = b.at(conv.slab.pointer, b.mul(b.mul(b.sub(g, part.slab), conv.in_group), conv.slab.pitch), k.number)
        lying = b.either(once, x, slab)
        y = b.at(out.pointer, b.mul(b.sub(b.mul(g, conv.out_group), part.channel), out.pitch), k.number)
        w = b.at(call.weights, b.mul(g, conv.weights_group), k.number)
        bias = b.at(call.bias, b.mul(g, conv.out_group), k.number)

        def block(
            function: ir.Function,
            inputs: ir.Value,
            first: Number,
            *more: Number,
            panels: Number = 1,
            streamed: Number = target.streamed,
            data: tuple[ir.Value, ...] = (y, w, bias),
        ) -> None:
            y, w, bias = data
            arguments = inputs, b.at(y, first, k.number), w, bias, direct.phase_table
            sizes = panels, apart, conv.phases_with_taps, out.pitch, conv.phase, conv.biased, streamed
            b.call(function, *arguments, *sizes, *part.blocks, *more)

        def copy_from(first: Number, count: Number, to: ir.Value, x: ir.Value = x) -> None:
            _copy(k, source, b.at(x, first, memory), conv.in_group, count, Scratch(to, kept.pitch))

        def some(n: int, first: Number, count: Number, streamed: Number, lying: ir.Value = lying) -> None:
            """So many positions, in n vectors."""
            with b.if_(copied):
                copy_from(first, count, kept.pointer)
            inputs = b.either(copied, kept.pointer, b.at(lying, first, k.number))
            block(columns[n - 1], inputs, first, streamed=streamed)

        with b.if_(b.compare(">", begin, start)):
            some(1, start, lanes, streamed=0)
        whole = b.add(begin, b.mul(b.sdiv(b.max(b.sub(end, begin), 0), each), each))
        with b.if_(copied):
            copy_from(begin, b.min(run, b.sub(whole, begin)), kept.pointer)
        with b.loop(begin, whole, run) as first:
            left = b.sub(whole, first)
            panels, after = b.sdiv(b.min(left, run), each), b.add(first, run)
            even = b.compare("==", b.bits("and_", b.sdiv(b.sub(first, begin), run), 1), 0)
            other = b.at(kept.pointer, b.mul(conv.in_group, run), k.number)
            now, then = b.either(even, kept.pointer, other), b.either(even, other, kept.pointer)
            inputs = b.either(copied, now, b.at(lying, first, k.number))
            with b.if_else(b.all_true(copied, b.compare(">=", left, b.mul(2, run)))) as (more, last):
                with more:
                    carried = b.at(x, after, memory), then, words.c, conv.in_group
                    block(carrying, inputs, first, *carried, panels=panels)
                with last:
                    block(columns[-1], inputs, first, panels=panels)
                    with b.if_(b.all_true(copied, b.compare(">", left, run))):
                        copy_from(after, b.sub(left, run), then)
        vectors = b.sdiv(b.sub(end, whole), lanes)
        for n in range(1, tile.columns):
            with b.if_(b.compare("==", vectors, n)):
                some(n, whole, n * lanes, target.streamed)
        done = b.add(whole, b.mul(vectors, lanes))
        with b.if_(b.compare("<", done, end)):
            last = b.select(b.compare("==", target.ends, 1), b.sub(end, lanes), done)
            some(1, last, b.sub(end, last), streamed=0)


def _read_once(
    k: Kernel, conv: ConvWords, part: Channels, target: Target, source: Source, in_a_run: ir.Value
) -> ir.Value:
    """Whether the one block that meets the inputs reads them from the array: no vector may reach beyond its end."""
    b = k.b
    if source.storage.memory != k.number:
        return constant(I1, 0)
    ones = b.sub(part.blocks[1], part.blocks[0]), conv.phases_with_taps, target.ends
    return b.all_true(in_a_run, *(b.compare("==", number, 1) for number in ones))


def _span(
    k: Kernel,
    conv: ConvWords,
    panel: PanelWords,
    number: int,
    target: Target,
    source: Source,
    in_a_run: ir.Value,
) -> tuple[Number, Number, Number]:
    """The first position that is computed, the first one whose vector is aligned, and the one behind the last, counted
    from the tile's first. Vectors that are streamed must be aligned, others go faster so. Where tiles follow each other
    in both arrays, they meet where a vector begins, and have nothing left over there."""
    b, out, lanes = k.b, target.buffer, k.lanes
    (deep, high, wide), (depth, height, width) = panel.positions, k.spans(number, READ_COUNT)
    _, length = Planar.of_convolution(conv, number).extent(k)
    even = b.compare("==", b.bits("and_", out.pitch, lanes - 1), 0)
    ahead, behind = (b.to_boundary(out.pointer, at, k.number, lanes) for at in (0, length))
    plane, first = b.mul(high, wide), k.span(0, number, READ)
    follow = b.all_true(
        even,
        in_a_run,
        b.compare("==", target.ends, 1),
        *(b.compare("==", *pair) for pair in ((height, high), (width, wide))),
        *(b.compare("==", apart, plane) for apart in (target.plane, source.words.d)),
    )
    from_before = b.all_true(follow, b.compare(">", first, 0), b.compare(">", ahead, 0))
    left = b.mul(b.sub(deep, b.add(first, depth)), plane)  # fewer than a vector go through a buffer, and begin anew
    to_next = b.all_true(follow, b.compare(">=", left, lanes), b.compare(">", behind, 0))
    start = b.select(from_before, b.sub(ahead, lanes), 0)
    begin = b.select(from_before, start, b.select(even, ahead, 0))
    return start, begin, b.select(to_next, b.add(length, b.sub(behind, lanes)), length)


def _copy(k: Kernel, source: Source, x: ir.Value, channels: Number, count: Number, to: Scratch) -> None:
    """So many positions of all channels, as numbers."""
    b = k.b
    with b.loop(0, channels) as c:

        def one(at: Number, lanes: Number | None, c: Number = c) -> None:
            place = k.dot((c, source.words.c), (1, at))
            value = b.widen(b.load(x, place, source.storage.memory, k.lanes, count=lanes), source.storage)
            b.store(value, to.pointer, k.dot((c, to.pitch), (1, at)))

        in_vectors(k, count, one)


def _columns(k: Kernel, tile: RegisterTile, blocks: int, n: int, source: Source | None = None) -> ir.Function:
    """All phases and some blocks of the output channels of one group, for panels of n vectors of positions that lie
    side by side. Where a `source` is given, the first phase of the first of these blocks takes what comes next from
    there."""
    pointers = [(name, PTR) for name in ("x", "y", "w", "bias", "phases")]
    sizes = ("panels", "apart", "phase_count", "channel", "phase", "biased", "streamed", "first", "last")
    more = [("source", PTR), ("to", PTR), ("source_apart", I64), ("channels", I64)] if source else []
    b = k.define(f"panel_{n}{'_carrying' * bool(source)}", [*pointers, *((name, I64) for name in sizes), *more])
    a = b.args
    with b.loop(0, a["phase_count"]) as p:
        row = k.row(PhaseWords, b, b.at(a["phases"], b.mul(p, row_length(PhaseWords)), I64))
        y, w = b.at(a["y"], b.mul(row.phase, a["phase"]), k.number), b.at(a["w"], row.weight, k.number)
        streamed = b.select(b.compare("<=", row.steps, SUMMED), a["streamed"], 0)  # a sum of pieces is read again

        def one(
            block: Number,
            rows: int,
            carried: Source | None = None,
            data: tuple[ir.Value, ...] = (y, w, row.steps, streamed),
        ) -> None:
            y, w, steps, streamed = data
            storage = carried.storage if carried else None
            before, micro = b.mul(block, tile.rows), micro_kernel(k, rows, n, apart=True, carried=storage)
            out, bias = b.at(y, b.mul(before, a["channel"]), k.number), b.at(a["bias"], before, k.number)
            weights = b.at(w, b.mul(before, steps), k.number)
            with b.loop(0, a["panels"]) as panel:
                along = b.mul(panel, n * k.lanes)

                def inputs(start: Number, panel: Number = panel, along: Number = along) -> tuple[Number, ...]:
                    x = b.at(a["x"], b.add(along, b.mul(start, a["apart"])), k.number), a["apart"]
                    if carried is None:
                        return x
                    turn = b.add(b.mul(panel, steps), start)
                    return *x, a["source"], a["to"], a["source_apart"], a["channels"], a["panels"], turn

                sums = steps, weights, b.at(out, along, k.number), a["channel"], SUMMED, (bias, a["biased"])
                sum_in_pieces(k, b, micro, rows, inputs, *sums, (streamed,))

        def some(first: Number, last: Number, carried: Source | None = None) -> None:
            with b.loop(first, b.min(last, blocks)) as block:
                one(block, tile.rows, carried)
            if tile.rest:
                with b.if_(b.all_true(b.compare("<=", first, blocks), b.compare(">", last, blocks))):
                    one(blocks, tile.rest, carried)

        first = a["first"]
        if source:
            begins = b.compare("==", p, 0)
            with b.if_(begins):
                some(first, b.add(first, 1), source)
            first = b.add(first, b.select(begins, 1, 0))
        some(first, a["last"])
    b.ret()
    return b.function
