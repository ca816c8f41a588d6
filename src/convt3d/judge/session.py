"""A conversation with one kernel: write the inputs, ask for a call, take the output, look for traces of foul play.

Between two calls the kernel's process stands still. The inputs of a call are written while it does, the clock starts
when it is let go and stops when its reply is here, and the output is copied after it was stopped again: work that is
not done by then is not in the copy, and work between reply and stop is added to the time. What used the processor while
it had to stand still is refused. Timed calls and others are the same to it.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..cpu.plan.cores import get_num_threads
from ..errors import ArgumentError
from ..front.verify import Storage
from ..spec.dtypes import DType
from ..spec.problems import Problem
from .arena import Arena, Spot, region_bytes, tensor_bytes
from .child import LIBRARIES, SLOTS
from .cuda import with_lines
from .languages import Program, missing_module
from .sandbox import GIGABYTE, PROTECTIONS, Ended, Limits, Sandbox, TimedOut, script
from .verdict import CRASH, INPUT_MUTATED, NOT_ALLOWED, NOT_RUN, OUT_OF_BOUNDS, SAYABLE, TIME_OUT, Rejected, rejected

FORGED = "its reply is not understood: the kernel wrote to the judge's pipe"
EMPTY_CALLS = 8
STILL = 0.001  # seconds of the processor that a stop may take to reach the last thread
SLOT = 2**36  # bytes of addresses around each array: a 32-bit index of any type that went wrong stays within half of it
FAULT = struct.Struct("@iiiiQ")  # what the system says of a fault: signal, error, code, nothing, address
FROM_OUTSIDE = (0x80, 0, -1, -6)  # codes of signals that belong to no address
ALLOCATED = 256  # bytes, of whose multiples cudaMalloc gives addresses: kernels load vectors from them
SHORTEST = 1e-6  # seconds: what is less drowns in the noise of an empty request, and is not said
LATE = 0.3  # seconds a late writer is given to show itself, once the verdict is that something is missing


@dataclass(frozen=True, eq=False)
class Call:
    """What one call left: a copy of the output, the seconds it took, the type of a value it returned."""

    output: Storage
    seconds: float
    returned: str | None


class Died(Exception):
    """The kernel's process ended by a signal; `spot` is what it touched, if that is near an array."""

    def __init__(self, words: str, spot: Spot | None = None) -> None:
        super().__init__(words)
        self.words, self.spot = words, spot


class Session:
    """A kernel's process, from its start to its end. `sealed`: its inputs cannot be written."""

    def __init__(
        self,
        program: Program,
        problem: Problem,
        dtype: DType,
        room: tuple[int, int],
        limits: Limits,
        *,
        sealed: bool = True,
        threads: int | None = None,
    ) -> None:
        self.threads = threads or get_num_threads()
        self.program, self.problem, self.dtype, self.limits = program, problem, dtype, limits
        self.banks = ""  # CUDA: bank conflicts of the last call
        self.arena = Arena(*room, sealed)
        theirs, self._requests = os.pipe()
        self._replies, their_replies = os.pipe()
        self._faults, their_faults = os.pipe()
        for fd in (self._faults, their_faults):
            os.set_blocking(fd, False)
        given = [theirs, their_replies, their_faults]
        slots = [SLOT, 4 * max(room)]
        argv = [sys.executable, "-I", "-S", "-u", "-W", "ignore", script("child.py"), *map(str, [*given, *slots])]
        memory = max(limits.memory, GIGABYTE + 8 * sum(room))
        own = replace(limits, memory=memory, reserved=SLOTS * SLOT)
        try:
            self.box = Sandbox(
                argv, own, fds=[*given, *self.arena.fds], environment=_environment(program, self.threads)
            )
        finally:
            for fd in given:
                os.close(fd)
        self._shape: tuple[int, ...] = ()
        self._model = False
        self._slots = 0, SLOT  # where the kernel's process has the first one, and how wide they are
        self.overhead = 0.0

    @property
    def unprotected(self) -> dict[str, str]:
        """What this system does not refuse to a kernel, by the name of the protection that is missing."""
        return {name: what for name, what in PROTECTIONS.items() if name not in self.box.on}

    def __enter__(self) -> Session:
        try:
            self.box.__enter__()
            self._load()
        except (Ended, TimedOut):
            self.__exit__()
            raise rejected(CRASH, "its process did not start") from None
        except Died as death:  # no array was there yet
            self.__exit__()
            raise rejected(CRASH, death.words) from None
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.box.close()
        self.arena.close()
        for fd in (self._requests, self._replies, self._faults):
            os.close(fd)

    def _load(self) -> None:
        """The overhead of an empty call is measured before anything of the kernel's runs."""
        self._ask({"do": "noop"}, self.limits.start_seconds)
        times = []
        self._frozen()
        for _ in range(EMPTY_CALLS):
            times.append(self._timed({"do": "noop"})[1])
        self.overhead = min(times)
        self.box.resume()
        program, libraries = self.program, self.program.libraries(self.dtype)
        request = {
            "kind": program.kind,
            "path": program.path,
            "torch": program.torch,
            "libraries": libraries,
            "allow_torch": program.allow_torch,
            "machine": script("ptx") if program.compiled else "",
            "search": search_path(),
            "threads": self.threads,
        }
        try:
            self._ask({"do": "equip", **request}, self.limits.start_seconds)
        except (Rejected, Died) as ending:
            rule = f"needs {' and '.join(libraries)}: {ending.args[-1]}"
            remedy = "Install what is missing here, or releases that go together (docs/versions.md)"
            if isinstance(ending, Died):
                remedy = "Try again, or repair them here"
            raise ArgumentError("judge", "FILE", program.path, rule, remedy) from None
        reply = self._ask({"do": "load", **request}, self.limits.start_seconds)
        self._model = reply.get("model") is True

    def prepare(
        self,
        values: Mapping[str, Any],
        arrays: Mapping[str, Storage],
        side: str = "end",
        outside: str = "closed",
        threads: int | None = None,
    ) -> None:
        """Lays out a case and tells the kernel's process where it is. Of its data the weights are there already for a
        ModelNew, which may rearrange them, and nothing else: the clock is not running. `outside`: whether memory around
        the arrays is closed, readable, or (close to them) open."""
        shapes = self.problem.shapes(values)
        alignment = ALLOCATED if self.program.language == "cuda" else 1
        self.arena.lay(tensor_bytes(shapes, self.dtype), side, alignment)
        for name in self.problem.operand_names if self._model else ():
            self.arena.write(name, arrays[name])
        request = {
            "do": "prepare",
            "dtype": self.dtype.name,
            "values": dict(values),
            "shapes": shapes,
            "parameters": [(p.name, p.type) for p in self.problem.parameters],
            "weights": self.problem.operand_names,
            "constructor": constructor(self.problem, values),
            "regions": self.arena.regions(),
            "outside": outside,
            "threads": threads or self.threads,
            "backwards": threads not in (None, get_num_threads()),
        }
        self.box.resume()
        reply = self._ask(request, self.limits.start_seconds)
        self._slots = int(reply.get("base", 0)), max(1, int(reply.get("slot", 1)))
        self._frozen()
        self._shape = shapes["output"]

    def call(self, arrays: Mapping[str, Storage]) -> Call:
        """One call on fresh data of the prepared shapes."""
        for name, array in arrays.items():
            self.arena.write(name, array)
        self.arena.clear_output(self.dtype)
        reply, seconds, others = self._timed({"do": "call"})
        output = self.arena.read_output(self.dtype, self._shape)
        self._stood_still()
        said = str(reply.get("banks") or "")[:500]
        self.banks = with_lines(said, self.program.path) if said and self.program.language == "cuda" else ""
        call = Call(output, max(SHORTEST, seconds - self.overhead), (reply.get("returned") or "")[:100] or None)
        self._inspect(arrays, others)
        return call

    def _frozen(self) -> int:
        try:
            return self.box.stop()
        except TimedOut:
            raise rejected(CRASH, "it could not be stopped") from None
        except Ended as ended:
            raise self._ending(ended) from None

    def _stood_still(self) -> None:
        try:
            ran = self.box.seconds_since_stop()
        except TimedOut:
            raise rejected(CRASH, "it could not be looked at") from None
        except Ended as ended:
            raise self._ending(ended) from None
        if ran > STILL:
            raise rejected(NOT_ALLOWED, f"it worked for {1e3 * ran:.3g} ms while it had to stand still")

    def _inspect(self, arrays: Mapping[str, Storage], others: int) -> None:
        damage = self.arena.damage(self.dtype.itemsize)
        if damage:
            raise rejected(OUT_OF_BOUNDS, damage)
        for name, array in arrays.items():
            if not self.arena.holds(name, array):
                raise rejected(INPUT_MUTATED, f"`{name}` is not what it was before the call")
        if others:
            raise rejected(NOT_ALLOWED, f"{others} other processes were left running when the call returned")
        if not self.program.allow_torch and not self.program.torch:
            maps = self.box.maps()
            if not maps:
                raise rejected(NOT_ALLOWED, "it does not let its memory map be read")
            found = LIBRARIES.search("\n".join(os.path.basename(line) for line in maps.splitlines()))
            if found:
                raise rejected(NOT_ALLOWED, f"a library with an answer is loaded ({found[0]})")

    def late_changes(self, output: Storage) -> bool:
        """Whether the output goes on changing after the call has returned."""
        self.box.resume()
        time.sleep(LATE)
        with suppress(Ended, TimedOut):
            self.box.stop()
        return bool((self.arena.read_output(self.dtype, output.shape).view("u1") != output.view("u1")).any())

    # --- requests -----------------------------------------------------------------------------------------------------

    def _timed(self, request: Mapping[str, Any]) -> tuple[Mapping[str, Any], float, int]:
        """For a process that stands still, and does so again afterwards: the request waits in its pipe before the clock
        starts. What its threads work after the reply, until they are stopped, counts; where it may have other
        processes, whose time cannot be told so exactly, the clock runs until all stand still. The reply, the seconds,
        and how many other processes are alive."""
        self._send(request)
        self._stood_still()
        begun = time.perf_counter()
        self.box.resume()
        line, _ = self._line(self.limits.seconds)
        used = self.box.processor_seconds()
        ended = time.perf_counter()
        self.box.halt()
        reply = self._understood(line)
        others = self._frozen()
        if "seccomp" not in self.box.on:
            return reply, time.perf_counter() - begun, others
        return reply, ended - begun + max(0.0, self.box.processor_seconds() - used), others

    def _ask(self, request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        self._send(request)
        return self._understood(self._line(seconds)[0])

    def _send(self, request: Mapping[str, Any]) -> None:
        with suppress(BrokenPipeError):  # the reply will tell
            os.write(self._requests, json.dumps(request).encode() + b"\n")

    def _line(self, seconds: float) -> tuple[bytes, float]:
        """A reply and the moment it was here."""
        try:
            return self.box.read_reply(self._replies, seconds)
        except TimedOut:
            raise rejected(TIME_OUT, f"no answer within {seconds:g} s") from None
        except Ended as ended:
            raise self._ending(ended) from None

    def _understood(self, line: bytes) -> Mapping[str, Any]:
        try:
            reply: Mapping[str, Any] = json.loads(line)
            word, returned, missing = reply.get("error"), reply.get("returned"), reply.get("missing")
            int(reply.get("base", 0)), int(reply.get("slot", 0))
        except (ValueError, TypeError, OverflowError, AttributeError, RecursionError):
            raise rejected(CRASH, FORGED) from None
        beside = self.program.compiled or self.program.language == "cuda"  # a machine, which may say so
        sayable = (*SAYABLE, NOT_RUN) if beside else SAYABLE
        if word not in (None, *sayable) or not all(isinstance(said, (str, type(None))) for said in (returned, missing)):
            raise rejected(CRASH, FORGED)
        if missing and missing_module(self.program, missing):
            rule = f"imports {missing}, which is not installed here"
            remedy = "Install it; a module beside FILE is not found, since a kernel is one file"
            raise ArgumentError("judge", "FILE", self.program.path, rule, remedy)
        if word is not None:
            detail = self._told(str(reply.get("detail", ""))[:2000])
            raise rejected(word, with_lines(detail, self.program.path) if self.program.language == "cuda" else detail)
        return reply

    def _ending(self, ended: Ended) -> Exception:
        if ended.status is None or ended.status >= 0:
            return rejected(CRASH, self._told(ended.words()))
        fault, spot = self._fault(-ended.status), None
        if fault is not None:
            spot = self.arena.spot(fault, *self._slots, self.dtype.itemsize)
        near = f" at the address {fault:#x}, where no array is near" if fault is not None and spot is None else ""
        return Died(self._told(ended.words() + near), spot)

    def _fault(self, number: int) -> int | None:
        """The address of which the system said that it ended the process."""
        with suppress(BlockingIOError):
            said = os.read(self._faults, 128)
            if len(said) == 128:
                told, _, code, _, address = FAULT.unpack_from(said)
                return int(address) if told == number and code not in FROM_OUTSIDE else None
        return None

    def _told(self, words: str) -> str:
        text = self.box.text
        return f"{words}; it printed: {text[-600:]}" if text else words


class Sessions:
    """A kernel's processes, started when they are asked for. Native code gets one for each number of threads, since it
    may take the first number it sees for good; the libraries of Python can be told another."""

    def __init__(self, program: Program, start: Callable[[int], Session]) -> None:
        self._program, self._start = program, start
        self._open: dict[int, Session] = {}

    def at(self, threads: int) -> Session:
        if self._program.kind != "native" and self._open:
            return next(iter(self._open.values()))
        if threads not in self._open:
            self._open[threads] = self._start(threads).__enter__()
        return self._open[threads]

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].__exit__()


def room_for(problem: Problem, dtype: DType, every: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Bytes of the memory files, inputs and output, in which each case with these values has room."""
    rooms = []
    for values in every:
        sizes = tensor_bytes(problem.shapes(values), dtype)
        output = region_bytes(sizes.pop("output"))
        rooms.append((sum(map(region_bytes, sizes.values())), output))
    return max(inputs for inputs, _ in rooms), max(output for _, output in rooms)


def constructor(problem: Problem, values: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of ModelNew: the problem's sizes, three of a kind as a tuple, without those of the data."""
    triples = {name[:-2] for name in values if name.endswith("_d")}
    found: dict[str, Any] = {}
    for name, value in values.items():
        stem = name[:-2]
        if stem in triples and name[-2:] in ("_d", "_h", "_w"):
            key = "kernel_size" if stem == "kernel" else stem
            found[key] = [values[f"{stem}_{axis}"] for axis in "dhw"]
        elif name not in ("batch_size", "depth", "height", "width"):
            found[name] = value
    return found


def search_path() -> list[str]:
    """Where the kernel's process finds modules: as here, but for the working directory of `python -m` (a kernel is one
    file) and an archive with this package. In folders the rules of the process refuse what they must, file by file;
    an archive is one file, refused or not."""
    paths = [path for path in sys.path if path]
    if paths and os.path.realpath(paths[0]) == os.getcwd():
        del paths[0]
    package = str(Path(__file__).parents[1])
    return [path for path in paths if os.path.isdir(path) or not package.startswith(path + os.sep)]


def _environment(program: Program, threads: int) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    quiet = {"OMP_WAIT_POLICY": "PASSIVE"}  # idle threads sleep
    interpreted = {"TRITON_INTERPRET": "1"} if program.triton and not program.compiled else {}
    return {**dict.fromkeys(names, str(threads)), **quiet, **interpreted}
