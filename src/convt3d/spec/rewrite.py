"""Exact simplifications, spec -> spec. Each is a small named function; the proofs are in docs/math.md.

A rewrite that changes tensors (folding a normalisation into the weights, moving a bias) also says how the new ones come
from the old ones. Those hold for tame tensors only, that is finite ones of moderate size: the caller checks, and plans
without them when a tensor is not tame.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

import numpy as np

from .dtypes import DType
from .lazy import lazy
from .pipeline import Pipeline, Trace
from .reference import Array
from .shapes import LONG_STRIDE
from .stage import Stage
from .stages import (
    SPATIAL,
    Add,
    AvgPool3d,
    BatchNorm,
    Clamp,
    Convolution,
    ConvTranspose3d,
    GroupNorm,
    HardTanh,
    InstanceNorm,
    LayerNorm,
    MaxPool3d,
    Mean,
    Multiply,
    Softmax,
    Subtract,
    Sum,
)

Prepare: TypeAlias = Callable[[Sequence[Array]], tuple[Array, ...]]
Holds: TypeAlias = Callable[[Sequence[Array]], bool]

# Beyond this a sum or quotient of two tensors may overflow float32 although the result of the pipeline would not. Below
# its inverse to the power 1.5 (2^-96) a product may round to zero, which an infinite input would turn into NaN.
TAME = 2.0**64

# A constant before a norm that is larger swallows digits of x, and PyTorch's answer shows it.
MOST_CONSTANT = 65536.0

_IN_CACHE = 1 << 15  # numbers that are looked at together


def tame(arrays: Sequence[Array]) -> bool:
    """Whether all numbers are finite and of moderate size, neither huge nor on the way to zero."""
    flat = [array.reshape(-1) for array in arrays]
    parts = (array[at : at + _IN_CACHE] for array in flat for at in range(0, array.size, _IN_CACHE))
    sizes = map(np.abs, parts)
    return all(bool(np.all((size <= TAME) & ((size >= 1.0 / TAME**1.5) | (size == 0.0)))) for size in sizes)


def cancels(arrays: Sequence[Array]) -> bool:
    """Whether all numbers are finite and too small to swallow digits of what they are added to."""
    return all(bool(np.all(np.abs(array) <= MOST_CONSTANT)) for array in arrays)


def leave_out(given: Sequence[Array]) -> tuple[Array, ...]:
    """The new tensors of a rewrite that needs none."""
    return ()


@dataclass(frozen=True)
class Match:
    """A rewrite that applies: `count` stages from `start` become `stages`; their tensors become prepare(tensors)."""

    start: int
    count: int
    stages: tuple[Stage, ...]
    prepare: Prepare | None = None
    skip: int = 0  # the first tensors, which stay what and where they are
    holds: Holds = tame  # for which tensors, those after them, it does


@dataclass(frozen=True)
class Step:
    """A rewrite taken, and the operands (slot positions) it turns into new ones."""

    name: str
    before: Pipeline
    after: Pipeline
    first: int
    count: int
    prepare: Prepare | None
    tame_input: bool = False  # whether it holds for a tame input only
    holds: Holds = tame  # for which of those operands it does

    def operands(self, given: tuple[Array, ...]) -> tuple[Array, ...] | None:
        if self.prepare is None:
            return given
        stop = self.first + self.count
        old = given[self.first : stop]
        with np.errstate(all="ignore"):
            new = self.prepare(old)
        return (*given[: self.first], *new, *given[stop:]) if self.holds(old) and tame(new) else None


@dataclass(frozen=True)
class Rewritten:
    """A simplified pipeline and the steps that led to it."""

    pipeline: Pipeline
    steps: tuple[Step, ...]

    def operands(self, given: tuple[Array, ...]) -> tuple[Array, ...] | None:
        """The operands (float64, vectors 1-D) of the simplified pipeline; None where a tensor is not tame."""
        for step in self.steps:
            prepared = step.operands(given)
            if prepared is None:
                return None
            given = prepared
        return given

    @lazy
    def left_out(self) -> dict[int, Holds] | None:
        """Where operands are left out and none is changed: the places of those, and what must hold for them."""
        changing = [step for step in self.steps if step.prepare is not None]
        if any(step.prepare is not leave_out for step in changing):
            return None
        places = list(range(len(self.steps[0].before.slots))) if self.steps else []
        gone: dict[int, Holds] = {}
        for step in changing:
            gone |= dict.fromkeys(places[step.first : step.first + step.count], step.holds)
            del places[step.first : step.first + step.count]
        return gone

    @property
    def keeps_kernel(self) -> bool:
        """Whether the convolution's kernel is the one that was given."""
        changing = [step for step in self.steps if step.prepare not in (None, leave_out, _same)]
        kernels = [[slot.stage for slot in step.before.slots].index(step.before.conv_index) for step in changing]
        return not any(
            step.first <= kernel < step.first + step.count for step, kernel in zip(changing, kernels, strict=True)
        )

    @property
    def needs_tame(self) -> bool:
        return any(step.prepare is not None for step in self.steps)

    @property
    def needs_tame_input(self) -> bool:
        return any(step.tame_input for step in self.steps)


def constant_before_norm(stages: tuple[Stage, ...], start: int, dtype: DType) -> Match | None:
    """norm(x + c) = norm(x) for a number c of moderate size."""
    match stages[start : start + 2]:
        case (
            Add(other=float(c)) | Subtract(other=float(c), reverse=False),  # c - x has the other sign
            (LayerNorm() | GroupNorm() | InstanceNorm()) as norm,
        ) if abs(c) <= MOST_CONSTANT and norm.eps > 0.0:
            return Match(start, 2, (norm,))
    return None


def bias_before_norm(stages: tuple[Stage, ...], start: int, dtype: DType) -> Match | None:
    """norm(x + b) = norm(x) for one number b for each channel, where channels are normalised each by itself."""
    match stages[start : start + 2]:
        case (before, InstanceNorm(eps=eps) | LayerNorm(over="width", eps=eps)) if eps > 0.0:
            match before:
                case Convolution(bias=True):
                    return Match(start, 1, (_with_bias(before, False),), leave_out, skip=1, holds=cancels)
                case Add(other="channel") | Subtract(other="channel", reverse=False):
                    return Match(start, 1, (), leave_out, holds=cancels)
    return None


def max_pool_of_max_pool(stages: tuple[Stage, ...], start: int, dtype: DType) -> Match | None:
    """Windows of touching windows are windows: kernel k1 + (k2 - 1) * s1, stride s1 * s2."""
    match stages[start : start + 2]:
        case (MaxPool3d() as inner, MaxPool3d() as outer):
            plain = not (inner.ceil_mode or outer.ceil_mode or any(inner.triples[2] + outer.triples[2]))
            (k1, s1, _), (k2, s2, _) = inner.triples, outer.triples
            if plain and all(s <= k for s, k in zip(s1, k1, strict=True)):
                kernel = tuple(a + (b - 1) * s for a, b, s in zip(k1, k2, s1, strict=True))
                stride = tuple(a * b for a, b in zip(s1, s2, strict=True))
                return Match(start, 2, (MaxPool3d(kernel, stride),))  # type: ignore[arg-type]
    return None


def bias_through_max_pool(stages: tuple[Stage, ...], start: int, dtype: DType) -> Match | None:
    """max(x + b) = max(x) + b: the bias is added to far fewer voxels, and may meet a channel sum."""
    match stages[start : start + 2]:
        case (Convolution(bias=True) as conv, MaxPool3d() as pool):
            return Match(start, 2, (_with_bias(conv, False), pool, Add("channel")), _same)
    return None


def channel_constant_through_sum(stages: tuple[Stage, ...], start: int, dtype: DType) -> Match | None:
    """sum_c(x_c + b_c) = sum_c(x_c) + sum(b): one number after the reduction."""
    match stages[start : start + 2]:
        case (Add(other="channel") as add, Sum(over="channels") as total):
            return Match(start, 2, (total, add), lambda given: (given[0].sum(keepdims=True),))
        case (Add(other="channel") as add, Mean(over="channels") as mean):
            return Match(start, 2, (mean, add), lambda given: (given[0].mean(keepdims=True),))
    return None


def batch_norm_into_weights(stages: tuple[Stage, ...], start: int, dtype: DType) -> Match | None:
    """((w * x + b) - mean) * s + beta = (w * s) * x + ((b - mean) * s + beta), s = weight / sqrt(var + eps)."""
    match stages[start : start + 2]:
        case (Convolution() as conv, BatchNorm() as norm):

            def fold(given: Sequence[Array]) -> tuple[Array, ...]:
                bias = given[1] if conv.bias else 0.0
                mean, var, *affine = given[2 if conv.bias else 1 :]
                scale = (affine[0] if affine else 1.0) / np.sqrt(var + norm.eps)
                shift = (bias - mean) * scale + (affine[1] if affine else 0.0)
                return conv.scale_outputs(given[0], scale), shift

            return Match(start, 2, (_with_bias(conv, True),), fold)
    return None


def bounded_softmax(stages: tuple[Stage, ...], start: int, dtype: DType) -> Match | None:
    """Between finite bounds no exponential overflows and no sum vanishes: a constant replaces the maximum."""
    match stages[start : start + 2]:
        case (
            (Clamp(min=float(low), max=float(high)) | HardTanh(min_val=float(low), max_val=float(high))) as clamp,
            Softmax(shift=None) as softmax,
        ) if math.isfinite(low) and math.isfinite(high) and high - low <= 40.0:
            # exp(x - high) lies in [4e-18, 1]; up to 2^63 of them stay below the largest float32.
            return Match(start, 2, (clamp, replace(softmax, shift=0.0 if abs(low) <= 20.0 >= abs(high) else high)))
    return None


def scale_into_softmax(stages: tuple[Stage, ...], start: int, dtype: DType) -> Match | None:
    """(e / sum) * s = e * (s / sum): one multiplication less for every voxel."""
    match stages[start : start + 2]:
        case (Softmax(scale=None) as softmax, Multiply(other=float(s))) if abs(s) <= TAME:
            return Match(start, 2, (replace(softmax, scale=s),))
        case (Softmax(scale=None, over="spatial") as softmax, Multiply(other="channel")):
            return Match(start, 2, (replace(softmax, scale="channel"),), _same)
    return None


Rewrite: TypeAlias = Callable[[tuple[Stage, ...], int, DType], Match | None]

REWRITES: tuple[Rewrite, ...] = (
    constant_before_norm,
    bias_before_norm,
    max_pool_of_max_pool,
    batch_norm_into_weights,
    bias_through_max_pool,
    channel_constant_through_sum,
    bounded_softmax,
    scale_into_softmax,
)


def round_scalars(pipeline: Pipeline, dtype: DType) -> Pipeline:
    """Scalars are C doubles; arithmetic sees them in its own type (1e300 is inf in float32, as in PyTorch)."""

    def rounded(stage: Stage) -> Stage:
        scalars = {f.name: getattr(stage, f.name) for f in fields(stage)}
        changed = {name: dtype.round_scalar(v) for name, v in scalars.items() if isinstance(v, float)}
        return replace(stage, **changed) if changed else stage

    return Pipeline(*map(rounded, pipeline.stages))


def with_all_axes(pipeline: Pipeline) -> Pipeline:
    """Values have five axes throughout; who asked for the result drops those of size 1."""
    if not pipeline.dropped:
        return pipeline
    return Pipeline(*(replace(stage, keepdim=True) if stage.drops else stage for stage in pipeline.stages))  # type: ignore[call-arg]


def simplify(pipeline: Pipeline, dtype: DType, tame: bool, keep_kernel: bool = False) -> Rewritten:
    """Applies rewrites until none fits. `tame=False` leaves out those that hold for tame tensors only, `keep_kernel`
    the one that multiplies the convolution's kernel, which then has more digits."""
    steps: list[Step] = []
    rewrites = [one for one in REWRITES if not (keep_kernel and one is batch_norm_into_weights)]
    pipeline = with_all_axes(round_scalars(pipeline, dtype))
    while step := _first_step(pipeline, dtype, tame, rewrites):
        steps.append(step)
        pipeline = step.after
    return Rewritten(pipeline, tuple(steps))


def pool_over_phases(pipeline: Pipeline) -> int | None:
    """The pool whose windows hold each phase of the convolution exactly once, if there is one: kernel = stride = the
    convolution's stride. It is a mean (or maximum) over phases."""
    if (found := _pool_of_phases(pipeline)) is None:
        return None
    index, pool, stride = found
    plain = not pool.ceil_mode and getattr(pool, "divisor_override", None) is None
    return index if pool.triples == (stride, stride, (0, 0, 0)) and plain else None


def max_pool_over_phases(rewritten: Rewritten) -> Rewritten:
    """The inverse of `max_pool_of_max_pool`, where that makes a pool over phases: of windows that hold each phase of
    the convolution equally often, the maximum over phases comes first. Rows are then put together from fewer voxels."""
    before = rewritten.pipeline
    if (found := _pool_of_phases(before)) is None:
        return rewritten
    index, pool, phases = found
    kernel, stride, padding = pool.triples
    axes = list(zip(kernel, stride, phases, strict=True))
    whole = all(k % n == t % n == 0 and t <= k for k, t, n in axes) and kernel != phases != (1, 1, 1)
    if not isinstance(pool, MaxPool3d) or pool.ceil_mode or any(padding) or not whole:
        return rewritten
    outer = MaxPool3d(tuple(k // n for k, _, n in axes), tuple(t // n for _, t, n in axes))  # type: ignore[arg-type]
    after = Pipeline(*before.stages[:index], MaxPool3d(phases, phases), outer, *before.stages[index + 1 :])
    step = Step(max_pool_over_phases.__name__, before, after, 0, 0, None)
    return Rewritten(after, (*rewritten.steps, step))


def strides_of_one_input(rewritten: Rewritten, trace: Trace) -> Rewritten:
    """A transposed convolution has no stride along an axis with one input: it may as well be as long as the kernel
    reaches. Then every output has a phase of its own, which meets that input through one tap or none."""
    before = rewritten.pipeline
    at, conv = before.conv_index, before.conv
    behind = before.stages[at + 1 :]
    if not isinstance(conv, ConvTranspose3d) or any(isinstance(stage, (MaxPool3d, AvgPool3d)) for stage in behind):
        return rewritten
    strides, _, _, dilations = conv.triples
    sizes, kernel = trace.values[at][2:], trace.operands[at][0][2:]
    axes = zip(strides, dilations, sizes, kernel, strict=True)
    depth, height, width = (max(s, d * (taps - 1) + 1) if size == 1 else s for s, d, size, taps in axes)
    if (wanted := (depth, height, width)) == strides:
        return rewritten
    longer = replace(conv, stride=wanted, output_padding=0)
    object.__setattr__(longer, "output_padding", conv.output_padding)  # that of folded averages keeps no rule
    after = Pipeline(*before.stages[:at], longer, *behind)
    step = Step(strides_of_one_input.__name__, before, after, 0, 0, None)
    return Rewritten(after, (*rewritten.steps, step))


def _pool_of_phases(pipeline: Pipeline) -> tuple[int, MaxPool3d | AvgPool3d, tuple[int, int, int]] | None:
    """The first pool behind a transposed convolution whose strides are not long, and these, if no stage between couples
    voxels."""
    conv = pipeline.conv
    if not isinstance(conv, ConvTranspose3d) or max(conv.triples[0]) > LONG_STRIDE:
        return None
    for index in range(pipeline.conv_index + 1, len(pipeline.stages)):
        stage = pipeline.stages[index]
        if isinstance(stage, (MaxPool3d, AvgPool3d)):
            return index, stage, conv.triples[0]
        if stage.couples & SPATIAL:
            return None
    return None


def _first_step(pipeline: Pipeline, dtype: DType, tame: bool, rewrites: Sequence[Rewrite]) -> Step | None:
    for rewrite in rewrites:
        for start in range(len(pipeline.stages)):
            match = rewrite(pipeline.stages, start, dtype)
            if match is None or (match.prepare and not tame):
                continue
            stop = match.start + match.count
            after = Pipeline(*pipeline.stages[: match.start], *match.stages, *pipeline.stages[stop:])
            touched = [at for at, slot in enumerate(pipeline.slots) if match.start <= slot.stage < stop][match.skip :]
            first = touched[0] if touched else 0
            return Step(rewrite.__name__, pipeline, after, first, len(touched), match.prepare, holds=match.holds)
    return None


def _with_bias(conv: Convolution, bias: bool) -> Stage:
    return replace(conv, bias=bias)  # type: ignore[call-arg]  # a field of both kinds


def _same(given: Sequence[Array]) -> tuple[Array, ...]:
    return tuple(given)
