"""The convolution of a tile with minimal multiplication: transform inputs, multiply, transform the products back.

A chunk of position vectors at a time. For each group of outputs that are made together, inputs (points, steps,
positions) are gathered from the slab; a step is a piece of the taps and an input channel. Every point is a small matrix
product, done by the direct algorithm's micro-kernel. Products (points, rows, positions) are combined into the phases.
Both transforms are separable: along depth as values are loaded, then along height and width in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import product
from math import prod

from llvmlite import ir

from ..plan.schemes import Matrix, Scheme
from ..plan.structure import ConvCode, RegisterTile
from .conv import fill_with_bias, micro_kernel, sum_in_pieces
from .ir import Builder
from .kernel import Kernel
from .phases import Planar
from .values import I64, PTR, Number

TOGETHER_WORDS = 6  # kind, pieces, steps, first words of gather and scatter, first weight

Kind = tuple[Scheme, Scheme, Scheme]
Load = Callable[[int, int, int], ir.Value]
Store = Callable[[int, int, int, ir.Value], None]


def convolve_minimally(k: Kernel, step: int, code: ConvCode) -> None:
    """Paced slab -> phase-planar buffer (Cout, phases, D, plane)."""
    b = k.b
    fill_with_bias(k, step)
    multiply = _multiply(k, code.tile, code.blocks)
    works = [(_gather(k, kind), multiply, _scatter(k, kind)) for kind in code.kinds]
    depth, length = Planar("phased", step, "period", "phases").extent(k)
    in_plane = b.sdiv(b.add(length, k.lanes - 1), k.lanes)
    total, chunk = b.mul(depth, in_plane), k.param("chunk")
    with b.loop(0, total, chunk) as first, b.loop(0, k.param("groups")) as g:
        count = b.min(b.sub(total, first), chunk)
        x = b.at(k.buffer("slab"), k.dot((b.mul(g, k.param("in group")), k.param("pitch slab"))), k.number)
        out = b.mul(g, k.param("out group"))
        y = b.at(k.buffer("phased"), b.mul(out, k.param("pitch phased")), k.number)
        bias = b.at(k.pointer("bias"), out, k.number)
        weights = b.at(k.pointer("weights"), b.mul(g, k.param("weights group")), k.number)
        with b.loop(0, k.param("groups together")) as number:
            words = [
                b.load(k.pointer("together"), b.add(b.mul(number, TOGETHER_WORDS), word), I64)
                for word in range(TOGETHER_WORDS)
            ]
            kind, pieces, steps, gather_at, scatter_at, weight = words
            w = b.at(weights, weight, k.number)
            where = (first, count, in_plane)
            for index, (name, (gather, multiply, scatter)) in enumerate(zip(code.kinds, works, strict=True)):
                with b.if_(b.compare("==", kind, index)):
                    points = prod(scheme.points for scheme in name)
                    offsets = b.at(k.pointer("gather"), gather_at, I64)
                    sizes = (k.param("pitch slab"), k.param("in group"), k.param("depth step"))
                    chunk_sizes = (k.param("chunk positions"), k.param("input point"))
                    b.call(gather, x, k.buffer("inputs"), offsets, pieces, *sizes, *chunk_sizes, *where)
                    places = b.at(k.pointer("scatter"), scatter_at, I64)
                    _blocks_at_once(k, code, points, steps, count, w, (multiply, scatter), (y, bias, places), where)


@contextmanager
def only_tame(k: Kernel, tame: ir.Value) -> Iterator[None]:
    """The rest of the tile runs only if it is tame; otherwise its sample is marked, to be computed directly.

    A transform would spread NaN and infinity to outputs that do not depend on them, and huge numbers may overflow.
    """
    b = k.b
    assert k.sample is not None
    with b.if_(b.raw.not_(tame)):
        b.store(b.i64(1), k.pointer("wild samples"), k.sample)
    with b.if_(tame):
        yield


@contextmanager
def unless_wild(k: Kernel) -> Iterator[None]:
    """The tile runs only if no other of its sample was found wild."""
    assert k.sample is not None
    with k.b.if_(k.b.compare("==", k.b.load(k.pointer("wild samples"), k.sample, I64), 0)):
        yield


def _blocks_at_once(
    k: Kernel,
    code: ConvCode,
    points: int,
    steps: Number,
    count: Number,
    w: ir.Value,
    functions: tuple[ir.Function, ir.Function],
    target: tuple[ir.Value, ir.Value, ir.Value],
    where: tuple[Number, ...],
) -> None:
    """Some blocks of output channels: their products for all points, then back into the phases."""
    b = k.b
    (multiply, scatter), (y, bias, places) = functions, target
    blocks = code.blocks + bool(code.tile.rest)
    position, at_once = k.param("chunk positions"), k.param("chunk blocks")
    with b.loop(0, blocks, at_once) as block:
        end = b.min(b.add(block, at_once), blocks)
        row = b.mul(block, code.tile.rows)
        rows = b.sub(b.min(b.mul(end, code.tile.rows), k.param("out group")), row)
        data = (k.buffer("inputs"), k.pointer("offsets"), w, k.buffer("products"), k.pointer("zeros"))
        sizes = (steps, k.param("out group"), position, k.param("input point"), k.param("product point"))
        b.call(multiply, *data, points, block, end, count, *sizes)
        pitch = k.param("pitch phased")
        out = b.at(y, b.mul(row, pitch), k.number)
        there = (b.at(bias, row, k.number), places, rows, pitch, k.param("plane"), position, k.param("product point"))
        b.call(scatter, k.buffer("products"), out, *there, *where)


def _multiply(k: Kernel, tile: RegisterTile, blocks: int) -> ir.Function:
    """products[point][row] = sum over steps of w[point][step][row] * inputs[point][step], for some blocks of rows."""
    pointers = [(name, PTR) for name in ("inputs", "offsets", "w", "products", "zeros")]
    counts = ("points", "block", "end", "count", "steps", "out", "position", "input_point", "product_point")
    b = k.define("multiply", [*pointers, *((name, I64) for name in counts)])
    a = b.args
    micros = {
        (rows, n): micro_kernel(k, rows, n) for rows in (tile.rows, tile.rest) if rows for n in range(1, tile.columns + 1)
    }
    with b.loop(0, a["points"]) as point:
        x = b.at(a["inputs"], b.mul(point, a["input_point"]), k.number)
        w = b.at(a["w"], b.mul(point, b.mul(a["steps"], a["out"])), k.number)
        y = b.at(a["products"], b.mul(point, a["product_point"]), k.number)

        def one(block: Number, rows: int, x: ir.Value = x, w: ir.Value = w, y: ir.Value = y) -> None:
            row = b.mul(b.sub(block, a["block"]), tile.rows)
            weights = b.at(w, b.mul(b.mul(block, tile.rows), a["steps"]), k.number)
            out = b.at(y, b.mul(row, a["position"]), k.number)

            def columns(n: int, vector: Number) -> None:
                at = b.mul(vector, k.lanes)
                sum_in_pieces(
                    k,
                    b,
                    micros[rows, n],
                    rows,
                    b.at(x, at, k.number),
                    a["offsets"],
                    a["steps"],
                    weights,
                    b.at(out, at, k.number),
                    a["position"],
                    a["zeros"],
                )

            whole = b.mul(b.sdiv(a["count"], tile.columns), tile.columns)
            with b.loop(0, whole, tile.columns) as vector:
                columns(tile.columns, vector)
            left = b.sub(a["count"], whole)
            for n in range(1, tile.columns):
                with b.if_(b.compare("==", left, n)):
                    columns(n, whole)

        with b.loop(a["block"], b.min(a["end"], blocks)) as block:
            one(block, tile.rows)
        if tile.rest:
            with b.if_(b.compare(">", a["end"], blocks)):
                one(blocks, tile.rest)
    b.ret()
    return b.function


def _gather(k: Kernel, kind: Kind) -> ir.Function:
    """inputs[point][step][position] = transform of the slab's vectors that a group of outputs reads."""
    pointers = [(name, PTR) for name in ("x", "inputs", "places")]
    counts = ("pieces", "channel", "channels", "depth", "position", "point", "first", "count", "in_plane")
    b = k.define(f"gather_{_name(kind)}", [*pointers, *((name, I64) for name in counts)], noalias=("x", "inputs"))
    a = b.args
    sizes = [scheme.points for scheme in kind]
    matrices = [scheme.inputs_matrix for scheme in kind]
    with b.loop(0, a["pieces"]) as piece:
        places = b.at(a["places"], b.mul(piece, sum(sizes)), I64)
        d, h, w = _words(b, places, sizes)
        with b.loop(0, a["channels"]) as c:
            step = b.add(b.mul(piece, a["channels"]), c)
            row = b.at(a["x"], b.mul(c, a["channel"]), k.number)
            target = b.at(a["inputs"], b.mul(step, a["position"]), k.number)
            with b.loop(0, a["count"]) as vector:
                number = b.add(a["first"], vector)
                plane = b.sdiv(number, a["in_plane"])
                at = b.mul(b.sub(number, b.mul(plane, a["in_plane"])), k.lanes)
                base = b.at(row, b.add(b.mul(plane, a["depth"]), at), k.number)
                into = b.at(target, b.mul(vector, k.lanes), k.number)

                def load(i: int, j: int, l: int, base: ir.Value = base) -> ir.Value:
                    return b.load(base, b.add(b.add(d[i], h[j]), w[l]), k.number, k.lanes)

                def store(i: int, j: int, l: int, value: ir.Value, into: ir.Value = into) -> None:
                    b.store(value, into, b.mul(a["point"], (i * sizes[1] + j) * sizes[2] + l))

                separable(b, matrices, load, store)
    b.ret()
    return b.function


def _scatter(k: Kernel, kind: Kind) -> ir.Function:
    """phases[row][output] = transform of the products, plus bias."""
    pointers = [(name, PTR) for name in ("products", "y", "bias", "places")]
    counts = ("rows", "pitch", "plane", "position", "point", "first", "count", "in_plane")
    b = k.define(f"scatter_{_name(kind)}", [*pointers, *((name, I64) for name in counts)], noalias=("products", "y"))
    a = b.args
    points = [scheme.points for scheme in kind]
    matrices = [scheme.outputs_matrix for scheme in kind]
    d, h, w = _words(b, a["places"], [scheme.outputs for scheme in kind])
    with b.loop(0, a["rows"]) as row:
        source = b.at(a["products"], b.mul(row, a["position"]), k.number)
        target = b.at(a["y"], b.mul(row, a["pitch"]), k.number)
        bias = b.splat(b.load(a["bias"], row, k.number), k.lanes)
        with b.loop(0, a["count"]) as vector:
            number = b.add(a["first"], vector)
            plane = b.sdiv(number, a["in_plane"])
            at = b.mul(b.sub(number, b.mul(plane, a["in_plane"])), k.lanes)
            base = b.at(source, b.mul(vector, k.lanes), k.number)
            into = b.at(target, b.add(b.mul(plane, a["plane"]), at), k.number)

            def load(i: int, j: int, l: int, base: ir.Value = base) -> ir.Value:
                return b.load(base, b.mul(a["point"], (i * points[1] + j) * points[2] + l), k.number, k.lanes)

            def store(i: int, j: int, l: int, value: ir.Value, into: ir.Value = into, bias: ir.Value = bias) -> None:
                b.store(b.add(value, bias), into, b.add(b.add(d[i], h[j]), w[l]))

            separable(b, matrices, load, store)
    b.ret()
    return b.function


def _name(kind: Kind) -> str:
    return "_".join(f"{scheme.outputs}{scheme.taps}" for scheme in kind)


def _words(b: Builder, table: ir.Value, sizes: Sequence[int]) -> list[list[ir.Value]]:
    """The words of a table, cut into lists of these sizes."""
    starts = [sum(sizes[:axis]) for axis in range(len(sizes))]
    return [[b.load(table, start + at, I64) for at in range(size)] for start, size in zip(starts, sizes, strict=True)]


# --- small linear maps ------------------------------------------------------------------------------------------------


def separable(b: Builder, matrices: Sequence[Matrix], load: Load, store: Store) -> None:
    """out[i][j][l] = sum over a, b, c of D[i][a] H[j][b] W[l][c] in[a][b][c]."""
    depth, height, width = matrices
    inner = list(product(range(len(height[0])), range(len(width[0]))))
    for i, row in enumerate(depth):
        plane = {}
        for j, l in inner:
            values = {a: load(a, j, l) for a, factor in enumerate(row) if factor}
            plane[j, l] = _Sums(b, depth, values).of(row)
        rows = {}
        for l in range(len(width[0])):
            sums = _Sums(b, height, {j: plane[j, l] for j in range(len(height[0]))})
            for j, factors in enumerate(height):
                rows[j, l] = sums.of(factors)
        for j in range(len(height)):
            sums = _Sums(b, width, {l: rows[j, l] for l in range(len(width[0]))})
            for l, factors in enumerate(width):
                store(i, j, l, sums.of(factors))


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
