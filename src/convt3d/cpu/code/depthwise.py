"""The convolution of channels that have taps of their own: rows of a plane are summed together.

Lanes are positions of a row. Neighbouring rows of the result meet the same inputs, so a vector that is loaded once is
multiplied with all taps along the height that a block of rows has for it. Where positions are several inputs high,
these are the taps whose distance is a multiple of that.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from ..ir.frame import Kernel, Scratch
from ..ir.values import I64, PTR, Number, constant, vector
from ..plan.geometry import POSITION, POSITION_COUNT
from ..steps.conv import ConvCall, ConvWords
from ..steps.direct import DirectWords, PhaseWords
from ..words import row_length
from .taps import depth_taps


@dataclass(frozen=True)
class Target:
    """Where sums go: (channels, phases, D, H, row)."""

    buffer: Scratch
    plane: Number  # numbers from one depth to the next
    row: Number
    streamed: Number = 0  # 1: past the caches
    ends: Number = 0  # 1: nothing may be written behind the last position


_COLUMNS = 2  # vectors of a row that are summed together


def rows_at_once(registers: int) -> int:
    """Rows of a block: their sums, and the weights of some taps, are held in registers."""
    return 8 if registers >= 32 else 4


def sum_rows(
    k: Kernel,
    conv: ConvWords,
    direct: DirectWords,
    call: ConvCall,
    step: int,
    heights: tuple[int, ...],
    pace: int,
    groups: tuple[Number, Number],
    target: Target,
) -> None:
    """Slab -> target, for some groups, whose inputs the slab has; rows are no shorter than a vector. A position is
    `pace` inputs high.

    Blocks and vectors that would reach beyond the last row or its end begin earlier: what they share with others is
    computed again.
    """
    b, most, lanes = k.b, rows_at_once(k.machine.vector_registers), k.lanes
    blocks = {(rows, n): _phases(k, heights, pace, rows, n) for rows in (1, most) for n in (1, _COLUMNS)}
    depth, height, width = k.spans(step, POSITION_COUNT)
    with b.loop(*groups) as g, b.loop(0, depth) as d:
        number, deep = b.sub(g, groups[0]), conv.paces[0]
        at_depth = b.mul(b.add(k.span(0, step, POSITION), d), deep)
        plane = b.mul(b.mul(d, deep), b.mul(conv.slab_height, conv.row))
        x = b.at(conv.slab.pointer, b.add(b.mul(number, conv.slab.pitch), plane), k.number)
        y = b.at(target.buffer.pointer, k.dot((number, target.buffer.pitch), (d, target.plane)), k.number)
        w = b.at(call.weights, b.mul(g, conv.weights_group), k.number)
        bias = b.at(call.bias, g, k.number)

        def block(
            rows: int,
            n: int,
            h: Number,
            at: Number,
            data: tuple[ir.Value, ...] = (x, y, w, bias),
            at_depth: Number = at_depth,
        ) -> None:
            x, y, w, bias = data
            x = b.at(x, b.add(b.mul(h, conv.row), at), k.number)
            y = b.at(y, b.add(b.mul(h, target.row), at), k.number)
            tables = w, bias, conv.offsets, direct.phase_table
            sizes = conv.phases_with_taps, conv.phase, conv.row, target.row, at_depth, direct.in_depth, conv.biased
            b.call(blocks[rows, n], x, y, *tables, *sizes, target.streamed)

        def along_rows(rows: int, h: Number) -> None:
            whole = b.mul(b.sdiv(width, _COLUMNS * lanes), _COLUMNS * lanes)
            with b.loop(0, whole, _COLUMNS * lanes) as at:
                block(rows, _COLUMNS, h, at)
            with b.loop(whole, width, lanes) as at:
                block(rows, 1, h, b.min(at, b.sub(width, lanes)))

        with b.if_else(b.compare(">=", height, most)) as (high, low):
            with high, b.loop(0, height, most) as h:
                along_rows(most, b.min(h, b.sub(height, most)))
            with low, b.loop(0, height) as h:
                along_rows(1, h)


def _phases(k: Kernel, heights: tuple[int, ...], pace: int, rows: int, columns: int) -> ir.Function:
    """All phases of one channel, for some rows and some vectors of each."""
    pointers = [(name, PTR) for name in ("x", "y", "w", "bias", "offsets", "phases")]
    sizes = ("phase_count", "phase", "row", "y_row", "at_depth", "in_depth", "biased", "streamed")
    b = k.define(f"rows_{rows}x{columns}", [*pointers, *((name, I64) for name in sizes)])
    a = b.args
    sums = {height: _sum(k, rows, columns, height, pace) for height in heights}
    with b.loop(0, a["phase_count"]) as p:
        row = k.row(PhaseWords, b, b.at(a["phases"], b.mul(p, row_length(PhaseWords)), I64))
        first, last = depth_taps(b, row, a["at_depth"], a["in_depth"])
        each = b.sdiv(row.steps, b.max(row.taps, 1))
        offsets = b.at(a["offsets"], b.add(row.offset, b.mul(first, each)), I64)
        w = b.at(a["w"], b.add(row.weight, b.mul(first, each)), k.number)
        y = b.at(a["y"], b.mul(row.phase, a["phase"]), k.number)
        for height, function in sums.items():
            with b.if_(b.compare("==", row.height, height)):
                counts = b.sub(last, first), b.sdiv(each, height)
                ends = a["row"], a["y_row"], a["biased"], a["streamed"]
                b.call(function, a["x"], offsets, w, y, a["bias"], *counts, *ends)
    b.ret()
    return b.function


def _sum(k: Kernel, rows: int, columns: int, height: int, pace: int) -> ir.Function:
    """y[r][n] = sum over taps of w[d][i][j] * x[offsets[d][i][j] + r * row + n] (+ bias): `height` taps along the
    height. The inputs of each `pace`-th of them are rows that follow each other upwards."""
    name = f"sum_{rows}x{columns}_{height}"
    pointers = [(word, PTR) for word in ("x", "offsets", "w", "y", "bias")]
    sizes = [(word, I64) for word in ("depth", "width", "row", "y_row", "biased", "streamed")]
    b = k.define(name, [*pointers, *sizes], noalias=("x", "offsets", "w", "y", "bias"))
    a, lanes = b.args, k.lanes
    zero = constant(vector(k.number, lanes), 0.0)
    with b.loop_carrying(0, a["depth"], 1, [zero] * (rows * columns)) as (d, planes):
        with b.loop_carrying(0, a["width"], 1, planes.values) as (j, sums):
            taps = [b.add(b.mul(b.add(b.mul(d, height), i), a["width"]), j) for i in range(height)]
            weights = [b.splat(b.load(a["w"], tap, k.number), lanes) for tap in taps]
            totals = list(sums.values)
            for first in range(min(pace, height)):
                some, own = taps[first::pace], weights[first::pace]
                start = b.at(a["x"], b.load(a["offsets"], some[-1], I64), k.number)
                for line in range(rows + len(some) - 1):
                    at = b.mul(a["row"], line)
                    x = [b.load(start, b.add(at, n * lanes), k.number, lanes) for n in range(columns)]
                    for r in range(max(0, line - len(some) + 1), min(rows, line + 1)):
                        tap = own[len(some) - 1 - (line - r)]
                        for n in range(columns):
                            totals[r * columns + n] = b.multiply_add(tap, x[n], totals[r * columns + n])
            sums.next = totals
        planes.next = sums.result
    bias = b.splat(b.load(a["bias"], 0, k.number), lanes)
    biased = b.compare("!=", a["biased"], 0)
    values = [b.select(biased, b.add(total, bias), total) for total in planes.result]
    places = [b.add(b.mul(a["y_row"], r), n * lanes) for r in range(rows) for n in range(columns)]
    with b.if_(b.compare("==", a["streamed"], 1)):
        for value, place in zip(values, places, strict=True):
            b.store_past_caches(value, a["y"], place)
        b.ret()
    for value, place in zip(values, places, strict=True):
        b.store(value, a["y"], place)
    b.ret()
    return b.function
