"""What an output of a network depends on, found by trying: NaN spreads to all that depends on it.

Along one axis, a cut of the input is in step with the whole where it begins a multiple of `step` from its beginning and
ends a multiple of it from its end. Of the cut's outputs, those that no NaN in the missing part would reach are those of
the whole; near the cut they are not, for `left` and `right` outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, prod
from typing import Any

import torch
from torch import nn

from ..errors import ArgumentError, ShapeError, described

STEPS = (1, 2, 4, 8, 16, 32, 64, 3, 6, 12, 24, 48, 5, 10, 20, 40, 7, 9, 27)
SMALLEST = (8, 16, 32, 64, 128)  # sizes that a network may need at least
LONGEST = 512  # inputs along an axis that are tried
NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.GroupNorm, nn.LayerNorm)
POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool3d)
Call = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Field:
    """Of one axis."""

    step: int  # inputs
    ratio: Fraction  # outputs for each input
    left: int  # outputs behind the beginning of a cut that are not those of the whole
    right: int  # the same at its end, and those that are missing there because the network pads too little

    def outputs(self, inputs: int) -> int:
        return int(inputs * self.ratio)

    def inputs(self, outputs: int) -> int:
        """Whole steps that have at least so many outputs."""
        return int(-(-outputs // (self.ratio * self.step))) * self.step


def fields(model: Any, call: Call, channels: int, dtype: torch.dtype) -> tuple[Field, ...]:
    """Of depth, height and width; an error where an output depends on all of space."""
    base = _smallest(call, channels, dtype)
    return tuple(_along(model, call, channels, dtype, base, axis) for axis in range(3))


def _smallest(call: Call, channels: int, dtype: torch.dtype) -> int:
    problem: Exception | None = None
    for size in SMALLEST:
        try:
            if call(torch.zeros(1, channels, size, size, size, dtype=dtype)).dim() == 5:
                return size
        except Exception as error:  # whatever a network says of an input that is too small
            problem = error
    rule = f"must take (1, {channels}, D, H, W) and give (1, C, D, H, W) ({problem})"
    raise ShapeError("tiled", "model", described(type(call).__name__), rule, "Wrap it in a module that does")


def _along(model: Any, call: Call, channels: int, dtype: torch.dtype, base: int, axis: int) -> Field:
    length = 2 * base
    while length <= LONGEST:
        ends = _random(channels, dtype, base, axis, length)
        far = all(_clean(call, ends, 2 + axis, start, 1) for start in (0, length - 1))
        for step in dict.fromkeys((*_likely(model), *STEPS)) if far else ():
            try:
                found = _try(call, channels, dtype, base, axis, length, step) if 2 * step < length else None
            except RuntimeError:  # sizes that the network does not take: it has another step
                continue
            if found is not None:
                return found
        length *= 2
    raise _refused(model, LONGEST)


def _random(channels: int, dtype: torch.dtype, base: int, axis: int, length: int) -> torch.Tensor:
    sizes = [base] * 3
    sizes[axis] = length
    return torch.randn(1, channels, *sizes, generator=torch.Generator().manual_seed(axis)).to(dtype)


def _likely(model: Any) -> list[int]:
    """Divisors of the product of all strides."""
    strides = [getattr(each, "stride", 1) for each in model.modules()]
    longest = [max(each) if isinstance(each, tuple) else each for each in strides if isinstance(each, (int, tuple))]
    product = prod(longest)
    return [step for step in range(1, LONGEST // 4) if product % step == 0]


def _try(call: Call, channels: int, dtype: torch.dtype, base: int, axis: int, length: int, step: int) -> Field | None:
    """The field, if cuts of that step are in step, and some outputs are far enough from them."""
    along = 2 + axis
    whole = _random(channels, dtype, base, axis, length + step)
    y = call(whole)
    after = call(whole.narrow(along, step, length))
    moved = y.shape[along] - after.shape[along]
    if moved <= 0:
        return None
    before = call(whole.narrow(along, 0, length))
    first = _clean(call, whole, along, 0, step)
    last = _clean(call, whole, along, length, step)
    if first is None or last is None or first[0] < moved:
        return None
    if not _same(y.narrow(along, first[0], first[1]), after.narrow(along, first[0] - moved, first[1])):
        return None
    if last[0] + last[1] > before.shape[along] or not _same(
        y.narrow(along, last[0], last[1]), before.narrow(along, last[0], last[1])
    ):
        return None
    ratio = Fraction(moved, step)
    found = Field(step, ratio, first[0] - moved, max(0, ceil(length * ratio) - last[0] - last[1]))
    return (
        found
        if _anywhere(call, found, _random(channels, dtype, base, axis, 2 * length // step * step), along)
        else None
    )


def _anywhere(call: Call, field: Field, whole: torch.Tensor, along: int) -> bool:
    """Whether halves of an input have the outputs of the whole, but for the field: a network that knows where a voxel
    is, from coordinates for one, gives others, by more than one step would show."""
    length = whole.shape[along]
    half = length // 2 // field.step * field.step
    y, moved = call(whole), field.outputs(half)
    after = call(whole.narrow(along, half, length - half)).narrow
    before = call(whole.narrow(along, 0, half)).narrow
    behind = y.shape[along] - moved - field.left
    good = ceil(half * field.ratio) - field.right
    same = behind <= 0 or _same(y.narrow(along, moved + field.left, behind), after(along, field.left, behind))
    return same and (good <= 0 or _same(y.narrow(along, 0, good), before(along, 0, good)))


def _clean(call: Call, whole: torch.Tensor, along: int, start: int, count: int) -> tuple[int, int] | None:
    """Outputs that NaN in the first inputs, or in the last, do not reach: behind the last that they do, or before the
    first. First and count; None where there are none."""
    spoiled = whole.clone()
    spoiled.narrow(along, start, count).fill_(float("nan"))
    found = call(spoiled).isnan().movedim(along, 0).flatten(1).any(dim=1)
    reached = torch.nonzero(found)
    if not len(reached):
        return 0, len(found)
    first, end = (int(reached[-1]) + 1, len(found)) if start == 0 else (0, int(reached[0]))
    return (first, end - first) if first < end else None


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Up to a few roundings of their type: out of step, they differ by their own size."""
    if a.shape != b.shape:
        return False
    scale = float(a.abs().max()) or 1.0
    rounding = torch.finfo(a.dtype).eps if a.is_floating_point() else 0.0
    return float((a - b).abs().max()) <= max(1e-3, 2.5 * rounding) * scale


def over_space(model: Any) -> list[str]:
    """Modules that have statistics over space, by name."""
    named = model.named_modules() if isinstance(model, nn.Module) else ()
    return [f"{name or 'model'} ({type(each).__name__})" for name, each in named if isinstance(each, (*NORMS, *POOLS))]


def _refused(model: Any, length: int) -> ArgumentError:
    found = over_space(model)
    cause = f": {', '.join(found[:3])}{', ...' if found[3:] else ''}" if found else ""
    received = described(type(model).__name__)
    rule = f"has outputs that depend on all of space, on more than {length} voxels, or on where they are{cause}"
    remedy = (
        'Write statistics="tile" to have norms take their statistics of each tile, which changes the result'
        if any(isinstance(each, NORMS) for each in model.modules())
        else "Compute it at once, or cut it in front of that layer"
    )
    return ArgumentError("tiled", "model", received, rule, remedy)


@contextmanager
def without_norms(model: nn.Module) -> Iterator[None]:
    """Norms with statistics over space let everything through."""
    hooks = [
        module.register_forward_hook(lambda module, given, made: given[0])
        for module in model.modules()
        if isinstance(module, NORMS)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
