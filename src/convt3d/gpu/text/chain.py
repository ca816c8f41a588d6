"""Links of a chain as lines of Triton on the tile `v` (positions x channels), in the type of sums.

Channels beyond the last one hold anything: only reductions over channels leave them out, and so does the store.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from ...plan.names import ArrayName, StatisticName
from ...plan.sweeps import Affine, Link
from ...spec import stages
from ...spec.backends import StageTable
from ...spec.stage import Stage
from ..pieces import NotOnGpu
from .code import Code


@dataclass
class Chain:
    """Where the links are: `place` is the prefix of the coordinates, `valid` the mask of positions."""

    code: Code
    names: dict[ArrayName, str]  # of arrays, as the kernel calls them
    lengths: dict[ArrayName, int]  # of vectors
    place: str
    valid: str
    whole: bool = True  # False once the channels have been reduced to one
    kept: dict[str, bool] = field(default_factory=dict)  # by name, and whether all channels are there

    def link(self, link: Link) -> None:
        kind = type(link.stage)
        if kind in GPU.reasons:
            raise NotOnGpu(GPU.reasons[kind])
        lines: Callable[..., None] = _affine if isinstance(link.stage, Affine) else GPU[kind]
        lines(self, link.stage, link.arrays)

    @property
    def columns(self) -> str:
        return "BLOCK_C" if self.whole else "1"

    def change(self, expression: str) -> None:
        self.code.add(f"v = {expression}")

    def vector(self, array: ArrayName) -> str:
        """One number for each channel, as a row."""
        pointer = self.code.pointer(self.names[array], array)
        if self.lengths.get(array) == 1 or not self.whole:
            return f"tl.load({pointer}).to({self.code.acc})"
        return f"tl.load({pointer} + channel, mask=in_channel, other=0.0).to({self.code.acc})[None, :]"

    def statistic(self, array: ArrayName) -> str:
        """One number for each sample and channel, as a row."""
        pointer = self.code.pointer(self.names[array], array)
        if not self.whole:
            return f"tl.load({pointer} + n)"
        return f"tl.load({pointer} + n * all_channels + channel, mask=in_channel, other=0.0)[None, :]"

    def tensor(self, array: ArrayName) -> str:
        """A tile of an array of the value's shape."""
        name = self.names[array]
        pointer = self.code.pointer(name, array)
        rows = self.code.rows(name, array, self.place)
        if not self.whole:
            return f"tl.load({pointer} + {rows}[:, None], mask={self.valid}[:, None], other=0.0).to({self.code.acc})"
        c, run = self.code.stride(name, array, "c"), self.code.run(name, array)
        return f"load_tile({pointer}, {rows}, channel, {c}, {self.valid}, in_channel, {run}).to({self.code.acc})"

    def again(self, label: str) -> str:
        """A kept value; of one that has a single channel, as many columns as the current value."""
        if self.kept[label] and not self.whole:
            return f"tl.sum(tl.where(in_channel[None, :], kept_{label}, 0.0), 1, keep_dims=True)"
        return f"kept_{label}"

    def array(self, array: ArrayName) -> str:
        return self.statistic(array) if isinstance(array, StatisticName) else self.vector(array)

    def masked(self, value: str, other: str = "0.0") -> str:
        return f"tl.where(in_channel[None, :], {value}, {other})" if self.whole else value

    def total(self, value: str) -> str:
        return f"tl.sum({self.masked(value)}, 1, keep_dims=True)"

    def largest(self, value: str) -> str:
        floor = 'float("-inf")'
        return f"largest({self.masked(value, floor)}, 1)"


GPU: StageTable[Callable[..., None]] = StageTable("GPU", __name__)


@GPU.of(
    stages.ConvTranspose3d, stages.Conv3d, stages.MaxPool3d, stages.AvgPool3d, stages.GroupNorm, stages.InstanceNorm
)
def _part_of_its_own(chain: Chain, stage: Stage, arrays: tuple[ArrayName, ...]) -> None:
    """The source and the pool of a piece (gpu/pieces.py), or statistics that an Affine applies."""
    raise AssertionError(f"{stage.name} is no link of a chain")


_SIGNS: dict[type[Stage], str] = {stages.Add: "+", stages.Subtract: "-", stages.Multiply: "*", stages.Divide: "/"}


@GPU.of(stages.Add, stages.Subtract, stages.Multiply, stages.Divide)
def _binary(chain: Chain, stage: stages.Binary, arrays: tuple[ArrayName, ...]) -> None:
    if isinstance(stage.other, float):
        other = chain.code.constant(stage.other)
    elif stage.other == "channel":
        other = chain.array(arrays[0])
    elif stage.other == "tensor":
        other = chain.tensor(arrays[0])
    else:
        other = chain.again(stage.other)
    left, right = stage.sides("v", other)
    chain.change(f"{left} {_SIGNS[type(stage)]} {right}")


@GPU.of(stages.Keep)
def _keep(chain: Chain, stage: stages.Keep, arrays: tuple[ArrayName, ...]) -> None:
    chain.kept[stage.label] = chain.whole
    chain.code.add(f"kept_{stage.label} = v")


@GPU.of(stages.Recall)
def _recall(chain: Chain, stage: stages.Recall, arrays: tuple[ArrayName, ...]) -> None:
    chain.change(f"kept_{stage.label}")
    chain.whole = chain.kept[stage.label]


def _affine(chain: Chain, stage: Affine, arrays: tuple[ArrayName, ...]) -> None:
    shift, scale, offset = map(chain.array, arrays)
    chain.change(f"(v - {shift}) * {scale} + {offset}")


@GPU.of(stages.BatchNorm)
def _batch_norm(chain: Chain, stage: stages.BatchNorm, arrays: tuple[ArrayName, ...]) -> None:
    mean, variance, *affine = map(chain.array, arrays)
    weight, bias = affine or ("1.0", "0.0")
    chain.code.add(f"scale = {weight} / tl.sqrt({variance} + {chain.code.constant(stage.eps)})")
    chain.change(f"v * scale + ({bias} - {mean} * scale)")


@GPU.of(stages.LayerNorm)
def _layer_norm(chain: Chain, stage: stages.LayerNorm, arrays: tuple[ArrayName, ...]) -> None:
    count = "channels" if chain.whole else "1"
    chain.code.add(
        f"v = v - {chain.total('v')} / {count}",
        f"v = v - {chain.total('v')} / {count}  # what rounding has left of the mean",
        f"variance = {chain.total('v * v')} / {count}",
        f"v = v / tl.sqrt(variance + {chain.code.constant(stage.eps)})",
    )
    if arrays:
        chain.change("v * {} + {}".format(*map(chain.array, arrays)))


@GPU.of(stages.Sum, stages.Mean, stages.Max, stages.LogSumExp)
def _reduction(chain: Chain, stage: Stage, arrays: tuple[ArrayName, ...]) -> None:
    if isinstance(stage, stages.Max):
        chain.change(chain.largest("v"))
    elif isinstance(stage, stages.LogSumExp):
        chain.code.add(f"peak = finite_or_zero({chain.largest('v')})")
        chain.change(f"peak + tl.log({chain.total('tl.exp(v - peak)')})")
    else:
        count = f" / {'channels' if chain.whole else '1'}" if isinstance(stage, stages.Mean) else ""
        chain.change(f"{chain.total('v')}{count}")
    chain.whole = False


@GPU.of(stages.Softmax)
def _softmax(chain: Chain, stage: stages.Softmax, arrays: tuple[ArrayName, ...]) -> None:
    shift = chain.largest("v") if stage.shift is None else chain.code.constant(stage.shift)
    chain.change(f"tl.exp(v - {shift})")
    chain.change(f"v / {chain.total('v')}")
    if isinstance(stage.scale, float):
        chain.change(f"v * {chain.code.constant(stage.scale)}")
    elif stage.scale is not None:
        chain.change(f"v * {chain.array(arrays[0])}")


@GPU.of(stages.Clamp, stages.HardTanh)
def _clamp(chain: Chain, stage: stages.Clamp | stages.HardTanh, arrays: tuple[ArrayName, ...]) -> None:
    low, high = (stage.min, stage.max) if isinstance(stage, stages.Clamp) else (stage.min_val, stage.max_val)
    for bound, sign in ((low, "<"), (high, ">")):
        if bound is not None:  # comparisons let NaN pass
            chain.code.add(f"bound = {chain.code.constant(bound)}")
            chain.change(f"tl.where(v {sign} bound, bound, v)")


@GPU.of(stages.GELU)
def _gelu(chain: Chain, stage: stages.GELU, arrays: tuple[ArrayName, ...]) -> None:
    if stage.approximate == "tanh":
        chain.change(f"0.5 * v * (1.0 + tanh({math.sqrt(2 / math.pi)!r} * (v + 0.044715 * v * v * v)))")
    else:
        chain.change(f"0.5 * v * (1.0 + tl.erf(v * {math.sqrt(0.5)!r}))")


@GPU.of(stages.LeakyReLU)
def _leaky_relu(chain: Chain, stage: stages.LeakyReLU, arrays: tuple[ArrayName, ...]) -> None:
    chain.change(f"tl.where(v > 0.0, v, v * {chain.code.constant(stage.negative_slope)})")


@GPU.of(stages.PReLU)
def _prelu(chain: Chain, stage: stages.PReLU, arrays: tuple[ArrayName, ...]) -> None:
    chain.change(f"tl.where(v > 0.0, v, v * {chain.array(arrays[0])})")


@GPU.of(stages.Softplus)
def _softplus(chain: Chain, stage: stages.Softplus, arrays: tuple[ArrayName, ...]) -> None:
    beta, threshold = chain.code.constant(stage.beta), chain.code.constant(stage.threshold)
    chain.code.add(f"beta = {beta}")
    chain.change(f"tl.where(v * beta > {threshold}, v, softplus(v * beta) / beta)")


def _pointwise(kind: type[Stage], expression: str) -> None:
    GPU.of(kind)(lambda chain, stage, arrays: chain.change(expression))


_pointwise(stages.Exp, "tl.exp(v)")
_pointwise(stages.Log, "tl.log(v)")
_pointwise(stages.ReLU, "tl.where(v < 0.0, 0.0, v)")
_pointwise(stages.Sigmoid, "1.0 / (1.0 + tl.exp(-v))")
_pointwise(stages.SiLU, "v / (1.0 + tl.exp(-v))")
_pointwise(stages.Tanh, "tanh(v)")
_pointwise(stages.Mish, "v * tanh(softplus(v))")
_pointwise(stages.HardSwish, "v * clipped(v + 3.0, 0.0, 6.0) / 6.0")
