"""What becomes of the keeper's child: a guard, below it the program, and what the system offers to confine both.

The guard adopts what lost its parent, so that a process that detached itself is found too. Where there are namespaces
it is the first process of its own: nobody outside can be named in there, and its end is everybody's. Imports nothing
but the standard library; `orders` are the keeper's.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import struct
import sys
from contextlib import suppress
from typing import Any, NamedTuple

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
NEW_MOUNTS, NEW_IPC, NEW_USER, NEW_PROCESSES = 0x00020000, 0x08000000, 0x10000000, 0x20000000
CLONE = {"x86_64": 56, "aarch64": 220}


class Started(NamedTuple):
    """The guard and the program, by the numbers the keeper knows them by; where the guard tells how the program ended;
    which protections are in force."""

    guard: int
    program: int
    channel: socket.socket
    on: list[str]


def begin(orders: dict[str, Any], libc: Any) -> Started:
    """In namespaces of their own if the system lets. A number from inside means nothing outside, so the program's is
    taken from the credentials that the system puts on its first message."""
    inner, machine = NEW_PROCESSES | NEW_MOUNTS | NEW_IPC, os.uname().machine
    apart = orders["private"] and "namespaces" not in orders["without"] and machine in CLONE
    for flags in (NEW_USER | inner, inner, 0) if apart else (0,):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        owner = os.geteuid(), os.getegid()
        pid = libc.syscall(CLONE[machine], flags | signal.SIGCHLD, 0, 0, 0, 0) if flags else os.fork()
        if pid == 0:
            guard(orders, libc, flags, owner, theirs)
        theirs.close()
        if pid > 0:
            told, ancillary, *_ = ours.recvmsg(65536, socket.CMSG_SPACE(12))
            if b"on" in told:
                message = json.loads(told)
                program = struct.unpack("3i", ancillary[0][2])[0] if flags else message["pid"]
                return Started(pid, program, ours, message["on"])
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        ours.close()
    raise OSError("the program could not be started")


def guard(orders: dict[str, Any], libc: Any, flags: int, owner: tuple[int, int], channel: socket.socket) -> None:
    """Starts the program, tells how it ended, and collects what it leaves. Its own end is an answer too."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # or its files in /proc were not its own
        on = separate(libc, flags, owner, orders) if flags else []
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        program = os.fork()
        if program == 0:
            start(orders, libc, on, channel)
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, *orders["fds"], orders["output"]):
            os.dup2(nothing, fd)
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            if found is not None and found.si_pid == program:  # never collected: its number stays its own
                code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
                channel.send(json.dumps({"status": code}).encode())
                while True:
                    signal.pause()
            elif found is not None:
                os.waitpid(found.si_pid, 0)
    finally:
        os._exit(1)


MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 0x1000, 0x4000, 0x40000
MOUNT_SETATTR, HERE, RECURSIVE, READ_ONLY, NO_DEVICES = 442, -100, 0x8000, 1, 4
DEVICES = (b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/random", b"/dev/urandom")


def separate(libc: Any, flags: int, owner: tuple[int, int], orders: dict[str, Any]) -> list[str]:
    """Inside new namespaces: an own /proc, an own and small folder, and everything else read-only and without devices
    but those that everyone has. What of it is in force; raises if it can be no better than none."""
    if flags & NEW_USER:
        for name, text in zip(
            ("setgroups", "uid_map", "gid_map"), ("deny", *map("{0} {0} 1".format, owner)), strict=True
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    on, folder = ["namespaces"], os.fsencode(orders["folder"])
    succeeded(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))
    if libc.mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None) == 0:
        on.append("hidden processes")
    room = f"size={orders['stored']},nr_inodes={orders['files']},mode=700".encode()
    own = libc.mount(b"tmpfs", folder, b"tmpfs", MS_NOSUID | MS_NODEV, room) == 0
    free = [device for device in DEVICES if libc.mount(device, device, None, MS_BIND, None) == 0] if own else []
    if own and libc.syscall(MOUNT_SETATTR, HERE, b"/", RECURSIVE, attributes(READ_ONLY | NO_DEVICES, 0), 32) == 0:
        for path, right in ((folder, READ_ONLY), *((device, NO_DEVICES) for device in free)):
            succeeded(libc.syscall(MOUNT_SETATTR, HERE, path, 0, attributes(0, right), 32))
        on.append("read-only files")
    return on


def attributes(add: int, clear: int) -> Any:
    """A struct mount_attr."""
    return ctypes.create_string_buffer(struct.pack("=4Q", add, clear, 0, 0), 32)


def succeeded(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def start(orders: dict[str, Any], libc: Any, on: list[str], channel: socket.socket) -> None:
    """Becomes the program."""
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(orders["output"], 1)
        os.dup2(orders["output"], 2)
        for fd in orders["fds"]:
            os.set_inheritable(fd, True)
        os.chdir(orders["folder"])
        for name, most in orders["limits"].items():
            number = getattr(resource, name, None)
            if number is not None:
                hard = resource.getrlimit(number)[1]
                most = most if hard == resource.RLIM_INFINITY else min(most, hard)
                resource.setrlimit(number, (most, most))
        vectors = [
            (ctypes.c_char_p * (len(texts) + 1))(*map(os.fsencode, texts), None)
            for texts in (orders["argv"], [f"{name}={value}" for name, value in orders["env"].items()])
        ]
        path = hidden(libc, os.fsencode(orders["argv"][0]))
        if sys.platform == "linux":
            on = [*on, *confine(libc, orders, path)]
        os.write(channel.fileno(), json.dumps({"on": on, "pid": os.getpid()}).encode())
        libc.execve(ctypes.c_void_p(path), *vectors)
        succeeded(-1)
    except BaseException as error:
        with suppress(OSError):
            os.write(2, f"keeper: {type(error).__name__}: {error}\n".encode())
    os._exit(127)


def hidden(libc: Any, text: bytes) -> int:
    """An address nobody can guess, with this text: the filter lets a program start from there, and who knew it could
    have another started."""
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 4]
    wish = int.from_bytes(os.urandom(8), "little")
    address: int = libc.mmap((wish >> 18) & ~0xFFFF, 0x10000 + len(text) + 1, 3, 0x22, -1, 0) + wish % 0x10000
    ctypes.memmove(address, text + b"\0", len(text) + 1)
    return address


def confine(libc: Any, orders: dict[str, Any], path: int) -> list[str]:
    """What the system offers, taken where it is offered: no privileges, no writing outside the folder, and no calls but
    those of the filter. Which of it is in force."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    known = {"own process": os.getpid(), "low half of its path": path & 0xFFFFFFFF, "high half of its path": path >> 32}
    found = {
        "Landlock": "Landlock" not in orders["without"] and restrict_files(libc, orders["folder"]),
        "seccomp": "seccomp" not in orders["without"] and restrict_calls(libc, orders["filter"], known),
    }
    return [name for name, done in found.items() if done]


LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
WRITES = sum(1 << bit for bit in (1, 4, 5, 6, 7, 8, 9, 10, 11, 12))  # write, remove and make files of every kind
TRUNCATE, DEVICE_CONTROL = 1 << 14, 1 << 15
TCP, SCOPES = 0b11, 0b11  # bind and connect; abstract sockets and signals


def restrict_files(libc: Any, folder: str) -> bool:
    """Landlock (Linux 5.13; what later versions have, where they are): files can be written beneath the folder and to
    the null device only, no connections, no signals to those outside."""
    version = libc.syscall(LANDLOCK_CREATE, None, 0, 1)
    if version < 1:
        return False
    writes = WRITES | (TRUNCATE if version >= 3 else 0)
    handled = (
        writes | (DEVICE_CONTROL if version >= 5 else 0),
        TCP if version >= 4 else 0,
        SCOPES if version >= 6 else 0,
    )
    rules = ctypes.create_string_buffer(struct.pack("=3Q", *handled), 24)
    ruleset = libc.syscall(LANDLOCK_CREATE, rules, 8 if version < 4 else 16 if version < 6 else 24, 0)
    if ruleset < 0:
        return False
    for path, allowed in ((folder, writes), (os.devnull, writes & (1 << 1 | TRUNCATE))):
        beneath = os.open(path, os.O_PATH)
        succeeded(
            libc.syscall(LANDLOCK_ADD, ruleset, 1, ctypes.create_string_buffer(struct.pack("=Qi", allowed, beneath)), 0)
        )
        os.close(beneath)
    done: int = libc.syscall(LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)
    return done == 0


def restrict_calls(libc: Any, lines: list[list[Any]], known: dict[str, int]) -> bool:
    """Seccomp: the filter, with the names in it replaced by what they stand for."""
    text = b"".join(struct.pack("=HBBI", *line[:3], known.get(line[3], line[3])) for line in lines)
    code = ctypes.create_string_buffer(text, len(text))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(lines), ctypes.addressof(code)))
    return bool(lines) and libc.prctl(PR_SET_SECCOMP, 2, program, 0, 0) == 0
