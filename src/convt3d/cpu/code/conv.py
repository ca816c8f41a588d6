"""The convolution of a tile: every phase is a dense correlation, done as a small matrix product in registers.

Rows of a register tile are output channels, columns are vectors of positions; one step multiplies a vector of the
slab, found through a table of offsets (one for each tap and input channel), with weights broadcast over the lanes.
Positions run through the rows of a plane without a break, so that any width fills the vectors; what lies between rows
is dropped later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llvmlite import ir

from ..ir import amx
from ..ir.builder import Builder
from ..ir.frame import Kernel, Scratch
from ..ir.move import Destination, Source
from ..ir.values import I1, I64, PTR, Number, constant
from ..plan.geometry import POSITION, POSITION_COUNT, WRITE, WRITE_COUNT
from ..plan.registers import ANY, RegisterTile
from ..steps.conv import ConvCall, Convolution, ConvWords
from ..steps.direct import SUMMED, DirectCall, DirectConvolution, DirectWords, MaskWords, PhaseWords, TiledConvolution
from ..steps.pieces import PiecesWords, RunWords
from ..words import row_length
from .amx import tile_kernel
from .beside import Samples
from .depthwise import Target, long_rows, sum_rows
from .interleave import Planar
from .micro import NULL, at_offsets, joined_sums, micro_kernel, sum_in_pieces
from .pieces import each_piece
from .planes import Box, Inside
from .pointwise import lie_in_a_run, multiply
from .slab import fill_paced_slab, fill_slab
from .taps import depth_taps

if TYPE_CHECKING:
    from .tile import Tile


@dataclass(frozen=True)
class Channels:
    """Output channels that are convolved together: some blocks of some groups."""

    groups: tuple[Number, Number]  # first, and the one behind the last
    blocks: tuple[Number, Number]  # of each of these groups
    channel: Number  # the first
    channels: Number
    slab: Number = 0  # the group whose inputs the slab begins with


def emit_direct(tile: Tile, step: DirectConvolution, words: Any, call: Any) -> None:
    """Source -> slab -> phase-planar buffer; all that follows may run for a part of the channels."""
    k, b, (conv, direct, *more) = tile.k, tile.k.b, words
    mask: MaskWords | None = more.pop() if step.masked else None
    pieces: PiecesWords | None = more.pop() if step.in_pieces else None
    samples = Samples(k, conv, more.pop()) if step.beside else None
    _, count = blocks_of_group(k, conv, step.tile, step.blocks)
    source, part = source_of(tile, step, call), all_channels(conv, count)
    if step.shares_channels:
        part = share_of(k, conv, direct, step.tile, count)
    in_a_run = None
    if step.pointwise:
        assert isinstance(source, Source)
        in_a_run = lie_in_a_run(k, conv, tile.step, source)

    def fill_slab_of(words: ConvWords, what: Source | Scratch | Inside, groups: Number, box: Box | None = None) -> None:
        pairs = step.pairs and what is source
        if step.pace is None:
            fill_slab(k, words, tile.step, what, groups, pairs, box)
        else:
            fill_paced_slab(k, words, more[0], tile.step, what, groups, step.pace, pairs=pairs, box=box)

    def fill(first: Number, end: Number) -> None:
        """The inputs of these groups."""
        k.first_channel = k.b.mul(first, k.b.sdiv(conv.in_channels, conv.groups))
        groups = k.b.sub(end, first)
        if in_a_run is not None:
            with k.b.if_(k.b.raw.not_(in_a_run)):
                fill_slab(k, conv, tile.step, source, groups)
        elif samples is not None:
            with samples.each() as sample:
                fill_slab_of(conv, source, groups)
                samples.weave(sample, b.mul(groups, conv.in_group))
        elif pieces is None:
            fill_slab_of(conv, source, groups)

    def fill_piece(words: ConvWords, box: Box) -> None:
        fill_slab_of(words, source, 1, box)
        if mask is not None:
            fill_slab_of(_inside(conv, mask), Inside(), 1, box)

    if isinstance(step, TiledConvolution):
        amx.configure(k, step.deep)
    if mask is not None and pieces is None:
        fill_slab_of(_inside(conv, mask), Inside(), 1)
    tile.all_channels = conv.out_channels
    if step.in_parts:
        part = tile.around.enter_context(part_by_part(k, conv, call[0], step.tile, part, fill))
    else:
        fill(*part.groups)
    k.first_channel, tile.channels = part.channel, part.channels
    to = conv if samples is None else samples.woven
    if pieces is None:
        fill_with_bias(k, to, call[0], tile.step, part)
    target = in_buffer = Target(to.phased, to.plane, to.row)
    if samples is not None:
        convolve(k, to, direct, call[0], tile.step, step, part, target, beside=samples.words.most)
        tile.around.enter_context(samples.each_result(tile.step, 0, part.channels))
    elif pieces is not None:
        with each_piece(k, conv, pieces, call[0], tile.step, part, step.pairs, fill_piece) as (one, runs):
            convolve(k, conv, direct, call[0], tile.step, step, one, target, mask, runs)
    elif step.heights:
        straight = long = long_rows(k, tile.step)
        if step.writes:
            dest = tile.destination(call[-1], step.writes)
            target, straight, follow = _straight_rows(tile, conv, dest, long)
        with k.b.if_else(long) as (by_rows, short):
            with by_rows:
                sum_rows(k, conv, direct, call[0], tile.step, step.heights, step.high, part.groups, target)
            with short:
                convolve(k, conv, direct, call[0], tile.step, step, part, in_buffer)
        if step.writes:
            with k.b.if_(follow):
                _write_planes(tile, conv, dest, part.channels)
            straight = k.b.one_true(straight, follow)
    else:
        if step.writes:
            target, straight = _straight(tile, conv, tile.destination(call[-1], step.writes), step.pointwise)
        if in_a_run is not None:
            assert isinstance(source, Source)
            multiply(k, (conv, direct, more[0]), call[0], tile.step, step, part, target, source, in_a_run)
        else:
            convolve(k, conv, direct, call[0], tile.step, step, part, target, mask)
    tile.planar, tile.value = Planar.of_convolution(conv, tile.step), conv.phased
    tile.step += 1
    if step.writes:
        tile.around.enter_context(k.b.if_(k.b.raw.not_(straight)))  # all else that is done with the result


def _inside(conv: ConvWords, mask: MaskWords) -> ConvWords:
    """Words of the slab that tells what is inside the array: one channel."""
    words = copy(conv)
    words.slab, words.copy, words.in_group = mask.inside, mask.inside.pitch, 1
    return words


def _straight(tile: Tile, conv: ConvWords, dest: Destination, pointwise: bool) -> tuple[Target, ir.Value]:
    """The destination itself, where positions lie there as they do in the buffer; and whether that is so: what is not
    copied need not be fetched again."""
    k, b, words = tile.k, tile.k.b, dest.words
    if dest.storage.memory != k.number:
        return Target(conv.phased, conv.plane, conv.row), constant(I1, 0)
    low, (depth, height, width) = k.spans(tile.step, WRITE), k.spans(tile.step, WRITE_COUNT)
    _, length = Planar.of_convolution(conv, tile.step).extent(k)

    def one_of(*conditions: tuple[Number, Number]) -> ir.Value:
        return b.one_true(*(b.compare("==", *pair) for pair in conditions))

    straight = b.all_true(
        b.compare("==", conv.row, width),
        one_of((height, 1), (words.h, width)),
        one_of((depth, 1), (conv.merged, 0), (words.d, conv.plane)),
    )
    streamed: Number = words.streamed
    if pointwise:  # vectors begin where they are aligned, and the last one where it ends with the run
        dense = b.compare("==", words.w, 1), b.compare("==", words.channels, 1)
        straight = b.all_true(straight, *dense, b.compare(">=", length, k.lanes))
        streamed = b.select(b.compare("==", b.bits("and_", words.c, k.lanes - 1), 0), streamed, 0)
    else:  # past the caches, whole runs are better
        whole = b.compare("==", b.bits("and_", length, k.lanes - 1), 0)
        straight = b.all_true(straight, dest.direct, whole, b.compare("==", words.streamed, 0))
    place = b.at(words.data, b.add(dest.row(0, low[0], low[1]), low[2]), k.number)
    buffer = Scratch(b.either(straight, place, conv.phased.pointer), b.select(straight, words.c, conv.phased.pitch))
    plane, streamed = b.select(straight, words.d, conv.plane), b.select(straight, streamed, 0)
    return Target(buffer, plane, conv.row, streamed, b.select(straight, 1, 0)), straight


def _straight_rows(tile: Tile, conv: ConvWords, dest: Destination, long: ir.Value) -> tuple[Target, ir.Value, ir.Value]:
    """The same where rows are summed, which may lie apart: of those that are `long`, no vector reaches beyond the end.
    Also whether rows shall follow each other in the buffer, since they do in the destination."""
    k, b, words = tile.k, tile.k.b, dest.words
    no = constant(I1, 0)
    if dest.storage.memory != k.number:
        return Target(conv.phased, conv.plane, conv.row), no, no
    low, width = k.spans(tile.step, WRITE), k.span(2, tile.step, WRITE_COUNT)
    dense = b.all_true(long, b.compare("==", words.w, 1), b.compare("==", words.channels, 1))
    whole = b.compare("==", b.bits("and_", width, k.lanes - 1), 0)
    straight = b.all_true(dense, b.one_true(b.raw.not_(dest.streamed), b.all_true(dest.direct, whole)))
    follow = b.all_true(dense, b.raw.not_(straight), b.compare("==", words.h, width))
    place = b.at(words.data, b.add(dest.row(0, low[0], low[1]), low[2]), k.number)
    buffer = Scratch(b.either(straight, place, conv.phased.pointer), b.select(straight, words.c, conv.phased.pitch))
    row = b.select(straight, words.h, b.select(follow, width, conv.row))
    plane, streamed = b.select(straight, words.d, conv.plane), b.select(straight, words.streamed, 0)
    return Target(buffer, plane, row, streamed), straight, follow


def _write_planes(tile: Tile, conv: ConvWords, dest: Destination, channels: Number) -> None:
    """Planes whose rows follow each other, from the buffer to the destination."""
    k, b, buffer = tile.k, tile.k.b, conv.phased
    low, (depth, height, width) = k.spans(tile.step, WRITE), k.spans(tile.step, WRITE_COUNT)
    with b.loop(0, channels) as c, b.loop(0, depth) as d:
        start, place = k.dot((c, buffer.pitch), (d, conv.plane)), dest.row(c, b.add(low[0], d), low[1])
        dest.write(place, low[2], buffer.pointer, start, buffer.pitch, channels, b.mul(height, width))


def source_of(tile: Tile, step: Convolution, call: Any) -> Source | Scratch:
    """What the slab is filled from."""
    return tile.array(call[1], step.reads) if step.reads else tile.value


def blocks_of_group(k: Kernel, conv: ConvWords, tile: RegisterTile, blocks: int) -> tuple[Number, Number]:
    """Full blocks of output channels in a group, and all of them; known when the kernel runs where it is for any number
    of channels."""
    if tile.rest != ANY:
        return blocks, blocks + bool(tile.rest)
    b = k.b
    return b.sdiv(conv.out_group, tile.rows), b.sdiv(b.add(conv.out_group, tile.rows - 1), tile.rows)


def all_channels(conv: ConvWords, count: Number) -> Channels:
    """`count` blocks of each group."""
    return Channels((0, conv.groups), (0, count), 0, conv.out_channels)


def share_of(k: Kernel, conv: ConvWords, direct: DirectWords, tile: RegisterTile, count: Number) -> Channels:
    """Those that this item is about."""
    b = k.b
    assert k.share is not None
    in_group = b.sdiv(b.add(direct.share_blocks, b.sub(count, 1)), direct.share_blocks)
    first = b.mul(b.sdiv(k.share, in_group), direct.share_groups), b.mul(b.srem(k.share, in_group), direct.share_blocks)
    return _channels(k, conv, tile, first, (direct.share_groups, direct.share_blocks), (conv.groups, count), first[0])


@contextmanager
def part_by_part(
    k: Kernel,
    conv: ConvWords,
    call: DirectCall,
    tile: RegisterTile,
    share: Channels,
    fill: Callable[[Number, Number], None],
) -> Iterator[Channels]:
    """Runs the body for one part of a share after the other, each as large as the plan wants it; before that, `fill`
    for the groups that come next."""
    b, sizes = k.b, (call.part_groups, call.part_blocks)
    with b.loop(*share.groups, sizes[0]) as group:
        fill(group, b.min(b.add(group, sizes[0]), share.groups[1]))
        with b.loop(*share.blocks, sizes[1]) as block:
            ends = share.groups[1], share.blocks[1]
            yield _channels(k, conv, tile, (group, block), sizes, ends, group)


def _channels(
    k: Kernel,
    conv: ConvWords,
    tile: RegisterTile,
    first: tuple[Number, Number],
    sizes: tuple[Number, Number],
    ends: tuple[Number, Number],
    slab: Number,
) -> Channels:
    """So many groups and blocks from the first ones on, as far as there are any."""
    b, (group, block) = k.b, first
    groups, blocks = (b.min(b.add(at, size), end) for at, size, end in zip(first, sizes, ends, strict=True))
    before = b.mul(block, tile.rows)
    last = b.sub(b.min(b.mul(blocks, tile.rows), conv.out_group), before)  # channels of the last group
    channels = b.add(b.mul(b.sub(b.sub(groups, group), 1), conv.out_group), last)
    channel = b.add(b.mul(group, conv.out_group), before)
    return Channels((group, groups), (block, blocks), channel, channels, slab)


def convolve(
    k: Kernel,
    conv: ConvWords,
    direct: DirectWords,
    call: ConvCall,
    number: int,
    step: DirectConvolution,
    part: Channels,
    target: Target,
    mask: MaskWords | None = None,
    runs: tuple[ir.Value, Number, Number] | None = None,
    beside: Number = 1,
) -> None:
    """Slab -> target (channels of the part, phases, D, plane); it is geometric step `number`. Of a piece, a table of
    `runs`, the first one and the one behind the last: what they sum is added to the target."""
    b, tile = k.b, step.tile
    blocks, _ = blocks_of_group(k, conv, tile, step.blocks)
    columns = [_columns(k, tile, blocks, n, step) for n in range(1, tile.columns + 1)]
    slab, out = conv.slab, target.buffer
    planes, length = Planar.of_convolution(conv, number, beside).extent(k)
    vectors = b.sdiv(b.add(length, k.lanes - 1), k.lanes)
    in_group, out_group, pace = conv.in_group, conv.out_group, conv.paces[0]
    rest = (blocks, b.sub(out_group, b.mul(blocks, tile.rows))) if tile.rest == ANY else ()
    apart = (slab.pitch,) if isinstance(step, TiledConvolution) else ()
    with b.loop(*part.groups) as g:
        x = b.at(slab.pointer, b.mul(b.mul(b.sub(g, part.slab), in_group), slab.pitch), k.number)
        y = b.at(out.pointer, b.mul(b.sub(b.mul(g, out_group), part.channel), out.pitch), k.number)
        w = b.at(call.weights, b.mul(g, conv.weights_group), k.number)
        bias = b.at(call.bias, b.mul(g, out_group), k.number)
        with b.loop(0, planes) as d:
            before = b.mul(b.mul(d, pace), b.mul(conv.slab_height, conv.row))
            x_plane = b.at(x, before, k.number)
            y_plane = b.at(y, b.mul(d, target.plane), k.number)

            at_depth = b.mul(b.add(k.span(0, number, POSITION), d), pace)

            def block(
                n: int,
                vector: Number,
                before: Number = before,
                x: ir.Value = x_plane,
                y: ir.Value = y_plane,
                at_depth: Number = at_depth,
            ) -> None:
                at = b.mul(vector, k.lanes)
                arguments = (b.at(x, at, k.number), b.at(y, at, k.number), w, bias)
                tables: tuple[ir.Value, ...] = (conv.offsets, direct.phase_table if runs is None else runs[0])
                if mask is not None:
                    tables += (b.at(mask.inside.pointer, b.add(before, at), k.number), mask.places)
                sizes = (
                    conv.phases_with_taps if runs is None else runs[2],
                    out.pitch,
                    conv.phase,
                    at_depth,
                    direct.in_depth,
                    conv.biased if runs is None else runs[1],
                )
                b.call(columns[n - 1], *arguments, *tables, *sizes, *part.blocks, *rest, *apart)

            whole = b.mul(b.sdiv(vectors, tile.columns), tile.columns)
            with b.loop(0, whole, tile.columns) as vector:
                block(tile.columns, vector)
            left = b.sub(vectors, whole)
            for n in range(1, tile.columns):
                with b.if_(b.compare("==", left, n)):
                    block(n, whole)


def _columns(k: Kernel, tile: RegisterTile, blocks: Number, n: int, step: DirectConvolution) -> ir.Function:
    """All phases, or the runs of a piece, and some blocks of the output channels of one group, for n vectors of
    positions in one plane."""
    masks, tiled = ("inside", "places") if step.masked else (), isinstance(step, TiledConvolution)
    pointers = [(name, PTR) for name in ("x", "y", "w", "bias", "offsets", "phases", *masks)]
    also = "run" if step.in_pieces else "biased"
    sizes = ("phase_count", "channel", "phase", "at_depth", "in_depth", also, "first", "last")
    told = ("blocks", "rest") if tile.rest == ANY else ()
    apart = ("apart",) if tiled else ()
    b = k.define(f"columns_{n}", [*pointers, *((name, I64) for name in (*sizes, *told, *apart))])
    a = b.args
    full = _micro(k, tile.rows, n, step)
    rests = range(1, tile.rows) if told else [tile.rest] if tile.rest else []
    micros = [_micro(k, rows, n, step) for rows in rests]
    blocks, summed = a["blocks"] if told else blocks, SUMMED // 2 if step.pairs else SUMMED
    if isinstance(step, TiledConvolution):
        summed -= summed % step.deep
    with (_runs if step.in_pieces else _phases)(k, b) as (row, skipped, left):
        steps = row.steps
        offsets = b.at(a["offsets"], b.add(row.offset, skipped), I64)
        inside = (a["inside"], b.at(a["places"], b.add(row.offset, skipped), I64)) if masks else ()
        y = b.at(a["y"], b.mul(row.phase, a["phase"]), k.number)
        w = b.at(a["w"], row.weight, k.number)

        def one(
            micro: ir.Function,
            block: Number,
            rows: int,
            tables: tuple[ir.Value, ...] = (offsets, y, w, steps),
            part: tuple[ir.Value, ...] = (skipped, left),
            inside: tuple[ir.Value, ...] = inside,
        ) -> None:
            offsets, y, w, steps = tables
            before = b.mul(block, tile.rows)
            packed = tile.rows if tiled else rows
            weights = b.at(w, b.add(b.mul(before, steps), b.mul(part[0], packed)), k.number)
            out, bias = b.at(y, b.mul(before, a["channel"]), k.number), b.at(a["bias"], before, k.number)
            inputs, data = at_offsets(b, a["x"], offsets, *inside), (part[1], weights, out, a["channel"])
            biased, more = (NULL, 0) if step.in_pieces else (bias, a["biased"]), (a["apart"],) if tiled else ()
            sum_in_pieces(k, b, micro, packed, inputs, *data, summed, biased, more, step.in_pieces)

        with b.loop(a["first"], b.min(a["last"], blocks)) as block:
            one(full, block, tile.rows)
        for rows, micro in zip(rests, micros, strict=True):
            with ExitStack() as conditions:
                conditions.enter_context(b.if_(b.compare(">", a["last"], blocks)))
                if told:
                    conditions.enter_context(b.if_(b.compare("==", a["rest"], rows)))
                one(micro, blocks, rows)
    b.ret()
    return b.function


@contextmanager
def _phases(k: Kernel, b: Builder) -> Iterator[tuple[PhaseWords, Number, Number]]:
    """Each phase that has taps: its row, the steps of it that are skipped, and those that are summed. Taps along the
    depth that leave the array meet a plane of zeros: their steps, a part at either end, are skipped."""
    a = b.args
    with b.loop(0, a["phase_count"]) as p:
        row = k.row(PhaseWords, b, b.at(a["phases"], b.mul(p, row_length(PhaseWords)), I64))
        first, last = depth_taps(b, row, a["at_depth"], a["in_depth"])
        each = b.sdiv(row.steps, b.max(row.taps, 1))
        yield row, b.mul(first, each), b.mul(b.sub(last, first), each)


@contextmanager
def _runs(k: Kernel, b: Builder) -> Iterator[tuple[RunWords, Number, Number]]:
    """Each run of a piece that meets a plane of the array: its row, the steps of its phase before it, and its own."""
    a = b.args
    with b.loop(a["run"], a["phase_count"]) as number:
        row = k.row(RunWords, b, b.at(a["phases"], b.mul(number, row_length(RunWords)), I64))
        meets = b.i64(b.add(a["at_depth"], row.shift))
        with b.if_(b.raw.icmp_unsigned("<", meets, a["in_depth"])):
            yield row, row.before, row.left


def _micro(k: Kernel, rows: int, columns: int, step: DirectConvolution) -> ir.Function:
    """The micro-kernel of a step."""
    if not isinstance(step, TiledConvolution):
        return micro_kernel(k, rows, columns, step.pairs, masked=step.masked)

    def finish(b: Builder, sums: Sequence[ir.Value], column: int) -> None:
        places = [b.add(b.mul(b.args["channel"], m), column * k.lanes) for m in range(rows)]
        for value, place in joined_sums(k, b, sums, places, 1):
            b.store(value, b.args["y"], place)

    return tile_kernel(k, rows, columns, step.deep, finish)


def fill_with_bias(k: Kernel, conv: ConvWords, call: ConvCall, step: int, part: Channels) -> None:
    """What phases without taps are: the bias, everywhere."""
    b = k.b
    planes, plane = k.span(0, step, POSITION_COUNT), conv.plane
    some = b.compare("<", conv.phases_with_taps, conv.phases)
    with b.if_(some), b.loop(0, part.channels) as c:
        value = b.splat(b.load(call.bias, b.add(part.channel, c), k.number), k.lanes)
        with b.loop(0, conv.phases) as phase, b.loop(0, b.mul(planes, plane), k.lanes) as at:
            place = k.dot((c, conv.phased.pitch), (phase, conv.phase), (at, 1))
            b.store(value, conv.phased.pointer, place)
