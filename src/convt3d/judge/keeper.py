"""A process between the judge and the program it runs: starts it with limits, and ends all that it left behind.

Run as a script of its own, which imports nothing but the standard library: keeper.py ORDERS, a JSON object with
`argv`, `env`, `cwd`, `limits` (rlimit name -> number), `fds` (kept open), `output` (what becomes stdout and stderr),
`writable` (folders), `exec` (whether the program may start others), `bytes` and `processes` (the most that it and all
its descendants may have together). Orders come line by line on stdin:

    stop     freeze the program with every thread and process of it; answers {"others": n, "bytes": resident}
    end      kill everything and leave; the end of stdin means the same

The keeper is the reaper of its descendants, so a process that detached itself is found too. It answers on stdout, first
with {"pid": n}; when the program ends, {"status": n}, negative for a signal; beyond its limits, {"over": what}.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import select
import signal
import struct
import sys
import time
from contextlib import suppress
from typing import Any

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 22, 24, 36, 38
LOOK_EVERY = 0.1
PATIENCE = 5.0  # seconds a killed or stopped process may take to get there


def main() -> None:
    orders = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: None)
    bell, ring = os.pipe()
    os.set_blocking(ring, False)
    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    program = os.fork()
    if program == 0:
        os.close(bell)
        start(orders, libc)
    for fd in (*orders["fds"], orders["output"]):
        os.close(fd)
    say(pid=program)
    try:
        serve(program, bell, orders)
    finally:
        end_family()


def say(**message: Any) -> None:
    with suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


def serve(program: int, bell: int, orders: dict[str, Any]) -> None:
    pending, ended = b"", False
    while True:
        ready, _, _ = select.select([0, bell], [], [], LOOK_EVERY)
        if bell in ready and signal.SIGTERM in os.read(bell, 4096):
            return
        members = family()
        if len(members) > orders["processes"]:
            return say(over=f"more than {orders['processes']} processes")
        if sum(map(resident, members)) > orders["bytes"]:
            return say(over=f"more than {orders['bytes'] / 2**30:.3g} GiB of memory")
        if not ended:
            with suppress(ChildProcessError):
                found = os.waitid(os.P_PID, program, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found:
                    ended = True
                    code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
                    say(status=code)
        if 0 in ready:
            data = os.read(0, 4096)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                if line == b"end":
                    return
                obey(line, program)


def obey(order: bytes, program: int) -> None:
    if order == b"stop":
        members = family()
        for pid in members:
            send(pid, signal.SIGSTOP)
        limit = time.monotonic() + PATIENCE
        while not all(map(stopped, members)) and time.monotonic() < limit:
            time.sleep(0.0002)
        others = [pid for pid in members if pid != program and alive(pid)]
        say(others=len(others), bytes=sum(map(resident, members)))


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
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat") as file:
                found[int(name)] = int(file.read().rpartition(")")[2].split()[1])
    return found


def family() -> list[int]:
    """All descendants of this process."""
    members, seen = [], [os.getpid()]
    while seen:
        below = children(seen.pop())
        members += below
        seen += below
    return members


def state(pid: int, task: str) -> str:
    with suppress(OSError, IndexError), open(f"/proc/{pid}/task/{task}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
    return ""


def stopped(pid: int) -> bool:
    """Whether every thread of it stands still."""
    with suppress(OSError):
        return all(state(pid, task) in ("T", "t", "Z", "X", "") for task in os.listdir(f"/proc/{pid}/task"))
    return True


def alive(pid: int) -> bool:
    """Whether any thread of it is: the first may have ended before the others."""
    with suppress(OSError):
        return any(state(pid, task) not in ("Z", "X", "") for task in os.listdir(f"/proc/{pid}/task"))
    return False


def resident(pid: int) -> int:
    with suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
    return 0


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


# --- the program's side -----------------------------------------------------------------------------------------------


def start(orders: dict[str, Any], libc: Any) -> None:
    """Becomes the program."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(orders["output"], 1)
        os.dup2(orders["output"], 2)
        for fd in orders["fds"]:
            os.set_inheritable(fd, True)
        os.chdir(orders["cwd"])
        for name, most in orders["limits"].items():
            number = getattr(resource, name, None)
            if number is not None:
                hard = resource.getrlimit(number)[1]
                most = most if hard == resource.RLIM_INFINITY else min(most, hard)
                resource.setrlimit(number, (most, most))
        path = ctypes.create_string_buffer(os.fsencode(orders["argv"][0]))
        if sys.platform == "linux":
            confine(libc, orders["writable"], None if orders["exec"] else ctypes.addressof(path))
        execute(libc, path, orders["argv"], [f"{name}={value}" for name, value in orders["env"].items()])
    except BaseException as error:
        with suppress(OSError):
            os.write(2, f"keeper: {type(error).__name__}: {error}\n".encode())
    os._exit(127)


def execute(libc: Any, path: Any, argv: list[str], env: list[str]) -> None:
    """execve with `path` at the very address that `restrict_calls` lets through."""
    vectors = [(ctypes.c_char_p * (len(texts) + 1))(*map(os.fsencode, texts), None) for texts in (argv, env)]
    libc.execve(path, *vectors)
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def confine(libc: Any, writable: list[str], only_path: int | None) -> None:
    """What the system offers, taken where it is offered: no privileges, no writing outside `writable`, no signals to
    other processes and, given `only_path`, no other program than the one whose name lies at that address."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    restrict_files(libc, writable)
    restrict_calls(libc, only_path)


LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
WRITES = sum(1 << bit for bit in (1, 4, 5, 6, 7, 8, 9, 10, 11, 12))  # write, remove and make files of every kind


def restrict_files(libc: Any, writable: list[str]) -> None:
    """Landlock (Linux 5.13): files can be written beneath `writable` and to the null device only."""
    rules = ctypes.create_string_buffer(struct.pack("=Q", WRITES))
    ruleset = libc.syscall(LANDLOCK_CREATE, rules, 8, 0)
    if ruleset < 0:
        return
    for path in (*writable, os.devnull):
        beneath = os.open(path, os.O_PATH)
        allowed = WRITES if os.path.isdir(path) else 1 << 1
        rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed, beneath))
        libc.syscall(LANDLOCK_ADD, ruleset, 1, rule, 0)
        os.close(beneath)
    libc.syscall(LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


# machine -> audit architecture, and the numbers of the calls
MACHINES = {
    "x86_64": (
        0xC000003E,
        {"kill": 62, "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297},
        {"ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "pidfd_send_signal": 424},
        {"execve": 59, "execveat": 322},
    ),
    "aarch64": (
        0xC00000B7,
        {"kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240},
        {"ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "pidfd_send_signal": 424},
        {"execve": 221, "execveat": 281},
    ),
}
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # EPERM


def restrict_calls(libc: Any, only_path: int | None) -> None:
    """Seccomp: signals go to the program's own process only, nobody's memory can be opened, nothing is executed."""
    if platform.machine() not in MACHINES:
        return
    architecture, own_only, never, execs = MACHINES[platform.machine()]
    code = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, ALLOW), (LOAD, 0, 0, 0)]
    for number in never.values():
        code += [(EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE)]
    for number in own_only.values():
        code += [(EQUAL, 0, 4, number), *only_first_argument(os.getpid())]
    if only_path is not None:
        code += [(EQUAL, 0, 1, execs["execveat"]), (RETURN, 0, 0, REFUSE)]
        code += [(EQUAL, 0, 6, execs["execve"]), (LOAD, 0, 0, 20), (EQUAL, 0, 3, only_path >> 32)]
        code += only_first_argument(only_path & 0xFFFFFFFF)
    code.append((RETURN, 0, 0, ALLOW))
    install(libc, code)


def only_first_argument(value: int) -> list[tuple[int, int, int, int]]:
    """Four lines: the call is allowed if the low half of its first argument has this value, else refused."""
    return [(LOAD, 0, 0, 16), (EQUAL, 0, 1, value), (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)]


def install(libc: Any, code: list[tuple[int, int, int, int]]) -> None:
    text = b"".join(struct.pack("=HBBI", *line) for line in code)
    lines = ctypes.create_string_buffer(text, len(text))
    program = struct.pack("@HP", len(code), ctypes.addressof(lines))
    libc.prctl(PR_SET_SECCOMP, 2, ctypes.create_string_buffer(program), 0, 0)


if __name__ == "__main__":
    main()
