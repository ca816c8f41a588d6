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
from ..ir.values import I64, PTR, Number, constant, vector
from ..plan.geometry import POSITION, POSITION_COUNT, WRITE, WRITE_COUNT
from ..plan.registers import ANY, RegisterTile
from ..steps.conv import ConvCall, Convolution, ConvWords
from ..steps.direct import SUMMED, DirectCall, DirectConvolution, DirectWords, MaskWords, PhaseWords, TiledConvolution
from ..steps.pieces import PiecesWords, RunWords
from ..words import row_length
from .amx import tile_kernel
from .depthwise import sum_rows
from .interleave import Planar
from .pieces import each_piece
from .slab import Box, Inside, fill_paced_slab, fill_slab
from .taps import depth_taps

if TYPE_CHECKING:
    from .tile import Tile

NULL = ir.Constant(PTR, None)


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
    k, (conv, direct, *paced) = tile.k, words
    mask: MaskWords | None = paced.pop() if step.masked else None
    pieces: PiecesWords | None = paced.pop() if step.in_pieces else None
    _, count = blocks_of_group(k, conv, step.tile, step.blocks)
    source, part = source_of(tile, step, call), all_channels(conv, count)
    if step.shares_channels:
        part = share_of(k, conv, direct, step.tile, count)

    def fill_slab_of(words: ConvWords, what: Source | Scratch | Inside, groups: Number, box: Box | None = None) -> None:
        pairs = step.pairs and what is source
        if step.pace is None:
            fill_slab(k, words, tile.step, what, groups, pairs, box)
        else:
            fill_paced_slab(k, words, paced[0], tile.step, what, groups, step.pace, pairs=pairs, box=box)

    def fill(first: Number, end: Number) -> None:
        """The inputs of these groups."""
        k.first_channel = k.b.mul(first, k.b.sdiv(conv.in_channels, conv.groups))
        if pieces is None:
            fill_slab_of(conv, source, k.b.sub(end, first))

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
    if pieces is None:
        fill_with_bias(k, conv, call[0], tile.step, part)
    target = Target(conv.phased, conv.plane)
    if step.writes:
        target, straight = _straight(tile, conv, tile.destination(call[-1], step.writes))
    if pieces is not None:
        with each_piece(k, conv, pieces, call[0], tile.step, part, step.pairs, fill_piece) as (one, runs):
            convolve(k, conv, direct, call[0], tile.step, step, one, target, mask, runs)
    elif step.heights:
        with k.b.if_else(k.b.compare(">=", k.span(2, tile.step, POSITION_COUNT), k.lanes)) as (long, short):
            with long:
                sum_rows(k, conv, direct, call[0], tile.step, step.heights, part.groups)
            with short:
                convolve(k, conv, direct, call[0], tile.step, step, part, target)
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


@dataclass(frozen=True)
class Target:
    """Where sums go: (channels, phases, D, plane)."""

    buffer: Scratch
    plane: Number  # numbers from one depth to the next


def _straight(tile: Tile, conv: ConvWords, dest: Destination) -> tuple[Target, ir.Value]:
    """The destination itself, where positions lie there as they do in the buffer, in whole vectors; and whether that is
    so: what is not copied need not be fetched again."""
    k, b, words = tile.k, tile.k.b, dest.words
    if dest.storage.memory != k.number:
        return Target(conv.phased, conv.plane), constant(ir.IntType(1), 0)
    low, (depth, height, width) = k.spans(tile.step, WRITE), k.spans(tile.step, WRITE_COUNT)
    _, length = Planar.of_convolution(conv, tile.step).extent(k)

    def one_of(*conditions: tuple[Number, Number]) -> ir.Value:
        return b.raw.not_(b.all_true(*(b.compare("!=", *pair) for pair in conditions)))

    straight = b.all_true(
        dest.direct,
        b.compare("==", words.streamed, 0),  # past the caches, whole runs are better
        b.compare("==", conv.row, width),
        b.compare("==", b.bits("and_", length, k.lanes - 1), 0),
        one_of((height, 1), (words.h, width)),
        one_of((depth, 1), (conv.merged, 0), (words.d, conv.plane)),
    )
    place = b.at(words.data, b.add(dest.row(0, low[0], low[1]), low[2]), k.number)
    buffer = Scratch(b.either(straight, place, conv.phased.pointer), b.select(straight, words.c, conv.phased.pitch))
    return Target(buffer, b.select(straight, words.d, conv.plane)), straight


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
) -> None:
    """Slab -> target (channels of the part, phases, D, plane); it is geometric step `number`. Of a piece, a table of
    `runs`, the first one and the one behind the last: what they sum is added to the target."""
    b, tile = k.b, step.tile
    blocks, _ = blocks_of_group(k, conv, tile, step.blocks)
    columns = [_columns(k, tile, blocks, n, step) for n in range(1, tile.columns + 1)]
    slab, out = conv.slab, target.buffer
    planes, length = Planar.of_convolution(conv, number).extent(k)
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
            data = a["x"], offsets, part[1], weights, out, a["channel"]
            biased = (NULL, 0) if step.in_pieces else (bias, a["biased"])
            more = (a["apart"],) if tiled else inside
            sum_in_pieces(k, b, micro, packed, *data, summed, biased, more, step.in_pieces)

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


def sum_in_pieces(
    k: Kernel,
    b: Builder,
    micro: ir.Function,
    rows: int,
    x: ir.Value,
    offsets: ir.Value,
    steps: Number,
    weights: ir.Value,
    y: ir.Value,
    channel: Number,
    most: Number,
    bias: tuple[ir.Value, Number] = (NULL, 0),
    inside: tuple[ir.Value, ...] = (),
    joined: bool = False,
) -> None:
    """Calls the micro-kernel for `most` steps at a time: rounding errors grow with the longest chain of additions.

    The bias (and whether there is one) joins when all else is summed: with a large one from the start, every step would
    round to its spacing. `inside`: of products that are masked, the mask and the places of steps in it; or
    what else the micro-kernel is told. `joined`: all of them to what y holds already.
    """
    with b.loop(0, b.max(steps, 1), most) as start:
        left = b.sub(steps, start)
        at = b.at(offsets, start, I64), b.min(left, most), b.at(weights, b.mul(start, rows), k.number)
        masks = (inside[0], b.at(inside[1], start, I64)) if len(inside) == 2 else inside
        before = 1 if joined else start
        b.call(micro, x, *at, y, channel, bias[0], before, b.select(b.compare(">", left, most), 0, bias[1]), *masks)


def micro_kernel(k: Kernel, rows: int, columns: int, pairs: bool = False, masked: bool = False) -> ir.Function:
    """y[m][n] = (y[m][n], if something was summed before) + sum over steps s of w[s][m] * x[offsets[s] + n]
    (+ bias[m], if `biased`): the loop in which all the time is spent. Of pairs, both products are summed; where they
    are masked, those for which inside[places[s] + n] is not 0."""
    name = f"micro_{'pairs_' if pairs else ''}{rows}x{columns}"
    if name in k.module.globals:
        return k.module.globals[name]
    pointers = [(word, PTR) for word in ("x", "offsets", "w", "y", "bias")]
    order = [pointers[0], pointers[1], ("steps", I64), pointers[2], pointers[3], ("channel", I64), pointers[4]]
    masks = [(word, PTR) for word in (("inside", "places") if masked else ())]
    noalias = tuple(word for word, _ in (*pointers, *masks))
    b = k.define(name, [*order, ("before", I64), ("biased", I64), *masks], noalias=noalias)
    a, lanes = b.args, k.lanes
    zero = constant(vector(k.number, lanes), 0.0)
    multiply_add = b.multiply_add_pairs if pairs else b.multiply_add
    with b.loop_carrying(0, a["steps"], 1, [zero] * (rows * columns)) as (s, sums):
        at = b.load(a["offsets"], s, I64)
        x = [b.load(a["x"], b.add(at, n * lanes), k.number, lanes) for n in range(columns)]
        kept = [_inside_at(k, b, s, n) for n in range(columns)] if masked else []
        first = b.mul(s, rows)
        sums.next = []
        for m in range(rows):
            w = b.splat(b.load(a["w"], b.add(first, m), k.number), lanes)
            for n in range(columns):
                before = sums.values[m * columns + n]
                more = multiply_add(w, x[n], before)
                sums.next.append(b.select(kept[n], more, before) if masked else more)
    places = [b.add(b.mul(a["channel"], m), n * lanes) for m in range(rows) for n in range(columns)]
    _store_sums(k, b, sums.result, places, columns)
    b.ret()
    return b.function


def _micro(k: Kernel, rows: int, columns: int, step: DirectConvolution) -> ir.Function:
    """The micro-kernel of a step."""
    if not isinstance(step, TiledConvolution):
        return micro_kernel(k, rows, columns, step.pairs, step.masked)

    def finish(b: Builder, sums: Sequence[ir.Value], column: int) -> None:
        places = [b.add(b.mul(b.args["channel"], m), column * k.lanes) for m in range(rows)]
        _store_sums(k, b, sums, places, 1)

    return tile_kernel(k, rows, columns, step.deep, finish)


def _store_sums(k: Kernel, b: Builder, sums: Sequence[ir.Value], places: Sequence[Number], columns: int) -> None:
    """To these places of y, rows of so many columns: with what was summed before, and with the bias."""
    a, lanes = b.args, k.lanes
    rows = len(sums) // columns
    with b.if_else(b.compare("==", a["before"], 0)) as (alone, joined):
        with alone:
            alone.values = sums
        with joined:
            before = [b.load(a["y"], place, k.number, lanes) for place in places]
            joined.values = [b.add(*pair) for pair in zip(before, sums, strict=True)]
    totals = alone.merged
    with b.if_else(b.compare("==", a["biased"], 0)) as (plain, lifted):
        with plain:
            plain.values = totals
        with lifted:
            bias = [b.splat(b.load(a["bias"], m, k.number), lanes) for m in range(rows)]
            lifted.values = [b.add(total, bias[at // columns]) for at, total in enumerate(totals)]
    for value, place in zip(plain.merged, places, strict=True):
        b.store(value, a["y"], place)


def _inside_at(k: Kernel, b: Builder, step: ir.Value, column: int) -> ir.Value:
    """Which lanes of a step's inputs are inside the array."""
    place = b.add(b.load(b.args["places"], step, I64), column * k.lanes)
    return b.compare("!=", b.load(b.args["inside"], place, k.number, k.lanes), 0.0)
