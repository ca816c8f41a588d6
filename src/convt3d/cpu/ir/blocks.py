"""Squares of numbers, transposed in registers: how arrays whose channels lie side by side are read and written.

A square has as many channels and as many elements of a row as a vector has lanes. The two functions are compiled once
for a type, apart from the kernels, which get their addresses: few arrays are like that, and kernels compile sooner.
"""

from __future__ import annotations

from llvmlite import ir

from ..plan.machine import Machine
from .builder import Builder
from .frame import define_for
from .values import FLOAT64, I64, PTR, Number, Storage, constant, vector

# square[channel][at] = from[channel + at * step], zero for elements that there are not: void(from, step, channels,
# count, square), of which `channels` and `count` may be above the lanes.
READ = (PTR, I64, I64, I64, PTR)
# to[channel + at * step] = from[at + channel * pitch]: void(from, pitch, channels, count, to, step, streamed).
WRITE = (PTR, I64, I64, I64, PTR, I64, I64)


def blocks_ir(storage: Storage, machine: Machine) -> str:
    """`read` and `write` for arrays of a type."""
    module = ir.Module(f"squares_{storage.name}")
    lanes = machine.lanes(8 if storage == FLOAT64 else 4)
    names = (
        ("read", READ, ("from", "step", "channels", "count", "square")),
        ("write", WRITE, ("from", "pitch", "channels", "count", "to", "step", "streamed")),
    )
    for name, types, arguments in names:
        b = define_for(machine, module, name, list(zip(arguments, types, strict=True)))
        (_read if name == "read" else _write)(b, storage, lanes)
        b.ret()
    return str(module)


def _read(b: Builder, storage: Storage, lanes: int) -> None:
    a = b.args
    last = b.sub(a["count"], 1)
    places = [b.mul(b.min(last, at), a["step"]) for at in range(lanes)]  # none beyond the last

    def rows(channels: Number | None) -> list[ir.Value]:
        return [b.load(a["from"], place, storage.memory, lanes, count=channels) for place in places]

    with b.if_else(b.compare(">=", a["channels"], lanes)) as (whole, part):
        with whole:
            whole.values = rows(None)
        with part:
            part.values = rows(a["channels"])
    elements = [b.widen(value, storage) for value in whole.merged]
    counted, zeros = b.first_lanes(lanes, a["count"]), constant(vector(storage.arithmetic, lanes), 0.0)
    for channel, value in enumerate(b.interleave(elements)):
        b.store(b.select(counted, value, zeros), a["square"], channel * lanes)


def _write(b: Builder, storage: Storage, lanes: int) -> None:
    a = b.args
    last = b.sub(a["channels"], 1)
    places = [b.mul(b.min(last, channel), a["pitch"]) for channel in range(lanes)]  # none beyond the last
    rows = [b.load(a["from"], place, storage.arithmetic, lanes) for place in places]
    whole = b.compare(">=", a["channels"], lanes)
    for at, value in enumerate(b.interleave(rows)):
        stored, place = b.narrow(value, storage), b.mul(a["step"], at)
        with b.if_(b.compare(">", a["count"], at)), b.if_else(whole) as (all_of_them, some):
            with all_of_them, b.if_else(b.compare("==", a["streamed"], 1)) as (past, through):
                with past:
                    b.store_past_caches(stored, a["to"], place)
                with through:
                    b.store(stored, a["to"], place)
            with some:
                b.store(stored, a["to"], place, count=a["channels"])
