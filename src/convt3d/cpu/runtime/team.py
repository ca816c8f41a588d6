"""Start one native function on several threads within microseconds, by one native call that nothing can interrupt.

`launch(function, arguments, n)` runs `function(arguments, index)` for index 0 .. n - 1, index 0 on the calling thread.
Waking a sleeping thread takes tens of microseconds. So a worker listens for the next job for a while before it sleeps,
the caller waits in the same way, and an index whose worker has not begun when the caller has ended its own is taken
back and run by the caller. The function must therefore never wait for another index of the same call. The system is
told to keep workers off the caller's core.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from _thread import allocate_lock
from functools import cache, lru_cache
from typing import Any

from ..plan.machine import architecture
from .build import Code, Function
from .compiled import compiled
from .openmp import OpenMP

LISTEN_TURNS = 4000  # of some 25 ns: twice what waking a thread takes on a virtual machine
MOST_WORKERS = 255

# Sleeping natively uses unnamed POSIX semaphores, which macOS and Windows lack: there, Python's threads take over.
SUPPORTED = sys.platform.startswith("linux") and sys.maxsize > 2**32

_BOX_BYTES = 256
# A worker's box begins with its state (0 listening or running, 1 a job is in the box, 2 asleep); where the rest is, in
# words of 8 bytes.
_BOX = {
    "function": 1,
    "arguments": 2,
    "index": 3,
    "owner": 4,  # 0 no worker yet, 1 free, 2 taken by a caller
    "thread": 5,  # of the worker, as the system calls it
    "seen": 6,  # the core it was last seen on
    "kept": 7,  # the core it may not use, plus 1
    "done": 8,  # 0 running, 1 ended, 2 running and the caller is asleep
    "worker.semaphore": 16,
    "caller.semaphore": 24,
}
# Addresses in the box that a function is given; LLVM leaves out those it does not use.
_PLACES = "\n".join(f"  %{name}.at = getelementptr i64, ptr %box, i64 {at}" for name, at in _BOX.items())
_IR = """
declare i32 @sem_init(ptr, i32, i32)
declare i32 @sem_wait(ptr)
declare i32 @sem_post(ptr)
declare i32 @sched_yield()
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
{declare_pause}

define internal void @sleep_at(ptr %semaphore) {{
entry:
  br label %again
again:
  %failed = call i32 @sem_wait(ptr %semaphore)
  %signal = icmp ne i32 %failed, 0
  br i1 %signal, label %again, label %awake
awake:
  ret void
}}

; Give the core away now and then, in case the awaited thread has no other to run on.
define internal void @rest(i64 %turn) {{
entry:
  {pause}
  %low = and i64 %turn, 127
  %polite = icmp eq i64 %low, 0
  br i1 %polite, label %give, label %back
give:
  %ignored = call i32 @sched_yield()
  br label %back
back:
  ret void
}}

; A worker on the caller's core would begin when the caller has ended, and systems leave it there for many calls, or
; wake it there. So the caller forbids it that core, and allows the one it was kept off before. Where there is no other
; core, that is refused.
define internal void @keep_off(ptr %box, i64 %core) {{
entry:
{places}
  %cores = alloca [16 x i64], align 8
  %seen = load atomic i64, ptr %seen.at monotonic, align 8
  %same = icmp eq i64 %seen, %core
  %known = icmp ult i64 %core, 1024
  %together = and i1 %same, %known
  br i1 %together, label %ask, label %back
ask:
  %thread64 = load i64, ptr %thread.at
  %thread = trunc i64 %thread64 to i32
  %failed = call i32 @sched_getaffinity(i32 %thread, i64 128, ptr %cores)
  %answered = icmp eq i32 %failed, 0
  br i1 %answered, label %look, label %back
look:
  %kept = load i64, ptr %kept.at
  %any = icmp ne i64 %kept, 0
  br i1 %any, label %allow, label %forbid
allow:
  %old = sub i64 %kept, 1
  %old.word = lshr i64 %old, 6
  %old.at = getelementptr i64, ptr %cores, i64 %old.word
  %old.place = and i64 %old, 63
  %old.bit = shl i64 1, %old.place
  %old.cores = load i64, ptr %old.at
  %old.more = or i64 %old.cores, %old.bit
  store i64 %old.more, ptr %old.at
  br label %forbid
forbid:
  %word = lshr i64 %core, 6
  %word.at = getelementptr i64, ptr %cores, i64 %word
  %place = and i64 %core, 63
  %bit = shl i64 1, %place
  %but = xor i64 %bit, -1
  %before = load i64, ptr %word.at
  %after = and i64 %before, %but
  store i64 %after, ptr %word.at
  %refused = call i32 @sched_setaffinity(i32 %thread, i64 128, ptr %cores)
  %set = icmp eq i32 %refused, 0
  br i1 %set, label %note, label %back
note:
  %now = add i64 %core, 1
  store i64 %now, ptr %kept.at
  br label %back
back:
  ret void
}}

define internal void @be_seen(ptr %box) {{
entry:
{places}
  %core = call i32 @sched_getcpu()
  %seen = sext i32 %core to i64
  store atomic i64 %seen, ptr %seen.at monotonic, align 8
  ret void
}}

; The life of a worker. Returns only if the box already has one.
define void @attend(ptr %box, i64 %thread, i64 %turns) {{
entry:
{places}
  %absent = cmpxchg ptr %owner.at, i64 0, i64 2 acq_rel acquire
  %first = extractvalue {{ i64, i1 }} %absent, 1
  br i1 %first, label %prepare, label %leave
prepare:
  %s1 = call i32 @sem_init(ptr %worker.semaphore.at, i32 0, i32 0)
  %s2 = call i32 @sem_init(ptr %caller.semaphore.at, i32 0, i32 0)
  store i64 %thread, ptr %thread.at
  store atomic i64 1, ptr %owner.at release, align 8
  br label %listen
listen:
  %left = phi i64 [ %turns, %prepare ], [ %left.next, %wait ], [ %turns, %ended ], [ %turns, %sleep ]
  %state = load atomic i64, ptr %box monotonic, align 8
  %posted = icmp eq i64 %state, 1
  br i1 %posted, label %take, label %quiet
quiet:
  %tired = icmp eq i64 %left, 0
  br i1 %tired, label %doze, label %wait
wait:
  call void @rest(i64 %left)
  call void @be_seen(ptr %box)
  %left.next = sub i64 %left, 1
  br label %listen
doze:
  %drop = cmpxchg ptr %box, i64 0, i64 2 acq_rel acquire
  %dropped = extractvalue {{ i64, i1 }} %drop, 1
  br i1 %dropped, label %sleep, label %take
sleep:
  call void @sleep_at(ptr %worker.semaphore.at)
  br label %listen
take:
  %grab = cmpxchg ptr %box, i64 1, i64 0 acq_rel acquire
  %mine = extractvalue {{ i64, i1 }} %grab, 1
  br i1 %mine, label %work, label %ended
work:
  call void @be_seen(ptr %box)
  %function = load ptr, ptr %function.at
  %arguments = load ptr, ptr %arguments.at
  %index = load i64, ptr %index.at
  call void %function(ptr %arguments, i64 %index)
  %before = atomicrmw xchg ptr %done.at, i64 1 acq_rel
  %wanted = icmp eq i64 %before, 2
  br i1 %wanted, label %wake, label %ended
wake:
  %w = call i32 @sem_post(ptr %caller.semaphore.at)
  br label %ended
ended:
  br label %listen
leave:
  ret void
}}

define internal void @post(ptr %box, ptr %function, ptr %arguments, i64 %index) {{
entry:
{places}
  store ptr %function, ptr %function.at
  store ptr %arguments, ptr %arguments.at
  store i64 %index, ptr %index.at
  store atomic i64 0, ptr %done.at monotonic, align 8
  %before = atomicrmw xchg ptr %box, i64 1 acq_rel
  %asleep = icmp eq i64 %before, 2
  br i1 %asleep, label %wake, label %back
wake:
  %w = call i32 @sem_post(ptr %worker.semaphore.at)
  br label %back
back:
  ret void
}}

; End of a job: take it back if it has not begun, else wait for the worker; then free the worker for other callers.
define internal void @settle(ptr %box, i64 %turns) {{
entry:
{places}
  %retract = cmpxchg ptr %box, i64 1, i64 0 acq_rel acquire
  %retracted = extractvalue {{ i64, i1 }} %retract, 1
  br i1 %retracted, label %own, label %look
own:
  %function = load ptr, ptr %function.at
  %arguments = load ptr, ptr %arguments.at
  %index = load i64, ptr %index.at
  call void %function(ptr %arguments, i64 %index)
  br label %over
look:
  %left = phi i64 [ %turns, %entry ], [ %left.next, %wait ]
  %done = load atomic i64, ptr %done.at acquire, align 8
  %ended = icmp eq i64 %done, 1
  br i1 %ended, label %over, label %quiet
quiet:
  %tired = icmp eq i64 %left, 0
  br i1 %tired, label %doze, label %wait
wait:
  call void @rest(i64 %left)
  %left.next = sub i64 %left, 1
  br label %look
doze:
  %drop = cmpxchg ptr %done.at, i64 0, i64 2 acq_rel acquire
  %dropped = extractvalue {{ i64, i1 }} %drop, 1
  br i1 %dropped, label %sleep, label %over
sleep:
  call void @sleep_at(ptr %caller.semaphore.at)
  br label %over
over:
  store atomic i64 1, ptr %owner.at release, align 8
  ret void
}}

; Run all indices: free workers get one each, the caller the first and those for which no worker was free.
define void @launch(ptr %boxes, i64 %workers, ptr %function, ptr %arguments, i64 %count, i64 %turns) {{
entry:
  %taken = alloca ptr, i64 {most}
  %core32 = call i32 @sched_getcpu()
  %core = sext i32 %core32 to i64
  br label %seek
seek:
  %at = phi i64 [ 0, %entry ], [ %at.next, %seek.next ]
  %given = phi i64 [ 1, %entry ], [ %given.next, %seek.next ]
  %any = icmp ult i64 %at, %workers
  %need = icmp ult i64 %given, %count
  %both = and i1 %any, %need
  br i1 %both, label %ask, label %own
ask:
  %offset = mul i64 %at, {box_bytes}
  %box = getelementptr i8, ptr %boxes, i64 %offset
{places}
  %claim = cmpxchg ptr %owner.at, i64 1, i64 2 acq_rel acquire
  %claimed = extractvalue {{ i64, i1 }} %claim, 1
  br i1 %claimed, label %give, label %seek.next
give:
  %slot = getelementptr ptr, ptr %taken, i64 %given
  store ptr %box, ptr %slot
  call void @keep_off(ptr %box, i64 %core)
  call void @post(ptr %box, ptr %function, ptr %arguments, i64 %given)
  %given.more = add i64 %given, 1
  br label %seek.next
seek.next:
  %given.next = phi i64 [ %given, %ask ], [ %given.more, %give ]
  %at.next = add i64 %at, 1
  br label %seek
own:
  call void %function(ptr %arguments, i64 0)
  br label %rest
rest:
  %index = phi i64 [ %given, %own ], [ %index.next, %extra ]
  %more = icmp ult i64 %index, %count
  br i1 %more, label %extra, label %wait
extra:
  call void %function(ptr %arguments, i64 %index)
  %index.next = add i64 %index, 1
  br label %rest
wait:
  %one = phi i64 [ 1, %rest ], [ %one.next, %finish ]
  %unsettled = icmp ult i64 %one, %given
  br i1 %unsettled, label %finish, label %back
finish:
  %taken.at = getelementptr ptr, ptr %taken, i64 %one
  %taken.box = load ptr, ptr %taken.at
  call void @settle(ptr %taken.box, i64 %turns)
  %one.next = add i64 %one, 1
  br label %wait
back:
  ret void
}}
"""

# The instruction that tells the core it is only waiting.
_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.isb(i32)", "call void @llvm.aarch64.isb(i32 15)"),
    "other": ("", ""),
}


class _Native:
    """The same, to be called, for as long as the process lives."""

    def __init__(self) -> None:
        self.code = team_code()
        # Workers are inside this code until the process ends: it must outlive even the interpreter's last clean-up.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.code))
        word, pointer = ctypes.c_int64, ctypes.c_void_p
        self.attend: Any = self.code.function("attend", pointer, word, word)
        self.launch: Any = self.code.function("launch", pointer, word, pointer, pointer, word, word)


def team_code() -> Code:
    """`attend` and `launch` of the text above."""
    return compiled("team", team_ir, ("attend", "launch"))


def team_ir(arch: str | None = None) -> str:
    """The LLVM IR of the launcher for an architecture."""
    declare_pause, pause = _PAUSE[arch or architecture()]
    return _IR.format(
        declare_pause=declare_pause, pause=pause, places=_PLACES, box_bytes=_BOX_BYTES, most=MOST_WORKERS + 1
    )


class _Team:
    """Boxes and threads of one process. It grows to the largest call seen, not with the number of concurrent calls."""

    def __init__(self) -> None:
        self.count = 0
        self._growing = allocate_lock()
        memory = (ctypes.c_byte * (_BOX_BYTES * (MOST_WORKERS + 1)))()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))  # as above: workers never leave
        self.boxes = ctypes.addressof(memory) + -ctypes.addressof(memory) % _BOX_BYTES

    def grow(self, wanted: int) -> None:
        """Start workers up to `wanted`, if the system lets us. A box refuses a second worker, so retrying is safe."""
        with self._growing:
            while self.count < wanted:
                box = self.boxes + self.count * _BOX_BYTES
                try:
                    threading.Thread(target=_attend, args=(box,), name="convt3d-worker", daemon=True).start()
                except (
                    RuntimeError,
                    MemoryError,
                ):  # no more threads allowed, or the interpreter is shutting down: run with fewer
                    return
                self.count += 1


def _attend(box: int) -> None:
    """A box whose worker did not get so far for want of memory stays without one, and callers pass over it."""
    _native().attend(box, threading.get_native_id(), LISTEN_TURNS)


_native = cache(_Native)
_team = _Team()
_others: OpenMP | None = None  # threads that work for us where they are enough


def share(others: OpenMP) -> None:
    """From now on, work is done by these threads. A forked child has none of them, and has workers of its own again."""
    global _others
    _others = others


@lru_cache(maxsize=256)
def _callable(address: int) -> Any:
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(address)


def launch(function: Function, arguments: int, n_threads: int) -> None:
    """Run the native `void function(void *arguments, int64 index)` for n_threads indices; return when all have ended.

    `arguments` is an address; the caller keeps what is behind it alive. Ctrl-C takes effect when the work is done.
    """
    if n_threads == 1:
        _callable(function.address)(arguments, 0)
    elif _others is not None and _others.run(function.address, arguments, n_threads):
        return
    elif not SUPPORTED:
        _launch_by_python(_callable(function.address), arguments, n_threads)
    else:
        native, team = _native(), _team
        wanted = min(n_threads - 1, MOST_WORKERS)
        if team.count < wanted:
            team.grow(wanted)
        native.launch(team.boxes, team.count, function.address, arguments, n_threads, LISTEN_TURNS)


def team(n_threads: int) -> tuple[int, int, int]:
    """For native code that starts so many threads itself: addresses of `launch` and of the boxes, and how many workers
    there are. All 0 where one thread does it."""
    if n_threads == 1:
        return 0, 0, 0
    native, wanted = _native(), min(n_threads - 1, MOST_WORKERS)
    if _team.count < wanted:
        _team.grow(wanted)
    return native.code.addresses["launch"], _team.boxes, _team.count


def _launch_by_python(call: Any, arguments: int, n_threads: int) -> None:
    """On threads that are started for this call, and have ended when the block is left."""
    from concurrent.futures import ThreadPoolExecutor  # here: few systems need it

    with ThreadPoolExecutor(n_threads - 1) as pool:
        for index in range(1, n_threads):
            try:
                pool.submit(call, arguments, index)
            except RuntimeError:  # no more threads allowed
                call(arguments, index)
        call(arguments, 0)


def _forget_workers() -> None:
    global _team, _others
    _team, _others = _Team(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)
