"""How far an honest result may lie from its meaning, voxel by voxel: rounding errors are played through the stages.

The convolution of n products p has, summed in any order in a type of unit roundoff u, an error of about
u * sqrt(n) * sqrt(sum of p^2); every stage after it rounds what it reads and what it writes, and the numbers by which
a norm multiplies are rounded once for a channel (docs/math.md, "How far a result may be off"). Random errors of that
size are added to the float64 meaning several times, and the spread of the results is the scale of the tolerance: MARGIN
times it, and the one rounding with which the result is stored. A 16-bit kernel may also store each stage's value.

A sum of products that were rounded to bfloat16 or TF32 is off by 2^-9 or 2^-12 of the same scale: more than MARGIN *
sqrt(n) * 2^-24 for every n below a hundred thousand, so lower precision than was asked for fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..front.verify import Crop, Storage
from ..spec.dtypes import DType
from ..spec.pipeline import Pipeline
from ..spec.reference import MEANINGS
from ..spec.rewrite import round_scalars
from ..spec.stage import Stage
from ..spec.stages import (
    GELU,
    OVER,
    BatchNorm,
    Binary,
    Convolution,
    GroupNorm,
    InstanceNorm,
    Keep,
    LayerNorm,
    Recall,
    Softmax,
)

Array: TypeAlias = npt.NDArray[np.float64]
Nearest: TypeAlias = Callable[[Array], Array]

NORMS = LayerNorm, GroupNorm, InstanceNorm  # they square what they read

MARGIN = 16.0
STORED_MARGIN = 2.0  # of values stored between stages, each off by at most half a unit in its last place
PLAYS = 8
ROUNDED_PLAYS = 4
STAGE_ROUNDINGS = 4.0  # of an elementary function, in units of the roundoff
OVERFLOW_MARGIN = 64.0  # how far below the largest number a sum must stay, whatever its order, to be sure of it


@dataclass(frozen=True, eq=False)
class Rounded:
    """What a stage rounds on the way to its value, beside the value itself."""

    length: int = 1  # terms of a sum
    spread: Array | float = 0.0  # root of the sum of their squares
    parts: tuple[Array, ...] = ()  # of the value, each of them off by the share that one number of its channel is off
    multiplied: tuple[Array, ...] = ()  # with a number of the channel, which may itself be near zero
    factor: Array | float = 0.0  # that number, which may itself overflow


@dataclass(frozen=True, eq=False)
class Expectation:
    """The meaning of a case, and how far from it each voxel may be."""

    values: Array
    tolerance: Array
    dtype: DType

    def errors(self, actual: Array) -> Array:
        """|actual - expected| over the tolerance; infinite where a number is missing or NaN. Where the tolerance is
        infinite, anything will do."""
        stored = self.dtype.widen(self.dtype.narrow(self.values))
        finite = np.isfinite(stored)
        with np.errstate(all="ignore"):
            off = np.abs(actual - self.values) / self.tolerance
            same = (actual == stored) | (np.isnan(actual) & np.isnan(stored))
        ratio = np.where(finite, off, np.where(same, 0.0, np.inf))
        ratio[np.isnan(ratio)] = np.inf
        ratio[np.isinf(self.tolerance)] = 0.0
        return ratio

    def accepts(self, actual: Array) -> bool:
        return bool((self.errors(actual) <= 1.0).all())


def expectation(
    pipeline: Pipeline, dtype: DType, x: Array, operands: Sequence[Array], rng: np.random.Generator
) -> Expectation:
    """Of a pipeline; `x` and `operands` are what the stored arrays hold, vectors 1-D. Voxels whose sums may overflow in
    the accumulator, where the meaning's do not, have an infinite tolerance."""
    pipeline = round_scalars(pipeline, dtype)
    chain = Chain(pipeline, x, operands)
    exact = chain.play(lambda last, value, rounded: value)
    numbers = np.finfo(dtype.accumulate)
    least = float(numbers.smallest_subnormal)
    unit = float(numbers.eps) / 2
    tolerance = MARGIN * _spread(chain, exact, Errors(rng, unit, least))
    tolerance += _by_rounding(chain, exact, rng, unit, lambda value: value.astype(numbers.dtype).astype(np.float64))
    if dtype.storage != dtype.accumulate:
        several = len(pipeline.convolutions) > 1  # values between them are stored, those near zero among them
        stored = Errors(rng, 0.0, dtype.smallest if several else 0.0, stored=dtype.eps / 2)
        # A convolution sums the roundings of what is stored before it: a random walk, as those of its own sums are.
        tolerance += (MARGIN if several else STORED_MARGIN) * _spread(chain, exact, stored)
        if several and dtype.name == "float16":  # bfloat16 reaches as far as float32
            tolerance[chain.may_overflow(exact, float(np.finfo(np.float16).max) / 2)] = np.inf
    tolerance += np.abs(exact) * dtype.eps / 2 + dtype.smallest
    tolerance[chain.may_overflow(exact, float(numbers.max) / OVERFLOW_MARGIN)] = np.inf
    with np.errstate(invalid="ignore"):  # inf - inf
        low, high = (dtype.widen(dtype.narrow(exact + off)) for off in (-tolerance, tolerance))
    brink = (np.isinf(low) | np.isinf(high)) & (low != high)  # of what the type can hold, or beyond both of its ends
    tolerance[np.isfinite(exact) & brink] = np.inf
    return Expectation(exact, tolerance, dtype)


def expectation_of_blocks(
    pipeline: Pipeline,
    dtype: DType,
    x: Storage,
    operands: Sequence[Storage],
    crops: Sequence[Crop],
    rng: np.random.Generator,
) -> Expectation:
    """Of the blocks of some crops, one after the other, flat. `x` and `operands` are stored arrays."""
    values, tolerances = [], []
    for crop in crops:
        part, arrays = crop.cut(pipeline, x, operands)
        found = expectation(crop.smaller(pipeline), dtype, dtype.widen(part), list(map(dtype.widen, arrays)), rng)
        block = tuple(
            slice(low - start, high - start) for (low, high), (start, _) in zip(crop.block, crop.boxes[-1], strict=True)
        )
        values.append(found.values[0][block].ravel())
        tolerances.append(found.tolerance[0][block].ravel())
    tolerance = np.concatenate(tolerances)
    # A block of one voxel has no others to be compared with: few plays may leave it almost alone.
    return Expectation(np.concatenate(values), np.maximum(tolerance, np.median(tolerance) / 2), dtype)


@dataclass(frozen=True, eq=False)
class Errors:
    """Random ones: of `unit` in sums, of `least` in numbers near zero, of `stored` at each stage's end."""

    rng: np.random.Generator
    unit: float
    least: float
    stored: float = 0.0

    def enter(self, stage: Stage, value: Array) -> Array:
        """A norm takes the difference of its numbers and their mean, which was rounded too."""
        if not isinstance(stage, NORMS):
            return value
        return np.where(np.isfinite(value), value * (1.0 + self.unit * self.rng.standard_normal(value.shape)), value)

    def leave(self, last: bool, value: Array, rounded: Rounded) -> Array:
        root, common = np.sqrt(rounded.length), (*value.shape[:2], 1, 1, 1)
        scale = self.unit * (root * rounded.spread + STAGE_ROUNDINGS * np.abs(value)) + self.least * root
        noise = scale * self.rng.standard_normal(value.shape)
        for part in rounded.parts:
            noise = noise + self.unit * STAGE_ROUNDINGS * part * self.rng.standard_normal(common)
        for part in rounded.multiplied:
            noise = noise + self.least * part * self.rng.standard_normal(common)
        if self.stored and not last:
            noise = noise + self.stored * np.abs(value) * self.rng.choice((-1.0, 1.0), value.shape)
        disturbed: Array = np.where(np.isfinite(value), value + noise, value)
        return disturbed


def _spread(chain: Chain, exact: Array, errors: Errors) -> Array:
    """Root mean square of the change that errors make."""
    with np.errstate(all="ignore"):
        return root_mean_square([chain.play(errors.leave, errors.enter) - exact for _ in range(PLAYS)])


def _by_rounding(chain: Chain, exact: Array, rng: np.random.Generator, unit: float, nearest: Nearest) -> Array:
    """Largest change where each stage's value is rounded to a number of the type, and nothing else. Random errors never
    make equal numbers of different ones, and rounding does: what a norm leaves of them is zero. In all plays but the
    first, numbers are moved by up to half of their spacing before."""
    largest = np.zeros_like(exact)
    with np.errstate(all="ignore"):
        for play in range(ROUNDED_PLAYS):
            half = unit if play else 0.0

            def leave(last: bool, value: Array, rounded: Rounded, half: float = half) -> Array:
                return nearest(value * (1.0 + half * rng.uniform(-1.0, 1.0, value.shape)))

            change = np.abs(chain.play(leave) - exact)
            largest = np.maximum(largest, np.where(np.isfinite(change), change, 0.0))
    return largest


def root_mean_square(changes: Sequence[Array]) -> Array:
    """Of plays."""
    total = np.zeros_like(changes[0])
    for change in changes:
        total = np.hypot(total, change)  # squares of 1e300 would overflow
    total[~np.isfinite(total)] = 0.0
    total /= np.sqrt(len(changes))
    # Few plays may by chance leave a voxel almost alone: none is better off than the middle one of its channel.
    floored: Array = np.maximum(total, np.median(total, axis=(2, 3, 4), keepdims=True))
    return floored


class Chain:
    """A pipeline's stages with everything that stays the same between plays."""

    def __init__(self, pipeline: Pipeline, x: Array, operands: Sequence[Array]) -> None:
        self.pipeline, self.x = pipeline, x
        self.own = [
            [array for slot, array in zip(pipeline.slots, operands, strict=True) if slot.stage == index]
            for index in range(len(pipeline.stages))
        ]
        self._conv: dict[int, tuple[bytes, tuple[Array, Rounded]]] = {}  # the last of each convolution

    def play(self, leave: Any, enter: Any = lambda stage, value: value) -> Array:
        """The value after all stages; `leave(last, value, rounded)` follows each of them. What `enter(stage, value)`
        gives is what the stage reads."""
        value, last = self.x, len(self.pipeline.stages) - 1
        kept = {"x": value}
        with np.errstate(all="ignore"):
            for index, stage in enumerate(self.pipeline.stages):
                value = enter(stage, value)
                if isinstance(stage, Keep):
                    kept[stage.label] = value
                    continue
                if isinstance(stage, Recall):
                    value = kept[stage.label]
                    continue
                if isinstance(stage, Convolution):
                    value, rounded = self._convolve(stage, value, index)
                else:
                    own = [kept[stage.label]] if isinstance(stage, Binary) and stage.label else self.own[index]
                    value, rounded = _apply(stage, value, own)
                value = leave(index == last, value, rounded)
        return value

    def may_overflow(self, exact: Array, most: float) -> npt.NDArray[np.bool_]:
        """Voxels that depend on a finite value, on a sum whose terms or squares may together be, or on a norm's factor
        or its products, above `most`."""

        def enter(stage: Stage, value: Array) -> Array:
            return _without(value, np.abs(value) > (np.sqrt(most) if isinstance(stage, NORMS) else most))

        def leave(last: bool, value: Array, rounded: Rounded) -> Array:
            beyond = (np.abs(value) > most) | ~np.asarray(np.sqrt(rounded.length) * rounded.spread <= most)
            for part in (rounded.factor, *rounded.parts):
                beyond = beyond | ~np.asarray(np.abs(part) <= most)
            return _without(value, beyond)

        return np.isnan(self.play(leave, enter)) & ~np.isnan(exact)

    def _convolve(self, stage: Convolution, value: Array, index: int) -> tuple[Array, Rounded]:
        """Kept, since the plays of a pipeline that begins with its convolution all repeat it."""
        key = value.tobytes() if index else b""
        if index not in self._conv or self._conv[index][0] != key:
            weight, *bias = self.own[index]
            meaning = MEANINGS[type(stage)]
            (x, by_x), (w, by_w) = _near_one(value), _near_one(weight)
            spread = np.ldexp(np.sqrt(meaning(stage, x**2, w**2)), by_x + by_w)
            for b in bias:
                spread = np.hypot(spread, _column(b))
            # Fast algorithms spread their errors over all voxels, those no tap reaches among them.
            spread = np.maximum(spread, 0.25 * _typical(spread))
            length = stage.kernel(weight.shape)[0] // stage.groups * prod(weight.shape[2:])
            self._conv[index] = key, (meaning(stage, value, weight, *bias), Rounded(length, spread))
        return self._conv[index][1]


def _near_one(value: Array, axes: tuple[int, ...] | None = None) -> tuple[Array, npt.NDArray[np.int32]]:
    """Divided by powers of two, and by which: the largest finite number along the axes is then below 1, so that its
    square neither overflows nor vanishes."""
    largest = np.where(np.isfinite(value), np.abs(value), 0.0).max(axis=axes, keepdims=True, initial=0.0)
    powers = np.frexp(largest)[1]
    return np.ldexp(value, -powers), powers


def _root_of_squares(value: Array, axes: tuple[int, ...]) -> Array:
    """Of the sum of squares along some axes."""
    scaled, powers = _near_one(value, axes)
    found: Array = np.ldexp(np.sqrt((scaled**2).sum(axis=axes, keepdims=True)), powers)
    return found


def _typical(spread: Array) -> float:
    """Root mean square of the finite ones."""
    finite = spread[np.isfinite(spread)]
    return float(_root_of_squares(finite, (0,))[0]) / np.sqrt(finite.size) if finite.size else 0.0


def _without(value: Array, some: npt.NDArray[np.bool_]) -> Array:
    """With NaN in place of some numbers, those that are finite."""
    found: Array = np.where(some & np.isfinite(value), np.nan, value)
    return found


def _apply(stage: Any, value: Array, own: Sequence[Array]) -> tuple[Array, Rounded]:
    """A stage, and what it rounds. Sums count as their result sees them."""
    after = MEANINGS[type(stage)](stage, value, *(own or ([stage.other] if hasattr(stage, "other") else [])))
    if isinstance(stage, GELU):  # an honest 1 + erf(...) errs by a share of 1, and is multiplied by what was read
        return after, Rounded(spread=np.abs(value))
    if isinstance(stage, BatchNorm):
        return after, _of_batch_norm(stage, value, *own)
    over = getattr(stage, "over", None)
    if over is None:
        return after, _of_affine(stage, value, after, own, Rounded())
    axes = OVER[over]
    length = prod(value.shape[axis] for axis in axes)
    if after.shape != value.shape:  # a sum
        return after, Rounded(length, _root_of_squares(value, axes))
    typical = _root_of_squares(after, axes) / np.sqrt(length)
    if isinstance(
        stage, Softmax
    ):  # its sum has terms of one sign, often equal ones: their roundings may all go one way
        typical = np.maximum(typical, np.abs(after) * np.sqrt(length) / MARGIN)
    return after, _of_affine(stage, value, after, own, Rounded(length, typical))


def _of_batch_norm(stage: BatchNorm, value: Array, mean: Array, var: Array, *affine: Array) -> Rounded:
    """x s + (bias - mean s): s = weight / deviation is a number of the channel, and any two of the terms may cancel."""
    scale = _column((affine[0] if affine else 1.0) / np.sqrt(var + stage.eps))
    return Rounded(parts=(value * scale, _column(mean) * scale), multiplied=(value, _column(mean)), factor=scale)


def _of_affine(stage: Any, value: Array, after: Array, own: Sequence[Array], rounded: Rounded) -> Rounded:
    """(x - mean) s + bias with s = weight / deviation: the two may cancel, and s may be near zero."""
    if not isinstance(stage, NORMS) or not own:
        return rounded
    weight, bias = own if isinstance(stage, LayerNorm) and stage.over == "width" else map(_column, own)
    centred, deviation = _centred(stage, value)
    return replace(rounded, parts=(after - bias,), multiplied=(centred,), factor=weight / deviation)


def _centred(stage: LayerNorm | GroupNorm | InstanceNorm, value: Array) -> tuple[Array, Array]:
    """Less the mean of what is normalised together; and the deviation by which that is divided, of the same shape."""
    groups = stage.num_groups if isinstance(stage, GroupNorm) else value.shape[1]
    grouped = value.reshape(value.shape[0], groups, -1, *value.shape[2:])  # (B, groups, C / groups, D, H, W)
    axes = (
        tuple(axis if axis == 1 else axis + 1 for axis in OVER[stage.over])
        if isinstance(stage, LayerNorm)
        else (2, 3, 4, 5)
    )
    centred = grouped - grouped.mean(axis=axes, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=axes, keepdims=True) + stage.eps) * np.ones_like(centred)
    return centred.reshape(value.shape), deviation.reshape(value.shape)


def _column(vector: Array) -> Array:
    """(C,) as (C, 1, 1, 1), so that it meets axis 1 of a value."""
    return vector.reshape(-1, 1, 1, 1)
