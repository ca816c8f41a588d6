"""Links of a chain, and a step, that only the way back of a gradient has; plan/tails.py says how they are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..spec import stages as s
from ..spec.stage import CHANNELS, Stage
from .names import ArrayName, StatisticsName
from .sweeps import Windowed


@dataclass(frozen=True, eq=False, repr=False)
class Incoming(Stage):
    """Puts an array of the value's shape in its place."""

    other: str = "tensor"


@dataclass(frozen=True, eq=False, repr=False)
class Derivative(Stage):
    """gradient * f'(value kept as `at`), for a stage f that is a function of one number."""

    of: Stage
    at: str


@dataclass(frozen=True, eq=False, repr=False)
class Unit(Stage):
    """LayerNorm over channels without weights, whose deviation is remembered under a name."""

    eps: float
    at: str

    couples: ClassVar[frozenset[str]] = CHANNELS


@dataclass(frozen=True, eq=False, repr=False)
class UnitGradient(Stage):
    """Through that norm: deviation * (gradient - mean(gradient) - unit * mean(gradient * unit))."""

    at: str

    couples: ClassVar[frozenset[str]] = CHANNELS


@dataclass(frozen=True, eq=False, repr=False)
class NormGradient(Stage):
    """Through a norm over space: gradient * scale + shift + unit * offset, by statistics."""

    at: str


@dataclass(frozen=True, eq=False, repr=False)
class BatchNormGradient(Stage):
    """Through a BatchNorm by running statistics: gradient * weight / sqrt(variance + eps)."""

    eps: float


@dataclass(frozen=True, eq=False, repr=False)
class SoftmaxGradient(Stage):
    """Through a softmax over space: (gradient - shift) * its result, by statistics."""

    at: str


@dataclass(frozen=True, eq=False, repr=False)
class ChannelSoftmaxGradient(Stage):
    """Through a softmax over channels: (gradient - sum(gradient * its result)) * its result."""

    at: str

    couples: ClassVar[frozenset[str]] = CHANNELS


@dataclass(frozen=True, eq=False, repr=False)
class QuotientGradient(Stage):
    """Through other / value: -gradient * other / value^2; `other` is a number, or as in arithmetic stages."""

    other: float | str
    at: str


@dataclass(frozen=True, eq=False, repr=False)
class Peaks(Stage):
    """1 where the value is that of an array, 0 elsewhere."""

    other: str = "tensor"


@dataclass(frozen=True, eq=False, repr=False)
class PeakGradient(Stage):
    """The gradient where the value kept as `at` is that of an array, its largest; 0 elsewhere."""

    at: str
    other: str = "tensor"


@dataclass(frozen=True, eq=False, repr=False)
class LogSumExpGradient(Stage):
    """gradient * exp(value kept as `at` - the result, an array)."""

    at: str
    other: str = "tensor"


@dataclass(frozen=True, eq=False, repr=False)
class Totals(Stage):
    """Sums over the voxels of each channel, of the gradient times values kept under these names; "" stands for 1.
    `below`: only where that value is not above 0. `divided`: divided by it. The gradient passes unchanged."""

    stage: int  # that it is for, by its place in the pipeline
    factors: tuple[str, ...]
    below: bool = False
    divided: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class Sums(Stage):
    """What the totals of a sweep are for: gradients of operands, and of them, where `norm` is not None, the statistics
    that its gradient needs."""

    totals: tuple[Totals, ...]
    norm: Stage | None = None
    unit: StatisticsName | None = None  # statistics of the norm's input


@dataclass(frozen=True, eq=False, repr=False)
class TrainedBatchNorm(s.BatchNorm):
    """BatchNorm by the statistics of the batch, in the place of one by running statistics; these are not read."""


@dataclass(frozen=True)
class ArgmaxPool(Windowed):
    """Buffer (C, D, H, W) -> the place of the largest value in each window of a max-pool."""


@dataclass(frozen=True)
class SpreadPool(Windowed):
    """Buffer of a pool's gradient -> that of its input: the shares of all windows that a voxel is in, or, for a
    max-pool, the gradients of those that have their largest value there, by an array of places."""

    places: ArrayName | None = None
