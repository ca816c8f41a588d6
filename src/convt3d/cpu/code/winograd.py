"""The convolution of a tile by Winograd's method: transform inputs, multiply, transform the products back.

A chunk of position vectors at a time. For each group of outputs that are made together, inputs (points, steps,
positions) are gathered from the slab; a step is a piece of the taps and an input channel. Every point is a small matrix
product, done by the direct algorithm's micro-kernel. Products (points, rows, positions) are combined into the phases.
Both transforms are separable: along the depth by tables, as values are loaded, then along height and width in
registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

from llvmlite import ir

from ..ir.builder import Builder
from ..ir.frame import Kernel
from ..ir.values import I64, PTR, Number, Storage
from ..plan.machine import Machine
from ..plan.registers import ANY, RegisterTile
from ..plan.winograd import GatherKind, Matrix, ScatterKind
from ..steps.conv import ConvWords
from ..steps.winograd import (
    GroupWords,
    PieceWords,
    PointWords,
    WinogradCall,
    WinogradConvolution,
    WinogradWords,
)
from ..words import StripsCall, SweepCall, SweepWords, row_length
from .beside import Samples
from .conv import all_channels, blocks_of_group, fill_with_bias, source_of
from .interleave import Planar
from .micro import at_offsets, micro_kernel, sum_in_pieces
from .slab import fill_paced_slab

if TYPE_CHECKING:
    from .tile import Tile

Load = Callable[[int, int], ir.Value]
Store = Callable[[int, int, ir.Value], None]
Sources = list[tuple[ir.Value, "ir.Value | None"]]  # pointer and factor of each term
Transform = Callable[..., None]  # calls the code of one

# Arguments of transforms, which a kernel for any number of channels finds by their addresses.
_GATHER = [(name, PTR) for name in ("x", "inputs", "places", "factors")] + [
    (name, I64) for name in ("depth_points", "channel", "channels", "depth", "position", "first", "count", "in_plane")
]
_SCATTER = [(name, PTR) for name in ("products", "y", "bias", "places", "factors")] + [
    (name, I64)
    for name in ("depth_outputs", "rows", "pitch", "plane", "position", "point", "first", "count", "in_plane")
]


def emit_winograd(
    tile: Tile, step: WinogradConvolution, words: Any, call: Any, strips: StripsCall | None = None
) -> None:
    """Source -> slab -> phase-planar buffer; all that follows runs where inputs are small, maybe for some channels."""
    k, (conv, paced, winograd, *more) = tile.k, words
    samples = Samples(k, conv, more[0]) if step.beside else None
    largest, source = winograd.largest.pointer, source_of(tile, step, call)

    def fill() -> ir.Value:
        small = fill_paced_slab(k, conv, paced, tile.step, source, conv.groups, step.pace, largest, strips=strips)
        assert small is not None
        return small

    tile.all_channels = tile.channels = conv.out_channels
    if samples is None:
        tile.around.enter_context(unless_skipped(k, call[0]))
        tile.around.enter_context(only_small(k, call[0], fill()))
        convolve(k, conv, winograd, call[0], tile.step, step)
    else:
        with samples.each() as sample:
            with k.b.if_(k.b.raw.not_(fill())):
                skip(k, call[0])
            samples.weave(sample, k.b.mul(conv.groups, conv.in_group))
        convolve(k, samples.woven, winograd, call[0], tile.step, step, samples.words.most)
    tile.planar, tile.value = Planar.of_convolution(conv, tile.step), conv.phased
    if step.in_parts:
        k.first_channel, tile.channels = tile.around.enter_context(part_behind(k, conv, call[0]))
        tile.value = k.behind(conv.phased, k.dot((k.first_channel, conv.phased.pitch)))
        tile.planar = replace(tile.planar, buffer=tile.value)
    if samples is not None:
        tile.around.enter_context(samples.each_result(tile.step, k.first_channel, tile.channels))
        tile.around.enter_context(unless_skipped(k, call[0]))
    tile.step += 1


def convolve(
    k: Kernel,
    conv: ConvWords,
    winograd: WinogradWords,
    call: WinogradCall,
    step: int,
    code: WinogradConvolution,
    beside: Number = 1,
) -> None:
    """Paced slab -> phase-planar buffer (Cout, phases, D, plane)."""
    b = k.b
    blocks = blocks_of_group(k, conv, code.tile, code.blocks)
    fill_with_bias(k, conv, call, step, all_channels(conv, blocks[1]))
    multiply = _multiply(k, code.tile, code.blocks)
    found = code.tile.rest == ANY  # its transforms are beside it, for every kernel and stride
    gathers = [] if found else [_gather(k, kind) for kind in code.gathers]
    scatters = [] if found else [_scatter(k, kind) for kind in code.scatters]
    depth, length = Planar.of_convolution(conv, step, beside).extent(k)
    in_plane = b.sdiv(b.add(length, k.lanes - 1), k.lanes)
    total, chunk = b.mul(depth, in_plane), winograd.chunk
    with b.loop(0, total, chunk) as first, b.loop(0, conv.groups) as g:
        where = first, b.min(b.sub(total, first), chunk), in_plane
        out = b.mul(g, conv.out_group)
        x = b.at(conv.slab.pointer, k.dot((b.mul(g, conv.in_group), conv.slab.pitch)), k.number)
        y = b.at(conv.phased.pointer, b.mul(out, conv.phased.pitch), k.number)
        bias = b.at(call.bias, out, k.number)
        weights = b.at(call.weights, b.mul(g, conv.weights_group), k.number)
        with b.loop(0, winograd.group_count) as number:
            group = k.row(GroupWords, b, b.at(winograd.groups, b.mul(number, row_length(GroupWords)), I64))
            with b.loop(0, group.pieces) as piece:
                at = b.mul(b.add(group.piece, piece), row_length(PieceWords))
                row = k.row(PieceWords, b, b.at(winograd.pieces, at, I64))
                for gather in _each(b, row.kind, gathers, _GATHER):
                    _transform_inputs(k, conv, winograd, gather, x, row, where)
            for scatter in _each(b, group.kind, scatters, _SCATTER):
                functions, target = (multiply, scatter), (y, bias)
                _multiply_and_transform(k, conv, winograd, code, functions, blocks, group, weights, target, where)


def _each(
    b: Builder, kind: ir.Value, functions: Sequence[ir.Function], arguments: list[tuple[str, ir.Type]]
) -> Iterator[Transform]:
    """What calls the transform of a kind, in the branch of each; or, where there are none, the one at the address that
    `kind` is."""
    if not functions:
        pointer, types = b.raw.inttoptr(kind, PTR), [type_ for _, type_ in arguments]
        yield lambda *given: b.call_address(pointer, types, *given)
    for index, function in enumerate(functions):
        with b.if_(b.compare("==", kind, index)):
            yield partial(b.call, function)


def _transform_inputs(
    k: Kernel,
    conv: ConvWords,
    winograd: WinogradWords,
    gather: Transform,
    x: ir.Value,
    piece: PieceWords,
    where: tuple[Number, ...],
) -> None:
    b = k.b
    tables = b.at(winograd.gather, piece.gather, I64), b.at(winograd.factors, piece.factors, k.number)
    sizes = conv.slab.pitch, conv.in_group, winograd.depth_step, winograd.chunk_positions
    gather(x, winograd.inputs.pointer, *tables, piece.depth, *sizes, *where)


def _multiply_and_transform(
    k: Kernel,
    conv: ConvWords,
    winograd: WinogradWords,
    code: WinogradConvolution,
    functions: tuple[ir.Function, Transform],
    blocks: tuple[Number, Number],
    group: GroupWords,
    w: ir.Value,
    target: tuple[ir.Value, ir.Value],
    where: tuple[Number, ...],
) -> None:
    """Some blocks of output channels at once: their products for all points, then back into the phases."""
    b = k.b
    (multiply, scatter), (y, bias) = functions, target
    rest = (blocks[0], b.sub(conv.out_group, b.mul(blocks[0], code.tile.rows))) if code.tile.rest == ANY else ()
    position, at_once, pitch = winograd.chunk_positions, winograd.chunk_blocks, conv.phased.pitch
    tables = (
        b.at(winograd.scatter, group.scatter, I64),
        b.at(winograd.factors, group.factors, k.number),
    )
    with b.loop(0, blocks[1], at_once) as block:
        end = b.min(b.add(block, at_once), blocks[1])
        row = b.mul(block, code.tile.rows)
        rows = b.sub(b.min(b.mul(end, code.tile.rows), conv.out_group), row)
        points = b.at(winograd.points, b.mul(group.point, row_length(PointWords)), I64)
        data = (winograd.inputs.pointer, conv.offsets, w, winograd.products.pointer, points)
        sizes = (position, winograd.product_point, group.summed)
        b.call(multiply, *data, group.points, block, end, where[1], *sizes, *rest)
        there = b.at(y, b.mul(row, pitch), k.number), b.at(bias, row, k.number), *tables
        extent = (group.depth_out, rows, pitch, conv.plane, position, winograd.product_point)
        scatter(winograd.products.pointer, *there, *extent, *where)


@contextmanager
def part_behind(k: Kernel, conv: ConvWords, call: WinogradCall) -> Iterator[tuple[Number, Number]]:
    """Runs the body for some channels (first, count) after the other. The convolution has computed all of them: it
    transforms inputs once for all."""
    b, channels, most = k.b, conv.out_channels, call.part_channels
    with b.loop(0, channels, most) as first:
        yield first, b.min(b.sub(channels, first), most)


@contextmanager
def only_small(k: Kernel, call: WinogradCall, small: ir.Value) -> Iterator[None]:
    """The rest of the tile runs only if its inputs are small; otherwise its sample is marked, to be computed directly.

    A transform would spread NaN and infinity to outputs that do not depend on them, and huge numbers may overflow.
    """
    b = k.b
    with b.if_(b.raw.not_(small)):
        skip(k, call)
    with b.if_(small):
        yield


def skip(k: Kernel, call: WinogradCall) -> None:
    """Marks the sample."""
    assert k.sample is not None
    k.b.store(k.b.i64(1), call.skipped, k.sample)


@contextmanager
def unless_skipped(k: Kernel, call: WinogradCall) -> Iterator[None]:
    """The tile runs only if no other of its sample has met huge inputs."""
    assert k.sample is not None
    with k.b.if_(k.b.compare("==", k.b.load(call.skipped, k.sample, I64), 0)):
        yield


def _multiply(k: Kernel, tile: RegisterTile, blocks: int) -> ir.Function:
    """products[point][row] = sum over steps of w[point][step][row] * inputs[point][step], for some blocks of rows; each
    point has steps of its own."""
    pointers = [(name, PTR) for name in ("inputs", "offsets", "w", "products", "point_table")]
    counts = ("points", "block", "end", "count", "position", "product_point", "summed")
    told = ("blocks", "rest") if tile.rest == ANY else ()
    b = k.define("multiply", [*pointers, *((name, I64) for name in (*counts, *told))])
    a = b.args
    rests = range(1, tile.rows) if told else [tile.rest] if tile.rest else []
    full: Number = a["blocks"] if told else blocks
    micros = {(rows, n): micro_kernel(k, rows, n) for rows in (tile.rows, *rests) for n in range(1, tile.columns + 1)}
    with b.loop(0, a["points"]) as point:
        row = k.row(PointWords, b, b.at(a["point_table"], b.mul(point, row_length(PointWords)), I64))
        steps = row.steps
        x, w = b.at(a["inputs"], row.inputs, k.number), b.at(a["w"], row.weight, k.number)
        y = b.at(a["products"], b.mul(point, a["product_point"]), k.number)

        def one(
            block: Number,
            rows: int,
            x: ir.Value = x,
            w: ir.Value = w,
            y: ir.Value = y,
            steps: Number = steps,
        ) -> None:
            first = b.mul(b.sub(block, a["block"]), tile.rows)
            weights = b.at(w, b.mul(b.mul(block, tile.rows), steps), k.number)
            out = b.at(y, b.mul(first, a["position"]), k.number)

            def columns(n: int, vector: Number) -> None:
                at = b.mul(vector, k.lanes)
                sum_in_pieces(
                    k,
                    b,
                    micros[rows, n],
                    rows,
                    at_offsets(b, b.at(x, at, k.number), a["offsets"]),
                    steps,
                    weights,
                    b.at(out, at, k.number),
                    a["position"],
                    a["summed"],
                )

            whole = b.mul(b.sdiv(a["count"], tile.columns), tile.columns)
            with b.loop(0, whole, tile.columns) as vector:
                columns(tile.columns, vector)
            left = b.sub(a["count"], whole)
            for n in range(1, tile.columns):
                with b.if_(b.compare("==", left, n)):
                    columns(n, whole)

        with b.loop(a["block"], b.min(a["end"], full)) as block:
            one(block, tile.rows)
        for rows in rests:
            with ExitStack() as conditions:
                conditions.enter_context(b.if_(b.compare(">", a["end"], full)))
                if told:
                    conditions.enter_context(b.if_(b.compare("==", a["rest"], rows)))
                one(full, rows)
    b.ret()
    return b.function


def emit_transforms(
    machine: Machine, storage: Storage, gathers: Sequence[GatherKind], scatters: Sequence[ScatterKind]
) -> str:
    """LLVM IR of transforms alone, each under the name of its kind."""
    k = Kernel("transforms", machine, storage, [SweepWords, SweepCall])
    k.b.ret()
    k.b.function.linkage = "internal"  # which nobody calls
    for function in (*(_gather(k, kind) for kind in gathers), *(_scatter(k, kind) for kind in scatters)):
        function.linkage = "external"
    return str(k.module)


def _gather(k: Kernel, kind: GatherKind) -> ir.Function:
    """inputs[point][step][position] = transform of the slab's vectors that a piece of the taps reads.

    `places` holds the offsets along height and width, then those of the terms of each point along the depth, whose
    factors are in a table of their own, then where each point goes. Where pieces are even, points go to places as far
    apart as the first two.
    """
    terms, height, width, even = kind
    b = k.define(kind.name, _GATHER, noalias=("x", "inputs"))
    a = b.args
    h, w = _words(b, a["places"], (height.points, width.points))
    along_depth = b.at(a["places"], height.points + width.points, I64)
    goes = b.at(along_depth, b.mul(a["depth_points"], terms), I64)
    plane_points = height.points * width.points
    apart = b.sub(b.load(goes, plane_points - 1, I64), b.load(goes, 0, I64)) if even else 0
    apart = b.sdiv(apart, plane_points - 1) if even and plane_points > 1 else apart
    with b.loop(0, a["channels"]) as c:
        row = b.at(a["x"], b.mul(c, a["channel"]), k.number)
        target = b.at(a["inputs"], b.mul(c, a["position"]), k.number)
        with b.loop(0, a["count"]) as vector:
            plane, at = _place(k, b, vector)
            base = b.at(row, b.add(b.mul(plane, a["depth"]), at), k.number)
            into = b.at(target, b.mul(vector, k.lanes), k.number)
            with b.loop(0, a["depth_points"]) as i:
                sources = _along_depth(k, b, i, terms, base, along_depth, a["factors"])
                here = b.at(goes, b.mul(i, plane_points), I64)
                out = b.at(into, b.load(here, 0, I64), k.number) if even else into

                def load(j: int, n: int, sources: Sources = sources) -> ir.Value:
                    return _depth_sum(b, [(b.at(s, h[j], k.number), f) for s, f in sources], w[n], k)

                def store(j: int, n: int, value: ir.Value, out: ir.Value = out, here: ir.Value = here) -> None:
                    number = j * width.points + n
                    b.store(value, out, b.mul(apart, number) if even else b.load(here, number, I64))

                _transform_plane(b, height.inputs_matrix, width.inputs_matrix, load, store)
    b.ret()
    return b.function


def _scatter(k: Kernel, kind: ScatterKind) -> ir.Function:
    """phases[row][output] = transform of the products, plus bias.

    `places` holds the phases' offsets along height and width, then for each output along the depth its offset and the
    offsets of its terms among the products.
    """
    terms, height, width = kind
    b = k.define(kind.name, _SCATTER, noalias=("products", "y"))
    a = b.args
    h, w = _words(b, a["places"], (height.outputs, width.outputs))
    outputs = b.at(a["places"], height.outputs + width.outputs, I64)
    along_depth = b.at(outputs, a["depth_outputs"], I64)
    with b.loop(0, a["rows"]) as row:
        source = b.at(a["products"], b.mul(row, a["position"]), k.number)
        target = b.at(a["y"], b.mul(row, a["pitch"]), k.number)
        bias = b.splat(b.load(a["bias"], row, k.number), k.lanes)
        with b.loop(0, a["count"]) as vector:
            plane, at = _place(k, b, vector)
            base = b.at(source, b.mul(vector, k.lanes), k.number)
            into = b.at(target, b.add(b.mul(plane, a["plane"]), at), k.number)
            with b.loop(0, a["depth_outputs"]) as i:
                sources = _along_depth(k, b, i, terms, base, along_depth, a["factors"])
                out = b.at(into, b.load(outputs, i, I64), k.number)

                def load(j: int, n: int, sources: Sources = sources) -> ir.Value:
                    offset = b.mul(a["point"], j * width.points + n)
                    return _depth_sum(b, sources, offset, k)

                def store(j: int, n: int, value: ir.Value, out: ir.Value = out, bias: ir.Value = bias) -> None:
                    b.store(b.add(value, bias), b.at(out, h[j], k.number), w[n])

                _transform_plane(b, height.outputs_matrix, width.outputs_matrix, load, store)
    b.ret()
    return b.function


def _place(k: Kernel, b: Builder, vector: Number) -> tuple[Number, Number]:
    """Plane and offset in it of a vector of the chunk."""
    number, in_plane = b.add(b.args["first"], vector), b.args["in_plane"]
    plane = b.sdiv(number, in_plane)
    return plane, b.mul(b.sub(number, b.mul(plane, in_plane)), k.lanes)


def _along_depth(
    k: Kernel, b: Builder, i: Number, terms: int, base: ir.Value, offsets: ir.Value, factors: ir.Value
) -> Sources:
    """Where the terms of point i begin, and their factors; a single term has factor 1."""
    found: Sources = []
    for term in range(terms):
        at = b.add(b.mul(i, terms), term)
        factor = b.splat(b.load(factors, at, k.number), k.lanes) if terms > 1 else None
        found.append((b.at(base, b.load(offsets, at, I64), k.number), factor))
    return found


def _depth_sum(b: Builder, sources: Sources, offset: Number, k: Kernel) -> ir.Value:
    total = None
    for pointer, factor in sources:
        value = b.load(pointer, offset, k.number, k.lanes)
        if factor is None:
            return value
        total = b.mul(factor, value) if total is None else b.multiply_add(factor, value, total)
    return total


def _words(b: Builder, table: ir.Value, sizes: Sequence[int]) -> list[list[ir.Value]]:
    """The words of a table, cut into lists of these sizes."""
    starts = [sum(sizes[:axis]) for axis in range(len(sizes))]
    return [[b.load(table, start + at, I64) for at in range(size)] for start, size in zip(starts, sizes, strict=True)]


# --- small linear maps ------------------------------------------------------------------------------------------------


def _transform_plane(b: Builder, height: Matrix, width: Matrix, load: Load, store: Store) -> None:
    """out[j][n] = sum over a, c of H[j][a] W[n][c] in[a][c], in registers."""
    rows_in, columns_in = range(len(height[0])), range(len(width[0]))
    rows = {}
    for n in columns_in:
        sums = _Sums(b, height, {j: load(j, n) for j in rows_in})
        for j, factors in enumerate(height):
            rows[j, n] = sums.of(factors)
    for j in range(len(height)):
        sums = _Sums(b, width, {n: rows[j, n] for n in columns_in})
        for n, factors in enumerate(width):
            store(j, n, sums.of(factors))


class _Sums:
    """Rows of a matrix times a vector of values. Columns that differ in signs only, those of points x and -x, are added
    and subtracted once for all rows."""

    def __init__(self, b: Builder, matrix: Matrix, values: dict[int, ir.Value]) -> None:
        self.b, self.values = b, values
        columns = [tuple(map(abs, column)) for column in zip(*matrix, strict=True)]
        self.partner = {j: i for j in range(len(columns)) for i in range(j) if columns[i] == columns[j]}
        self.pairs: dict[tuple[int, int, Fraction], ir.Value] = {}

    def of(self, row: Sequence[Fraction]) -> ir.Value:
        terms: list[tuple[Fraction, ir.Value]] = []
        done: set[int] = set()
        for j in reversed(range(len(row))):
            if not row[j] or j in done:
                continue
            i = self.partner.get(j)
            if i is None or not row[i] or i in done:
                terms.append((row[j], self.values[j]))
            else:
                terms.append((row[i], self._pair(i, j, row[j] / row[i])))
                done.add(i)
        terms.sort(key=lambda term: term[0] < 0)  # begin with one that needs no negation
        return self._total(terms)

    def _pair(self, i: int, j: int, sign: Fraction) -> ir.Value:
        key = i, j, sign
        if key not in self.pairs:
            self.pairs[key] = (self.b.add if sign > 0 else self.b.sub)(self.values[i], self.values[j])
        return self.pairs[key]

    def _total(self, terms: list[tuple[Fraction, ir.Value]]) -> ir.Value:
        b, total = self.b, None
        for factor, value in terms:
            scaled = value if abs(factor) == 1 else b.mul(value, float(abs(factor)))
            if total is None:
                total = scaled if factor > 0 else b.mul(scaled, -1.0)
            else:
                total = b.add(total, scaled) if factor > 0 else b.sub(total, scaled)
        return total
