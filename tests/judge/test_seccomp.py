"""The filter of system calls, run here line by line: what it says for each architecture, whether this is one or not."""

from __future__ import annotations

import pytest

from convt3d.judge.seccomp import (
    ALLOW,
    AUDIT_ARCHITECTURES,
    COMPILERS,
    END,
    EVERYONE,
    JUDGED,
    OTHER_ABI,
    OWN,
    PATH_HIGH,
    PATH_LOW,
    REFUSE,
    UNKNOWN,
    filter_for,
    numbers,
)

ME, ADDRESS = 4711, 0x7F12_3456_7890
KNOWN = {OWN: ME, PATH_LOW: ADDRESS & 0xFFFFFFFF, PATH_HIGH: ADDRESS >> 32}
machines = pytest.mark.parametrize("machine", AUDIT_ARCHITECTURES)
both = pytest.mark.parametrize("compiler", [False, True])


def verdict(machine: str, number: int, *arguments: int, compiler: bool = False, architecture: int | None = None) -> int:
    """What the filter returns for a call, by the rules of classic BPF."""
    data = {0: number, 4: AUDIT_ARCHITECTURES[machine] if architecture is None else architecture}
    for index in range(6):
        value = arguments[index] if index < len(arguments) else 0
        data[16 + 8 * index], data[20 + 8 * index] = value & 0xFFFFFFFF, (value >> 32) & 0xFFFFFFFF
    code, at, register = filter_for(compiler, machine), 0, 0
    while True:
        kind, yes, no, constant = code[at]
        constant = KNOWN.get(constant, constant)
        at += 1
        if kind == 0x06:
            return constant
        if kind == 0x20:
            register = data[constant]
        else:
            test = {0x15: register == constant, 0x35: register >= constant, 0x45: bool(register & constant)}[kind]
            at += yes if test else no


@machines
@both
def test_every_line_of_the_table_is_allowed_and_nothing_else_is_unless_judged(machine: str, compiler: bool) -> None:
    allowed = numbers(EVERYONE, machine) | (numbers(COMPILERS, machine) if compiler else {})
    judged = set(numbers(JUDGED, machine).values()) - set(allowed.values())
    for number in range(600):
        if number not in judged:
            expected = ALLOW if number in allowed.values() else UNKNOWN if number >= 424 else REFUSE
            assert verdict(machine, number, compiler=compiler) == expected, number


@machines
@both
def test_one_architecture_only(machine: str, compiler: bool) -> None:
    others = [0x40000003, 0x40000028, *(set(AUDIT_ARCHITECTURES.values()) - {AUDIT_ARCHITECTURES[machine]})]
    for number in range(600):
        assert all(verdict(machine, number, compiler=compiler, architecture=other) == END for other in others)
        assert verdict(machine, OTHER_ABI + number, compiler=compiler) == END


# call, arguments, may a kernel, may a compiler
ARGUMENTS = [
    ("kill", (ME, 9), True, True),
    ("kill", (ME, 18), False, False),  # SIGCONT would undo the judge's stop
    ("kill", (0, 9), False, False),
    ("kill", (1, 0), False, False),
    ("kill", (2**64 - 1, 9), False, False),
    ("tgkill", (ME, 99, 6), True, True),
    ("tgkill", (ME, 99, 18), False, False),
    ("tgkill", (1, 1, 6), False, False),
    ("tkill", (ME, 6), True, True),
    ("tkill", (1, 6), False, False),
    ("fcntl", (0, 3), True, True),
    ("fcntl", (0, 4, 0o4000), True, True),
    ("fcntl", (0, 4, 0o20000), False, False),  # O_ASYNC
    ("fcntl", (0, 8, 1), False, False),  # F_SETOWN
    ("fcntl", (0, 10, 18), False, False),  # F_SETSIG
    ("fcntl", (0, 15, 0), False, False),  # F_SETOWN_EX
    ("fcntl", (0, 1024), False, False),  # F_SETLEASE
    ("fcntl", (0, 1026), False, False),  # F_NOTIFY
    ("fcntl", (0, 1030), True, True),
    ("fcntl", (0, 1033), False, False),  # F_ADD_SEALS
    ("ioctl", (0, 0x5401), True, True),
    ("ioctl", (0, 0x5452), False, False),  # FIOASYNC
    ("ioctl", (0, 0x8901), False, False),  # FIOSETOWN
    ("ioctl", (0, 0x5412), False, False),  # TIOCSTI
    ("prctl", (15,), True, True),
    ("prctl", (1, 18), False, False),  # PR_SET_PDEATHSIG
    ("prctl", (4, 0), False, False),  # PR_SET_DUMPABLE
    ("prctl", (36, 1), False, False),  # PR_SET_CHILD_SUBREAPER
    ("prlimit64", (0, 7), True, True),
    ("prlimit64", (1, 7), False, False),
    ("sched_setaffinity", (0,), True, True),
    ("sched_setaffinity", (ME,), True, True),
    ("sched_setaffinity", (1,), False, False),
    ("clone", (0x3D0F00,), True, True),  # a thread
    ("clone", (17,), False, True),  # a process
    ("clone", (0x00010000 | 0x10000000,), False, False),  # a user namespace
    ("clone", (17 | 0x20000000,), False, False),
    ("execve", (ADDRESS,), True, True),
    ("execve", (ADDRESS + 1,), False, True),
    ("execve", (ADDRESS & 0xFFFFFFFF,), False, True),
]


@machines
@pytest.mark.parametrize(("name", "arguments", "kernel", "compiler"), ARGUMENTS)
def test_arguments(machine: str, name: str, arguments: tuple[int, ...], kernel: bool, compiler: bool) -> None:
    number = numbers(JUDGED, machine)[name]
    assert verdict(machine, number, *arguments) == (ALLOW if kernel else REFUSE)
    assert verdict(machine, number, *arguments, compiler=True) == (ALLOW if compiler else REFUSE)


def test_an_unknown_machine_has_no_filter() -> None:
    assert filter_for(False, "riscv64") == []
