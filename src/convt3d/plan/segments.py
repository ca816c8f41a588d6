"""Cuts a pipeline of several convolutions into segments of one convolution each, which run one after the other.

A segment is a pipeline of its own: it reads a value and gives one, and both are stored, in the caller's type. Stages
between two convolutions belong to the first of them, so that what is stored is what the next one reads; but where a
later segment uses a value between them by its name, the segment ends there, and the rest goes in front of the next
convolution. Values from elsewhere are tensors that a segment is given. A segment without a convolution, between two
such names, say, gets one whose value it throws away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..spec import stages as s
from ..spec.pipeline import Pipeline, Trace
from ..spec.shapes import Shape
from ..spec.stage import Stage


@dataclass(frozen=True)
class Given:
    """An operand of the whole pipeline."""

    place: int

    def shape(self, trace: Trace) -> tuple[int, ...]:
        return trace.operand_shapes[self.place]


@dataclass(frozen=True)
class Value:
    """A value of the whole pipeline, by its number in the trace; 0 is the input."""

    number: int

    def shape(self, trace: Trace) -> tuple[int, ...]:
        return trace.values[self.number]


@dataclass(frozen=True)
class Constant:
    """An array of one number."""

    number: float
    sizes: tuple[int, ...]

    def shape(self, trace: Trace) -> tuple[int, ...]:
        return self.sizes


Source: TypeAlias = Given | Value | Constant


@dataclass(frozen=True)
class Segment:
    pipeline: Pipeline  # of one convolution
    source: Value
    shape: Shape  # of what enters: the source, repeated along axes of size 1 where a larger value meets it
    operands: tuple[Source, ...]  # in slot order
    result: Value
    frees: tuple[Value, ...]  # values that no later segment reads

    def operand_shapes(self, trace: Trace) -> tuple[tuple[int, ...], ...]:
        return tuple(source.shape(trace) for source in self.operands)


def segments(pipeline: Pipeline, trace: Trace) -> tuple[Segment, ...]:
    """In the order in which they run; the last one gives the result."""
    stored: frozenset[int] = frozenset()
    while True:  # a value that must be stored ends a segment: others may then have what they need, or need more
        drafts = list(_Walk(pipeline, trace, stored).run())
        made = {0, *(draft.result for draft in drafts)}
        missing = {number for draft in drafts for number in draft.reads} - made
        if not missing:
            return _finished(pipeline, trace, drafts)
        stored |= {min(missing)}


def run_segments(
    cut: Sequence[Segment],
    x: Any,
    operands: Sequence[Any],
    constant: Callable[[Constant], Any],
    run: Callable[[int, Any, tuple[Any, ...]], Any],
) -> Any:
    """The result: `run` gives that of a segment by its number, for the array it reads and its operands. Values are let
    go when nobody reads them any more."""
    values: dict[Value, Any] = {Value(0): x}

    def array(source: Source) -> Any:
        if isinstance(source, Given):
            return operands[source.place]
        return constant(source) if isinstance(source, Constant) else values[source]

    for number, segment in enumerate(cut):
        values[segment.result] = run(number, values[segment.source], tuple(map(array, segment.operands)))
        for freed in segment.frees:
            del values[freed]
    return values[cut[-1].result]


@dataclass
class _Draft:
    """A segment while it is made: numbers of stages, with what they become in it."""

    source: int
    shape: Shape
    repeated: bool  # whether `shape` is larger than the source's
    stages: list[tuple[int, Stage]]
    foreign: list[int]  # values that stages take as tensors, in order
    result: int = -1

    @property
    def convolves(self) -> bool:
        return any(isinstance(stage, s.Convolution) for _, stage in self.stages)

    @property
    def reads(self) -> tuple[int, ...]:
        return self.source, *self.foreign

    def keeps(self, label: str) -> bool:
        return any(stage.keeps == label for _, stage in self.stages)


class _Walk:
    """Goes through the stages; `stored` are numbers of values at which a segment ends."""

    def __init__(self, pipeline: Pipeline, trace: Trace, stored: frozenset[int]) -> None:
        self.stages, self.trace, self.stored = pipeline.stages, trace, stored
        self.numbers = [0]  # of values: those that a stage only names, or goes back to, have the number they had
        self.labels = {"x": 0}
        self.draft = self._from(0)

    def _from(self, source: int, shape: Shape | None = None) -> _Draft:
        own = self.trace.values[source]
        return _Draft(source, shape or own, shape not in (None, own), [], [])

    def run(self) -> Iterator[_Draft]:
        for index, stage in enumerate(self.stages):
            now = self.numbers[-1]
            if isinstance(stage, s.Recall):
                there = self.labels[stage.label]
                self.numbers.append(there)
                if there == now:
                    continue
                if not self._within(stage.label):
                    yield from self._end(now)
                    self.draft = self._from(there)
                    continue
            else:
                self.numbers.append(now if stage.keeps else index + 1)
            if stage.keeps:
                self.labels[stage.keeps] = now
            if isinstance(stage, s.Convolution) and self.draft.convolves:
                yield from self._end(now)
            elif stage.uses and not self._within(stage.uses) and self.trace.values[index + 1] != self.trace.values[now]:
                yield from self._end(now)
                self.draft = self._from(now, self.trace.values[index + 1])
            self.draft.stages.append((index, self._as_used(stage)))
            if self.numbers[-1] in self.stored and not stage.keeps:
                yield from self._end(self.numbers[-1])
        self.draft.result = len(self.stages)
        yield self.draft

    def _within(self, label: str) -> bool:
        """Whether the segment has the value: it makes it, or reads it."""
        return self.draft.keeps(label) or self._enters(label)

    def _enters(self, label: str) -> bool:
        return self.labels[label] == self.draft.source and not self.draft.repeated

    def _end(self, number: int) -> Iterator[_Draft]:
        changed = any(not isinstance(stage, s.Keep) for _, stage in self.draft.stages)
        if changed and number != self.draft.source:  # a convolution thrown away leaves the value it began with
            self.draft.result = number
            yield self.draft
        self.draft = self._from(number)

    def _as_used(self, stage: Stage) -> Stage:
        """The stage with the names of the segment: its input is "x", and what it has not is a tensor."""
        if not stage.uses:
            return stage
        if self._enters(stage.uses):
            return s.Recall("x") if isinstance(stage, s.Recall) else replace(stage, other="x")  # type: ignore[call-arg]
        if self.draft.keeps(stage.uses):
            return stage
        self.draft.foreign.append(self.labels[stage.uses])
        return replace(stage, other="tensor")  # type: ignore[call-arg]  # all others that use a value are arithmetic


def _finished(pipeline: Pipeline, trace: Trace, drafts: list[_Draft]) -> tuple[Segment, ...]:
    last_reader = {number: at for at, draft in enumerate(drafts) for number in draft.reads}
    found = []
    for at, draft in enumerate(drafts):
        stages: list[Stage] = []
        operands: list[Source] = []
        foreign = iter(draft.foreign)
        if not draft.convolves:
            channels = draft.shape[1]
            stages += [s.ConvTranspose3d(groups=channels), s.Recall("x")]
            operands.append(Constant(1.0, (channels, 1, 1, 1, 1)))
        used = {stage.uses for _, stage in draft.stages}
        for index, stage in draft.stages:
            if stage.keeps and stage.keeps not in used:
                continue
            stages.append(stage)
            given = [Given(place) for place, slot in enumerate(pipeline.slots) if slot.stage == index]
            asked = pipeline.stages[index]
            operands += [Value(next(foreign))] if asked.uses and stage.operands() else given
        frees = tuple(Value(number) for number, reader in last_reader.items() if reader == at and number)
        cut = Pipeline(*stages)
        found.append(Segment(cut, Value(draft.source), draft.shape, tuple(operands), Value(draft.result), frees))
    return tuple(found)
