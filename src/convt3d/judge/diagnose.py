"""Where a result is wrong and when: the first bad voxel with its phase and border, the part of the output that is
wrong for other data too, and the rule about sizes with which every further case agrees."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import Error
from ..spec.problem_file import Case
from ..spec.problems import Problem
from ..spec.shapes import AXES, Box
from ..spec.stages import AvgPool3d, MaxPool3d
from .cases import Trial, make_trial, weakness, work
from .check import Failure, Options
from .languages import Program
from .pattern import find_pattern
from .repeat import Run, difference, repeats, thread_counts
from .session import Died, Session, Sessions, room_for
from .verdict import Rejected

MOST_SECONDS = 15.0
OTHER_DATA = 3  # draws of the failing case
PROBE_DATA = 2  # draws of each further case: a wrong kernel may be right on one of them by chance
MOST_ROOM = 2**24  # bytes of a memory file for probes
MOST_PROBE = 300_000  # multiply-adds of one
SHOWN = 8  # indices named before they are summed up

Values = Mapping[str, Any]
Mask = npt.NDArray[np.bool_]


def diagnose(program: Program, failure: Failure, options: Options) -> dict[str, Any]:
    trial, wrong = failure.trial, failure.wrong
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    got = trial.dtype.widen(failure.output)
    error = np.where(wrong, np.abs(got - trial.expected.values), 0.0)
    pattern, smallest, every = _pattern(program, failure, options)
    return {
        "first_bad": first,
        "expected": float(trial.expected.values[first]),
        "got": float(got[first]),
        "tolerance": float(trial.expected.tolerance[first]),
        "worst_error": float(np.nan_to_num(error, nan=np.inf).max()),
        "place": place(trial.problem, trial.values, first),
        "where": where(trial, every) if not failure.difference else ["not the same in every run"],
        "pattern": pattern,
        "smallest_failing": smallest,
    }


# --- the voxel --------------------------------------------------------------------------------------------------------


def place(problem: Problem, values: Values, index: tuple[int, ...]) -> str:
    """Phase and border of an output voxel, as the convolution sees it."""
    pipeline = problem.pipeline(values)
    shapes = problem.shapes(values)
    trace = pipeline.trace(shapes["input"], [shapes[name] for name in problem.operand_names])
    box = _conv_box(pipeline, trace, index)
    axes = pipeline.conv.axes(trace.values[pipeline.conv_index], shapes["kernel"])
    phases, borders = [], []
    for name, axis, (low, high) in zip(AXES, axes, box, strict=True):
        phases.append((low + axis.padding) % axis.stride if high == low + 1 else None)
        taps = [o + axis.padding - k * axis.dilation for o in range(low, high) for k in range(axis.kernel)]
        meeting = [step // axis.stride for step in taps if step % axis.stride == 0]
        if not meeting:
            borders.append(f"no tap along {name}")
        elif min(meeting) < 0 or low == 0:
            borders.append(f"low border of {name}")
        elif max(meeting) >= axis.size or high == axis.out:
            borders.append(f"high border of {name}")
    strides = tuple(axis.stride for axis in axes)
    if None in phases:
        window = " x ".join(f"[{low}, {high})" for low, high in box)
        said = f"window {window} of the convolution (strides {strides})"
    else:
        said = f"phase {tuple(phases)} of strides {strides}"
    return f"{said}; {', '.join(borders) or 'inside'}"


def _conv_box(pipeline: Any, trace: Any, index: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """The voxels of the convolution's result that a voxel of the output is made of, depth, height, width."""
    box: Box = ((0, 1), *((at, at + 1) for at in index[2:]))  # type: ignore[assignment]
    for number in reversed(range(pipeline.conv_index + 1, len(pipeline.stages))):
        stage = pipeline.stages[number]
        if isinstance(stage, (MaxPool3d, AvgPool3d)):
            box = stage.reads(box, trace.values[number], ())
    return box[1:]


# --- the part of the output -------------------------------------------------------------------------------------------


def where(trial: Trial, wrong: Mask) -> list[str]:
    """Each axis along which only some indices are wrong, in words; phases where the convolution comes last."""
    found = []
    names = ("samples", "channels", "depths", "heights", "widths")
    for axis, name in enumerate(names):
        others = tuple(other for other in range(5) if other != axis)
        bad = np.flatnonzero(wrong.any(axis=others)).tolist()
        size = wrong.shape[axis]
        if len(bad) == size:
            continue
        phase = _phase_words(trial, axis, bad, size)
        if phase:
            found.append(phase)
        elif bad == list(range(bad[0], size)) and bad[0] > 0:
            last = f"the last {len(bad)} of {size} {name}" if len(bad) > 1 else f"the last of {size} {name}"
            found.append(f"wrong only in {last}")
        elif len(bad) <= SHOWN:
            found.append(f"wrong only in {name} {', '.join(map(str, bad))} of {size}")
        else:
            found.append(f"wrong in {len(bad)} of {size} {name}")
    return found or ["wrong along every axis"]


def _phase_words(trial: Trial, axis: int, bad: list[int], size: int) -> str | None:
    pipeline = trial.problem.pipeline(trial.values)
    pooled = any(isinstance(stage, (MaxPool3d, AvgPool3d)) for stage in pipeline.stages[pipeline.conv_index :])
    if axis < 2 or pooled:
        return None
    stride, padding = (trial.values[f"{name}_{'dhw'[axis - 2]}"] for name in ("stride", "padding"))
    phases = {(at + padding) % stride for at in bad}
    every = {(at + padding) % stride for at in range(size)}
    if stride == 1 or phases == every or {at for at in range(size) if (at + padding) % stride in phases} != set(bad):
        return None
    return f"wrong only in phase {', '.join(map(str, sorted(phases)))} of stride {stride} along {AXES[axis - 2]}"


# --- the rule ---------------------------------------------------------------------------------------------------------


def _pattern(program: Program, failure: Failure, options: Options) -> tuple[str, Values, Mask]:
    """When the kernel fails, the smallest case found that does, and which voxels of the failing one are wrong for any
    of several data."""
    trial, wrong = failure.trial, failure.wrong
    if failure.difference:
        return f"none: {failure.difference}", trial.values, wrong
    with closing(_Prober(program, trial, options)) as prober:
        try:
            if not prober.wrong(trial).any():
                return (
                    "none: in a fresh process the same case is right; it depends on earlier calls",
                    trial.values,
                    wrong,
                )
            others = [prober.wrong(prober.draw(trial.values)) for _ in range(OTHER_DATA)]
            right = sum(not mask.any() for mask in others)
            wrong = np.logical_or.reduce([wrong, *others])
            if right:
                told = f"none: it depends on the data, {right} of {OTHER_DATA} other draws of the same sizes are right"
                return told, trial.values, wrong
            rng = np.random.default_rng(0)
            found = find_pattern(trial.problem, trial.values, prober.fails, rng, prober.half_over)
        except _Unsteady as unsteady:
            return f"none: {unsteady}", trial.values, wrong
    return found.words, found.smallest, wrong


class _Unsteady(Exception):
    """Runs of one case on the same data differ."""


class _Prober:
    """Runs cases in one process as long as it lives, within a limit of time."""

    def __init__(self, program: Program, trial: Trial, options: Options) -> None:
        self.program, self.trial, self.options = program, trial, options
        self.rng = np.random.default_rng(0)
        self.sessions = Sessions(program, self._start)
        self.deadline = time.monotonic() + MOST_SECONDS

    def draw(self, values: Values) -> Trial:
        return make_trial(self.trial.problem, Case("probe", "", dict(values)), self.trial.dtype, self.rng)

    def fails(self, values: Values) -> bool | None:
        """None where the case is not legal, proves nothing, is too large, or there is no time left."""
        problem = self.trial.problem
        if time.monotonic() > self.deadline:
            return None
        try:
            room = room_for(problem, self.trial.dtype, [values])
            if max(room) > MOST_ROOM or work(problem, values) > max(MOST_PROBE, 2 * work(problem, self.trial.values)):
                return None
            trials = [self.draw(values) for _ in range(PROBE_DATA)]
        except Error:
            return None
        return None if weakness(trials[0]) else any(bool(self.wrong(trial).any()) for trial in trials)

    def half_over(self) -> bool:
        return time.monotonic() > self.deadline - MOST_SECONDS / 2

    def wrong(self, trial: Trial) -> Mask:
        """Which voxels; all of them where the process dies. A right result must be right with more threads too."""
        usual, other = thread_counts()[:2]
        first = self._run(trial, usual)
        if not first.right:
            return self._mask(trial, first)
        second = self._run(trial, other)
        if second.right:
            return np.zeros(trial.output_shape, np.bool_)
        runs = [first, second, *(self._run(trial, threads) for threads in repeats(other))]
        unlike = difference(trial, runs)
        raise _Unsteady(unlike or "it is right once and wrong from then on")

    def _run(self, trial: Trial, threads: int) -> Run:
        try:
            session = self.sessions.at(threads)
            session.prepare(trial.values, trial.arrays, threads=threads)
            output = session.call(trial.arrays).output
        except (Died, Rejected):
            self.close()
            return Run(threads, right=False)
        return Run(threads, trial.expected.accepts(trial.dtype.widen(output)), output)

    def _mask(self, trial: Trial, run: Run) -> Mask:
        if run.output is None:
            return np.ones(trial.output_shape, np.bool_)
        return ~(trial.expected.errors(trial.dtype.widen(run.output)) <= 1.0)

    def _start(self, threads: int) -> Session:
        first = self.trial
        inputs, output = room_for(first.problem, first.dtype, [first.values])
        room = max(MOST_ROOM, inputs), max(MOST_ROOM, output)
        return Session(self.program, first.problem, first.dtype, room, self.options.limits, threads=threads)

    def close(self) -> None:
        self.sessions.close()
