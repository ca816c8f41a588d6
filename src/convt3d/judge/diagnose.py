"""Where a result is wrong and when: the first bad voxel with its phase and border, the part of the output that is
wrong, and the parameter that makes the difference, found by trying ever simpler cases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..errors import Error
from ..spec.problem_file import Case
from ..spec.problems import Problem
from ..spec.shapes import AXES, Box
from ..spec.stages import AvgPool3d, MaxPool3d
from .cases import Trial, make_trial, weakness, work
from .check import Failure, Options
from .languages import Program
from .session import Died, Session, room_for
from .verdict import Rejected

MOST_SECONDS = 8.0
MOST_ROOM = 2**24  # bytes of a memory file for probes
SHOWN = 8  # indices named before they are summed up

Values = Mapping[str, Any]


def diagnose(program: Program, failure: Failure, options: Options) -> dict[str, Any]:
    trial, wrong = failure.trial, failure.wrong
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    got = trial.dtype.widen(failure.output)
    error = np.where(wrong, np.abs(got - trial.expected.values), 0.0)
    pattern, smallest = _probe(program, failure, options)
    return {
        "first_bad": first,
        "expected": float(trial.expected.values[first]),
        "got": float(got[first]),
        "tolerance": float(trial.expected.tolerance[first]),
        "worst_error": float(np.nan_to_num(error, nan=np.inf).max()),
        "place": place(trial.problem, trial.values, first),
        "where": where(failure),
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


def where(failure: Failure) -> list[str]:
    """Each axis along which only some indices are wrong, in words; phases where the convolution comes last."""
    wrong, trial = failure.wrong, failure.trial
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


# --- the parameter ----------------------------------------------------------------------------------------------------


def _moves() -> Iterator[tuple[str, Callable[[dict[str, Any]], None]]]:
    """Ways to make a case simpler, and what a case is that cannot do without."""

    def setter(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
        def change(values: dict[str, Any]) -> None:
            if name in values:
                values[name] = values[value] if isinstance(value, str) else value

        return change

    yield "batch_size > 1", setter("batch_size", 1)
    yield "groups > 1", _one_group
    for name in ("dilation", "output_padding", "padding"):
        for axis in "dhw":
            plain = 1 if name == "dilation" else 0
            yield f"{name}_{axis} > {plain}", setter(f"{name}_{axis}", plain)
    for name in ("stride", "kernel"):
        for one, other in ("hw", "dw", "dh"):  # the second way where the first leaves nothing of the volume
            yield f"{name}_{one} != {name}_{other}", setter(f"{name}_{one}", f"{name}_{other}")
            yield f"{name}_{one} != {name}_{other}", setter(f"{name}_{other}", f"{name}_{one}")
    for axis in "dhw":
        yield f"stride_{axis} > 1", setter(f"stride_{axis}", 1)
    for axis in "dhw":
        yield f"kernel_{axis} > 1", setter(f"kernel_{axis}", 1)
    yield "pool_kernel > 1", setter("pool_kernel", 1)
    for one, other in (("height", "width"), ("depth", "width"), ("depth", "height")):
        yield f"{one} != {other}", setter(one, other)
    for name in ("in_channels", "out_channels", "width", "height", "depth"):
        for block in (2, 4, 8, 16):
            yield f"{name} is no multiple of {block}", _multiple(name, block)
        for most in (32, 16, 8, 4, 2, 1):
            yield f"{name} > {most}", _at_most(name, most)
    for name in ("sum_weight", "scaling_factor"):
        yield f"{name} != 1", setter(name, 1.0)
    yield "clamp_min > -inf", setter("clamp_min", -np.inf)
    yield "clamp_max < inf", setter("clamp_max", np.inf)


def _one_group(values: dict[str, Any]) -> None:
    if values.get("groups", 1) > 1:
        values["groups"] = 1


def _multiple(name: str, block: int) -> Callable[[dict[str, Any]], None]:
    """The nearest multiple of `block` that is none of twice of it: it tells blocks of 4 from those of 2 and 8."""

    def change(values: dict[str, Any]) -> None:
        if values[name] > block and values[name] % block:
            values[name] = min(range(block, 2 * values[name], 2 * block), key=lambda n: abs(n - values[name]))

    return change


def _at_most(name: str, most: int) -> Callable[[dict[str, Any]], None]:
    def change(values: dict[str, Any]) -> None:
        values[name] = min(values[name], most)

    return change


def _probe(program: Program, failure: Failure, options: Options) -> tuple[str, dict[str, Any]]:
    """What a case must have for the kernel to fail, and the smallest case that was seen to."""
    trial = failure.trial
    prober = _Prober(program, trial, options)
    current = dict(trial.values)
    try:
        if prober.fails(current) is not True:
            return "not repeatable: the same case passes in a fresh process", current
        suspects: list[tuple[str, Callable[[dict[str, Any]], None]]] = []
        for words, move in _moves():
            simpler = _moved(current, move)
            verdict = prober.fails(simpler) if simpler else None
            if verdict and simpler:
                current = simpler
            elif verdict is False:
                suspects.append((words, move))
        needed: list[str] = []
        for words, move in suspects:  # a case that is simpler in all else must still need it, or leave no room to tell
            simpler = _moved(current, move)
            if simpler and not prober.fails(simpler) and not any(_same_subject(words, known) for known in needed):
                needed.append(words)
    finally:
        prober.close()
    if not needed:
        return "none found: the simplest cases that can be built fail as well", current
    return f"wrong only where {' and '.join(needed)}", current


def _same_subject(words: str, known: str) -> bool:
    """`width > 2` says nothing beside `width > 4`."""
    return words == known or (words.split()[0] == known.split()[0] and "!=" not in words)


def _moved(values: Values, move: Callable[[dict[str, Any]], None]) -> dict[str, Any] | None:
    """The simpler case, made legal again, or None if it is the same."""
    simpler = dict(values)
    move(simpler)
    for axis in "dhw":
        extra = f"output_padding_{axis}"
        if extra in simpler:
            most = max(simpler[f"stride_{axis}"], simpler.get(f"dilation_{axis}", 1)) - 1
            simpler[extra] = min(simpler[extra], most)
    return simpler if simpler != dict(values) else None


class _Prober:
    """Runs cases in one process as long as it lives, within a limit of time."""

    def __init__(self, program: Program, trial: Trial, options: Options) -> None:
        self.program, self.trial, self.options = program, trial, options
        self.rng = np.random.default_rng(0)
        self.session: Session | None = None
        self.deadline = time.monotonic() + MOST_SECONDS
        self.known: dict[tuple[Any, ...], bool | None] = {}

    def fails(self, values: Values) -> bool | None:
        """None where the case is not legal, proves nothing, is too large, or there is no time left."""
        key = tuple(values.values())
        if key not in self.known:
            self.known[key] = self._try(values) if time.monotonic() < self.deadline else None
        return self.known[key]

    def _try(self, values: Values) -> bool | None:
        problem, dtype = self.trial.problem, self.trial.dtype
        try:
            room = room_for(problem, dtype, [values])
            if max(room) > MOST_ROOM or work(problem, values) > 2 * work(problem, self.trial.values):
                return None
            trial = make_trial(problem, Case("probe", "", dict(values)), dtype, self.rng)
        except Error:
            return None
        if weakness(trial):
            return None
        try:
            if self.session is None:
                room = MOST_ROOM, MOST_ROOM
                self.session = Session(self.program, problem, dtype, room, self.options.limits).__enter__()
            self.session.prepare(values, trial.arrays)
            output = self.session.call(trial.arrays).output
        except (Died, Rejected):
            self.close()
            return True
        return not trial.expected.accepts(dtype.widen(output))

    def close(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            session.__exit__()
