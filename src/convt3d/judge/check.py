"""One judgement: a file against the cases of a problem, ending in one verdict.

The kernel runs with sealed inputs and arrays against fences. A process that dies of a fault near an array says by its
address what it touched. Where no address is known it is tried once more with one thing changed at a time, and what then
lets it live is the reason: inputs that can be written, or memory behind the fences.
"""

from __future__ import annotations

import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, described
from ..front.verify import Storage
from ..spec.dtypes import DType
from ..spec.problem_file import Values
from ..spec.problems import Problem
from .arena import unwritten
from .cases import MOST_WORK, Suite, Trial, build_suite
from .languages import Program, language_of, make_program
from .remove import remove
from .repeat import AGAIN_SECONDS, Run, Turn, difference, first_turns, further_turns, repeats
from .sandbox import Limits, judging
from .session import Call, Died, Session, Sessions, room_for
from .verdict import CRASH, INPUT_MUTATED, OUT_OF_BOUNDS, PASSED, WRONG_VALUES, Rejected, Verdict, rejected

SLOW_LANGUAGE_WORK = {"triton": 20_000}  # its interpreter runs every block in Python


@dataclass(frozen=True)
class Options:
    dtype: DType
    cases: tuple[str, ...] = ()
    seed: int | None = None
    allow_torch: bool = False
    limits: Limits = field(default_factory=Limits)
    changes: Values = field(default_factory=dict)  # of sizes and scalars of the cases
    compiled: bool = False  # Triton: its PTX is run, not its text


@dataclass(frozen=True, eq=False)
class CaseResult:
    """A case that passed: its worst error over the tolerance in all runs, the time of the first, how many they were."""

    name: str
    why: str
    worst: float
    seconds: float
    runs: int = 1


@dataclass(frozen=True, eq=False)
class Failure:
    """Wrong values, kept for the one who looks for the bug. `difference`: how the runs of this trial differ."""

    trial: Trial
    output: Storage
    wrong: npt.NDArray[np.bool_]
    difference: str | None = None


@dataclass(frozen=True, eq=False)
class Judgement:
    verdict: Verdict
    language: str
    seed: int
    results: tuple[CaseResult, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    failure: Failure | None = None
    trial: Trial | None = None  # the one that ended it
    threads: tuple[int, ...] = ()  # numbers of them that were tried
    unprotected: Mapping[str, str] = field(default_factory=dict)  # protections this system lacks, what they refuse
    notes: Mapping[str, str] = field(default_factory=dict)  # CUDA: what is known of the code on GPUs


Progress = Callable[[str, int, int], None]


@judging()
def check(
    path: str,
    problem: Problem,
    options: Options,
    progress: Progress = lambda name, done, total: None,
    given: Sequence[Trial] = (),
    examine: Callable[[Program, Failure], Mapping[str, Any]] | None = None,
    seen: Callable[[Call], None] = lambda call: None,
) -> Judgement:
    """`given` trials replace the suite; `seen` hears of every call. `examine` looks at wrong values while the compiled
    file is still there, and what it finds joins the verdict's figures."""
    if sys.platform != "linux":
        rule = "the sandbox needs /proc and the process control of Linux"
        raise ArgumentError("judge", "platform", described(sys.platform), rule, "Use Linux, or a container with it")
    seed = secrets.randbits(63) if options.seed is None else options.seed
    language = language_of(path)
    run = _Run(problem, options, seen)
    folder = tempfile.mkdtemp(prefix="convt3d-judge-")
    suite = Suite(tuple(given), {})
    try:
        program = make_program(
            path,
            problem,
            options.dtype,
            folder,
            allow_torch=options.allow_torch,
            limits=options.limits,
            compiled=options.compiled,
        )
        if not given:
            most = SLOW_LANGUAGE_WORK.get(language, MOST_WORK)
            rng = np.random.default_rng(seed)
            suite = build_suite(problem, options.dtype, rng, options.cases, most, options.changes)
            if not suite.trials:
                why = "; ".join(f"{name}: {reason}" for name, reason in suite.left_out.items())
                rule = f"leaves no case that tells a right result from a wrong one ({why})"
                if options.changes:
                    remedy = "Choose more samples, channels or voxels"
                    asked = described(", ".join(f"{name}={value:g}" for name, value in options.changes.items()))
                    raise ArgumentError(problem.slug, "--set", asked, rule, remedy)
                raise ArgumentError(problem.slug, "--case", options.cases, rule, "Choose other cases")
        try:
            run.judge(program, suite.trials, progress)
        except Rejected as ending:
            if run.failure is None or examine is None:
                raise
            found = {**ending.verdict.figures, **examine(program, run.failure)}
            raise Rejected(replace(ending.verdict, figures=found)) from None
        verdict = Verdict(PASSED, None, f"{len(run.results)} cases")
    except Rejected as ending:
        verdict = ending.verdict
    finally:
        remove(folder)
    return Judgement(
        verdict,
        language,
        seed,
        tuple(run.results),
        suite.left_out,
        run.failure,
        run.trial,
        run.threads,
        run.unprotected,
        run.notes,
    )


class _Run:
    """What is known so far."""

    def __init__(self, problem: Problem, options: Options, seen: Callable[[Call], None]) -> None:
        self.problem, self.options, self.seen = problem, options, seen
        self.failure: Failure | None = None
        self.trial: Trial | None = None
        self.unprotected: Mapping[str, str] = {}
        self.notes: dict[str, str] = {}
        self._runs: dict[int, list[Run]] = {}
        self._passed: dict[int, CaseResult] = {}

    @property
    def results(self) -> list[CaseResult]:
        return [replace(result, runs=len(self._runs[number])) for number, result in self._passed.items()]

    @property
    def threads(self) -> tuple[int, ...]:
        return tuple(sorted({run.threads for runs in self._runs.values() for run in runs}))

    def judge(self, program: Program, trials: Sequence[Trial], progress: Progress) -> None:
        """Every trial once, and then again for as long as there is time."""
        self.notes |= program.notes
        with closing(Sessions(program, lambda threads: self._session(program, trials, threads=threads))) as sessions:
            for turn in first_turns(trials):
                progress(trials[turn.number].case.name, turn.number, len(trials))
                self._turn(sessions, program, trials, turn)
            progress("again, with other threads", len(trials) - 1, len(trials))
            end = time.monotonic() + AGAIN_SECONDS
            for turn in further_turns(trials):
                if time.monotonic() > end:
                    break
                self._turn(sessions, program, trials, turn)
        self.trial = None

    def _turn(self, sessions: Sessions, program: Program, trials: Sequence[Trial], turn: Turn) -> None:
        trial = self.trial = trials[turn.number]
        runs = self._runs.setdefault(turn.number, [])
        earlier = [trials[number] for number in self._runs if number != turn.number]
        try:
            self._one(sessions, trial, turn, runs, earlier)
        except Died as death:
            ending = self._cause(program, trial, turn, death).verdict
        except Rejected as rejection:
            ending = rejection.verdict
        else:
            return
        right = sum(run.right for run in runs)
        note = f"; {right} run{'s' * (right > 1)} before it passed" if right and ending.word != WRONG_VALUES else ""
        raise Rejected(replace(ending, case=trial.case.name, reason=ending.reason + note)) from None

    def _session(
        self, program: Program, trials: Sequence[Trial], sealed: bool = True, threads: int | None = None
    ) -> Session:
        room = room_for(self.problem, self.options.dtype, [trial.values for trial in trials])
        return Session(
            program, self.problem, self.options.dtype, room, self.options.limits, sealed=sealed, threads=threads
        )

    def _one(self, sessions: Sessions, trial: Trial, turn: Turn, runs: list[Run], earlier: Sequence[Trial]) -> None:
        session = sessions.at(turn.threads)
        self.unprotected = session.unprotected
        session.prepare(trial.values, trial.arrays, turn.side, threads=turn.threads)
        call = session.call(trial.arrays)
        self.seen(call)
        if session.banks and self.notes.get("bank conflicts", "none") == "none":
            self.notes["bank conflicts"] = session.banks
        dtype = trial.dtype
        errors = trial.expected.errors(dtype.widen(call.output))
        wrong = ~(errors <= 1.0)
        worst = float(errors.max(initial=0.0))
        runs.append(Run(turn.threads, not wrong.any(), call.output if wrong.any() else None))
        if not wrong.any():
            first = self._passed.get(turn.number, CaseResult(trial.case.name, trial.case.why, 0.0, call.seconds))
            self._passed[turn.number] = replace(first, worst=max(first.worst, worst))
            return
        self._passed.pop(turn.number, None)
        missing = int((call.output.view(f"u{dtype.itemsize}") == unwritten(dtype)).sum())
        reasons = [f"{int(wrong.sum())} of {wrong.size} voxels are wrong"]
        if missing:
            reasons.append("none was written" if missing == wrong.size else f"{missing} of them were never written")
            if session.late_changes(call.output):
                reasons.append("the output went on changing after the call had returned: work was left to others")
        if call.returned:
            reasons.append(f"solution returned a {call.returned}, which nobody reads: it must write `output`")
        if any(
            old.output_shape == trial.output_shape and old.expected.accepts(dtype.widen(call.output)) for old in earlier
        ):
            reasons.append("it is the answer to an earlier call")
        self._repeat(sessions, trial, turn, runs)
        unlike = difference(trial, runs)
        reasons += [unlike] if unlike else []
        self.failure = Failure(trial, call.output, wrong, unlike)
        figures = {
            "wrong": int(wrong.sum()),
            "voxels": wrong.size,
            "never_written": missing,
            "worst": worst,
            "runs": [{"threads": run.threads, "right": run.right} for run in runs],
        }
        raise Rejected(Verdict(WRONG_VALUES, None, "; ".join(reasons), figures))

    def _repeat(self, sessions: Sessions, trial: Trial, turn: Turn, runs: list[Run]) -> None:
        """Adds further runs of a trial that has just failed."""
        end = time.monotonic() + AGAIN_SECONDS
        for threads in repeats(turn.threads):
            try:
                session = sessions.at(threads)
                session.prepare(trial.values, trial.arrays, turn.side, threads=threads)
                output = session.call(trial.arrays).output
            except (Died, Rejected):
                return
            runs.append(Run(threads, trial.expected.accepts(trial.dtype.widen(output)), output))
            if time.monotonic() > end:
                return

    def _cause(self, program: Program, trial: Trial, turn: Turn, death: Died) -> Rejected:
        """Why the process died."""
        case, spot = trial.case.name, death.spot
        if spot is None or (spot.inside is not None and spot.name == "output"):
            return self._cause_by_trying(program, trial, turn, death.words)
        if spot.inside is not None:
            index = tuple(map(int, np.unravel_index(spot.inside, trial.arrays[spot.name].shape)))
            return rejected(INPUT_MUTATED, f"it writes into an input: `{spot.name}` at {index}", case)
        try:  # what can be read everywhere dies of writing only
            with self._session(program, [trial], threads=turn.threads) as session:
                session.prepare(trial.values, trial.arrays, turn.side, "readable")
                session.call(trial.arrays)
            verb = "reads"
        except Died as again:
            verb = "writes" if again.spot == spot else "reads"
        except Rejected:
            verb = "reads"
        return rejected(OUT_OF_BOUNDS, f"it {verb} {spot.words()}, which has {_elements(trial, spot.name)}", case)

    def _cause_by_trying(self, program: Program, trial: Trial, turn: Turn, words: str) -> Rejected:
        """By running it again with more freedom."""
        case = trial.case.name
        freedoms = (
            ("closed", INPUT_MUTATED, "it writes into an input: it dies where that is impossible, and only there"),
            (
                "open",
                OUT_OF_BOUNDS,
                "it reads or writes outside the arrays: it dies where there is nothing to be found",
            ),
        )
        for outside, word, reason in freedoms:
            try:
                with self._session(program, [trial], sealed=False, threads=turn.threads) as session:
                    session.prepare(trial.values, trial.arrays, turn.side, outside)
                    session.call(trial.arrays)
            except Died:
                continue
            except Rejected as ending:
                if ending.verdict.word in (INPUT_MUTATED, OUT_OF_BOUNDS):
                    return Rejected(replace(ending.verdict, case=case))
                return rejected(CRASH, words, case)
            return rejected(word, reason, case)
        return rejected(CRASH, words, case)


def _elements(trial: Trial, name: str) -> str:
    shape = trial.output_shape if name == "output" else trial.arrays[name].shape
    return f"{prod(shape)} elements"
