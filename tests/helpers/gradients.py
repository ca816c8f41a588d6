"""Drawn gradients of weights: shapes, layouts and data, computed by drawn plans and compared with the float64 meaning.

As a program it computes them with arrays and scratch between unreadable pages; each case is printed before it runs, so
that the last line names the one that died. Arguments: first seed, number of draws.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from helpers.draws import relaid
from helpers.tilings import poisoned
from hypothesis import strategies as st

from convt3d.cpu.gradient import choose
from convt3d.cpu.gradient import plan as planning
from convt3d.cpu.gradient import run as running
from convt3d.cpu.gradient.pieces import Method, axis_pieces, can_pair
from convt3d.cpu.gradient.plan import GradientPlan
from convt3d.cpu.gradient.problem import Problem
from convt3d.cpu.gradient.registers import register_choices
from convt3d.cpu.gradient.run import run_plan, weight_gradient
from convt3d.cpu.plan.machine import machine
from convt3d.spec import gradient as meaning
from convt3d.spec.checks import Triple
from convt3d.spec.dtypes import DTYPES, DType

# Of the largest sum of magnitudes: sums run in float32 (float64 for float64), results are rounded once to storage.
TOLERANCE = {"float32": 4e-6, "float64": 1e-14, "float16": 1e-3, "bfloat16": 8e-3}
WIDTHS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 33)  # around whole vectors of every instruction set


@dataclass(frozen=True, repr=False)
class Draw:
    small: Any  # stored, any strides
    large: Any
    kernel: Triple
    stride: Triple
    padding: Triple
    dilation: Triple
    groups: int
    dtype: DType

    def __repr__(self) -> str:
        layouts = [f"{array.shape} strides {array.strides}" for array in (self.small, self.large)]
        words = f"kernel {self.kernel} stride {self.stride} padding {self.padding} dilation {self.dilation}"
        return f"{self.dtype.name} small {layouts[0]} large {layouts[1]} {words} groups {self.groups}"

    @property
    def geometry(self) -> tuple[Any, ...]:
        return self.kernel, self.stride, self.padding, self.dilation, self.groups

    @property
    def problem(self) -> Problem:
        return Problem(self.small.shape, self.large.shape, *self.geometry, self.dtype)

    @property
    def result(self) -> tuple[int, ...]:
        return (self.small.shape[1], self.large.shape[1] // self.groups, *self.kernel)

    def empty(self) -> Any:
        """An array for the result, full of NaN."""
        out = np.empty(self.result, self.dtype.storage)
        out[...] = self.dtype.narrow(np.array(np.nan))
        return out

    def run(self, algorithm: str = "auto", out: Any = None) -> Any:
        out = self.empty() if out is None else out
        weight_gradient(self.small, self.large, *self.geometry, self.dtype, out, algorithm)
        return out

    def expected(self) -> Any:
        return meaning.weight_gradient(*map(self.dtype.widen, (self.small, self.large)), *self.geometry)

    def magnitude(self) -> Any:
        """The sum of the magnitudes of all terms, which errors are relative to."""
        sizes = (np.abs(np.nan_to_num(self.dtype.widen(array))) for array in (self.small, self.large))
        return meaning.weight_gradient(*sizes, *self.geometry)

    def check(self, got: Any, note: str = "", whole: bool = True) -> None:
        """`whole`: an error is relative to the largest sum, not to its own."""
        wide, truth = self.dtype.widen(got), self.expected()
        rounded = self.dtype.widen(self.dtype.narrow(truth))
        finite = np.isfinite(rounded)
        same = np.where(np.isnan(rounded), np.isnan(wide), wide == rounded)
        assert (same | finite).all(), f"{note}{self!r}: NaN or infinity differ at {np.argwhere(~(same | finite))[:3]}"
        scale = self.magnitude()
        scale = np.maximum(scale.max() if whole else scale, 1e-30)
        with np.errstate(all="ignore"):
            error = np.where(finite, np.abs(wide - truth) / scale, 0.0)
        worst = float(np.nanmax(error, initial=0.0))
        assert not np.isnan(wide[finite]).any(), f"{note}{self!r}: NaN"
        assert worst <= TOLERANCE[self.dtype.name], f"{note}{self!r}: error {worst:.3g}"


@dataclass(frozen=True)
class Geometry:
    """A layer's sizes; `channels` are those of a group, of input and output."""

    batch: int
    channels: tuple[int, int]
    sizes: Triple
    kernel: Triple
    stride: Triple
    padding: Triple
    dilation: Triple
    groups: int
    seed: int

    @property
    def out_of_transposed(self) -> list[int]:
        own = zip(self.sizes, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return [(size - 1) * s - 2 * p + d * (k - 1) + 1 for size, k, s, p, d in own]

    @property
    def out_of_convolution(self) -> list[int]:
        own = zip(self.sizes, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in own]


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    def triple(low: int, high: int) -> Triple:
        return tuple(draw(st.integers(low, high)) for _ in range(3))  # type: ignore[return-value]

    channels = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    kernel, stride, padding, dilation = triple(1, 4), triple(1, 3), triple(0, 3), triple(1, 3)
    groups, seed = draw(st.sampled_from([1, 1, 2, 3])), draw(st.integers(0, 2**32 - 1))
    return Geometry(draw(st.integers(1, 2)), channels, triple(1, 7), kernel, stride, padding, dilation, groups, seed)


def _triple(rng: np.random.Generator, low: int, high: int) -> Triple:
    d, h, w = (int(v) for v in rng.integers(low, high, 3))
    return d, h, w


def drawn(rng: np.random.Generator, dtype: str, laid: bool = True) -> Draw:
    """Unequal, prime and size-1 axes, kernels below strides, paddings beyond kernels, groups, any strides in memory."""
    kind = DTYPES[dtype]
    groups = int(rng.choice([1, 1, 1, 2, 3, 8]))
    most = 40 if groups == 1 else 5
    channels = [groups * int(rng.choice([1, 2, 3, rng.integers(1, most)])) for _ in range(2)]
    kernel, stride, padding, dilation = (_triple(rng, *ends) for ends in ((1, 5), (1, 4), (0, 4), (1, 3)))
    if rng.integers(2):
        stride, dilation = (1, 1, 1), (1, 1, 1)
    sizes = list(_triple(rng, 1, 8))
    if rng.integers(3) == 0:
        sizes[2] = int(rng.choice(WIDTHS))
    large = []
    for size, k, s, p, d in zip(sizes, kernel, stride, padding, dilation, strict=True):
        exact = (size - 1) * s - 2 * p + d * (k - 1) + 1
        large.append(max(1, exact + int(rng.integers(0, max(s, d)))))
    batch = int(rng.integers(1, 4))
    arrays = []
    for shape in ((batch, channels[0], *sizes), (batch, channels[1], *large)):
        stored = kind.narrow(rng.standard_normal(shape))
        arrays.append(relaid(rng, stored) if laid else stored)
    return Draw(arrays[0], arrays[1], kernel, stride, padding, dilation, groups, kind)


def drawn_plan(rng: np.random.Generator, problem: Problem) -> GradientPlan:
    """Any algorithm, registers, tile, parts and chunks, not the cheapest."""
    host = machine()
    pairs = [can_pair(axis) and bool(rng.integers(4)) for axis in problem.axes]
    method = None
    if any(pairs) and rng.integers(2):
        d, h, w = (axis_pieces(axis, pair) for axis, pair in zip(problem.axes, pairs, strict=True))
        method = Method((d, h, w), int(rng.choice([-1, 1])))
    choices = register_choices(problem, host, method is None, method is not None)
    registers = choices[rng.integers(len(choices))]
    plan = GradientPlan(problem, host, registers, method, (1, 1, 1, 1), problem.kernel, 1, 1, 1)
    sizes = (problem.small[0], *problem.small[2:])
    b, d, h, w = (int(rng.integers(1, size + 1)) for size in sizes)
    if method is not None:
        d, h, w = (size + size % 2 for size in (d, h, w))
    taps = problem.kernel
    if method is None and rng.integers(2):
        cut = int(rng.integers(3))
        taps = tuple(
            1 if at < cut else size if at > cut else int(rng.integers(1, size + 1)) for at, size in enumerate(taps)
        )
    numbers = plan.all_number_blocks if registers.by_group else int(rng.integers(1, plan.all_number_blocks + 1))
    vectors = int(rng.integers(1, plan.all_vector_blocks + 1))
    plan = replace(plan, tile=(b, d, h, w), taps=taps, number_blocks=numbers, vector_blocks=vectors)
    return replace(plan, chunks=int(rng.integers(1, min(plan.tiles, 5) + 1)))


@contextmanager
def short_chains() -> Iterator[None]:
    """Plans made inside sum few positions at a time, and few tiles before they hand their sums on. Scratch memory is
    poisoned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "POSITIONS", 6)
        patch.setattr(planning, "WINDOW", 3)
        patch.setattr(choose, "POSITIONS", 6)
        patch.setattr(choose, "WINDOW", 3)
        patch.setattr(running, "shared_scratch", poisoned)
        choose.make_gradient_plan.cache_clear()
        try:
            yield
        finally:
            choose.make_gradient_plan.cache_clear()


def check_drawn_plans(rng: np.random.Generator, draw: Draw, count: int, note: str = "") -> None:
    with short_chains():
        for _ in range(count):
            plan = drawn_plan(rng, draw.problem)
            out = draw.empty()
            assert run_plan(plan, draw.small, draw.large, out), plan
            draw.check(out, f"{note}{plan.structure.name} {plan.tile} {plan.taps}, ")


def main(first: int, count: int) -> None:
    from helpers.guard import fenced_like, fenced_scratch, untouched_gaps

    types = tuple(DTYPES)
    for seed in range(first, first + count):
        rng, fences = np.random.default_rng(seed), []
        draw = drawn(rng, types[seed % 4])
        at_end = bool(rng.integers(3))  # reading too far is the likelier mistake
        print(f"seed {seed}, {'end' if at_end else 'begin'}: {draw!r}", flush=True)
        with fenced_scratch(at_end, fences):
            small, large = (fenced_like(array, at_end, fences) for array in (draw.small, draw.large))
            draw = replace(draw, small=small, large=large)
            out = fenced_like(relaid(rng, draw.empty()), at_end, fences)
            fence = fences[-1]
            draw.check(draw.run(out=out), f"seed {seed}: ")
            assert untouched_gaps(out, fence), "bytes between the elements of out were written"
            check_drawn_plans(rng, draw, 2, f"seed {seed}: ")
        for one in fences:
            one.free()
    print("all inside", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
