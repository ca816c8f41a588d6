"""The convolution of taps that meet one input each: panels of positions, as they lie in the array, times the weights.

A panel is a run of positions of all input channels. It is copied, since channels of the array may compete for the same
cache sets and be of another type; the copy stays in the second-level cache while all output channels are computed.
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
    geometric step `number`."""
    b, tile, words, lanes, memory = k.b, step.tile, source.words, k.lanes, source.storage.memory
    conv, direct, panel = sets
    columns = [_columns(k, tile, step.blocks, n) for n in range(1, tile.columns + 1)]
    assert k.sample is not None
    place = zip((k.sample, *k.spans(number, READ)), (words.b, words.d, words.h, words.w), strict=True)
    origin, out = b.at(words.data, k.dot(*place), memory), target.buffer
    _, length = Planar.of_convolution(conv, number).extent(k)
    apart = b.select(in_a_run, panel.panel.pitch, conv.slab.pitch)
    with b.loop(*part.groups) as g:
        x = b.at(origin, b.mul(b.mul(g, conv.in_group), words.c), memory)
        slab = b.at(conv.slab.pointer, b.mul(b.mul(b.sub(g, part.slab), conv.in_group), conv.slab.pitch), k.number)
        y = b.at(out.pointer, b.mul(b.sub(b.mul(g, conv.out_group), part.channel), out.pitch), k.number)
        w = b.at(call.weights, b.mul(g, conv.weights_group), k.number)
        bias = b.at(call.bias, b.mul(g, conv.out_group), k.number)
        with b.loop(0, length, panel.length) as first:
            count = b.min(panel.length, b.sub(length, first))
            with b.if_(in_a_run):
                _copy(k, source, b.at(x, first, memory), conv.in_group, count, panel.panel)
            inputs, results = (
                b.either(in_a_run, panel.panel.pointer, b.at(slab, first, k.number)),
                b.at(y, first, k.number),
            )

            def block(n: int, vector: Number, data: tuple[ir.Value, ...] = (inputs, results, w, bias)) -> None:
                x, y, w, bias = data
                at = b.mul(vector, lanes)
                arguments = b.at(x, at, k.number), b.at(y, at, k.number), w, bias, direct.phase_table
                sizes = apart, conv.phases_with_taps, out.pitch, conv.phase, conv.biased, target.streamed
                b.call(columns[n - 1], *arguments, *sizes, *part.blocks)

            vectors = b.sdiv(b.add(count, lanes - 1), lanes)
            whole = b.mul(b.sdiv(vectors, tile.columns), tile.columns)
            with b.loop(0, whole, tile.columns) as vector:
                block(tile.columns, vector)
            left = b.sub(vectors, whole)
            for n in range(1, tile.columns):
                with b.if_(b.compare("==", left, n)):
                    block(n, whole)


def _copy(k: Kernel, source: Source, x: ir.Value, channels: Number, count: Number, to: Scratch) -> None:
    """So many positions of all channels, as numbers."""
    b = k.b
    with b.loop(0, channels) as c:

        def one(at: Number, lanes: Number | None, c: Number = c) -> None:
            place = k.dot((c, source.words.c), (1, at))
            value = b.widen(b.load(x, place, source.storage.memory, k.lanes, count=lanes), source.storage)
            b.store(value, to.pointer, k.dot((c, to.pitch), (1, at)))

        in_vectors(k, count, one)


def _columns(k: Kernel, tile: RegisterTile, blocks: int, n: int) -> ir.Function:
    """All phases and some blocks of the output channels of one group, for n vectors of positions."""
    pointers = [(name, PTR) for name in ("x", "y", "w", "bias", "phases")]
    sizes = ("apart", "phase_count", "channel", "phase", "biased", "streamed", "first", "last")
    b = k.define(f"panel_{n}", [*pointers, *((name, I64) for name in sizes)])
    a = b.args
    with b.loop(0, a["phase_count"]) as p:
        row = k.row(PhaseWords, b, b.at(a["phases"], b.mul(p, row_length(PhaseWords)), I64))
        y, w = b.at(a["y"], b.mul(row.phase, a["phase"]), k.number), b.at(a["w"], row.weight, k.number)
        streamed = b.select(b.compare("<=", row.steps, SUMMED), a["streamed"], 0)  # a sum of pieces is read again

        def one(block: Number, rows: int, data: tuple[ir.Value, ...] = (y, w, row.steps, streamed)) -> None:
            y, w, steps, streamed = data
            before, micro = b.mul(block, tile.rows), micro_kernel(k, rows, n, apart=True)
            out, bias = b.at(y, b.mul(before, a["channel"]), k.number), b.at(a["bias"], before, k.number)
            sums = steps, b.at(w, b.mul(before, steps), k.number), out, a["channel"], SUMMED, (bias, a["biased"])

            def inputs(start: Number) -> tuple[Number, ...]:
                return b.at(a["x"], b.mul(start, a["apart"]), k.number), a["apart"]

            sum_in_pieces(k, b, micro, rows, inputs, *sums, (streamed,))

        with b.loop(a["first"], b.min(a["last"], blocks)) as block:
            one(block, tile.rows)
        if tile.rest:
            with b.if_(b.compare(">", a["last"], blocks)):
                one(blocks, tile.rest)
    b.ret()
    return b.function
