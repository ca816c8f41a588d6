"""`convt3d check` and `convt3d sample`: somebody's kernel against the meaning of a problem."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArgumentError, Error
from ..judge.cases import Trial, changed_values, make_trial
from ..judge.check import Failure, Judgement, Options, check
from ..judge.diagnose import diagnose
from ..judge.keep import keep, kept
from ..judge.languages import Program, language_of, problem_of
from ..judge.picture import as_png, as_text
from ..judge.sandbox import Limits
from ..judge.verdict import shown
from ..spec.dtypes import DTYPES
from ..spec.problem_file import Case
from ..spec.problems import Problem
from ..units import duration
from .choose import compact, settings
from .judge_page import draw_page
from .judge_words import diagnosis, protections_off, quoted, reason_of
from .measure import check_memory
from .report import CHECK_FAILED, OK, complain, emit, emit_json
from .terminal import Progress, Screen

LOOK_EVERY = 0.25  # seconds between two looks at a file that is watched
STILL_LOOKS = 2  # looks in a row that must find it unchanged before it is judged again
CLEAR = "\x1b[2J\x1b[H"
SLOW_INTERPRETER = 6  # times the limit for Triton's, unless one is given


def options_of(args: argparse.Namespace) -> Options:
    cases = tuple(args.case) if getattr(args, "case", None) else ()
    slow = SLOW_INTERPRETER if language_of(args.file) == "triton" else 1
    limits = Limits(seconds=args.limit or slow * Limits.seconds)
    compiled = bool(getattr(args, "compiled", False))
    return Options(DTYPES[args.dtype or "float32"], cases, args.seed, args.allow_torch, limits, compiled=compiled)


@contextmanager
def ended_by_signal() -> Iterator[None]:
    """SIGTERM ends the command as an exception does, so that nothing is left behind."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _given(args: argparse.Namespace) -> list[Trial]:
    """The trials in .npz files, if --case names any: then nothing else, and all of one problem and type."""
    names = args.case or []
    trials = [kept(name) for name in names if name.endswith(".npz")]
    if not trials:
        return []
    if len(trials) < len(names):
        raise ArgumentError(
            "judge", "--case", tuple(names), "must be all names or all files", "Give one kind at a time"
        )
    slugs = {trial.problem.slug for trial in trials} | ({args.problem} if args.problem else set())
    dtypes = {trial.dtype.name for trial in trials} | ({args.dtype} if args.dtype else set())
    for option, found in (("--problem", slugs), ("--dtype", dtypes)):
        if len(found) > 1:
            rule = "must be the one that all files of --case were kept for"
            raise ArgumentError("judge", option, tuple(sorted(found)), rule, "Leave it out, or give other files")
    return trials


def check_file(args: argparse.Namespace) -> int:
    return _watch(args) if args.watch else _check_once(args)


def _watch(args: argparse.Namespace) -> int:
    """Judges again whenever the file is another; ends by Ctrl-C only."""
    if args.json:
        rule, remedy = "shows one verdict after the other to a person", "Leave --json out, or call `check` once"
        raise ArgumentError("judge", "--watch", True, rule, remedy)
    screen = Screen(sys.stdout)
    while True:
        judged = _stamp(args.file)
        try:
            _check_once(args, CLEAR if screen.width is not None else "")
        except Error as error:  # such as a file without the problem's name, or a library that is missing
            complain(error)
        emit(screen.paint(f"waiting for changes of {args.file}, Ctrl-C to end", "dim"))
        while _stamp(args.file) == judged:
            time.sleep(LOOK_EVERY)
        _wait_until_still(args.file)


def _wait_until_still(path: str) -> None:
    """An editor may empty a file before it writes it, or write it in pieces: the whole is judged, once."""
    last, still = _stamp(path), 0
    while still < STILL_LOOKS:
        time.sleep(LOOK_EVERY)
        now = _stamp(path)
        last, still = now, still + 1 if now == last else 0


def _stamp(path: str) -> tuple[int, ...] | None:
    """What changes with a file, also with one that an editor puts in its place; None for one that is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _check_once(args: argparse.Namespace, before_text: str = "") -> int:
    options = options_of(args)
    given = _given(args)
    if given:
        if args.set:
            rule = "changes named cases, not files with arrays"
            raise ArgumentError("judge", "--set", tuple(args.set), rule, "Give names of cases, or leave --set out")
        problem = given[0].problem
        options = replace(options, dtype=given[0].dtype, cases=())
    else:
        problem = problem_of(args.file, args.problem)
        options = replace(options, changes=settings(problem, args.set))
        if options.changes:
            check_memory(problem, {**problem.sample, **options.changes}, options.dtype)
    with Progress(sys.stderr) as progress, ended_by_signal():
        progress.begin("starting")

        def before(name: str, done: int, total: int) -> None:
            progress.begin(name, done / total, (done + 1) / total)

        def examine(program: Program, failure: Failure) -> Mapping[str, Any]:
            progress.begin("looking for a pattern", 0.9)
            return diagnose(program, failure, options)

        judgement = check(args.file, problem, options, before, given, examine)
    document = _document(args, problem, options, judgement)
    if args.html:
        document["html_file"] = _written(
            "--html", args.html, draw_page(document, _png(judgement)).encode(errors="backslashreplace")
        )
    emit_json(document) if args.json else emit(before_text + _text(Screen(sys.stdout), document, judgement))
    return OK if judgement.verdict.passed else CHECK_FAILED


def _png(judgement: Judgement) -> bytes | None:
    failure, first = judgement.failure, judgement.verdict.figures.get("first_bad")
    return as_png(failure.wrong, tuple(first)) if failure and first else None


def _document(args: argparse.Namespace, problem: Problem, options: Options, judgement: Judgement) -> dict[str, Any]:
    verdict, failure = judgement.verdict, judgement.failure
    document: dict[str, Any] = {
        "file": args.file,
        "slug": problem.slug,
        "language": judgement.language,
        "dtype": options.dtype.name,
        "seed": judgement.seed,
        "verdict": verdict.word,
        "passed": verdict.passed,
        "case": verdict.case,
        "reason": verdict.reason,
        "figures": dict(verdict.figures),
        "cases": [vars(result) for result in judgement.results],
        "left_out": dict(judgement.left_out),
        "threads": judgement.threads,
        "unprotected": dict(judgement.unprotected),
        "notes": dict(judgement.notes),
    }
    if failure is not None:
        document["failing_values"] = dict(failure.trial.values)
        first = tuple(verdict.figures["first_bad"])
        document["picture"] = as_text(failure.wrong, first)
        if args.picture:
            document["picture_file"] = _written("--picture", args.picture, as_png(failure.wrong, first))
    if args.keep and judgement.trial is not None:
        output = failure.output if failure else None
        document["kept"] = keep(judgement.trial, output, args.file, args.keep, allow_torch=args.allow_torch)
    return document


def _written(option: str, path: str, data: bytes) -> str:
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        rule = f"cannot be written ({error.strerror})"
        raise ArgumentError("judge", option, path, rule, "Choose another file") from None
    return path


def _runs(judgement: Judgement) -> str:
    """How often each case was run, and with how many threads."""
    runs = [result.runs for result in judgement.results]
    if not runs:
        return ""
    few, many = min(runs), max(runs)
    often = f"{few} run{'s' * (few > 1)}" if few == many else f"{few} to {many} runs"
    threads = ", ".join(map(str, judgement.threads))
    return f", {often} of each, with {threads} thread{'s' * (judgement.threads != (1,))}"


def _text(screen: Screen, document: dict[str, Any], judgement: Judgement) -> str:
    verdict, results = judgement.verdict, judgement.results
    word = verdict.word if verdict.passed else screen.paint(verdict.word, "bold", "red")
    used = f"{max((result.worst for result in results), default=0.0):.3g}, at most, in the cases that passed"
    left_out = "; ".join(f"{name}: {why}" for name, why in judgement.left_out.items())
    rows = [
        ["verdict", screen.verdict(True) if verdict.passed else word],
        *([["case", verdict.case]] if verdict.case else []),
        ["reason", reason_of(document)],
        ["file", f"{document['file']} ({document['language']}, {document['dtype']})"],
        ["cases passed", f"{len(results)}{_runs(judgement)}"],
        *([["tolerance used", used]] if results else []),
        *([["slowest call", duration(max(r.seconds for r in results))]] if results else []),
        *([["left out", left_out]] if left_out else []),
        *([name, shown(what)] for name, what in judgement.notes.items()),
        ["seed", str(document["seed"])],
        *map(list, protections_off(document)),
        *map(list, diagnosis(document)),
        *([["picture", document["picture_file"]]] if "picture_file" in document else []),
        *([["kept", ", ".join(document["kept"])]] if "kept" in document else []),
    ]
    parts = [screen.table(["", document["slug"]], rows), quoted(document), document.get("picture", "")]
    return "\n\n".join(filter(None, parts))


def sample_file(args: argparse.Namespace) -> int:
    """Input, expected and got of the problem's small example, perhaps with other sizes."""
    options, problem = options_of(args), problem_of(args.file, args.problem)
    seed = 0 if args.seed is None else args.seed
    values = changed_values(problem, problem.sample, settings(problem, args.set))
    check_memory(problem, values, options.dtype)
    case = Case("sample", "the small example of the problem's text", values)
    trial = make_trial(problem, case, options.dtype, np.random.default_rng(seed))
    captured: list[Any] = []
    with ended_by_signal():
        judgement = check(args.file, problem, options, given=[trial], seen=lambda call: captured.append(call.output))
    passed = judgement.verdict.passed
    got = options.dtype.widen(captured[-1]) if captured else None
    document = {
        "file": args.file,
        "slug": problem.slug,
        "dtype": options.dtype.name,
        "seed": seed,
        "values": dict(trial.values),
        **{name: options.dtype.widen(array).tolist() for name, array in trial.arrays.items()},
        "expected": trial.expected.values.tolist(),
        "got": None if got is None else got.tolist(),
        "verdict": judgement.verdict.word,
        "reason": judgement.verdict.reason,
        "passed": passed,
        "unprotected": dict(judgement.unprotected),
    }
    emit_json(document) if args.json else emit(_sample_text(trial, got, judgement))
    return OK if passed else CHECK_FAILED


def _sample_text(trial: Trial, got: Any, judgement: Judgement) -> str:
    dtype = trial.dtype
    parts = [f"{trial.problem.slug}, {dtype.name}: {compact(trial.values)}"]
    shown = {name: dtype.widen(array) for name, array in trial.arrays.items()}
    shown |= {"expected": trial.expected.values} | ({} if got is None else {"got": got})
    with np.printoptions(precision=5, threshold=200, edgeitems=3, linewidth=110, suppress=True):
        parts += [f"{name} {array.shape}\n{array}" for name, array in shown.items()]
    verdict = judgement.verdict
    parts.append(f"{verdict.word}" + (f": {verdict.reason}" if not verdict.passed else ""))
    return "\n\n".join(parts)
