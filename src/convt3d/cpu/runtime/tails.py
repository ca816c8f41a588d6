"""Takes a gradient back through stages beside a convolution, on stored arrays, by the sweeps of a TailPlan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...plan.names import INPUT, OUTPUT, ArrayName, StatisticsName
from ...plan.sweeps import Finish
from ...plan.tail_links import Sums, Totals, TrainedBatchNorm
from ...plan.tails import FIRST, GRADIENT
from ...spec.stages import GroupNorm, InstanceNorm, Softmax
from ..plan.tail_plan import TailPlan
from .execute import Done, Run, narrowed
from .ready import bindings
from .statistics import affine, moments, moments_of, normalised, over_tiles

Array = npt.NDArray[Any]
Wide = npt.NDArray[np.float64]


# Mean and biased variance of what a norm takes together (samples, groups), or of a batch (1, channels), by the place of
# its stage.
Moments: TypeAlias = Mapping[int, tuple[Wide, Wide]]
NO_MOMENTS: Moments = {}


class Given(NamedTuple):
    """Values that sweeps read, where they read any."""

    value: Array | None  # that they start from
    first: Array | None = None  # the pipeline's input


def run_tail(
    plan: TailPlan, given: Given, gradient: Array, operands: Sequence[Array], out: Array, known: Moments = NO_MOMENTS
) -> dict[int, list[Wide]]:
    """Writes the gradient of value `first` into `out`, which may be the value that sweeps start from. Of stages whose
    operands get gradients it returns the sums over voxels and samples that these are made of, by the stage's place.
    What is `known` of norms is not summed again."""
    run = _TailRun(plan, given, gradient, operands, out, known)
    run.run()
    return run.sums


def run_forward(plan: TailPlan, given: Given, operands: Sequence[Array], out: Array) -> Moments:
    """Writes value `first` into `out`; gives the moments of its norms."""
    run = _TailRun(plan, given, None, operands, out, NO_MOMENTS)
    run.run()
    return run.moments


class _TailRun(Run):
    """Vectors among the operands are 1-D, and of the caller's type."""

    def __init__(
        self,
        plan: TailPlan,
        given: Given,
        gradient: Array | None,
        operands: Sequence[Array],
        out: Array,
        known: Moments,
    ) -> None:
        self.plan: TailPlan = plan
        self.operands, self.stored_as, self.known = tuple(operands), plan.dtype, known
        named = {INPUT: given.value, FIRST: given.first, GRADIENT: gradient, OUTPUT: out}
        self.arrays: dict[ArrayName, Array] = {name: each for name, each in named.items() if each is not None}
        self.number, self.strips = np.dtype(plan.dtype.accumulate), None
        self.sweeps = bindings(plan)
        self.skipped = np.zeros(plan.trace.values[0][0], np.int64)
        self.sums: dict[int, list[Wide]] = {}
        self.moments: dict[int, tuple[Wide, Wide]] = {}
        self.deviations: dict[ArrayName, Wide] = {}  # of norms without weights, by the name of their statistics

    def run(self) -> list[Done]:
        done = []
        for binding in self.sweeps:
            of = binding.planned.sweep.finish
            place = None if of is None else self.plan.norms.get(of.result)
            found = None if place is None else self.known.get(place)
            if of is not None and found is not None:
                self.arrays |= narrowed(self._applied(of, found), self.number)
            else:
                done.append(self._run_sweep(binding))
        return done

    def _finish(self, of: Finish, partials: Wide, counts: Wide) -> dict[ArrayName, Wide]:
        if isinstance(of.stage, Sums):
            with np.errstate(all="ignore"):
                return self._summed(of, of.stage, over_tiles(partials), counts.sum())
        place = self.plan.norms.get(of.result)
        if place is None:
            return super()._finish(of, partials, counts)
        batch, tiles, channels, words = partials.shape
        with np.errstate(all="ignore"):
            if isinstance(of.stage, TrainedBatchNorm):
                together = partials.reshape(1, batch * tiles, channels, words)
                found = moments(together, np.tile(counts, batch), channels)
            else:
                assert isinstance(of.stage, (InstanceNorm, GroupNorm))
                found = moments_of(of.stage, partials, counts)
        self.moments[place] = found
        return self._applied(of, found)

    def _applied(self, of: Finish, found: tuple[Wide, Wide]) -> dict[ArrayName, Wide]:
        """What is applied, by the moments of a norm."""
        assert isinstance(of.result, StatisticsName)
        assert isinstance(of.stage, (TrainedBatchNorm, InstanceNorm, GroupNorm))
        batch, channels = self.plan.trace.values[self.plan.norms[of.result]][:2]
        with np.errstate(all="ignore"):
            if isinstance(of.stage, TrainedBatchNorm):  # the same for each sample
                mean, variance = (np.repeat(each, batch, axis=0) for each in found)
                deviation = 1.0 / np.sqrt(variance + of.stage.eps)
                vectors = affine(mean, deviation, 0.0, self.number)
            else:
                own = [self._wide(name) for name in of.arrays]
                vectors = normalised(of.stage, found, channels, own, self.number)
        self.deviations[of.result] = vectors["scale"]
        return {of.result.vector(word): each for word, each in vectors.items()}

    def _summed(self, of: Finish, stage: Sums, sums: Wide, voxels: float) -> dict[ArrayName, Wide]:
        """`sums` (B, C, totals of the sweep)."""
        first, last = 0, sums[..., :0]
        for totals in stage.totals:
            last = sums[..., first : first + len(totals.factors)]
            first += len(totals.factors)
            self._keep(totals, last)
        assert isinstance(of.result, StatisticsName)
        vector = of.result.vector
        if isinstance(stage.norm, Softmax):
            return {vector("shift"): last[..., 0]}
        if stage.norm is None:
            return {}
        assert stage.unit is not None
        weight = self._wide(of.arrays[0]) if of.arrays else np.ones(sums.shape[1])
        deviation = self.deviations[stage.unit]
        along, plain = (_of_groups(stage.norm, last[..., at] * weight, voxels) for at in range(2))
        return {
            vector("scale"): deviation * weight,
            vector("shift"): -deviation * plain,
            vector("offset"): -deviation * along,
        }

    def _keep(self, totals: Totals, sums: Wide) -> None:
        self.sums[totals.stage] = [sums[..., at].sum(axis=0) for at in range(len(totals.factors))]


def _of_groups(norm: Any, sums: Wide, voxels: float) -> Wide:
    """Means over what the norm takes together, from sums (B, C) over the voxels of channels."""
    if isinstance(norm, TrainedBatchNorm):
        return np.repeat(sums.sum(axis=0, keepdims=True) / (voxels * len(sums)), len(sums), axis=0)
    if isinstance(norm, InstanceNorm):
        return sums / voxels
    batch, channels = sums.shape
    size = channels // norm.num_groups
    grouped = sums.reshape(batch, norm.num_groups, size).sum(axis=-1) / (voxels * size)
    return np.repeat(grouped, size, axis=1)
