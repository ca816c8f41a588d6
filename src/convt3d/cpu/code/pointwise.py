"""The convolution of taps that meet one input each: panels of positions, as they lie in the array, times the weights.

A panel is as many vectors of positions as a register tile has, of all input channels. The first block of output
channels reads it from the array and leaves a copy for the others, since channels of the array may compete for the same
cache sets and be of another type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from ..ir.frame import Kernel, Scratch
from ..ir.move import Source, in_vectors
from ..ir.values import I64, PTR, Number
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
    through = _columns(k, tile, step.blocks, tile.columns, source)
    assert k.sample is not None
    place = zip((k.sample, *k.spans(number, READ)), (words.b, words.d, words.h, words.w), strict=True)
    origin, out = b.at(words.data, k.dot(*place), memory), target.buffer
    _, length = Planar.of_convolution(conv, number).extent(k)
    kept, each = panel.panel, tile.columns * lanes
    # Vectors that are streamed are aligned: what comes before the first of these has a vector of its own.
    begin = b.select(b.compare("==", target.streamed, 1), b.to_boundary(out.pointer, 0, k.number, lanes), 0)
    apart = b.select(in_a_run, kept.pitch, conv.slab.pitch)
    with b.loop(*part.groups) as g:
        x = b.at(origin, b.mul(b.mul(g, conv.in_group), words.c), memory)
        slab = b.at(conv.slab.pointer, b.mul(b.mul(b.sub(g, part.slab), conv.in_group), conv.slab.pitch), k.number)
        y = b.at(out.pointer, b.mul(b.sub(b.mul(g, conv.out_group), part.channel), out.pitch), k.number)
        w = b.at(call.weights, b.mul(g, conv.weights_group), k.number)
        bias = b.at(call.bias, b.mul(g, conv.out_group), k.number)

        def block(
            function: ir.Function,
            inputs: ir.Value,
            first: Number,
            *more: Number,
            streamed: Number = target.streamed,
            data: tuple[ir.Value, ...] = (y, w, bias),
        ) -> None:
            y, w, bias = data
            arguments = inputs, b.at(y, first, k.number), w, bias, direct.phase_table
            sizes = apart, conv.phases_with_taps, out.pitch, conv.phase, conv.biased, streamed
            b.call(function, *arguments, *sizes, *part.blocks, *more)

        def some(
            n: int,
            first: Number,
            count: Number,
            streamed: Number = target.streamed,
            data: tuple[ir.Value, ...] = (x, slab),
        ) -> None:
            """So many positions, in n vectors."""
            with b.if_(in_a_run):
                _copy(k, source, b.at(data[0], first, memory), conv.in_group, count, kept)
            inputs = b.either(in_a_run, kept.pointer, b.at(data[1], first, k.number))
            block(columns[n - 1], inputs, first, streamed=streamed)

        with b.if_(b.compare(">", begin, 0)):
            some(1, 0, lanes, streamed=0)
        whole = b.add(begin, b.mul(b.sdiv(b.sub(length, begin), each), each))
        with b.if_else(in_a_run) as (straight, otherwise):
            with straight, b.loop(begin, whole, each) as first:
                block(through, kept.pointer, first, b.at(x, first, memory), words.c)
            with otherwise, b.loop(begin, whole, each) as first:
                block(columns[-1], b.at(slab, first, k.number), first)
        vectors = b.sdiv(b.sub(length, whole), lanes)
        for n in range(1, tile.columns):
            with b.if_(b.compare("==", vectors, n)):
                some(n, whole, n * lanes)
        done = b.add(whole, b.mul(vectors, lanes))
        with b.if_(b.compare("<", done, length)):
            last = b.select(b.compare("==", target.ends, 1), b.sub(length, lanes), done)
            some(1, last, b.sub(length, last), streamed=0)


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
    """All phases and some blocks of the output channels of one group, for n vectors of positions. Where the `source` is
    given, x is the panel, which the first phase of the first of these blocks fills from there."""
    pointers = [(name, PTR) for name in ("x", "y", "w", "bias", "phases")]
    sizes = ("apart", "phase_count", "channel", "phase", "biased", "streamed", "first", "last")
    more = [("source", PTR), ("source_apart", I64)] if source else []
    b = k.define(f"panel_{n}{'_through' * bool(source)}", [*pointers, *((name, I64) for name in sizes), *more])
    a = b.args
    with b.loop(0, a["phase_count"]) as p:
        row = k.row(PhaseWords, b, b.at(a["phases"], b.mul(p, row_length(PhaseWords)), I64))
        y, w = b.at(a["y"], b.mul(row.phase, a["phase"]), k.number), b.at(a["w"], row.weight, k.number)
        streamed = b.select(b.compare("<=", row.steps, SUMMED), a["streamed"], 0)  # a sum of pieces is read again

        def one(
            block: Number,
            rows: int,
            through: Source | None = None,
            data: tuple[ir.Value, ...] = (y, w, row.steps, streamed),
        ) -> None:
            y, w, steps, streamed = data
            storage = through.storage if through else None
            before, micro = b.mul(block, tile.rows), micro_kernel(k, rows, n, apart=True, through=storage)
            out, bias = b.at(y, b.mul(before, a["channel"]), k.number), b.at(a["bias"], before, k.number)
            sums = steps, b.at(w, b.mul(before, steps), k.number), out, a["channel"], SUMMED, (bias, a["biased"])

            def inputs(start: Number) -> tuple[Number, ...]:
                panel = b.at(a["x"], b.mul(start, a["apart"]), k.number), a["apart"]
                if through is None:
                    return panel
                apart = a["source_apart"]
                return *panel, b.at(a["source"], b.mul(start, apart), through.storage.memory), apart

            sum_in_pieces(k, b, micro, rows, inputs, *sums, (streamed,))

        def some(first: Number, last: Number, through: Source | None = None) -> None:
            with b.loop(first, b.min(last, blocks)) as block:
                one(block, tile.rows, through)
            if tile.rest:
                with b.if_(b.all_true(b.compare("<=", first, blocks), b.compare(">", last, blocks))):
                    one(blocks, tile.rest, through)

        first = a["first"]
        if source:
            begins = b.compare("==", p, 0)
            with b.if_(begins):
                some(first, b.add(first, 1), source)
            first = b.add(first, b.select(begins, 1, 0))
        some(first, a["last"])
    b.ret()
    return b.function
