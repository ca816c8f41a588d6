"""Averages right after the convolution, which are linear as it is, folded into its weights. See docs/math.md.

They need sizes, and an input without NaN, infinities and huge numbers: a sum of weights may hide that two products
would have been Inf - Inf. The caller looks at the input, and plans without them where it is wild.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

import numpy as np

from .pipeline import Pipeline, Trace
from .reference import Array
from .rewrite import Rewritten, Step
from .shapes import ConvAxis, TransposedAxis
from .stage import Stage
from .stages import AvgPool3d, ConvTranspose3d, Mean, Multiply, Sum

Kernel: TypeAlias = tuple[int, ...]
Fold: TypeAlias = Callable[[Array], Array]


@dataclass(frozen=True)
class Folded:
    """What becomes of the convolution and the stage after it, the shape of its weights, and how they are made."""

    stages: tuple[Stage, ...]
    kernel: Kernel
    weights: Fold
    bias: float = 1.0  # factor of the bias


def fold_averages(rewritten: Rewritten, trace: Trace) -> tuple[Rewritten, Kernel | None]:
    """The pipeline with an average folded into the convolution that begins it, and the new weights' shape, if so."""
    before = rewritten.pipeline
    if before.conv_index != 0 or len(before.stages) < 2:  # what else enters the convolution, nobody has looked at
        return rewritten, None
    conv, kernel = before.conv, trace.operands[0][0]
    if not isinstance(conv, ConvTranspose3d):
        return rewritten, None
    axes = conv.axes(trace.values[0], kernel)
    for rule in RULES:
        found = rule(conv, before.stages[1], axes, kernel)
        if found is None:
            continue
        after = Pipeline(*found.stages, *before.stages[2:])

        def prepare(given: Sequence[Array], found: Folded = found) -> tuple[Array, ...]:
            return found.weights(given[0].astype(np.float64)), *(bias * found.bias for bias in given[1:])

        step = Step(rule.__name__, before, after, 0, 1 + conv.bias, prepare, tame_input=True)
        return Rewritten(after, (*rewritten.steps, step)), found.kernel
    return rewritten, None


def mean_over_taps(conv: ConvTranspose3d, after: Stage, axes: Sequence[ConvAxis], kernel: Kernel) -> Folded | None:
    """Where every tap takes every input into the output, a sum over space is the input's sum times all taps' sum."""
    if not isinstance(after, (Sum, Mean)) or after.over != "spatial":
        return None
    if any(axis.tap_range(k, 0, axis.out) != (0, axis.size) for axis in axes for k in range(axis.kernel)):
        return None
    voxels = float(prod(axis.out for axis in axes))
    single = replace(conv, stride=1, padding=0, output_padding=0, dilation=1)
    if isinstance(after, Sum) and not conv.bias:
        return Folded((Sum("spatial"), single), (*kernel[:2], 1, 1, 1), _over_taps)
    share = prod(axis.size for axis in axes) / voxels  # inputs for each output
    # A stage of its own, not part of the weights: they are kept for every size of the input.
    stages: tuple[Stage, ...] = (Mean("spatial"), *([Multiply(share)] if share != 1 else []), single)
    stages = (*stages, Multiply(voxels)) if isinstance(after, Sum) else stages
    return Folded(stages, (*kernel[:2], 1, 1, 1), _over_taps)


def _over_taps(w: Array) -> Array:
    """In the order of the taps, whatever the layout of the array."""
    total: Array = w.reshape(*w.shape[:2], -1).sum(axis=-1)
    return total.reshape(*w.shape[:2], 1, 1, 1)


def pool_into_weights(conv: ConvTranspose3d, after: Stage, axes: Sequence[ConvAxis], kernel: Kernel) -> Folded | None:
    """A mean over windows of q outputs, q a divisor of the stride, is a convolution of stride / q with summed taps."""
    if not isinstance(after, AvgPool3d) or after.ceil_mode or any(after.triples[2]):
        return None
    windows, steps, _ = after.triples
    if windows != steps or prod(windows) == 1 or any(a.stride % q for a, q in zip(axes, windows, strict=True)):
        return None
    new = [_PooledAxis(axis, q) for axis, q in zip(axes, windows, strict=True)]
    if any(axis.taps > axis.conv.kernel for axis in new):
        return None
    smaller = replace(conv, stride=1, padding=0, output_padding=0, dilation=1)
    # Past the rules for callers: any output_padding is right here, also below zero.
    for name in ("stride", "padding", "output_padding", "dilation"):
        object.__setattr__(smaller, name, tuple(getattr(axis, name) for axis in new))

    def weights(w: Array) -> Array:
        for number, axis in enumerate(new, start=2):
            summed = np.zeros((*w.shape[:number], axis.taps, *w.shape[number + 1 :]))
            np.add.at(np.moveaxis(summed, number, 0), list(axis.places), np.moveaxis(w, number, 0))
            w = summed
        return w / divisor

    divisor = after.divisor_override or prod(windows)
    return Folded((smaller,), (*kernel[:2], *(axis.taps for axis in new)), weights, prod(windows) / divisor)


@dataclass(frozen=True)
class _PooledAxis:
    """Window t holds output o if t = floor(o / q): tap k takes input i to i * stride + places[k] - padding."""

    conv: ConvAxis
    q: int

    @property
    def stride(self) -> int:
        return self.conv.stride // self.q

    @property
    def padding(self) -> int:
        return -(-self.conv.padding // self.q)

    @property
    def regular(self) -> bool:
        """Whether taps stay apart by the same distance, and none meet."""
        return self.conv.dilation % self.q == 0

    @property
    def dilation(self) -> int:
        return self.conv.dilation // self.q if self.regular else 1

    @property
    def places(self) -> tuple[int, ...]:
        """Where tap k goes among the new taps."""
        moved = [(k * self.conv.dilation - self.conv.padding) // self.q for k in range(self.conv.kernel)]
        return tuple((each + self.padding) // self.dilation for each in moved)

    @property
    def taps(self) -> int:
        return self.places[-1] + 1

    @property
    def output_padding(self) -> int:
        """What is left of the pool's outputs, or, below zero, of the convolution's."""
        return (
            self.conv.out // self.q
            - TransposedAxis(self.conv.size, self.taps, self.stride, self.padding, 0, self.dilation).out
        )


RULES = (mean_over_taps, pool_into_weights)
