"""The micro-kernel: a small matrix product in registers, the loop in which all the time is spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from ..ir.builder import Builder
from ..ir.frame import Kernel
from ..ir.values import I64, PTR, Number, Storage, constant, size_of, vector
from ..plan.machine import LINE

NULL = ir.Constant(PTR, None)


def at_offsets(b: Builder, *tables: ir.Value) -> Callable[[Number], tuple[Number, ...]]:
    """The arguments of a kernel for the steps from one on: inputs and a table of offsets in them; where products are
    masked, also the mask and a table."""
    pairs = list(zip(tables[0::2], tables[1::2], strict=True))
    return lambda start: tuple(word for x, offsets in pairs for word in (x, b.at(offsets, start, I64)))


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
    joined: bool = False,
) -> None:
    """Calls the micro-kernel for `most` steps at a time: rounding errors grow with the longest chain of additions.

    The bias (and whether there is one) joins when all else is summed: with a large one from the start, every step would
    round to its spacing. `joined`: sums join what y holds already.
    """
    with b.loop(0, b.max(steps, 1), most) as start:
        left = b.sub(steps, start)
        at = *inputs(start), b.min(left, most), b.at(weights, b.mul(start, rows), k.number)
        before, last = 1 if joined else start, b.select(b.compare(">", left, most), 0, bias[1])
        b.call(micro, *at, y, channel, bias[0], before, last, *more)


def micro_kernel(
    k: Kernel,
    rows: int,
    columns: int,
    pairs: bool = False,
    apart: bool = False,
    masked: bool = False,
    through: Storage | None = None,
) -> ir.Function:
    """y[m][n] = (y[m][n], if something was summed before) + sum over steps s of w[s][m] * x[offsets[s] + n]
    (+ bias[m], if `biased`). Of pairs, both products are summed; where they are masked, those for which
    inside[places[s] + n] is not 0. Inputs of steps that lie evenly `apart` are
    x[s * apart + n], and what is made of them may be `streamed` past the caches; `through`: they come from an array of
    such elements, source[s * source_apart + n], and are left in x."""
    name = (
        f"micro_{'pairs_' if pairs else ''}{'apart_' if apart else ''}{'through_' if through else ''}{rows}x{columns}"
    )
    if name in k.module.globals:
        return k.module.globals[name]
    inputs, more = (("apart", I64), [("streamed", I64)]) if apart else (("offsets", PTR), [])
    masks = [("inside", PTR), ("places", PTR)] if masked else []
    source = [("source", PTR), ("source_apart", I64)] if through else []
    order = [
        ("x", PTR),
        inputs,
        *source,
        *masks,
        ("steps", I64),
        ("w", PTR),
        ("y", PTR),
        ("channel", I64),
        ("bias", PTR),
    ]
    order += [("before", I64), ("biased", I64), *more]
    b = k.define(name, order, noalias=tuple(word for word, type_ in order if type_ == PTR))
    a, lanes = b.args, k.lanes
    zero = constant(vector(k.number, lanes), 0.0)
    multiply_add = b.multiply_add_pairs if pairs else b.multiply_add
    with b.loop_carrying(0, a["steps"], 1, [zero] * (rows * columns)) as (s, sums):
        at = b.mul(s, a["apart"]) if apart else b.load(a["offsets"], s, I64)
        if through:
            there = b.mul(s, a["source_apart"])
            loaded = [b.load(a["source"], b.add(there, n * lanes), through.memory, lanes) for n in range(columns)]
            x = [b.widen(value, through) for value in loaded]
            for n, value in enumerate(x):
                b.store(value, a["x"], b.add(at, n * lanes))
            _ask_ahead(b, s, columns * lanes, through)
        else:
            x = [b.load(a["x"], b.add(at, n * lanes), k.number, lanes) for n in range(columns)]
        kept = [_inside_at(k, b, s, n) for n in range(columns)] if masked else []
        first = b.mul(s, rows)
        sums.next = []
        for m in range(rows):
            w = b.splat(b.load(a["w"], b.add(first, m), k.number), lanes)
            for n in range(columns):
                before = sums.values[m * columns + n]
                added = multiply_add(w, x[n], before)
                sums.next.append(b.select(kept[n], added, before) if masked else added)
    places = [b.add(b.mul(a["channel"], m), n * lanes) for m in range(rows) for n in range(columns)]
    stored = joined_sums(k, b, sums.result, places, columns)
    if apart:
        with b.if_(b.compare("==", a["streamed"], 1)):
            for value, place in stored:
                b.store_past_caches(value, a["y"], place)
            b.ret()
    for value, place in stored:
        b.store(value, a["y"], place)
    b.ret()
    return b.function


_AHEAD = 10  # steps: long enough for the shared cache, and few enough for one set of the first-level cache


def _ask_ahead(b: Builder, step: ir.Value, length: int, storage: Storage) -> None:
    """For what a later step reads of the source; behind the last one, for the next panel."""
    a, later = b.args, b.add(step, _AHEAD)
    over = b.sub(later, a["steps"])
    next_panel = b.compare(">=", over, 0)
    at = b.add(b.mul(b.select(next_panel, over, later), a["source_apart"]), b.select(next_panel, length, 0))
    for line in range(0, length, LINE // size_of(storage.memory)):
        b.prefetch(a["source"], b.add(at, line), storage.memory)


def _inside_at(k: Kernel, b: Builder, step: ir.Value, column: int) -> ir.Value:
    """Which lanes of a step's inputs are inside the array."""
    place = b.add(b.load(b.args["places"], step, I64), column * k.lanes)
    return b.compare("!=", b.load(b.args["inside"], place, k.number, k.lanes), 0.0)


def joined_sums(
    k: Kernel, b: Builder, sums: Sequence[ir.Value], places: Sequence[Number], columns: int
) -> list[tuple[ir.Value, Number]]:
    """What goes to these places of y, rows of so many columns: with what was summed before, and with the bias."""
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
    return list(zip(plain.merged, places, strict=True))
