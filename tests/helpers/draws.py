"""Drawn pipelines with data in their stored type, run by the engine and compared with the float64 meaning."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import convt3d as ct
from convt3d.cpu.plan.sequence import make_sequence
from convt3d.cpu.runtime.execute import execute
from convt3d.cpu.runtime.sequence import execute_sequence
from convt3d.errors import Error
from convt3d.spec.dtypes import DTYPES, DType
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.reference import evaluate
from convt3d.spec.rewrite import round_scalars, with_all_axes
from convt3d.spec.stage import Stage

# Of the largest value of the result. Sums run in float32 (float64 for float64); results are rounded once to storage.
TOLERANCE = {"float32": 1e-4, "float64": 1e-11, "float16": 2e-3, "bfloat16": 1.2e-2}
AWKWARD_WIDTHS = (1, 3, 7, 8, 15, 16, 17, 31, 32, 33)  # around whole vectors of every instruction set


@dataclass(frozen=True, repr=False)
class Case:
    pipeline: Pipeline
    dtype: DType
    x: Any  # stored, any strides
    operands: tuple[Any, ...]

    def __repr__(self) -> str:
        shapes = [array.shape for array in self.operands]
        return f"{self.pipeline!r} on {self.dtype.name} x {self.x.shape} strides {self.x.strides}, operands {shapes}"

    @property
    def output(self) -> tuple[int, ...]:
        return self.pipeline.trace(self.x.shape, [array.shape for array in self.operands]).output

    def run(self, out: Any = None) -> Any:
        """The engine's result; a voxel it does not write stays NaN."""
        if out is None:
            out = np.empty(self.output, self.dtype.storage)
        out[...] = self.dtype.narrow(np.array(np.nan))
        if len(self.pipeline.convolutions) == 1:
            execute(self.pipeline, self.dtype, self.x, self.operands, out)
        else:
            shapes = tuple(array.shape for array in self.operands)
            sequence = make_sequence(self.pipeline, self.x.shape, shapes, self.dtype)
            execute_sequence(sequence, self.x, self.operands, out)
        return out

    def expected(self) -> Any:
        operands = [self.dtype.widen(array) for array in self.operands]
        found = evaluate(round_scalars(self.pipeline, self.dtype), self.dtype.widen(self.x), operands)
        return found.reshape(self.output)  # the engine writes all axes; who calls it drops some

    def wobbled(self, seed: int) -> Any:
        """The meaning with an error of some ulp in every value on the way: how well the answer is determined at all."""
        rng, eps = np.random.default_rng(seed), 2.0**-22 if self.dtype.accumulate == "float32" else 2.0**-51
        if len(self.pipeline.convolutions) > 1:  # values between segments are stored
            eps = max(eps, self.dtype.eps)
        trace = self.pipeline.trace(self.x.shape, [array.shape for array in self.operands])
        stages, operands = [], []
        for index, stage in enumerate(with_all_axes(round_scalars(self.pipeline, self.dtype)).stages):
            slots = zip(self.pipeline.slots, self.operands, strict=True)
            operands += [self.dtype.widen(array) for slot, array in slots if slot.stage == index]
            stages.append(stage)
            if not isinstance(stage, ct.Keep):  # a Recall may follow
                operands.append(1.0 + eps * rng.uniform(-1.0, 1.0, trace.values[index + 1]))
                stages.append(ct.Multiply("tensor"))
        return evaluate(Pipeline(*stages), self.dtype.widen(self.x), operands)

    def check(self, out: Any = None, note: str = "") -> None:
        got, truth = self.dtype.widen(self.run(out)), self.expected()
        assert got.shape == truth.shape
        with np.errstate(all="ignore"):
            rounded = self.dtype.widen(self.dtype.narrow(truth))
            finite = np.isfinite(rounded)
            odd = (np.isnan(got) != np.isnan(rounded)) | (~finite & ~np.isnan(rounded) & (got != rounded))
            scale = max(1.0, float(np.abs(rounded[finite]).max(initial=0.0)))
            error = float(np.abs(got - rounded)[finite].max(initial=0.0)) / scale
        assert not odd.any(), f"{note}{self!r}: NaN or infinity differ at {np.argwhere(odd)[:3].tolist()}"
        if not error <= TOLERANCE[self.dtype.name]:  # ill-conditioned, such as a norm of nearly equal values?
            moved = max(float(np.nanmax(np.abs(self.wobbled(seed) - truth)[finite], initial=0.0)) for seed in range(3))
            allowed = TOLERANCE[self.dtype.name] + 4 * moved / scale
            assert error <= allowed, f"{note}{self!r}: error {error:.3g} of scale {scale:.3g}, allowed {allowed:.3g}"


def make(
    pipeline: Pipeline,
    x: tuple[int, ...],
    kernel: tuple[int, ...],
    dtype: str = "float32",
    seed: int = 0,
    more: Sequence[tuple[int, ...]] = (),
) -> Case:
    """A case with normal data: weights scaled to keep sums near 1, variances and divisors away from zero. `more` are
    kernels of further convolutions."""
    rng, kind = np.random.default_rng(seed), DTYPES[dtype]
    operands = []
    for slot, shape in zip(pipeline.slots, pipeline.operand_shapes(x, kernel, *more), strict=True):
        values = rng.standard_normal(shape)
        if slot.operand.kind == "kernel":
            values /= np.sqrt(shape[0] * 8)
        if slot.operand.role == "running_var" or isinstance(pipeline.stages[slot.stage], ct.Divide):
            values = np.abs(values) + 0.5
        operands.append(kind.narrow(values))
    return Case(pipeline, kind, kind.narrow(rng.standard_normal(x)), tuple(operands))


def relaid(rng: np.random.Generator, array: Any) -> Any:
    """The same values in other memory: axes swapped, reversed, or with gaps between elements."""
    how = rng.integers(5)
    if how == 0:
        return array
    if how == 1:
        order = rng.permutation(array.ndim)
        return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))
    steps = tuple(int(rng.integers(1, 3)) for _ in array.shape)
    room = np.zeros([size * step + 1 for size, step in zip(array.shape, steps, strict=True)], array.dtype)
    view = room[tuple(slice(0, size * step, step) for size, step in zip(array.shape, steps, strict=True))]
    if how >= 3:
        view = view[:, :, ::-1, :, ::-1]
    view[...] = array
    return view


def drawn(rng: np.random.Generator, dtype: str, transposed: bool = False) -> Case:
    """A random pipeline that can be planned, with stages on both sides of the convolution and odd sizes; `transposed`:
    with a transposed convolution."""
    while True:
        try:
            return _try(rng, dtype, transposed)
        except Error:  # stages and sizes that do not fit together
            continue


def _try(rng: np.random.Generator, dtype: str, transposed: bool) -> Case:
    pipeline, x, kernel = geometry(rng, transposed)
    case = make(pipeline, x, kernel, dtype, int(rng.integers(2**31)))
    operands = tuple(
        relaid(rng, thinned(rng, array)) if slot.operand.kind == "tensor" else array
        for slot, array in zip(pipeline.slots, case.operands, strict=True)
    )
    found = Case(pipeline, case.dtype, relaid(rng, case.x), operands)
    if np.prod(found.output) > 400_000:
        raise ct.ArgumentError("drawn", "output", found.output, "is too large for a quick test", "Draw again")
    return found


def geometry(rng: np.random.Generator, transposed: bool = False) -> tuple[Pipeline, tuple[int, ...], tuple[int, ...]]:
    """A pipeline, the shape of x and that of the kernel; they may not fit together."""
    own = _beside(rng)
    found = _transposed_geometry(rng)
    return found if transposed or own.integers(2) else _turned(own, *found)


def _beside(rng: np.random.Generator) -> np.random.Generator:
    """Another stream, which follows from where this one stands and leaves it there."""
    state = hashlib.sha256(repr(rng.bit_generator.state).encode()).digest()
    return np.random.default_rng(list(state))


def _turned(rng: np.random.Generator, pipeline: Pipeline, x: Any, kernel: Any) -> Any:
    """The same with a convolution that is not transposed."""
    old, (cin, per_out, *taps) = pipeline.conv, kernel
    assert isinstance(old, ct.ConvTranspose3d)
    plain = old.stride == (1, 1, 1)
    padding = ("same" if plain else "valid") if rng.integers(5) == 0 else _triple(rng, 0, 4)
    mode = str(rng.choice(["zeros"] * 3 + ["reflect", "replicate", "circular"]))
    conv = ct.Conv3d(
        stride=old.stride,
        padding=padding,
        groups=old.groups,
        dilation=old.dilation,
        bias=old.bias,
        padding_mode=mode,
    )
    stages = [conv if stage is old else stage for stage in pipeline.stages]
    weight = (per_out * old.groups, max(1, cin // old.groups), *taps)
    larger = tuple(int(size) + int(rng.integers(0, 5)) for size in x[2:])
    return Pipeline(*stages), (*x[:2], *larger), weight


def _transposed_geometry(rng: np.random.Generator) -> tuple[Pipeline, tuple[int, ...], tuple[int, ...]]:
    stride, dilation = _triple(rng, 1, 4), _triple(rng, 1, 3)
    extra = tuple(int(rng.integers(0, max(s, d))) for s, d in zip(stride, dilation, strict=True))
    groups = int(rng.choice([1, 1, 2, 3]))
    conv = ct.ConvTranspose3d(
        stride=stride,
        padding=_triple(rng, 0, 3),
        output_padding=extra,
        groups=groups,
        dilation=dilation,
        bias=bool(rng.integers(2)),
    )
    before = [_stage(rng) for _ in range(rng.integers(0, 3))]
    after = [_stage(rng) for _ in range(rng.integers(0, 5))]
    stages: list[Stage] = [*before, conv, *after]
    if rng.integers(8) == 0:  # averages that become part of the weights
        average = (ct.AvgPool3d(stride), ct.Mean("spatial"), ct.Sum("spatial"))[rng.integers(3)]
        stages = [conv, average, *after]
    for label in ("a", "b")[: rng.choice([0, 0, 0, 1, 1, 2])]:
        at = int(rng.integers(0, len(stages) + 1))
        stages.insert(at, ct.Keep(label))
        use = (ct.Add, ct.Multiply, ct.Subtract, lambda kept: ct.Subtract(kept, reverse=True))[rng.integers(4)]
        more = [use(label)]
        if rng.integers(3) == 0:  # back to it, and on another way
            more = [ct.Keep(f"{label}2"), ct.Recall(label), ct.Sigmoid(), use(f"{label}2")]
        place = int(rng.integers(at + 1, len(stages) + 1))
        stages[place:place] = more
    if rng.integers(8) == 0:
        stages.append(ct.Add("x"))
    if rng.integers(6) == 0:
        over = ("channels", "spatial", "depth", "height", "width")[rng.integers(5)]
        stages += [_REDUCTIONS[rng.integers(4)](over, keepdim=False), ct.Tanh()]
    pipeline = Pipeline(*stages)
    sizes = [int(size) for size in rng.integers(1, 8, 3)]
    if rng.integers(4) == 0:
        sizes[2] = int(rng.choice(AWKWARD_WIDTHS))
    channels = groups * int(rng.integers(1, 4))
    collapsed = any(isinstance(s, _REDUCTIONS) and s.over == "channels" for s in before)
    kernel = (1 if collapsed else channels, int(rng.integers(1, 8)), *_triple(rng, 1, 5))
    return pipeline, (int(rng.integers(1, 3)), channels, *sizes), kernel


def several(rng: np.random.Generator, dtype: str = "float32") -> Case:
    """A case of two or three convolutions, with values that go from one to another by their names."""
    while True:
        try:
            pipeline, x, kernels = several_geometry(rng)
            found = make(pipeline, x, kernels[0], dtype, int(rng.integers(2**31)), kernels[1:])
            if np.prod(found.output) <= 40_000:
                return Case(pipeline, found.dtype, relaid(rng, found.x), found.operands)
        except Error:  # stages and sizes that do not fit together
            continue


def several_geometry(rng: np.random.Generator) -> tuple[Pipeline, tuple[int, ...], list[tuple[int, ...]]]:
    pipeline, x, kernel = geometry(rng)
    stages, kernels = list(pipeline.stages), [kernel]
    for _ in range(int(rng.integers(1, 3))):
        now = Pipeline(*stages)
        channels, leaving = now.trace(x, now.operand_shapes(x, *kernels)).output[1], int(rng.integers(1, 6))
        taps, transposed = _triple(rng, 1, 4), bool(rng.integers(2))
        kernels.append((channels, leaving, *taps) if transposed else (leaving, channels, *taps))
        kind = ct.ConvTranspose3d if transposed else ct.Conv3d
        stages.append(kind(stride=_triple(rng, 1, 3), padding=_triple(rng, 0, 2), bias=bool(rng.integers(2))))
        stages += [_stage(rng) for _ in range(rng.integers(0, 3))]
    for label in ("p", "q", "r")[: rng.integers(0, 4)]:
        at = int(rng.integers(0, len(stages)))
        stages.insert(at, ct.Keep(label))
        use = (ct.Add, ct.Multiply, ct.Subtract, lambda kept: ct.Subtract(kept, reverse=True))[rng.integers(4)]
        more = [use(label)]
        if rng.integers(3) == 0:
            more = [ct.Keep(f"{label}2"), ct.Recall(label), ct.Sigmoid(), use(f"{label}2")]
        place = int(rng.integers(at + 1, len(stages) + 1))
        stages[place:place] = more
    made = Pipeline(*stages)
    made.operand_shapes(x, *kernels)
    return made, x, kernels


def thinned(rng: np.random.Generator, array: Any) -> Any:
    """A tensor may have size 1 where the value is larger: it is repeated there."""
    return array[tuple(slice(0, 1) if rng.integers(4) == 0 else slice(None) for _ in array.shape)]


def _triple(rng: np.random.Generator, low: int, high: int) -> tuple[int, int, int]:
    a, b, c = (int(v) for v in rng.integers(low, high, 3))
    return a, b, c


_REDUCTIONS = (ct.Sum, ct.Mean, ct.Max, ct.LogSumExp)


def _stage(rng: np.random.Generator) -> Stage:
    coin = bool(rng.integers(2))
    over = "channels" if coin else "spatial"
    options = [
        lambda: ct.MaxPool3d(_triple(rng, 1, 4), _triple(rng, 1, 4)),
        lambda: ct.MaxPool3d((2, 3, 3), (1, 2, 3), (1, 1, 0), ceil_mode=True),
        lambda: ct.MaxPool3d(2),
        lambda: ct.AvgPool3d(_triple(rng, 1, 3)),
        lambda: ct.AvgPool3d(3, 2, 1, ceil_mode=True, count_include_pad=coin),
        lambda: ct.LayerNorm(affine=coin),
        lambda: ct.LayerNorm("width", affine=coin),
        lambda: ct.Softmax(over),
        lambda: _REDUCTIONS[rng.integers(4)](over),
        lambda: _REDUCTIONS[rng.integers(4)](("depth", "height", "width")[rng.integers(3)]),
        lambda: ct.BatchNorm(affine=coin),
        lambda: ct.GroupNorm(1, affine=coin),
        lambda: ct.InstanceNorm(affine=coin),
        lambda: (ct.Add, ct.Subtract, ct.Multiply, ct.Divide)[rng.integers(4)](0.5),
        lambda: ct.Subtract((0.5, "channel", "tensor")[rng.integers(3)], reverse=True),
        lambda: (ct.Add, ct.Subtract, ct.Multiply, ct.Divide)[rng.integers(4)]("channel"),
        lambda: (ct.Add, ct.Subtract, ct.Multiply, ct.Divide)[rng.integers(4)]("tensor"),
        lambda: ct.Clamp(-1.0, 1.5) if coin else ct.Clamp(min=-0.5),
        lambda: ct.GELU("tanh" if coin else "none"),
        lambda: (ct.ReLU, ct.Sigmoid, ct.Tanh, ct.SiLU, ct.Mish, ct.HardSwish, ct.HardTanh)[rng.integers(7)](),
        lambda: (ct.ReLU, ct.Sigmoid, ct.Tanh, ct.SiLU, ct.Mish, ct.HardSwish, ct.HardTanh)[rng.integers(7)](),
        lambda: ct.LeakyReLU(0.1) if coin else ct.PReLU(),
        lambda: ct.Softplus(2.0, 3.0),
    ]
    return options[rng.integers(len(options))]()
