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
    carried: Storage | None = None,
) -> ir.Function:
    """y[m][n] = (y[m][n], if something was summed before) + sum over steps s of w[s][m] * x[offsets[s] + n]
    (+ bias[m], if `biased`). Of pairs, both products are summed; where they are masked, those for which
    inside[places[s] + n] is not 0. Inputs of steps that lie evenly `apart` are
    x[s * apart + n], and what is made of them may be `streamed` past the caches; `carried`: meanwhile, each step takes
    some elements of an array to where later sums find them."""
    kinds = {"pairs": pairs, "apart": apart, "masked": masked, "carrying": carried}
    name = "_".join(["micro", *(word for word, given in kinds.items() if given), f"{rows}x{columns}"])
    if name in k.module.globals:
        return k.module.globals[name]
    inputs, more = (("apart", I64), [("streamed", I64)]) if apart else (("offsets", PTR), [])
    masks = [("inside", PTR), ("places", PTR)] if masked else []
    load = [("source", PTR), ("to", PTR), *((word, I64) for word in ("source_apart", "channels", "parts", "turn"))]
    order = [
        ("x", PTR),
        inputs,
        *(load if carried else []),
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
    begin = _first_load(b, columns * lanes) if carried else []
    with b.loop_carrying(0, a["steps"], 1, [*[zero] * (rows * columns), *begin]) as (s, sums):
        at = b.mul(s, a["apart"]) if apart else b.load(a["offsets"], s, I64)
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
        if carried:
            sums.next += _carry(k, b, s, sums.values[rows * columns :], columns, carried)
    places = [b.add(b.mul(a["channel"], m), n * lanes) for m in range(rows) for n in range(columns)]
    stored = joined_sums(k, b, sums.result[: rows * columns], places, columns)
    if apart:
        with b.if_(b.compare("==", a["streamed"], 1)):
            for value, place in stored:
                b.store_past_caches(value, a["y"], place)
            b.ret()
    for value, place in stored:
        b.store(value, a["y"], place)
    b.ret()
    return b.function


_AHEAD = 10  # channels: far enough for memory, and few enough for the sets of a cache in which all may begin


def _first_load(b: Builder, length: int) -> list[ir.Value]:
    """Where the first step finds what it carries, `length` elements: its place in the source, and which of the `parts`
    of a channel it is. Steps are counted from the `turn` on."""
    a = b.args
    channel, part = b.sdiv(a["turn"], a["parts"]), b.srem(a["turn"], a["parts"])
    return [b.add(b.mul(channel, a["source_apart"]), b.mul(part, length)), part]


def _carry(
    k: Kernel, b: Builder, step: ir.Value, state: Sequence[ir.Value], columns: int, storage: Storage
) -> list[ir.Value]:
    """Takes some vectors of a channel from the source, and asks for those of a later channel; behind the last one, for
    those that are carried next. The answer is where the next step finds its own."""
    a, (place, part), lanes = b.args, state, k.lanes
    length, memory, apart = columns * lanes, storage.memory, a["source_apart"]
    to, run = b.mul(b.add(a["turn"], step), length), b.mul(a["parts"], length)
    for n in range(columns):
        value = b.widen(b.load(a["source"], b.add(place, n * lanes), memory, lanes), storage)
        b.store(value, a["to"], b.add(to, n * lanes))
    later, end = b.add(place, b.mul(apart, _AHEAD)), b.mul(apart, a["channels"])
    later = b.add(later, b.select(b.compare(">=", later, end), b.sub(run, end), 0))
    for line in range(0, length, LINE // size_of(memory)):
        b.prefetch(a["source"], b.add(later, line), memory)
    last = b.compare("==", b.add(part, 1), a["parts"])
    onwards = b.add(place, b.select(last, b.sub(apart, b.sub(run, length)), length))
    return [onwards, b.select(last, 0, b.add(part, 1))]


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
