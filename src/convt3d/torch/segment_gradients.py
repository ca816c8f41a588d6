"""Gradients of a pipeline of several convolutions: segments of one each (plan/segments.py) run again, one after the
other, and the gradient goes back through them in the other order, by what serves a pipeline of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import torch

from ..plan.segments import Constant, Given, Segment, Source, Value, segments
from ..spec.pipeline import Pipeline
from ..spec.text import write_pipeline
from .stage_gradients import fitted
from .stock import Tensor, as_value

Gradients: TypeAlias = list["Tensor | None"]
OfOne: TypeAlias = Callable[[Pipeline, Tensor, Tensor, Sequence[Tensor], "Tensor | None", Sequence[bool]], Gradients]


@lru_cache(maxsize=256)
def _cut(pipeline: Pipeline, x: tuple[int, ...], operands: tuple[tuple[int, ...], ...]) -> tuple[Segment, ...]:
    return segments(pipeline, pipeline.trace(x, operands))


def segment_gradients(
    pipeline: Pipeline, grad: Tensor, x: Tensor, operands: Sequence[Tensor], wanted: Sequence[bool], of_one: OfOne
) -> Gradients:
    """Of x and each operand, None where not wanted; `of_one` gives those of a segment, for the gradient of its result,
    what it reads, its operands, its result (or None), and which are wanted."""
    cut = _cut(pipeline, tuple(x.shape), tuple(tuple(each.shape) for each in operands))
    values: dict[Value, Tensor] = {Value(0): x}
    asked: dict[Source, bool] = {Value(0): wanted[0], **{Given(at): want for at, want in enumerate(wanted[1:])}}

    def tensor(source: Source) -> Tensor:
        if isinstance(source, Given):
            return operands[source.place]
        if isinstance(source, Constant):
            return torch.full(source.sizes, source.number, dtype=x.dtype)
        return values[source]

    for segment in cut:
        asked[segment.result] = any(asked.get(source, False) for source in (segment.source, *segment.operands))
        if segment is not cut[-1]:
            own = list(map(tensor, segment.operands))
            read = values[segment.source].expand(segment.shape)
            made = torch.ops.convt3d.pipeline.default(read, own, write_pipeline(segment.pipeline))
            values[segment.result] = as_value(segment.pipeline, made, False)
    found: dict[Source, Tensor] = {cut[-1].result: grad}
    for segment in reversed(cut):
        values.pop(segment.result, None)
        sources = (segment.source, *segment.operands)
        wants = [asked.get(source, False) for source in sources]
        if not any(wants):
            continue
        of_result = found.pop(segment.result)
        read = values[segment.source].expand(segment.shape)
        own = list(map(tensor, segment.operands))
        grads = of_one(segment.pipeline, of_result, read, own, None, wants)
        for source, each in zip(sources, grads, strict=True):
            if each is not None:
                each = fitted(each, tensor(source).shape)
                found[source] = found[source] + each if source in found else each
    every: tuple[Source, ...] = (Value(0), *(Given(at) for at in range(len(operands))))
    return [found.get(source) if want else None for source, want in zip(every, wanted, strict=True)]
