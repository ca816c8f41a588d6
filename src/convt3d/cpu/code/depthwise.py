"""The convolution of channels that have taps of their own: rows of a plane are summed together.

Lanes are positions of a row. Neighbouring rows of the result meet the same inputs, so a vector that is loaded once is
multiplied with all taps along the height that a block of rows has for it. Where positions are several inputs high,
these are the taps whose distance is a multiple of that. What is left of a row, or all of a short one, takes vectors of
half as many lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from llvmlite import ir

from ..ir.builder import Builder
from ..ir.frame import Kernel, Scratch
from ..ir.values import I64, PTR, Number, constant, vector
from ..plan.geometry import POSITION, POSITION_COUNT
from ..plan.registers import row_lengths
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


def long_rows(k: Kernel, step: int) -> ir.Value:
    """Whether rows are summed together: as `sums_rows` of the plan."""
    b, (least, few, high) = k.b, row_lengths(k.lanes, k.machine.vector_registers)
    _, height, width = k.spans(step, POSITION_COUNT)
    some = b.all_true(b.compare(">=", width, few), b.compare(">=", height, high))
    return b.one_true(b.compare(">=", width, least), some)


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
    """Slab -> target, for some groups, whose inputs the slab has; rows are no shorter than the smallest vector. A
    position is `pace` inputs high.

    Blocks and vectors that would reach beyond the last row or its end begin earlier: what they share with others is
    computed again.
    """
    b, (_, _, most) = k.b, row_lengths(k.lanes, k.machine.vector_registers)
    planes = {rows: _phases(k, heights, pace, rows) for rows in (1, most)}
    depth, height, width = k.spans(step, POSITION_COUNT)
    with b.loop(*groups) as g, b.loop(0, depth) as d:
        number, deep = b.sub(g, groups[0]), conv.paces[0]
        at_depth = b.mul(b.add(k.span(0, step, POSITION), d), deep)
        plane = b.mul(b.mul(d, deep), b.mul(conv.slab_height, conv.row))
        x = b.at(conv.slab.pointer, b.add(b.mul(number, conv.slab.pitch), plane), k.number)
        y = b.at(target.buffer.pointer, k.dot((number, target.buffer.pitch), (d, target.plane)), k.number)
        w = b.at(call.weights, b.mul(g, conv.weights_group), k.number)
        tables = w, b.at(call.bias, g, k.number), conv.offsets, direct.phase_table
        sizes = conv.phases_with_taps, conv.phase, conv.row, target.row, at_depth, direct.in_depth, conv.biased
        with b.if_else(b.compare(">=", height, most)) as (high, low):
            with high:
                b.call(planes[most], x, y, *tables, *sizes, target.streamed, height, width)
            with low:
                b.call(planes[1], x, y, *tables, *sizes, target.streamed, height, width)


def _phases(k: Kernel, heights: tuple[int, ...], pace: int, rows: int) -> ir.Function:
    """All phases of one plane of a channel, some rows at a time."""
    pointers = [(name, PTR) for name in ("x", "y", "w", "bias", "offsets", "phases")]
    words = ("phase_count", "phase", "row", "y_row", "at_depth", "in_depth", "biased", "streamed", "height", "width")
    b = k.define(f"plane_{rows}", [*pointers, *((name, I64) for name in words)])
    a, (lanes, few, _) = b.args, row_lengths(k.lanes, k.machine.vector_registers)
    sizes = list(dict.fromkeys(((lanes, _COLUMNS), (lanes, 1), (few, 1))))  # lanes of a vector, vectors
    with b.loop(0, a["phase_count"]) as p:
        row = k.row(PhaseWords, b, b.at(a["phases"], b.mul(p, row_length(PhaseWords)), I64))
        first, last = depth_taps(b, row, a["at_depth"], a["in_depth"])
        each = b.sdiv(row.steps, b.max(row.taps, 1))
        offsets = b.at(a["offsets"], b.add(row.offset, b.mul(first, each)), I64)
        w = b.at(a["w"], b.add(row.weight, b.mul(first, each)), k.number)
        phase = b.at(a["y"], b.mul(row.phase, a["phase"]), k.number)
        for height in heights:
            with b.if_(b.compare("==", row.height, height)):
                counts = b.sub(last, first), b.sdiv(each, height)
                with b.loop(0, a["height"], rows) as turn:
                    h = b.min(turn, b.sub(a["height"], rows))
                    x, y = b.at(a["x"], b.mul(h, a["row"]), k.number), b.at(phase, b.mul(h, a["y_row"]), k.number)
                    for size, at in _along_row(b, a["width"], sizes):
                        inputs, out = b.at(x, at, k.number), b.at(y, at, k.number)
                        _sum(k, b, (rows, *size), (height, pace), inputs, out, (offsets, w), counts)
    b.ret()
    return b.function


def _along_row(b: Builder, width: Number, sizes: list[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], Number]]:
    """Where vectors of each of these sizes begin, so that all of a row is met."""
    done: Number = 0
    for size, smaller in pairwise([*sizes, (0, 0)]):
        length = size[0] * size[1]
        end = b.add(done, b.mul(b.sdiv(b.sub(width, done), length), length))
        if size[1] == 1:  # the last one begins earlier, unless smaller vectors take what is left
            beyond = b.compare(">", b.sub(width, end), smaller[0])
            end = b.select(b.all_true(beyond, b.compare(">=", width, length)), width, end)
        with b.loop(done, end, length) as at:
            yield size, b.min(at, b.sub(width, length))
        done = end


def _sum(
    k: Kernel,
    b: Builder,
    block: tuple[int, int, int],
    tall: tuple[int, int],
    x: ir.Value,
    y: ir.Value,
    tables: tuple[ir.Value, ir.Value],
    counts: tuple[Number, Number],
) -> None:
    """y[r][n] = sum over taps of w[d][i][j] * x[offsets[d][i][j] + r * row + n] (+ bias): a block of some rows, lanes
    and vectors; so many taps along depth and width, and of the height as many as the code has. The inputs of each
    pace-th of these are rows that follow each other upwards."""
    a, (rows, lanes, columns), (height, pace), (depth, width) = b.args, block, tall, counts
    offsets, weights = tables
    zero = constant(vector(k.number, lanes), 0.0)
    with b.loop_carrying(0, depth, 1, [zero] * (rows * columns)) as (d, planes):
        with b.loop_carrying(0, width, 1, planes.values) as (j, sums):
            taps = [b.add(b.mul(b.add(b.mul(d, height), i), width), j) for i in range(height)]
            factors = [b.splat(b.load(weights, tap, k.number), lanes) for tap in taps]
            totals = list(sums.values)
            for first in range(min(pace, height)):
                some, own = taps[first::pace], factors[first::pace]
                start = b.at(x, b.load(offsets, some[-1], I64), k.number)
                for line in range(rows + len(some) - 1):
                    at = b.mul(a["row"], line)
                    inputs = [b.load(start, b.add(at, n * lanes), k.number, lanes) for n in range(columns)]
                    for r in range(max(0, line - len(some) + 1), min(rows, line + 1)):
                        tap = own[len(some) - 1 - (line - r)]
                        for n in range(columns):
                            totals[r * columns + n] = b.multiply_add(tap, inputs[n], totals[r * columns + n])
            sums.next = totals
        planes.next = sums.result
    bias = b.splat(b.load(a["bias"], 0, k.number), lanes)
    biased = b.compare("!=", a["biased"], 0)
    values = [b.select(biased, b.add(total, bias), total) for total in planes.result]
    places = [b.add(b.mul(a["y_row"], r), n * lanes) for r in range(rows) for n in range(columns)]
    if lanes < k.lanes:  # rows that are streamed are whole vectors
        for value, place in zip(values, places, strict=True):
            b.store(value, y, place)
        return
    with b.if_else(b.compare("==", a["streamed"], 1)) as (past, otherwise):
        with past:
            for value, place in zip(values, places, strict=True):
                b.store_past_caches(value, y, place)
        with otherwise:
            for value, place in zip(values, places, strict=True):
                b.store(value, y, place)
