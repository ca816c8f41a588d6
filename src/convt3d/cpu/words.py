"""The words of a kernel's table: each set of them is declared once, as a class. Emitters read its fields, binders fill
them.

A field is a Size (a number), an Array (its address), a Routine (the address of native code) or a Buffer (a place in the
worker's scratch memory); Sizes and Arrays are three of them, one for each axis. What a binder gives is an instance with
numbers and NumPy arrays; what an emitter reads is an instance of the same class whose fields are values of LLVM IR,
loaded when first asked for. No field has a default: one that nobody fills cannot be made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, NamedTuple, Protocol, get_type_hints

import numpy.typing as npt

Size = Annotated[Any, "size", 0]
Sizes = Annotated[Any, "size", 3]
Array = Annotated[Any, "array", 0]
Arrays = Annotated[Any, "array", 3]
Routine = Annotated[Any, "routine", 0]
Buffer = Annotated[Any, "buffer", 0]

# Words of one field; and those that follow them in code that checks its accesses.
_WORDS = {"size": 1, "array": 1, "routine": 1, "buffer": 2}
_CHECKED = {"size": 0, "array": 2, "routine": 0, "buffer": 1}


class Room(NamedTuple):
    """Of a Buffer, in elements: where it begins in scratch memory, from one channel to the next, and its length."""

    offset: int
    pitch: int
    length: int


class Field(NamedTuple):
    name: str
    kind: str
    times: int  # 0: the field is one of them and no tuple
    at: int  # its first word
    size: int  # words of one of them


class Reader(Protocol):
    """What gives an emitter the values of fields."""

    def field(self, own: Words, name: str) -> Any: ...


@dataclass(eq=False)
class Words:
    """A set of words."""

    def __getattr__(self, name: str) -> Any:
        """Of an instance that an emitter reads, which has no fields of its own yet."""
        reader: Reader | None = self.__dict__.get("_reader")
        if reader is None or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no field {name}")
        value = self.__dict__[name] = reader.field(self, name)
        return value

    @classmethod
    def read_by(cls, reader: Reader) -> Any:
        """An instance whose fields the reader gives."""
        words = cls.__new__(cls)
        words.__dict__["_reader"] = reader
        return words

    def numbers(self, checked: bool) -> list[int]:
        """The words, in the order of the table."""
        found: list[int] = []
        for field in layout(type(self), checked)[0]:
            value = self.__dict__[field.name]
            for one in value if field.times else (value,):
                if field.kind == "array":
                    found.append(one.ctypes.data)
                    if checked:
                        found += region(one)
                elif field.kind == "buffer":
                    found += one[: field.size]
                else:
                    found.append(one)
        return found


@cache
def _layout(words: Any, checked: bool) -> tuple[tuple[Field, ...], int]:
    hints = get_type_hints(words, include_extras=True)
    found, at = [], 0
    for field in fields(words):
        kind, times = hints[field.name].__metadata__
        size = _WORDS[kind] + (_CHECKED[kind] if checked else 0)
        found.append(Field(field.name, kind, times, at, size))
        at += size * max(times, 1)
    return tuple(found), at


def layout(words: type[Words], checked: bool) -> tuple[tuple[Field, ...], int]:
    """The fields of a set, and how many words they take."""
    return _layout(words, checked)  # type: ignore[arg-type]  # a class is hashable


def call_numbers(sets: Sequence[Words], checked: bool) -> list[int]:
    """The words that a call fills, quickly, for small calls feel it. Unless accesses are checked, a field is one word
    and an array may be given by its address."""
    if checked:
        return [number for words in sets for number in words.numbers(True)]
    values = (value for words in sets for value in words.__dict__.values())
    return [value if type(value) is int else value.ctypes.data for value in values]


def row_length(words: type[Words]) -> int:
    """Words of a table's row."""
    return layout(words, False)[1]


def places(sets: Sequence[type[Words]], checked: bool) -> tuple[int, ...]:
    """Where each set begins in a table that holds them one after the other, and where the last one ends."""
    found = [0]
    for words in sets:
        found.append(found[-1] + layout(words, checked)[1])
    return tuple(found)


def region(array: npt.NDArray[Any]) -> tuple[int, int]:
    """Where an array begins and ends in memory, whatever its strides."""
    begin = array.ctypes.data
    if not array.size:
        return begin, begin
    steps = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    low, high = sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)
    return begin + low, begin + high + array.itemsize


# --- what every sweep and every array has -----------------------------------------------------------------------------


@dataclass(eq=False)
class SweepWords(Words):
    """What a plan says about its tiles."""

    items: Size  # tiles of all samples, of each share
    shares: Size  # of the channels
    channels: Size  # of the source
    row_words: Size  # of a row in the tables of the axes
    tiles: Sizes
    tables: Arrays
    scratch_size: Size  # elements of one worker


@dataclass(eq=False)
class SweepCall(Words):
    """What a call adds."""

    counter: Array  # of tiles that are taken; it lies before the table, which sets it
    scratch: Array
    read_block: Routine  # native code for arrays whose channels lie side by side; 0 where none does
    write_block: Routine
    faults: Routine  # memory that checked code notes its first fault in


@dataclass(eq=False)
class ArrayCall(Words):
    """An array (B, C, D, H, W), with strides in elements; those of axes that are repeated are 0."""

    data: Array
    b: Size
    c: Size
    d: Size
    h: Size
    w: Size


@dataclass(eq=False)
class SourceCall(ArrayCall):
    """An array that a step reads."""

    adjacent: Size  # 1: its channels lie side by side


@dataclass(eq=False)
class StripsCall(Words):
    """Of an array that lies in several pieces."""

    count: Size
    pieces: Array  # a PieceRow each; the first is the one that a SourceCall gives


@dataclass(eq=False)
class PieceRow(Words):
    """A piece (B, C, D, H, W), and where it stands: its first voxel, and the one behind its last."""

    data: Size  # address
    b: Size
    c: Size
    d: Size
    h: Size
    w: Size
    low_d: Size
    low_h: Size
    low_w: Size
    high_d: Size
    high_h: Size
    high_w: Size


@dataclass(eq=False)
class DestinationCall(ArrayCall):
    """The array that a sweep writes."""

    rows: Size  # that one store may run through
    streamed: Size  # 1: stores go past the caches
    direct: Size  # 1: vectors go there as they come
    channels: Size  # that are stored together


@dataclass(eq=False)
class VectorCall(Words):
    """One number for each channel."""

    data: Array
    b: Size  # elements from one sample to the next; 0: all have the same


# --- native code beside the kernels -----------------------------------------------------------------------------------


@dataclass(eq=False)
class PackWords(Words):
    """Of cpu/ir/pack.py, which packs weights. An item is some channels of a group."""

    counter: Array  # of items that are taken
    items: Size
    group_items: Size
    item_channels: Size
    weights: Array
    packed: Array
    slots: Array
    thread_slots: Size  # numbers of the slots of a thread
    together: Size  # channels that are added up together
    pitch: Size  # numbers from one slot to the next
    channels: Size  # of a group
    taps: Size
    group_step: Size  # numbers of the weights from one group to the next
    channel_step: Size
    row_step: Size
    group_numbers: Size  # packed
    blocks: Array  # a BlockRow each
    block_count: Size
    shared: Array  # a SharedRow each
    shared_count: Size
    results: Array  # a ResultRow each
    result_count: Size
    terms: Array  # pairs: slot, and factor as float64
    largest: Array  # the bits of the largest magnitude that each thread saw
    faults: Routine


@dataclass(eq=False)
class BlockRow(Words):
    """A block of rows."""

    first: Size
    rows: Size


@dataclass(eq=False)
class SharedRow(Words):
    """A sum that goes to a slot: its first term, and the one behind its last."""

    slot: Size
    first: Size
    behind: Size


@dataclass(eq=False)
class ResultRow(Words):
    """A sum that is packed."""

    place: Size
    apart: Size  # numbers from one row to the next
    step: Size  # steps before this one
    first: Size
    behind: Size


@dataclass(eq=False)
class CompareWords(Words):
    """Of cpu/runtime/compare.py, which looks for bits that differ."""

    one: Array
    other: Array
    length: Size  # in words of 8 bytes
    share: Size  # of a thread
    answers: Array  # of the threads: not zero where they saw a difference
    faults: Routine
