"""The micro-kernel: a small matrix product in registers, the loop in which all the time is spent."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ..ir.builder import Builder
from ..ir.frame import Kernel
from ..ir.values import I64, PTR, Number, constant, vector

NULL = ir.Constant(PTR, None)


def at_offsets(b: Builder, x: ir.Value, offsets: ir.Value) -> Callable[[Number], tuple[Number, ...]]:
    """The arguments of a kernel for the steps from one on: inputs by a table."""
    return lambda start: (x, b.at(offsets, start, I64))


def sum_in_pieces(
    k: Kernel,
    b: Builder,
    micro: ir.Function,
    rows: int,
    inputs: Callable[[Number], tuple[Number, ...]],
    steps: Number,
    weights: ir.Value,
    y: ir.Value,
    channel: Number,
    most: Number,
    bias: tuple[ir.Value, Number] = (NULL, 0),
    more: tuple[Number, ...] = (),
) -> None:
    """Calls the micro-kernel for `most` steps at a time: rounding errors grow with the longest chain of additions.

    The bias (and whether there is one) joins when all else is summed: with a large one from the start, every step would
    round to its spacing.
    """
    with b.loop(0, b.max(steps, 1), most) as start:
        left = b.sub(steps, start)
        at = *inputs(start), b.min(left, most), b.at(weights, b.mul(start, rows), k.number)
        b.call(micro, *at, y, channel, bias[0], start, b.select(b.compare(">", left, most), 0, bias[1]), *more)


def micro_kernel(k: Kernel, rows: int, columns: int, pairs: bool = False, apart: bool = False) -> ir.Function:
    """y[m][n] = (y[m][n], if something was summed before) + sum over steps s of w[s][m] * x[offsets[s] + n]
    (+ bias[m], if `biased`). Of pairs, both products are summed. Inputs of steps that lie evenly `apart` are
    x[s * apart + n], and what is made of them may be `streamed` past the caches."""
    name = f"micro_{'pairs_' if pairs else ''}{'apart_' if apart else ''}{rows}x{columns}"
    if name in k.module.globals:
        return k.module.globals[name]
    inputs, more = (("apart", I64), [("streamed", I64)]) if apart else (("offsets", PTR), [])
    order = [("x", PTR), inputs, ("steps", I64), ("w", PTR), ("y", PTR), ("channel", I64), ("bias", PTR)]
    order += [("before", I64), ("biased", I64), *more]
    b = k.define(name, order, noalias=tuple(word for word, type_ in order if type_ == PTR))
    a, lanes = b.args, k.lanes
    zero = constant(vector(k.number, lanes), 0.0)
    multiply_add = b.multiply_add_pairs if pairs else b.multiply_add
    with b.loop_carrying(0, a["steps"], 1, [zero] * (rows * columns)) as (s, sums):
        at = b.mul(s, a["apart"]) if apart else b.load(a["offsets"], s, I64)
        x = [b.load(a["x"], b.add(at, n * lanes), k.number, lanes) for n in range(columns)]
        first = b.mul(s, rows)
        sums.next = []
        for m in range(rows):
            w = b.splat(b.load(a["w"], b.add(first, m), k.number), lanes)
            sums.next += [multiply_add(w, x[n], sums.values[m * columns + n]) for n in range(columns)]
    places = [b.add(b.mul(a["channel"], m), n * lanes) for m in range(rows) for n in range(columns)]
    with b.if_else(b.compare("==", a["before"], 0)) as (alone, joined):
        with alone:
            alone.values = sums.result
        with joined:
            before = [b.load(a["y"], place, k.number, lanes) for place in places]
            joined.values = [b.add(*pair) for pair in zip(before, sums.result, strict=True)]
    totals = alone.merged
    with b.if_else(b.compare("==", a["biased"], 0)) as (plain, lifted):
        with plain:
            plain.values = totals
        with lifted:
            bias = [b.splat(b.load(a["bias"], m, k.number), lanes) for m in range(rows)]
            lifted.values = [b.add(total, bias[at // columns]) for at, total in enumerate(totals)]
    stored = list(zip(plain.merged, places, strict=True))
    if apart:
        with b.if_(b.compare("==", a["streamed"], 1)):
            for value, place in stored:
                b.store_past_caches(value, a["y"], place)
            b.ret()
    for value, place in stored:
        b.store(value, a["y"], place)
    b.ret()
    return b.function
