"""Looks for the next defect: drawn cases and trouble on purpose, for as long as it is told to.

    python tools/soak.py --seconds 3600 --seed 7        # `make soak SECONDS=3600 SEED=7`
    python tools/soak.py --cases 10000 --seed 7         # however long they take

Cases (tests/soak/draw.py) run on every instruction set of the machine, every fourth batch with all accesses of the
generated code checked; between them come races, faults and many calls (tests/soak/faults.py). Failing cases are made
small and printed as programs. Exit code 0: nothing found; 1: something was; 2: no case could be run.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT / "tests"), str(ROOT / "src")]  # in place of this folder, which has a `soak` too

import numpy as np  # noqa: E402
from soak import faults  # noqa: E402
from soak.draw import Draw, read  # noqa: E402
from soak.reduce import environment, program, reduced, verdict_alone  # noqa: E402

from convt3d.cpu.plan.machine import LEVELS, architecture, machine  # noqa: E402

BATCH = 5  # pipelines, each with some cases, that one process runs
CHECKED_EVERY = 4  # batches, of which one runs with checked accesses
FAULTS_EVERY = 4  # batches, after which comes a scenario
REDUCED = 8  # failures, of different kinds, that are made small
CASE_SECONDS = 300.0  # after which a case hangs


@dataclass(frozen=True)
class Found:
    """A failing case, and where it failed."""

    isa: str
    checked: bool
    number: int
    draw: Draw
    said: str

    @property
    def kind(self) -> tuple[str, str]:
        """Failures that are alike in both are likely to be one defect."""
        stages = {type(stage).__name__ for stage in self.draw.stages}
        return self.said.split(":")[0], " ".join(sorted(stages))


@dataclass
class Soak:
    seed: int
    isas: tuple[str, ...]
    folder: Path
    pipelines: int = BATCH
    counts: Counter[str] = field(default_factory=Counter)
    found: list[Found] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    running: set[subprocess.Popen[str]] = field(default_factory=set)

    @property
    def cases(self) -> int:
        return sum([*self.counts.values()]) - self.counts["scenarios"]  # a copy: other threads count meanwhile

    def batch(self, number: int) -> None:
        """Cases of some pipelines in a process of their own; another one goes on behind a case that ended it."""
        isa, checked = self.isas[number % len(self.isas)], number % CHECKED_EVERY == CHECKED_EVERY - 1
        first, last = number * self.pipelines, (number + 1) * self.pipelines
        while first < last:
            first = self._process(isa, checked, first, last)

    def _process(self, isa: str, checked: bool, first: int, last: int) -> int:
        """Returns the pipeline to go on with."""
        flags = {"CONVT3D_ISA": isa, "CONVT3D_CHECK_BOUNDS": str(int(checked)), "CONVT3D_CACHE_DIR": str(self.folder)}
        command = [sys.executable, "-m", "soak.worker", *map(str, (self.seed, first, 1, last))]
        process = subprocess.Popen(
            command, env=environment(**flags), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.running.add(process)
        guard = threading.Timer(CASE_SECONDS * self.pipelines, process.kill)
        guard.start()
        number, draw, ended = first * 100, None, False
        assert process.stdout is not None
        for line in process.stdout:
            word, _, rest = line.strip().partition(" ")
            if word == "case":
                at, _, text = rest.partition(" ")
                number, draw = int(at), read(text)
                self.counts[isa + (" checked" if checked else "")] += 1
            elif word == "failed" and draw is not None:
                self._note(Found(isa, checked, number, draw, rest.partition(" ")[2]))
            ended = word == "done"
        guard.cancel()
        code = process.wait()
        stopped = process not in self.running
        self.running.discard(process)
        if ended or stopped:
            return last
        if draw is None:
            self.troubles.append(f"a worker for {isa} ended with {code} before its first case")
            return last
        self._note(Found(isa, checked, number, draw, f"signal {-code}: the process died"))
        return number // 100 + 1

    def _note(self, one: Found) -> None:
        self.found.append(one)
        print(f"  case {one.number} on {one.isa}: {one.said}\n    {one.draw!r}", flush=True)

    def scenario(self, number: int) -> None:
        one = faults.SCENARIOS[number % len(faults.SCENARIOS)]
        self._trouble(one.__name__, number, lambda rng, folder: one(rng, folder))

    def growth(self, calls: int) -> None:
        self._trouble(f"{calls} calls", 0, lambda rng, folder: faults.no_growth(rng, folder, calls))

    def _trouble(self, name: str, number: int, one: faults.Scenario) -> None:
        self.counts["scenarios"] += 1
        with tempfile.TemporaryDirectory(dir=self.folder.parent) as folder:
            Path(folder).chmod(0o700)
            try:
                one(np.random.default_rng([self.seed, number]), Path(folder))
            except Exception as problem:
                self.troubles.append(f"{name}: {type(problem).__name__}: {problem}")

    def report(self, seconds: float) -> bool:
        """Prints what was found, made small within about so many seconds a case; whether that was nothing."""
        print(", ".join(f"{count} {what}" for what, count in sorted(self.counts.items())), flush=True)
        kinds: dict[tuple[str, str], Found] = {}
        for one in self.found:
            kinds.setdefault(one.kind, one)
        for one in itertools.islice(kinds.values(), REDUCED):
            flags = {"CONVT3D_CHECK_BOUNDS": str(int(one.checked)), "CONVT3D_CACHE_DIR": str(self.folder)}
            draw, said = reduced(one.draw, one.said, verdict_alone(one.isa, **flags), seconds)
            alike = sum(other.kind == one.kind for other in self.found)
            print(f"\nFAILED case {one.number} on {one.isa} ({alike} alike): {one.said}\nreduced: {said}")
            print(program(draw, one.isa, one.checked), flush=True)
        for one in itertools.islice(kinds.values(), REDUCED, None):
            print(f"\nFAILED case {one.number} on {one.isa}, as drawn: {one.said}")
            print(program(one.draw, one.isa, one.checked))
        for trouble in self.troubles:
            print(f"\nFAILED {trouble}", flush=True)
        return not self.found and not self.troubles


def instruction_sets() -> tuple[str, ...]:
    names = [level.name for level in LEVELS[architecture()]]
    return tuple(names[names.index(machine().isa) :])


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ends = options.add_mutually_exclusive_group()
    ends.add_argument("--seconds", type=float, default=600.0, help="time for drawing; reducing comes on top")
    ends.add_argument("--cases", type=int, help="at least so many, however long they take")
    ends.add_argument("--batches", type=int, help="so many, however long they take")
    options.add_argument("--seed", type=int, default=None, help="another one draws other cases")
    options.add_argument("--pipelines", type=int, default=BATCH, help="of a batch, each with several cases")
    options.add_argument(
        "--faults", type=int, default=FAULTS_EVERY, help="batches from one scenario to the next; 0: none"
    )
    options.add_argument("--calls", type=int, default=100_000, help="calls that must not take memory; 0: none")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    options.add_argument("--isa", action="append", help="only this instruction set; may be repeated")
    options.add_argument("--reduce-seconds", type=float, default=180.0, help="for each failing case")
    chosen = options.parse_args()
    seed = chosen.seed if chosen.seed is not None else int.from_bytes(os.urandom(3), "little")
    isas = tuple(chosen.isa or instruction_sets())
    wanted = [f"{n} {what}" for n, what in ((chosen.cases, "cases"), (chosen.batches, "batches")) if n is not None]
    until = wanted[0] if wanted else f"{chosen.seconds:.0f} seconds"
    print(f"soak: seed {seed}, {', '.join(isas)}, {until}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "kernels"
        cache.mkdir(mode=0o700)
        soak = Soak(seed, isas, cache, chosen.pipelines)
        _run(soak, chosen)
        clean = soak.report(chosen.reduce_seconds)
    said = "nothing found" if clean else f"{len(soak.found)} cases and {len(soak.troubles)} scenarios failed"
    print(f"{soak.cases} cases, {soak.counts['scenarios']} scenarios: {said}")
    return 1 if not clean else 0 if soak.cases else 2


def _run(soak: Soak, chosen: argparse.Namespace) -> None:
    """Keeps all jobs busy until the time, the cases or the batches are over."""
    timed = chosen.cases is None and chosen.batches is None
    end = time.monotonic() + chosen.seconds if timed else math.inf
    most = math.inf if chosen.cases is None else chosen.cases
    told = time.monotonic()
    batches = itertools.count() if chosen.batches is None else range(chosen.batches)
    work = iter(_work(soak, batches, chosen.calls, chosen.faults))
    with ThreadPoolExecutor(chosen.jobs) as pool:
        pending: set[Future[None]] = set()
        more = True
        while more or pending:
            while more and len(pending) < chosen.jobs:
                task = next(work, None)
                if task is None or time.monotonic() > end or soak.cases >= most:
                    more = False
                else:
                    pending.add(pool.submit(*task))
            done, pending = wait(pending, timeout=1.0, return_when=FIRST_COMPLETED)
            for one in done:
                one.result()
            if time.monotonic() > end:
                more = False
                for process in list(soak.running):  # what they found so far counts
                    soak.running.discard(process)
                    process.kill()
            if time.monotonic() - told > 60:
                told = time.monotonic()
                print(f"  {dict(soak.counts)}, {len(soak.found)} failed", flush=True)


def _work(soak: Soak, batches: Iterable[int], calls: int, every: int) -> Iterator[tuple[Callable[[int], None], int]]:
    """Batches, and between them scenarios; first of all many calls."""
    if calls:
        yield soak.growth, calls
    for number in batches:
        yield soak.batch, number
        if every and number % every == 0:
            yield soak.scenario, number // every


if __name__ == "__main__":
    sys.exit(main())
