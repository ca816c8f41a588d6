"""Which system calls a program in the sandbox may make, as a filter for Linux's seccomp.

A list of what is allowed: the numbers of one architecture only, and for some calls only certain arguments. Any other
architecture ends the process; any other call is refused (EPERM), and those that came after Linux 5.0 are unknown
(ENOSYS), which tells a C library to use an older one. The filter is a list of (code, jump if true, jump if not,
number); three names in it stand for numbers that only the process itself knows.
"""

from __future__ import annotations

import platform
import signal

OWN, PATH_LOW, PATH_HIGH = "own process", "low half of its path", "high half of its path"
Line = tuple[int, int, int, "int | str"]

AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name, number on x86_64, number on aarch64. What a program needs that computes: files, memory, threads, clocks and its
# own signals.
EVERYONE = """
read 0 63, write 1 64, open 2 -, close 3 57, stat 4 -, fstat 5 80, lstat 6 -, poll 7 -, lseek 8 62, mmap 9 222,
mprotect 10 226, munmap 11 215, brk 12 214, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139,
pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66, access 21 -, pipe 22 -, select 23 -, sched_yield 24 124,
mremap 25 216, msync 26 227, mincore 27 232, madvise 28 233, dup 32 23, dup2 33 -, pause 34 -, nanosleep 35 101,
getitimer 36 102, alarm 37 -, setitimer 38 103, getpid 39 172, sendfile 40 71, exit 60 93, wait4 61 260, uname 63 160,
flock 73 32, fsync 74 82, fdatasync 75 83, ftruncate 77 46, getdents 78 -, getcwd 79 17, chdir 80 49, fchdir 81 50,
rename 82 -, mkdir 83 -, rmdir 84 -, creat 85 -, unlink 87 -, readlink 89 -, umask 95 166, gettimeofday 96 169,
getrlimit 97 163, getrusage 98 165, sysinfo 99 179, times 100 153, getuid 102 174, getgid 104 176, geteuid 107 175,
getegid 108 177, getppid 110 173, getpgrp 111 -, getgroups 115 158, getresuid 118 148, getresgid 120 150,
getpgid 121 155, getsid 124 156, capget 125 90, rt_sigpending 127 136, rt_sigtimedwait 128 137, rt_sigsuspend 130 133,
sigaltstack 131 132, statfs 137 43, fstatfs 138 44, getpriority 140 141, sched_getparam 143 121,
sched_getscheduler 145 120, sched_get_priority_max 146 125, sched_get_priority_min 147 126, arch_prctl 158 -,
setrlimit 160 164, gettid 186 178, readahead 187 213, time 201 -, futex 202 98, sched_getaffinity 204 123,
epoll_create 213 -, getdents64 217 61, set_tid_address 218 96, restart_syscall 219 128, fadvise64 221 223,
clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, exit_group 231 94, epoll_wait 232 -,
epoll_ctl 233 21, get_mempolicy 239 236, waitid 247 95, openat 257 56, mkdirat 258 34, newfstatat 262 79,
unlinkat 263 35, renameat 264 38, readlinkat 267 78, faccessat 269 48, pselect6 270 72, ppoll 271 73,
set_robust_list 273 99, get_robust_list 274 100, epoll_pwait 281 22, eventfd 284 -, fallocate 285 47, eventfd2 290 19,
epoll_create1 291 20, dup3 292 24, pipe2 293 59, preadv 295 69, pwritev 296 70, getcpu 309 168, renameat2 316 276,
getrandom 318 278, membarrier 324 283, copy_file_range 326 285, statx 332 291, rseq 334 293, faccessat2 439 439
"""
# Besides, for a compiler: it starts others and marks what it made as executable. Where it may write is Landlock's.
COMPILERS = """
fork 57 -, vfork 58 -, execve 59 221, execveat 322 281, truncate 76 45, link 86 -, symlink 88 -, chmod 90 -,
fchmod 91 52, setpgid 109 154, utime 132 -, utimes 235 -, futimesat 261 -, linkat 265 37, symlinkat 266 36,
fchmodat 268 53, utimensat 280 88, memfd_create 319 279
"""
# Those that depend on their arguments.
JUDGED = """
clone 56 220, execve 59 221, kill 62 129, fcntl 72 25, prctl 157 167, tkill 200 130, sched_setaffinity 203 122,
tgkill 234 131, prlimit64 302 261, ioctl 16 29
"""
NEWER = 424  # the first number that all architectures share: Linux 5.1
OTHER_ABI = 0x40000000  # x32 numbers have this bit

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, REFUSE, UNKNOWN, END = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
ALLOWED, REFUSED = (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)
NUMBER, ARCHITECTURE = 0, 4

THREAD, NAMESPACES = 0x00010000, 0x7E020000  # flags of clone
# fcntl: duplicates, flags, locks, reading a pipe's size and a file's seals; not who gets signals, nor which
FCNTL, SET_FLAGS, ASYNC = (0, 1, 2, 3, 5, 6, 7, 36, 37, 38, 1030, 1032, 1034), 4, 0x2000
IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # is it a terminal, its size, bytes waiting, close on exec
# prctl: names of threads and of memory, what is in force; vector lengths on aarch64
PRCTL = (3, 15, 16, 21, 23, 39, 51, 64, 0x53564D41)


def filter_for(compiler: bool, machine: str | None = None) -> list[Line]:
    """For this machine, or another; empty for one whose numbers are not known here."""
    machine = machine or platform.machine()
    if machine not in AUDIT_ARCHITECTURES:
        return []
    code: list[Line] = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, AUDIT_ARCHITECTURES[machine]),
        (RETURN, 0, 0, END),
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, OTHER_ABI),
        (RETURN, 0, 0, END),
    ]
    plain = numbers(EVERYONE, machine) | (numbers(COMPILERS, machine) if compiler else {})
    for number in plain.values():
        code += [(EQUAL, 0, 1, number), ALLOWED]
    judged = numbers(JUDGED, machine)
    for name, rule in rules(compiler).items():
        code += [(EQUAL, 0, len(rule), judged[name]), *rule]
    return [*code, (AT_LEAST, 0, 1, NEWER), (RETURN, 0, 0, UNKNOWN), REFUSED]


def numbers(table: str, machine: str) -> dict[str, int]:
    column = 1 + list(AUDIT_ARCHITECTURES).index(machine)
    rows = (entry.split() for entry in table.split(","))
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def rules(compiler: bool) -> dict[str, list[Line]]:
    """name -> lines that end the filter, with the call's arguments to look at."""
    found: dict[str, list[Line]] = {
        "kill": _to_itself(1),
        "tkill": _to_itself(1),
        "tgkill": _to_itself(2),
        "fcntl": [
            *_argument(1),
            (EQUAL, 0, 4, SET_FLAGS),
            *_argument(2),
            (ANY_BIT, 0, 1, ASYNC),
            REFUSED,
            ALLOWED,
            *_one_of(1, FCNTL),
        ],
        "ioctl": _one_of(1, IOCTL),
        "prctl": _one_of(0, PRCTL),
        "prlimit64": _one_of(0, (0,)),
        "sched_setaffinity": _one_of(0, (0, OWN)),
    }
    if compiler:
        found["clone"] = [*_argument(0), (ANY_BIT, 0, 1, NAMESPACES), REFUSED, ALLOWED]
    else:
        found["clone"] = [
            *_argument(0),
            (ANY_BIT, 1, 0, THREAD),
            REFUSED,
            (ANY_BIT, 0, 1, NAMESPACES),
            REFUSED,
            ALLOWED,
        ]
        found["execve"] = [
            *_argument(0, high=True),
            (EQUAL, 1, 0, PATH_HIGH),
            REFUSED,
            *_one_of(0, (PATH_LOW,)),
        ]
    return found


def _argument(index: int, high: bool = False) -> list[Line]:
    return [(LOAD, 0, 0, 16 + 8 * index + 4 * high)]


def _one_of(index: int, values: tuple[int | str, ...]) -> list[Line]:
    """Allowed if the argument has one of these values."""
    lines = _argument(index)
    for value in values:
        lines += [(EQUAL, 0, 1, value), ALLOWED]
    return [*lines, REFUSED]


def _to_itself(which: int) -> list[Line]:
    """A signal to the own process, its number being argument `which`; not the one that undoes a stop."""
    return [
        *_argument(0),
        (EQUAL, 1, 0, OWN),
        REFUSED,
        *_argument(which),
        (EQUAL, 0, 1, int(signal.SIGCONT)),
        REFUSED,
        ALLOWED,
    ]
