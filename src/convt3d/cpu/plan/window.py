"""A plan for one box of a result, with the rewrites, the algorithm and so the bits of the plan for all of it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import lru_cache

from ...plan.names import INPUT
from ...spec.lazy import lazy
from ...spec.pipeline import Pipeline, Trace
from ...spec.rewrite import Rewritten, Step
from ...spec.shapes import Box
from ...spec.window import Periods, Window, out_periods, window
from ..steps.winograd import WinogradConvolution, WinogradOfStrips
from .plan import Plan, detailed


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowPlan(Plan):
    whole: Plan
    batch: int  # samples
    shape: Geometry

    @property
    def folded_for(self) -> Pipeline:
        return self.whole.folded_for

    @lazy
    def as_asked(self) -> Plan:
        return self._of(self.whole.as_asked, self.batch)

    @lazy
    def directly(self) -> Plan:
        return self._of(self.whole.directly, self.batch)

    @lazy
    def masked(self) -> Plan:
        return self._of(self.whole.masked, self.batch)

    @lazy
    def of_strips(self) -> Plan | None:
        """For an input that lies in several pieces; None where its kernel takes one array."""
        first, *rest = self.sweeps
        step, *behind = first.structure.steps
        alone = all(sweep.source != INPUT for sweep in (planned.sweep for planned in rest))
        usual = type(step) is WinogradConvolution and step.reads and alone and not step.beside
        if not usual or self.machine.check_bounds:
            return None
        own = WinogradOfStrips(**{each.name: getattr(step, each.name) for each in fields(step)})
        structure = replace(first.structure, steps=(own, *behind))
        return replace(self, sweeps=(replace(first, structure=structure), *rest))

    def some_samples(self, count: int) -> Plan:
        return self._of(self.whole.some_samples(count), count)

    def _of(self, whole: Plan, batch: int) -> Plan:
        """The same box by another plan. What it would rather begin with may not be at hand: it takes what there is."""
        periods = periods_of(self.whole) if whole.method == self.whole.method else (1, 1, 1)
        found = geometry(whole, self.shape.box, self.shape.given, periods)
        assert found is not None  # the stages are those for which there is one
        return window_plan(whole, batch, found)


def periods_of(plan: Plan) -> Periods:
    """Of outputs of the convolution that are made together."""
    d, h, w = (1 if axis.plain else axis.walk.period for axis in plan.method.axes)
    return d, h, w


def result_periods(plan: Plan) -> Periods:
    """Boxes of the result should begin at multiples of these."""
    return out_periods(plan.pipeline, plan.simplified, periods_of(plan))


@dataclass(frozen=True)
class Geometry:
    """A box and what it is given. Equal ones are alike: the same stages, at the same ends of the arrays."""

    box: Box = field(compare=False)
    given: Box = field(compare=False)  # of the input, padded where padding comes first
    found: Window = field(compare=False)
    pipeline: Pipeline
    sizes: tuple[tuple[int, ...], ...]  # of the values
    ends: tuple[bool, ...]  # of input and result that are reached


def geometry(plan: Plan, box: Box, given: Box, periods: Periods) -> Geometry | None:
    """How a box is computed; None where the pipeline has no windows."""
    found = window(plan.pipeline, plan.simplified, box, given, periods, plan.options.precision == "fast")
    if found is None:
        return None
    first = plan.simplified.values[1 if found.pad is not None else 0]
    sizes = tuple(tuple(high - low for low, high in each) for each in found.values)
    pairs = [*zip(given, first[1:], strict=True), *zip(box, plan.trace.output[1:], strict=True)]
    ends = tuple(reached for (low, high), size in pairs for reached in (low == 0, high == size))
    return Geometry(box, given, found, found.pipeline, sizes, ends)


@lru_cache(maxsize=512)
def window_plan(plan: Plan, batch: int, shape: Geometry) -> WindowPlan:
    """The plan for so many samples of a box of the result."""
    found = shape.found
    step = Step("window", plan.pipeline, found.pipeline, 0, 0, None)
    rewritten = Rewritten(found.pipeline, (*plan.rewritten.steps, step))
    tensors = tensor_boxes(found)
    simplified = found.pipeline.trace(
        (batch, *shape.sizes[0]), _operand_shapes(plan.pipeline, plan.simplified, batch, tensors)
    )
    asked = _operand_shapes(plan.asked, plan.trace, batch, tensors)
    trace = Trace((simplified.values[0], simplified.output), (tuple(asked),))
    d, h, w = (axis.outputs for axis in plan.method.axes)
    options = replace(plan.options, outputs=(d, h, w), pieces=plan.pieces, deep=plan.deep)
    made = detailed(plan.asked, trace, rewritten, simplified, plan.dtype, options, plan.tame, plan.machine)
    return WindowPlan(**made, whole=plan, batch=batch, shape=shape)


def tensor_boxes(found: Window) -> tuple[Box, ...]:
    """What a window reads of each tensor of the value's shape, in order; rewrites leave them as they are."""
    return tuple(found.values[slot.stage] for slot in found.pipeline.slots if slot.operand.kind == "tensor")


def _operand_shapes(pipeline: Pipeline, trace: Trace, batch: int, boxes: tuple[Box, ...]) -> list[tuple[int, ...]]:
    rest = iter(boxes)
    return [
        _tensor_shape(shape, batch, next(rest)) if slot.operand.kind == "tensor" else shape
        for slot, shape in zip(pipeline.slots, trace.operand_shapes, strict=True)
    ]


def _tensor_shape(shape: tuple[int, ...], batch: int, box: Box) -> tuple[int, ...]:
    samples = 1 if shape[0] == 1 else batch
    return samples, *(1 if size == 1 else high - low for size, (low, high) in zip(shape[1:], box, strict=True))
