"""Values that are computed box by box, each from boxes of those it is made of, back to the input.

So pipelines of several convolutions and with statistics over space run over inputs that are larger than memory: what a
box of the result needs of the values between is computed for it, and nothing else. Values between have the types and
the bits that they have in memory. Statistics are taken first, in a walk over all boxes of the value they are of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, TypeAlias

import numpy as np

from ..cpu.plan.choice import Options
from ..cpu.runtime.memory import empty
from ..cpu.runtime.ready import Owner
from ..plan.segments import run_segments, segments
from ..spec.pipeline import Pipeline
from ..spec.rewrite import with_all_axes
from ..spec.shapes import Box, Range, Shape
from ..spec.stage import Stage
from ..spec.stages import ConvTranspose3d, Recall
from ..spec.window import over_space
from .apply import apply
from .boxes import Boxes, Part, Request, Storage, Take
from .over_space import Walk
from .partial import finished

Ranges: TypeAlias = tuple[Range, ...]  # along one axis, in order, without overlap
Region: TypeAlias = tuple[Ranges, Ranges, Ranges]  # what is needed of a value along depth, height and width


@dataclass(eq=False)
class Value:
    """Something with a shape and a type; the input, where it is nothing else."""

    shape: Shape
    dtype: Any


@dataclass(eq=False)
class Small(Value):
    """A value that is known as a whole, once what it is made of is: one number for each sample and channel."""

    make: Callable[[Known], Storage]
    reads: tuple[Value, ...]  # what it is made of: links are walked over, for their statistics


@dataclass(eq=False)
class Link(Value):
    """What boxes make of a source; operands are values, or arrays that are the same for all boxes."""

    boxes: Boxes
    source: Value
    operands: tuple[Any, ...]

    @property
    def reads(self) -> tuple[Value, ...]:
        return self.source, *(each for each in self.operands if isinstance(each, Value))


class Known:
    """Small values, each made when it is first asked for. `walk` takes the statistics of a value: it is the one that
    reads the input."""

    def __init__(self, walk: Callable[[Stage, Link], Any]) -> None:
        self.walk = walk
        self._arrays: dict[Small, Storage] = {}

    def array(self, value: Any) -> Storage:
        if not isinstance(value, Small):
            return np.asarray(value)
        if value not in self._arrays:
            self._arrays[value] = value.make(self)
        return self._arrays[value]


class Guessed(Known):
    """Ones: for who only wants to know how long a box takes."""

    def __init__(self) -> None:
        super().__init__(lambda stage, value: None)

    def array(self, value: Any) -> Storage:
        return np.ones(value.shape, value.dtype) if isinstance(value, Small) else np.asarray(value)


@dataclass(frozen=True, eq=False)
class Piece:
    """A box of a link's value, and its place among what is needed of it."""

    part: Part
    place: Box


@dataclass(frozen=True, eq=False)
class ChainPart:
    """One box of the result: what it reads, and what is computed for it, in order."""

    box: Box
    regions: dict[Value, Region]
    steps: tuple[tuple[Link, tuple[Piece, ...]], ...]


@dataclass(frozen=True)
class _Place:
    """Where a computation stands: what it has of each value."""

    regions: dict[Value, Region]
    values: dict[Value, Storage]
    sample: int
    known: Known

    def cut(self, link: Link, value: Any, takes: Sequence[Take]) -> Storage:
        """What a box of a link reads of a value, or of an array, in the type it computes in."""
        region: Sequence[Ranges]
        if isinstance(value, Value) and not isinstance(value, Small):
            array, region = self.values[value], self.regions[value]
        else:
            array = self.known.array(value)
            array = array[self.sample : self.sample + 1] if array.shape[0] > 1 else array
            region = [((0, size),) for size in array.shape[2:]]
        own = _of_sizes(takes, value.shape)
        return _cut(array, [((0, array.shape[1]),), *region], own).astype(link.boxes.dtype.storage, copy=False)


class Chain:
    """All that a value is made of."""

    def __init__(self, result: Link, source: Value) -> None:
        self.result, self.source = result, source
        self.links: list[Link] = []
        self._collect(result)
        last = {value: at for at, link in enumerate(self.links) for value in link.reads}
        self._frees = [[value for value, at in last.items() if at == number] for number in range(len(self.links))]
        self.owner = Owner()

    def _collect(self, link: Link) -> None:
        for value in link.reads:
            if isinstance(value, Link) and value not in self.links:
                self._collect(value)
        if link not in self.links:
            self.links.append(link)

    @property
    def output(self) -> Shape:
        return self.result.shape

    @property
    def smalls(self) -> list[Small]:
        """What must be known before a box can be computed."""
        return [value for link in self.links for value in link.reads if isinstance(value, Small)]

    def part(self, box: Box) -> ChainPart:
        """What a box of the result needs, walked back."""
        needed: dict[Value, list[list[Range]]] = {self.result: [[part] for part in box[1:]]}
        regions: dict[Value, Region] = {}
        steps = []
        for link in reversed(self.links):
            d, h, w = (_united(ranges) for ranges in needed[link])
            regions[link] = d, h, w
            pieces = []
            for ranges in product(d, h, w):
                part = link.boxes.part((box[0] if link is self.result else (0, link.shape[1]), *ranges))
                place = tuple(_place(own, one) for own, one in zip((d, h, w), ranges, strict=True))
                pieces.append(Piece(part, ((0, link.shape[1]), *place)))  # type: ignore[arg-type]
                for value, takes in self._takes(link, part):
                    known = needed.setdefault(value, [[], [], []])
                    for own, take in zip(known, takes[1:], strict=True):
                        own += take.ranges
            steps.append((link, tuple(pieces)))
        d, h, w = (_united(ranges) for ranges in needed.get(self.source, [[(0, 1)]] * 3))
        regions[self.source] = d, h, w
        return ChainPart(box, regions, tuple(reversed(steps)))

    def reads(self, part: ChainPart) -> tuple[Take, Take, Take, Take]:
        """What a box reads of the input: channels, depth, height, width."""
        d, h, w = (Take(ranges) for ranges in part.regions[self.source])
        return Take(((0, self.source.shape[1]),)), d, h, w

    def _takes(self, link: Link, part: Part) -> Iterator[tuple[Value, tuple[Take, ...]]]:
        """What a box of a link needs of each value: of those that are small, nothing has to be computed."""
        if not isinstance(link.source, Small):
            yield link.source, _of_sizes(part.reads, link.source.shape)
        boxes = iter(link.boxes.own_tensors(part))
        for slot, operand in zip(link.boxes.request.pipeline.slots, link.operands, strict=True):
            box = next(boxes) if slot.operand.kind == "tensor" else None
            if isinstance(operand, Value) and not isinstance(operand, Small):
                assert box is not None
                yield operand, _of_sizes([Take((each,)) for each in box], operand.shape)

    def compute(self, part: ChainPart, x: Storage, sample: int, known: Known) -> Storage:
        """The numbers of a box, from what it reads of the input."""
        at = _Place(part.regions, {self.source: x}, sample, known)
        for number, (link, pieces) in enumerate(part.steps):
            boxes = (self._value(number, piece, at) for piece in pieces)
            if len(pieces) == 1:
                at.values[link] = next(boxes)
            else:
                sizes = (sum(high - low for low, high in ranges) for ranges in part.regions[link])
                made = at.values[link] = empty((1, link.shape[1], *sizes), link.dtype)
                for piece, box in zip(pieces, boxes, strict=True):
                    channels, d, h, w = (slice(low, high) for low, high in piece.place)
                    made[:, channels, d, h, w] = box
            for value in self._frees[number]:
                at.values.pop(value, None)
        return at.values[self.result]

    def _value(self, number: int, piece: Piece, at: _Place) -> Storage:
        link, part = self.links[number], piece.part
        x = at.cut(link, link.source, part.reads)
        boxes = iter(link.boxes.own_tensors(part))
        operands = [
            at.cut(link, operand, [Take((each,)) for each in next(boxes)])
            if slot.operand.kind == "tensor"
            else np.asarray(operand, link.boxes.dtype.storage)
            for slot, operand in zip(link.boxes.request.pipeline.slots, link.operands, strict=True)
        ]
        repeated = np.broadcast_to(x, (1, *(take.size for take in part.reads)))
        found = link.boxes.compute(part, repeated, operands, self.owner.part(number))
        with np.errstate(over="ignore"):
            return found.astype(link.dtype, copy=False)

    def held(self, part: ChainPart) -> int:
        """Bytes that are in memory at once, at most, beside what is read and the result."""
        sizes = {self.source: 0}
        most = 0
        for number, (link, pieces) in enumerate(part.steps):
            item, channels = link.boxes.dtype.itemsize, link.shape[1]
            own = 0 if link is self.result and len(pieces) == 1 else channels * link.dtype.itemsize
            sizes[link] = own * prod(sum(high - low for low, high in ranges) for ranges in part.regions[link])
            for piece in pieces:
                box = piece.part
                widened = item if link.source.dtype.itemsize != item else 0
                copied = widened or (item if any(len(take.ranges) > 1 or take.order for take in box.reads) else 0)
                now = copied * prod(take.size for take in box.reads)
                now += item * sum(prod(high - low for low, high in each) for each in box.tensors)
                if link is not self.result or len(pieces) > 1 or link.dtype.itemsize != item:
                    now += item * prod(high - low for low, high in box.computed)
                most = max(most, sum(sizes.values()) + now + link.boxes.scratch(box))
            for value in self._frees[number]:
                sizes.pop(value, None)
        return most


def chain_of(pipeline: Pipeline, x: Value, operands: Sequence[Storage], options: Options) -> Value:
    """The result of a pipeline, of the input's type."""
    maker = _Maker(options)

    def run(pipeline: Pipeline, source: Value, shape: Shape, own: Sequence[Any]) -> Value:
        return maker.result(with_all_axes(pipeline), source, shape, own)

    if len(pipeline.convolutions) == 1:
        return run(pipeline, x, x.shape, operands)
    cut = segments(pipeline, pipeline.trace(x.shape, [array.shape for array in operands]))

    def of_segment(number: int, source: Value, own: tuple[Any, ...]) -> Value:
        return run(cut[number].pipeline, source, cut[number].shape, own)

    made: Value = run_segments(cut, x, operands, lambda one: np.full(one.sizes, one.number, x.dtype), of_segment)
    return made


@dataclass(frozen=True)
class _Maker:
    """Of values."""

    options: Options
    dtype: Any = None  # of the values it makes of boxes, where that is not the one they are computed in

    def result(self, pipeline: Pipeline, source: Value, shape: Shape, operands: Sequence[Any]) -> Value:
        entered = source if source.shape == shape else _Repeated(shape, source.dtype, source)
        if not any(map(over_space, pipeline.stages)):
            return self.of_boxes(pipeline, entered, operands)
        if source.dtype.itemsize > 2:
            return self._computed(Walk(pipeline, entered, operands, self, persist=False).result(self))
        # Values between stages, and statistics, are not rounded.
        wide = _Repeated(shape, np.dtype(np.float32), source)
        arrays = [each if isinstance(each, Value) else each.astype(np.float32) for each in operands]
        made = Walk(pipeline, wide, arrays, self, persist=False).result(_Maker(self.options, source.dtype))
        return _narrowed(made, source.dtype) if isinstance(made, Small) else self._computed(made)

    def _computed(self, value: Value) -> Value:
        return value if isinstance(value, Small) else self._link(value)

    def _link(self, value: Value) -> Link:
        """A value that comes in boxes, though nothing may be done to it."""
        if isinstance(value, Link):
            return value
        channels = value.shape[1]
        same = Pipeline(ConvTranspose3d(groups=channels), Recall("x"))
        return self.of_boxes(same, value, [np.ones((channels, 1, 1, 1, 1), value.dtype)])

    def of_boxes(self, pipeline: Pipeline, source: Value, operands: Sequence[Any]) -> Link:
        shapes = tuple(tuple(each.shape) for each in operands)
        boxes = Request(pipeline, source.shape, shapes, source.dtype.name, self.options).boxes
        entered = source.source if isinstance(source, _Repeated) else source
        own = tuple(each.source if isinstance(each, _Repeated) else each for each in operands)
        return Link(boxes.output, source.dtype if self.dtype is None else self.dtype, boxes, entered, own)

    def small(self, pipeline: Pipeline, source: Small, operands: Sequence[Any]) -> Small:
        shape = pipeline.trace(source.shape, [each.shape for each in operands]).output

        def make(known: Known) -> Storage:
            arrays = [known.array(each).astype(source.dtype, copy=False) for each in operands]
            found: Storage = apply("volume", pipeline, known.array(source), arrays)
            return found

        return Small(shape, source.dtype, make, _values((source, *operands)))

    def finished(self, stage: Stage, value: Value, own: Sequence[Any], words: Sequence[str]) -> tuple[Small, ...]:
        shape: Shape = (*value.shape[:2], 1, 1, 1)
        computed = self._link(value)

        def every(known: Known) -> Storage:
            arrays = [known.array(each) for each in own]
            found = finished(stage, value.dtype.name, known.walk(stage, computed), arrays)
            return np.stack([found[word] for word in words])

        together = Small((len(words), *shape), value.dtype, every, _values((computed, *own)))  # type: ignore[arg-type]

        def one(at: int) -> Small:
            return Small(shape, value.dtype, lambda known: known.array(together)[at], (together,))

        return tuple(map(one, range(len(words))))


@dataclass(eq=False)
class _Repeated(Value):
    """A value as it enters boxes: of another type, or as often as it is needed along axes of size 1."""

    source: Value


def _narrowed(value: Small, dtype: Any) -> Small:
    def make(known: Known) -> Storage:
        with np.errstate(over="ignore"):
            return known.array(value).astype(dtype)

    return Small(value.shape, dtype, make, (value,))


def _values(given: Sequence[Any]) -> tuple[Value, ...]:
    return tuple(each for each in given if isinstance(each, Value))


def walked(value: Value) -> list[Link]:
    """Values whose statistics must be known before this one can be computed, in that order."""
    found: list[Link] = []

    def visit(value: Value) -> None:
        if isinstance(value, (Link, Small)):
            for each in value.reads:
                visit(each)
                if isinstance(value, Small) and isinstance(each, Link) and each not in found:
                    found.append(each)

    visit(value)
    return found


def _of_sizes(takes: Sequence[Take], shape: Sequence[int]) -> tuple[Take, ...]:
    """Of a value that is repeated along axes of size 1."""
    return tuple(Take(((0, 1),)) if size == 1 else take for take, size in zip(takes, shape[1:], strict=True))


def _united(ranges: Sequence[Range]) -> Ranges:
    """In order, without overlap; those that touch are one."""
    found: list[Range] = []
    for low, high in sorted(set(ranges)):
        if found and low <= found[-1][1]:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return tuple(found)


def _place(ranges: Ranges, part: Range) -> Range:
    """Where a part of one of them is, when all of them lie one after the other."""
    before = 0
    for low, high in ranges:
        if low <= part[0] and part[1] <= high:
            return before + part[0] - low, before + part[1] - low
        before += high - low
    raise AssertionError((ranges, part))


def _cut(array: Storage, region: Sequence[Ranges], takes: Sequence[Take]) -> Storage:
    """What takes have of an array that holds these ranges of a value."""
    for axis, (own, take) in enumerate(zip(region, takes, strict=True), 1):
        places = [_place(own, part) for part in take.ranges]
        if len(places) == 1 and take.order is None:
            array = array[(slice(None),) * axis + (slice(*places[0]),)]
        else:
            numbers = np.concatenate([np.arange(low, high) for low, high in places])
            array = array.take(numbers if take.order is None else numbers[list(take.order)], axis)
    return array
