"""Times a kernel that has passed, in turns with its peers: new data in every round, and every result compared.

In each round all contenders get the same fresh arrays, in turns as in `convt3d bench`; the kernel's process is stopped
while others run. The kernel's time is from the moment its process is let go to its reply, by this process's clock,
less what the same takes for an empty request.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..bench.rounds import QUICK, middle, turns_of
from ..cpu.runtime.execute import execute
from ..front.verify import Storage, compare, draw_sample, sampled_check
from ..spec.dtypes import DType
from ..spec.problem_file import Case
from ..spec.problems import Problem
from .cases import trial_of, work
from .check import Options
from .languages import make_program
from .peers import CHANNELS_LAST, EAGER, OWN, operands_of, peers
from .remove import remove
from .sandbox import judging
from .session import Died, Session, room_for
from .tolerance import expectation_of_blocks
from .verdict import CRASH, OUT_OF_BOUNDS, PASSED, WRONG_VALUES, Rejected, Verdict, rejected

KERNEL = "your kernel"
SAMPLE_SECONDS = 0.2  # of the float64 meaning of sampled blocks, before errors are played through them
MOST_EXACT_WORK = 20_000_000  # multiply-adds up to which each round has its own float64 meaning


@dataclass(frozen=True, eq=False)
class Timing:
    """Seconds of each contender, round by round (the warm-up is not among them); peers that could not run."""

    verdict: Verdict
    seconds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)  # on the times of some

    def median(self, name: str) -> float:
        return middle(self.seconds[name])

    @property
    def ratios(self) -> dict[str, float]:
        """Median of each other contender over the kernel's; above 1 the kernel is faster."""
        return {name: self.median(name) / self.median(KERNEL) for name in self.seconds if name != KERNEL}

    @property
    def best_peer(self) -> str | None:
        found = [name for name in (EAGER, CHANNELS_LAST) if name in self.seconds]
        return min(found, key=self.median) if found else None


@judging()
def time_file(
    path: str,
    problem: Problem,
    values: Mapping[str, Any],
    options: Options,
    rounds: int,
    progress: Callable[[int], None] = lambda number: None,
) -> Timing:
    """Of a file that `check` has passed. The data are fresh whatever seed was given: a kernel that knew it from a
    command line could have the results ready before the clock starts."""
    folder = tempfile.mkdtemp(prefix="convt3d-judge-")
    dtype, limits = options.dtype, options.limits
    race = _Race(problem, values, dtype, np.random.default_rng(secrets.randbits(128)))
    try:
        program = make_program(path, problem, dtype, folder, allow_torch=options.allow_torch, limits=limits)
        with Session(program, problem, dtype, room_for(problem, dtype, [values]), limits) as session:
            for number in range(rounds + 1):
                progress(number)
                race.round(session, number)
        verdict = Verdict(PASSED, None, f"{rounds + 1} results of each contender compared")
    except Died as death:
        far = death.spot is not None and death.spot.inside is None
        words = f"it touches memory {death.spot.words()}" if death.spot and far else death.words
        verdict = Verdict(OUT_OF_BOUNDS if far else CRASH, "timed", words)
    except Rejected as ending:
        verdict = replace(ending.verdict, case="timed")
    finally:
        remove(folder)
    if verdict.word != PASSED:
        return Timing(verdict)
    seconds = {name: tuple(times[1:]) for name, times in race.seconds.items()}
    return Timing(verdict, seconds, race.missing, race.notes)


class _Race:
    """The contenders and their times."""

    def __init__(self, problem: Problem, values: Mapping[str, Any], dtype: DType, rng: np.random.Generator) -> None:
        self.problem, self.values, self.dtype, self.rng = problem, values, dtype, rng
        self.peers = peers(problem, values, dtype)
        self.seconds: dict[str, list[float]] = {name: [] for name in (KERNEL, *self.peers)}
        self.missing: dict[str, str] = {}
        self.notes: dict[str, str] = {}

    def round(self, session: Session, number: int) -> None:
        wide = self.problem.make_inputs(self.values, self.rng)
        arrays = {name: self.dtype.narrow(wide.pop(name)) for name in list(wide)}
        names = [name for name in self.seconds if name not in self.missing]
        results: dict[str, Storage] = {}
        for name in turns_of(names, number):
            time.sleep(QUICK.pause)  # threads of the one before that still spin go to sleep
            if name == KERNEL:
                session.prepare(self.values, arrays)
                call = session.call(arrays)
                results[name], seconds = call.output, call.seconds
            else:
                try:
                    results[name], seconds, note = self.peers[name].run(arrays)
                except Exception as error:  # such as an operator PyTorch does not have for this type
                    self.missing[name] = str(error).splitlines()[0][:200]
                    del self.seconds[name]
                    continue
                self.notes |= {name: note} if note else {}
            self.seconds[name].append(seconds)
        self._compare(arrays, results)

    def _compare(self, arrays: Mapping[str, Storage], results: Mapping[str, Storage]) -> None:
        """Every voxel of every result: with the meaning where that is affordable, else with convt3d's result, which is
        then compared with the meaning on sampled voxels."""
        accepts = self._judge(arrays, results.get(OWN))
        if not accepts(results[KERNEL]) or not self._precise(arrays, results[KERNEL]):
            raise rejected(WRONG_VALUES, "a timed result is wrong")
        for name, result in results.items():
            if not accepts(result):
                self.missing[name] = "its results lie outside the tolerance"
                self.seconds.pop(name, None)

    def _judge(self, arrays: Mapping[str, Storage], own: Storage | None) -> Callable[[Storage], bool]:
        dtype, problem = self.dtype, self.problem
        if work(problem, self.values) <= MOST_EXACT_WORK:
            case = Case("timed", "", dict(self.values))
            expected = trial_of(problem, case, dtype, arrays, self.rng).expected
            return lambda result: expected.accepts(dtype.widen(result))
        pipeline, operands = problem.pipeline(self.values), operands_of(problem, arrays)
        if own is None:  # its public call needs ml_dtypes for bfloat16
            own = np.empty(problem.shapes(self.values)["output"], dtype.storage)
            execute(pipeline, dtype, arrays["input"], operands, own)
        check = sampled_check(pipeline, arrays["input"], operands, own, dtype, self.rng)
        if not check.passed:
            raise rejected(WRONG_VALUES, "convt3d's own result is wrong here: please report these sizes")
        kernel = problem.shapes(self.values)["kernel"]
        terms = kernel[0] // int(self.values.get("groups", 1)) * int(np.prod(kernel[2:]))
        wide = dtype.widen(own)

        def close(result: Storage) -> bool:
            found = compare(dtype.widen(result), wide, dtype, terms)
            return found.worst <= 2 * found.tolerance  # both sides are rounded

        return close

    def _precise(self, arrays: Mapping[str, Storage], result: Storage) -> bool:
        """Whether sampled blocks of a large result keep each voxel's own tolerance: another result has a tolerance of
        its own, and both together would hide products of lower precision."""
        if work(self.problem, self.values) <= MOST_EXACT_WORK:
            return True
        pipeline, operands, x = self.problem.pipeline(self.values), operands_of(self.problem, arrays), arrays["input"]
        sample = draw_sample(pipeline, x, operands, self.dtype, self.rng, seconds=SAMPLE_SECONDS)
        blocks = [(crop.sample, tuple(slice(*part) for part in crop.block)) for crop in sample.crops]
        actual = [self.dtype.widen(result[number][block]).ravel() for number, block in blocks]
        expected = expectation_of_blocks(pipeline, self.dtype, x, operands, sample.crops, self.rng)
        # Values stored in 16 bits between stages err by whole units, which few plays tell badly of so many voxels.
        most = 1.0 if self.dtype.storage == self.dtype.accumulate else 2.0
        return bool((expected.errors(np.concatenate(actual)) <= most).all())
