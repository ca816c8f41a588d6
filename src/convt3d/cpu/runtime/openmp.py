"""Start one native function on the threads of an OpenMP runtime that is in the process already, such as PyTorch's.

Its threads listen for milliseconds after each piece of work. Threads of our own would share the cores with them
meanwhile; as their next piece of work, our function has the cores to itself. OpenMP decides how many of its threads
come: they draw the indices, so all of them are run by however many there are. But it also waits for each of its threads
when the work is done, for long where other programs have the cores: then our own threads work for a while, which
nobody has to wait for.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

from .compiled import compiled

LATE = 1_000_000  # nanoseconds without work; waking a thread takes a tenth of that
PAUSE = 1.0  # seconds without OpenMP after that

# What threads are given: the function, its arguments, the number of indices, the next one of them, and when one ended.
_IR = """
declare i32 @clock_gettime(i32, ptr)

define internal i64 @now() {
entry:
  %time = alloca [2 x i64], align 8
  %failed = call i32 @clock_gettime(i32 1, ptr %time)
  %nanoseconds.at = getelementptr i64, ptr %time, i64 1
  %seconds = load i64, ptr %time
  %nanoseconds = load i64, ptr %nanoseconds.at
  %whole = mul i64 %seconds, 1000000000
  %all = add i64 %whole, %nanoseconds
  ret i64 %all
}

define internal void @draw(ptr %job) {
entry:
  %arguments.at = getelementptr i64, ptr %job, i64 1
  %count.at = getelementptr i64, ptr %job, i64 2
  %next.at = getelementptr i64, ptr %job, i64 3
  %ended.at = getelementptr i64, ptr %job, i64 4
  %function = load ptr, ptr %job
  %arguments = load ptr, ptr %arguments.at
  %count = load i64, ptr %count.at
  br label %next
next:
  %index = atomicrmw add ptr %next.at, i64 1 monotonic
  %any = icmp ult i64 %index, %count
  br i1 %any, label %run, label %leave
run:
  call void %function(ptr %arguments, i64 %index)
  %ended = call i64 @now()
  %before = atomicrmw max ptr %ended.at, i64 %ended monotonic
  br label %next
leave:
  ret void
}

; The team has its usual size: OpenMP ends and starts threads where that changes. Gives the nanoseconds from the end of
; the work to the end of the call; -1 if the team is too small, and nothing was run.
define i64 @share(ptr %parallel, ptr %most, ptr %function, ptr %arguments, i64 %count) {
entry:
  %threads32 = call i32 %most()
  %threads = sext i32 %threads32 to i64
  %enough = icmp sge i64 %threads, %count
  br i1 %enough, label %run, label %leave
run:
  %job = alloca i64, i64 5
  %arguments.at = getelementptr i64, ptr %job, i64 1
  %count.at = getelementptr i64, ptr %job, i64 2
  %next.at = getelementptr i64, ptr %job, i64 3
  %ended.at = getelementptr i64, ptr %job, i64 4
  store ptr %function, ptr %job
  store ptr %arguments, ptr %arguments.at
  store i64 %count, ptr %count.at
  store i64 0, ptr %next.at
  store i64 0, ptr %ended.at
  call void %parallel(ptr @draw, ptr %job, i32 0, i32 0)
  %now = call i64 @now()
  %ended = load i64, ptr %ended.at
  %idle = sub i64 %now, %ended
  br label %leave
leave:
  %result = phi i64 [ -1, %entry ], [ %idle, %run ]
  ret i64 %result
}
"""


class OpenMP:
    """The runtime that a library was linked with."""

    def __init__(self, library: str) -> None:
        """Raises an OSError or AttributeError where there is none that we can call."""
        found = ctypes.CDLL(library)
        self._parallel = ctypes.cast(found.GOMP_parallel, ctypes.c_void_p)
        self._most = ctypes.cast(found.omp_get_max_threads, ctypes.c_void_p)
        self._share: Any = None
        self._pauses_until = 0.0

    def run(self, function: int, arguments: int, count: int) -> bool:
        """Runs `function(arguments, index)` for each index; False where it has fewer threads, or came late of late, and
        nothing was run."""
        if self._share is None:
            pointer, word = ctypes.c_void_p, ctypes.c_int64
            code = compiled("openmp", lambda: _IR, ("share",))
            self._share = code.function("share", pointer, pointer, pointer, pointer, word, returns=word)
        if self._pauses_until and time.monotonic() < self._pauses_until:
            return False
        idle = self._share(self._parallel, self._most, function, arguments, count)
        self._pauses_until = time.monotonic() + PAUSE if idle > LATE else 0.0
        return bool(idle >= 0)
