"""Runs one case and says what is wrong with it: beside the meaning, PyTorch, other numbers of threads, in its memory.

As a program it takes the text of a case: `python -m soak.check "Draw(...)"`; exit code 1 is a failure, 3 no sense.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from helpers.guard import Fence, fenced_scratch, untouched_gaps
from helpers.tilings import drawn_tiles, streamed
from soak.draw import MOST_WORK, Draw, read
from soak.undetermined import undetermined

import convt3d as ct
from convt3d.judge.tolerance import Expectation, expectation
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.rewrite import round_scalars, with_all_axes

FAILED, NO_SENSE = 1, 3


class Failed(AssertionError):  # noqa: N818
    """What went wrong: its first word tells the kind, which reducing keeps."""


def check(draw: Draw) -> None:
    """Raises Failed."""
    fences: list[Fence] = []
    try:
        with fenced_scratch(draw.at_end, fences), np.errstate(all="ignore"):
            _check(draw, fences)
    finally:
        for fence in fences:
            fence.free()


def _check(draw: Draw, fences: list[Fence]) -> None:
    pipeline, kind = draw.asked(), draw.kind
    x, operands, out = draw.arrays(fences)
    out_fence = fences[-1]
    wide = [kind.widen(array) for array in (x, *operands)]
    before = [array.tobytes() for array in (x, *operands)]
    given = [_public(array, draw) for array in (x, *operands, out.squeeze(pipeline.dropped))]
    results = []
    with drawn_tiles(draw.tiles) if draw.tiles is not None else nullcontext(), streamed(draw.streamed):
        for threads in (draw.threads, 1 + draw.threads % 3):
            out_fence.bytes[...] = 0xFF  # NaN: what is not written shows
            with ct.num_threads(threads):
                try:
                    pipeline(given[0], *given[1:-1], out=given[-1], algorithm=draw.algorithm)
                except Exception as problem:
                    raise Failed(f"{type(problem).__name__}: {problem}") from problem
            results.append(out.copy())
    if not untouched_gaps(out, out_fence):
        raise Failed("memory: bytes between the elements of the result were written")
    if [array.tobytes() for array in (x, *operands)] != before:
        raise Failed("memory: an input was written")
    found = expectation(with_all_axes(pipeline), kind, wide[0], wide[1:], np.random.default_rng(draw.seed))
    if kind.accumulate == "float64" and _may_overflow(wide):
        found = replace(found, tolerance=np.where(np.isfinite(found.values), found.tolerance, np.inf))
    got = kind.widen(results[0])
    if not found.accepts(got):
        unknown = undetermined(with_all_axes(pipeline), kind, wide[0], wide[1:], np.random.default_rng(draw.seed))
        found = replace(found, tolerance=np.where(unknown, np.inf, found.tolerance))
    _compare("meaning", found, got)
    if results[0].tobytes() != results[1].tobytes() and not _same_numbers(draw, *results):
        raise Failed(f"threads: {draw.threads} and {1 + draw.threads % 3} give other bits")
    if all(np.isfinite(array).all() for array in wide) and not _cancels(draw, operands):
        # PyTorch takes gelu(-9) as 1 + erf(...), and errs by a share of 1: of the scale, that is nothing.
        scale = max(1.0, float(np.abs(found.values[np.isfinite(found.values)]).max(initial=0.0)))
        found = replace(found, tolerance=found.tolerance + scale * 2.0**-40)
        stock = _by_torch(draw, wide)
        if not found.accepts(stock):
            found = replace(found, tolerance=np.where(_unsure(draw, wide, scale * 2.0**-20), np.inf, found.tolerance))
        _compare("pytorch", found, stock)


def _public(array: Any, draw: Draw) -> Any:
    """Storage as a caller has it."""
    if draw.dtype != "bfloat16":
        return array
    import ml_dtypes

    return array.view(ml_dtypes.bfloat16)


def _same_numbers(draw: Draw, one: Any, other: Any) -> bool:
    """All NaN are equal."""
    nan = [np.isnan(draw.kind.widen(array)) for array in (one, other)]
    return bool((nan[0] == nan[1]).all()) and one[~nan[0]].tobytes() == other[~nan[1]].tobytes()


def _may_overflow(wide: list[Any]) -> bool:
    """Whether products of finite float64 numbers may be beyond them. The meaning has no larger type to compute in, and
    infinity - infinity is NaN there, but not where a fused multiply-add takes the second product as it is."""
    largest = [float(np.abs(array[np.isfinite(array)]).max(initial=1.0)) for array in wide]
    return sum(map(np.log2, largest)) > 400.0  # a norm takes the square of that


def _unsure(draw: Draw, wide: list[Any], most: float) -> Any:
    """Voxels where float64, in which PyTorch and the meaning are compared, may itself be off by more than so much: both
    are right there, and neither says anything about the other. 1 + 1e15 less the mean of such numbers is one."""
    pipeline, rng = with_all_axes(round_scalars(draw.asked(), draw.kind)), np.random.default_rng(draw.seed)
    return expectation(pipeline, DTYPES["float64"], wide[0], wide[1:], rng).tolerance > most


def _cancels(draw: Draw, operands: tuple[Any, ...]) -> bool:
    """Whether a norm reads one number for each of its groups: zero, but what PyTorch's x * s + (bias - mean * s) leaves
    is a rounding error."""
    pipeline = draw.asked()
    values = pipeline.trace(draw.x, [array.shape for array in operands]).values
    norms = [at for at, stage in enumerate(pipeline.stages) if isinstance(stage, (ct.InstanceNorm, ct.GroupNorm))]
    return any(prod(values[at][2:]) == 1 for at in norms)


def _by_torch(draw: Draw, wide: list[Any]) -> Any:
    import torch

    from convt3d.torch import stock

    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in wide]
    pipeline = with_all_axes(round_scalars(draw.asked(), draw.kind))
    result = stock.run(pipeline, tensors[0], tensors[1:]).numpy()
    return draw.kind.widen(draw.kind.narrow(result))  # 1e6 is no float16


def _compare(beside: str, found: Expectation, got: Any) -> None:
    errors = found.errors(got)
    if (errors <= 1.0).all():
        return
    at = np.unravel_index(int(errors.argmax()), errors.shape)
    place, wrong = tuple(map(int, at)), int((errors > 1.0).sum())
    worst = f"worst {errors[at]:.3g} times the tolerance {found.tolerance[at]:.3g}"
    values = f"got {float(got[at])!r}, expected {float(found.values[at])!r}"
    raise Failed(f"{beside}: {wrong} of {errors.size} voxels, {worst} at {place}: {values}")


def main(text: str) -> int:
    draw = read(text)
    try:
        if draw.work() > 4 * MOST_WORK:
            return NO_SENSE
        check(draw)
    except Failed as problem:
        print(problem)
        return FAILED
    except ct.Error:
        return NO_SENSE
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    os._exit(code)  # fences of arrays that live on must not be freed twice
