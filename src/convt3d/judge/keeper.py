"""A process between the judge and the program it runs: starts it with limits, and ends all that it left behind.

Run as a script of its own, which imports nothing but the standard library: keeper.py ORDERS, a JSON object with
`argv`, `env`, `limits` (rlimit name -> number), `fds` (kept open), `output` (what becomes stdout and stderr), `folder`
(where it runs and may write), `private` (nobody else needs what it writes there), `filter` (of seccomp.py), `without`
(protections to leave off), and the most that it and its descendants may have together: `bytes`, `processes`, `threads`,
`files`, and `stored` in those. Orders come line by line on stdin:

    stop     freeze the program with every thread and process of it; answers {"others": n, "still": bool, "cpu": s}
    look     answers {"cpu": s}: seconds of the processor that it and its descendants have used so far
    end      kill everything and leave; the end of stdin means the same

Below the keeper is a guard, and below that the program (guard.py). The keeper answers on stdout, first with {"pid": n,
"on": protections in force}; when the program ends, {"status": n}, negative for a signal; beyond its limits, {"over":
what}.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any

if __package__:
    from . import guard
else:  # a script finds its neighbours by its own place
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    guard = __import__("guard")

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
LOOK_EVERY = 0.1
PATIENCE = 5.0  # seconds a killed or stopped process may take to get there
PROCESS_CLOCK = 2  # with a process's number above it, the name Linux gives to the clock of what it has used


class Over(Exception):
    """A limit was passed."""


def main() -> None:
    orders = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # its memory is nobody's to read
    signal.signal(signal.SIGTERM, lambda *_: None)
    bell, ring = os.pipe()
    os.set_blocking(ring, False)
    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    try:
        started = guard.begin(orders, libc)
        for fd in (*orders["fds"], orders["output"]):
            os.close(fd)
        say(pid=started.program, on=started.on)
        Keeper(orders, started, bell).serve()
    except Over as limit:
        say(over=str(limit))
    except OSError as error:
        say(over=f"something that the system has not ({error})")
    finally:
        end_family()
        os._exit(0)


def say(**message: Any) -> None:
    with suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


class Keeper:
    """Listens to the judge, the guard and the clock."""

    def __init__(self, orders: dict[str, Any], started: guard.Started, bell: int) -> None:
        self.orders, self.bell, self.channel = orders, bell, started.channel
        self.guard, self.program = started.guard, started.program

    def serve(self) -> None:
        pending, listening = b"", [0, self.bell, self.channel.fileno()]
        while True:
            ready, _, _ = select.select(listening, [], [], LOOK_EVERY)
            if self.bell in ready and signal.SIGTERM in os.read(self.bell, 4096):
                return
            if self.channel.fileno() in ready:
                told = self.channel.recv(4096)
                if not told:
                    raise Over("a signal against its guard")
                say(status=json.loads(told)["status"])
                listening.remove(self.channel.fileno())
            if 0 in ready:
                data = os.read(0, 4096)
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    if line == b"stop":
                        self.stop()
                    elif line == b"look":
                        say(cpu=self.processor_seconds())
                if not data or b"end" in lines:
                    return
            self.check_limits()

    def members(self) -> list[int]:
        """The program and what it started."""
        return [pid for pid in family() if pid != self.guard]

    def check_limits(self) -> None:
        members, orders = self.members(), self.orders
        if len(members) > orders["processes"]:
            raise Over(f"more than {orders['processes']} processes")
        if sum(len(tasks(pid)) for pid in members) > orders["threads"]:
            raise Over(f"more than {orders['threads']} threads")
        if sum(map(resident, members)) > orders["bytes"]:
            raise Over(f"more than {orders['bytes'] / 2**30:.3g} GiB of memory")
        if stored(orders["folder"], members, orders["files"]) > orders["stored"]:
            raise Over(f"more than {orders['stored'] / 2**20:.3g} MiB in files")

    def stop(self) -> None:
        """Until two looks find the same processes, all at rest: one that was not there yet is seen by the next."""
        limit, before, still = time.monotonic() + PATIENCE, None, False
        while not still and time.monotonic() < limit:
            members = self.members()
            moving = [pid for pid in members if not stopped(pid)]
            for pid in moving:
                send(pid, signal.SIGSTOP)
            still = not moving and members == before
            before = members
            if moving:
                time.sleep(0.0002)
        others = [pid for pid in self.members() if pid != self.program and alive(pid)]
        say(others=len(others), cpu=self.processor_seconds(), still=still)

    def processor_seconds(self) -> float:
        members = self.members()
        return sum(map(used, members)) + sum(map(used_by_children, (self.guard, *members)))


# --- processes --------------------------------------------------------------------------------------------------------


def children(pid: int) -> list[int]:
    try:
        found: list[int] = []
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += map(int, file.read().split())
        return found
    except OSError:
        return [child for child, parent in parents().items() if parent == pid]


def parents() -> dict[int, int]:
    """Of all processes: for systems that do not list children."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                found[int(name)] = int(fields(f"/proc/{name}/stat")[1])
    return found


def family() -> list[int]:
    """All descendants of this process."""
    members, seen = [], [os.getpid()]
    while seen:
        below = children(seen.pop())
        members += below
        seen += below
    return members


def fields(path: str) -> list[str]:
    """What follows the name in a process's or thread's `stat`."""
    with open(path) as file:
        return file.read().rpartition(")")[2].split()


def tasks(pid: int) -> list[str]:
    with suppress(OSError):
        return os.listdir(f"/proc/{pid}/task")
    return []


def state(pid: int, task: str) -> str:
    with suppress(OSError, IndexError):
        return fields(f"/proc/{pid}/task/{task}/stat")[0]
    return ""


def stopped(pid: int) -> bool:
    """Whether every thread of it stands still."""
    return all(state(pid, task) in ("T", "t", "Z", "X", "") for task in tasks(pid))


def alive(pid: int) -> bool:
    """Whether any thread of it is: the first may have ended before the others."""
    return any(state(pid, task) not in ("Z", "X", "") for task in tasks(pid))


def resident(pid: int) -> int:
    with suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
    return 0


def used(pid: int) -> float:
    """Seconds of the processor, by all its threads."""
    with suppress(OSError):
        return time.clock_gettime((~pid << 3) | PROCESS_CLOCK)
    return 0.0


def used_by_children(pid: int) -> float:
    """Seconds of those that it has waited for, in hundredths."""
    with suppress(OSError, IndexError, ValueError):
        return sum(map(int, fields(f"/proc/{pid}/stat")[13:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def stored(folder: str, members: list[int], most: int) -> int:
    """Bytes on the disk beneath a folder, and in files that were removed from it but are open."""
    found, waiting = [folder], [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    found.append(entry.path)
                    if len(found) > most:
                        raise Over(f"more than {most} files")
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Over(f"a folder that cannot be looked into ({error.strerror})") from None
    blocks, device = 0, -1
    for path in found:
        with suppress(OSError):
            status = os.lstat(path)
            blocks, device = blocks + status.st_blocks, status.st_dev
    for pid in members:
        with suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                status = os.stat(f"/proc/{pid}/fd/{fd}")
                if status.st_dev == device and not status.st_nlink:
                    blocks += status.st_blocks
    return 512 * blocks


def send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def end_family() -> None:
    """Kills until nobody is left: a process may start others while its own end is on the way."""
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        members = family()
        for pid in members:
            send(pid, signal.SIGSTOP)  # what stands still starts no others
        for pid in (*members, *family()):
            send(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


if __name__ == "__main__":
    main()
