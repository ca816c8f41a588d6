"""What every plan says of a pipeline, whatever computes it: as it was asked, as it runs, and the shapes of both."""

from __future__ import annotations

from dataclasses import dataclass

from ..spec.dtypes import DType
from ..spec.pipeline import Pipeline, Trace
from ..spec.rewrite import Rewritten
from .names import ArrayName


@dataclass(frozen=True, eq=False, kw_only=True)
class BasePlan:
    asked: Pipeline
    dtype: DType
    trace: Trace  # of the pipeline as asked
    rewritten: Rewritten
    simplified: Trace  # of the pipeline as it runs

    @property
    def pipeline(self) -> Pipeline:
        """As it runs."""
        return self.rewritten.pipeline

    def array_name(self, array: ArrayName) -> str:
        """What people call an array of a sweep."""
        return array.title(self.pipeline)

    def rewrites(self) -> list[tuple[str, str]]:
        """Names of the simplifications taken, and what is to say of them."""
        return [(step.name, "") for step in self.rewritten.steps]

    def preamble(self) -> list[str]:
        """The first lines of an explanation: stages as asked, rewrites, stages as they run."""
        lines = stage_lines("asked", self.asked, self.trace)
        lines += [f"  rewrite {name}{detail}" for name, detail in self.rewrites()]
        return lines + (stage_lines("runs", self.pipeline, self.simplified) if self.rewritten.steps else [])


def by(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def stage_lines(title: str, pipeline: Pipeline, trace: Trace) -> list[str]:
    """A line for each stage, with the shape that leaves it."""
    names = ["input", *map(repr, pipeline.stages)]
    width = max(map(len, names))
    return [f"{title}:", *(f"  {name:<{width}}  {by(shape)}" for name, shape in zip(names, trace.values, strict=True))]
