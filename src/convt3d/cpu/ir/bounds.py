"""Code that checks every access: the address must lie in the region of the array its pointer came from.

With `CONVT3D_CHECK_BOUNDS=1` functions are written by the builder below. It knows for each pointer the region [begin,
end) it may reach, as two numbers at run time: functions get those of their pointers as further arguments. An access
outside is noted where `faults` points to, and happens in spare memory instead: nothing is read or written elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from llvmlite import ir

from .builder import Builder, define
from .values import I64, PTR, Instructions, Number, size_of

I8 = ir.IntType(8)

# Of the memory behind `faults`, in words: how many there were, then the first one; then what loads and stores get.
FAULTS, FAULT, SPARE_ZEROS, SPARE, FAULT_WORDS = 0, 1, 8, 24, 40


class Region(NamedTuple):
    begin: ir.Value
    end: ir.Value
    name: str


def with_regions(arguments: Sequence[tuple[str, ir.Type]]) -> list[tuple[str, ir.Type]]:
    """The arguments of a function that checks: after its own, the regions of its pointers, and `faults`."""
    ends = [(f"{name}.{word}", I64) for name, type_ in arguments if type_ == PTR for word in ("begin", "end")]
    return [*arguments, *ends, ("faults", PTR)]


class CheckedBuilder(Builder):
    """A Builder whose loads, stores and atomic additions are checked."""

    def __init__(self, raw: ir.IRBuilder, instructions: Instructions) -> None:
        super().__init__(raw, instructions)
        self._regions: dict[ir.Value, Region | None] = {}
        self.faults: ir.Value | None = self.args.get("faults")
        for name, argument in self.args.items():
            if f"{name}.begin" in self.args:
                self.confine(argument, self.args[f"{name}.begin"], self.args[f"{name}.end"], name)

    def trust(self, pointer: ir.Value) -> None:
        self._regions[pointer] = None

    def confine(self, pointer: ir.Value, begin: ir.Value, end: ir.Value, name: str) -> None:
        self._regions[pointer] = Region(begin, end, name)

    def at(self, pointer: ir.Value, offset: Number, element: ir.Type) -> ir.Value:
        place = super().at(pointer, offset, element)
        self._regions[place] = self._region(pointer)
        return place

    def either(self, condition: ir.Value, pointer: ir.Value, other: ir.Value) -> ir.Value:
        chosen, regions = super().either(condition, pointer, other), [self._region(one) for one in (pointer, other)]
        one, another = regions
        assert one is not None
        assert another is not None
        begin, end = (self.raw.select(condition, *pair) for pair in zip(one[:2], another[:2], strict=True))
        self.confine(chosen, begin, end, f"{one.name} or {another.name}")
        return chosen

    def _region(self, pointer: ir.Value) -> Region | None:
        if isinstance(pointer, ir.Constant):  # null: nothing may be reached
            return Region(I64(0), I64(0), "null")
        if pointer not in self._regions:
            raise ValueError(f"nobody said which memory {pointer.name} may reach; use `confine`")
        return self._regions[pointer]

    def accessed(
        self, pointer: ir.Value, offset: Number, element: ir.Type, width: int, count: Number | None, what: str
    ) -> ir.Value:
        place, region = self.at(pointer, offset, element), self._region(pointer)
        if region is None:
            return place
        lanes = width if count is None else self.min(count, width)
        text = f"{what} of {width} x {element} at {region.name}, {_where()}"
        address, size = self.raw.ptrtoint(place, I64), self.i64(self.mul(lanes, size_of(element)))
        spare = SPARE_ZEROS if what == "load" else SPARE
        given = [address, size, region.begin, region.end, self._text(text), self.faults, I64(spare)]
        return self.raw.call(_inside(self.module), given)

    def load(
        self,
        pointer: ir.Value,
        offset: Number,
        element: ir.Type,
        width: int = 1,
        *,
        stride: Number = 1,
        count: Number | None = None,
    ) -> ir.Value:
        if width > 1 and count is not None and not (isinstance(stride, int) and stride == 1):  # lane by lane, no gather
            places = [self.add(offset, self.mul(stride, lane)) for lane in range(width)]
            return self.join(
                [self.load(pointer, place, element, count=self.sub(count, lane)) for lane, place in enumerate(places)]
            )
        return super().load(pointer, offset, element, width, stride=stride, count=count)

    def store_scattered(
        self, value: ir.Value, pointer: ir.Value, offset: Number, stride: Number, count: Number, width: int
    ) -> None:
        for lane in range(width):
            place = self.add(offset, self.mul(stride, lane))
            self.store(self.lane(value, lane), pointer, place, count=self.sub(count, lane))

    def call(self, function: ir.Function, *arguments: Number) -> ir.Value:
        return super().call(function, *arguments, *self._hidden(arguments))

    def call_address(self, pointer: ir.Value, types: Sequence[ir.Type], *arguments: Number) -> None:
        further = [type_ for _, type_ in with_regions([("", type_) for type_ in types])]
        super().call_address(pointer, further, *arguments, *self._hidden(arguments))

    def _hidden(self, arguments: Sequence[Number]) -> list[ir.Value]:
        """What `with_regions` adds, for these arguments."""
        ends: list[ir.Value] = []
        for value in arguments:
            if isinstance(value, ir.Value) and value.type == PTR:
                region = self._region(value)
                assert region is not None
                ends += [region.begin, region.end]
        assert self.faults is not None
        return [*ends, self.faults]

    def _text(self, text: str) -> ir.Value:
        """Address of a constant text."""
        name = f"access.{text}"
        if name not in self.module.globals:
            content = bytearray(text.encode() + b"\0")
            one = ir.GlobalVariable(self.module, ir.ArrayType(I8, len(content)), name)
            one.linkage, one.global_constant = "internal", True
            one.initializer = ir.Constant(one.value_type, content)
        return self.module.globals[name]


def _inside(module: ir.Module) -> ir.Function:
    """ptr inside(address, bytes, begin, end, text, faults, spare): the address, or where the spare memory is."""
    name = "inside"
    if name in module.globals:
        return module.globals[name]
    words = [(word, I64) for word in ("address", "bytes", "begin", "end")]
    b = define(module, name, [*words, ("text", PTR), ("faults", PTR), ("spare", I64)], PTR, internal=True)
    a = b.args
    within = b.bits(
        "and_",
        b.compare("<=", a["begin"], a["address"]),
        b.compare("<=", b.add(a["address"], a["bytes"]), a["end"]),
    )
    with b.if_(b.bits("or_", within, b.compare("<=", a["bytes"], 0))):
        b.ret(b.raw.inttoptr(a["address"], PTR))
    with b.if_(b.compare("==", b.fetch_add(a["faults"]), 0)):
        first = [b.raw.ptrtoint(a["text"], I64), *(a[word] for word, _ in words)]
        for at, value in enumerate(first):
            b.store(value, a["faults"], FAULT + at)
    b.ret(b.at(a["faults"], a["spare"], I64))
    return b.function


def _where() -> str:
    """The emitter that wants the access, and who called it."""
    here = Path(__file__).parents[1]
    places: list[str] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and len(places) < 3:
        path = Path(frame.f_code.co_filename)
        if here in path.parents and path.name not in ("bounds.py", "builder.py", "frame.py"):
            places.append(f"{path.name}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(places)
