"""Names of the arrays that sweeps read and write, whatever computes them. Equal names are the same array."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

from ..spec.pipeline import Pipeline

StatisticWord = Literal["shift", "scale", "offset"]


@dataclass(frozen=True)
class ArrayName:
    """The defaults are those of the caller's arrays."""

    of_numbers: ClassVar[bool] = False  # it holds numbers of the arithmetic, whatever the caller's type is
    kind: ClassVar[str] = "array"  # all that the code of a step depends on: "array", or "value" of numbers

    def title(self, pipeline: Pipeline) -> str:
        """What people call it, where this pipeline runs."""
        raise NotImplementedError

    @property
    def made(self) -> ArrayName:
        """What the sweep that makes it calls it."""
        return self


@dataclass(frozen=True)
class CallerName(ArrayName):
    word: Literal["input", "output", "gradient", "first"]

    def __hash__(self) -> int:
        return hash(self.word)  # short, as those below: every call looks up its arrays

    def title(self, pipeline: Pipeline) -> str:
        return f"the {self.word}"


INPUT, OUTPUT = CallerName("input"), CallerName("output")


@dataclass(frozen=True)
class OperandName(ArrayName):
    """An operand, a vector or a tensor, by its place in the pipeline as it runs."""

    place: int

    def title(self, pipeline: Pipeline) -> str:
        return pipeline.slots[self.place].name


@dataclass(frozen=True)
class ValueName(ArrayName):
    """A value between two sweeps."""

    number: int

    of_numbers = True
    kind = "value"

    def __hash__(self) -> int:
        return self.number

    def title(self, pipeline: Pipeline) -> str:
        return f"value {self.number}"


@dataclass(frozen=True)
class StatisticsName(ArrayName):
    """What the statistics of a sweep come to: vectors for each sample, which a later sweep applies."""

    number: int

    def vector(self, word: StatisticWord) -> StatisticName:
        return _vector(self.number, word)


@dataclass(frozen=True)
class StatisticName(ArrayName):
    """One of these vectors."""

    number: int
    word: StatisticWord

    of_numbers = True

    def __hash__(self) -> int:
        return hash(self.word)

    def title(self, pipeline: Pipeline) -> str:
        return f"{self.word} of statistics {self.number}"

    @property
    def made(self) -> StatisticsName:
        return StatisticsName(self.number)


_vector = cache(StatisticName)  # every call of a norm asks for them: the same object is found at once
