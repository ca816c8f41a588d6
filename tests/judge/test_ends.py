"""What is to stand still does, or is known not to; and the judge ends with a verdict, come what may."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from helpers import kernels_c, kernels_python

from convt3d.cli.main import main
from convt3d.judge.arena import Arena
from convt3d.judge.languages import compiler_of
from convt3d.judge.sandbox import PROTECTIONS, Limits, Sandbox, TimedOut
from convt3d.judge.session import Session
from convt3d.judge.verdict import CRASH, NOT_ALLOWED, WRONG_VALUES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
FAST = Limits(seconds=5, start_seconds=60, memory=2**30)
CONV = "conv-transpose-3d-asym-input-sq-kernel"
HONEST = kernels_python.solution(CONV, kernels_python.NUMPY)
ALL = tuple(PROTECTIONS)
NAMESPACES = ("namespaces", "hidden processes", "read-only files")


# --- standing still ---------------------------------------------------------------------------------------------------

# A thousand timers, each of which sends SIGCONT once: 20 ms to 20 s from now.
TIMER = """
import ctypes, signal
signal.signal(signal.SIGCONT, lambda *_: None)
libc, event = ctypes.CDLL(None), (ctypes.c_char * 64)()
ctypes.memmove(ctypes.addressof(event) + 8, ctypes.byref(ctypes.c_int(signal.SIGCONT)), 4)
for delay in range(1, 1001):
    timer, times = ctypes.c_void_p(), (ctypes.c_long * 4)(0, 0, *divmod(delay * 20_000_000, 10**9))
    refused = libc.timer_create(1, event, ctypes.byref(timer)) or libc.timer_settime(timer, 0, times, None)
print('refused' if refused else 'ticking', flush=True)
"""
SPIN = "while True: pass"


def wait_for_text(box: Sandbox) -> None:
    while not box.text:
        time.sleep(0.01)
        box._drain()


def test_a_timer_that_undoes_the_stop_is_refused(need) -> None:
    need("seccomp")
    with Sandbox([sys.executable, "-I", "-S", "-c", TIMER], FAST) as box:
        box.run()
        assert box.text == "refused"


def test_who_runs_when_it_should_stand_still_is_known(without) -> None:
    """Without seccomp."""
    without("seccomp")
    with Sandbox([sys.executable, "-I", "-S", "-c", TIMER + SPIN], FAST) as box:
        wait_for_text(box)
        try:
            box.stop()
        except TimedOut:  # it was never seen at rest, which is an answer too
            return
        deadline = time.monotonic() + 30
        while box.seconds_since_stop() < 0.001:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_stopped_program_uses_no_processor() -> None:
    with Sandbox([sys.executable, "-I", "-S", "-c", SPIN], FAST) as box:
        box.stop()
        time.sleep(0.05)
        assert box.seconds_since_stop() < 0.001


def test_a_chain_of_processes_is_caught_or_not_called_still(without) -> None:
    """Each starts the next and ends: the one that was seen is not the one that works."""
    without("seccomp")
    code = "import os\nos.fork() or [0 for _ in iter(lambda: os.fork() and os._exit(0), 1)]\n"
    code += "print('begun', flush=True)\nwhile True: pass"
    with Sandbox([sys.executable, "-I", "-S", "-c", code], Limits(start_seconds=60, processes=10_000)) as box:
        wait_for_text(box)
        try:
            assert box.stop() >= 1
            assert box.seconds_since_stop() < 0.001
        except TimedOut:
            pass


# --- verdicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [(), ("seccomp",), ("Landlock",), ("namespaces",), ALL])
def test_the_judge_works_without_and_says_so(here, without, judge, missing: tuple[str, ...]) -> None:
    without(*missing)
    judgement = judge(HONEST, CONV, cases=("sample", "two-groups"))
    assert judgement.verdict.passed, judgement.verdict
    lost = set(missing) | (set(NAMESPACES) if "namespaces" in missing else set())
    assert set(judgement.unprotected) == lost | (set(ALL) - set(here))


WORKS_ON = f"""{HONEST}
import threading
honest = solution
def later():
    while True: pass
threading.Thread(target=later, daemon=True).start()
{TIMER}
def solution(*args):
    honest(*args)
"""


def test_work_while_it_should_stand_still_is_a_verdict(without, judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy of a large output takes its time."""

    def slowly(arena: Arena, *arguments: object) -> object:
        time.sleep(0.3)
        return read_output(arena, *arguments)

    read_output = Arena.read_output
    monkeypatch.setattr(Arena, "read_output", slowly)
    without("seccomp")
    verdict = judge(WORKS_ON, CONV).verdict
    assert verdict.word in (NOT_ALLOWED, CRASH), verdict
    assert "stand still" in verdict.reason or "could not be stopped" in verdict.reason


def ancestors(name: str) -> list[int]:
    """Processes of this one's making that run the script of this name."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_text(errors="replace").split("\0")
            parent = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == os.getpid() and any(word.endswith(name) for word in words):
            found.append(int(entry))
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_keeper_that_is_ended_is_a_verdict(judge, number: int) -> None:
    def meddle(name: str, done: int, total: int) -> None:
        if done == 1:
            for pid in ancestors("judge/keeper.py"):
                os.kill(pid, number)

    verdict = judge(HONEST, CONV, progress=meddle).verdict
    assert verdict.word == CRASH


def test_a_keeper_that_is_ended_in_a_call_is_a_verdict(judge, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, call = threading.Event(), Session.call

    def noticed(session: Session, arrays: Any) -> Any:
        begun.set()
        return call(session, arrays)

    def meddle() -> None:
        begun.wait()
        for pid in ancestors("judge/keeper.py"):
            os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(Session, "call", noticed)

    thread = threading.Thread(target=meddle)
    thread.start()
    verdict = judge("import time\ndef solution(*args):\n    time.sleep(60)\n", CONV, limit=60).verdict
    thread.join()
    assert verdict.word == CRASH
    assert "keeper" in verdict.reason or "start" in verdict.reason


# --- the judge's own trouble ------------------------------------------------------------------------------------------


def command(tmp_path: Path, shell: str, kernel: str = HONEST, suffix: str = ".py", **options) -> tuple[int, str]:
    """Exit code and stderr of `convt3d check`, started by a line of shell in which "$@" stands for it."""
    path = tmp_path / f"mine{suffix}"
    path.write_text(kernel)
    argv = [sys.executable, "-m", "convt3d", "check", str(path), "--problem", CONV, "--case", "sample"]
    done = subprocess.run(
        ["sh", "-c", shell, "sh", *argv], stderr=subprocess.PIPE, text=True, timeout=300, check=False, **options
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize("closed", [">&-", "<&- >&-", "<&- >&- 2>&-", "| :"])
@pytest.mark.parametrize(("kernel", "code"), [(HONEST, 0), ("def solution(*args): pass", 1)])
def test_closed_streams_do_not_change_the_verdict(tmp_path: Path, closed: str, kernel: str, code: int) -> None:
    left = "" if "|" in closed else closed
    command(tmp_path, f'{{ "$@" {left}; echo $? > code; }} {"| :" if not left else ""}', kernel, cwd=tmp_path)
    assert int((tmp_path / "code").read_text()) == code


def test_a_result_that_cannot_be_written_is_no_success(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    code, told = command(tmp_path, '"$@" > /dev/full')
    assert code == 2
    assert "stdout" in told


@pytest.mark.parametrize("suffix", [".py", ".c"])
def test_a_full_disk_is_no_verdict_on_the_kernel(tmp_path: Path, suffix: str) -> None:
    """No file may be longer than nothing."""
    if suffix == ".c" and compiler_of("c") is None:
        pytest.skip("no C compiler on this machine")
    kernel = kernels_c.source(CONV, "c") if suffix == ".c" else HONEST
    code, told = command(tmp_path, 'ulimit -f 0; trap "" XFSZ; "$@"', kernel, suffix)
    assert code == 2
    assert "must let the judge make files" in told


# --- native kernels ---------------------------------------------------------------------------------------------------

LEFT_TO_A_CHILD = """
#include <unistd.h>
#include <signal.h>
static void honest(ARGUMENTS);
void solution(ARGUMENTS) {
    signal(SIGCHLD, SIG_IGN);
    if (fork() == 0) { usleep(2000); honest(NAMES); _exit(0); }
}
"""
OTHER_ARCHITECTURE = 'long r; __asm__ volatile("int $0x80" : "=a"(r) : "a"(20L) : "memory"); (void)r;'


@pytest.mark.parametrize("missing", [(), ("seccomp",)])
def test_work_left_to_a_child_that_computes_later(need, without, judge, missing: tuple[str, ...]) -> None:
    if compiler_of("c") is None:
        pytest.skip("no C compiler on this machine")
    if not missing:
        need("seccomp")
    without(*missing)
    text = kernels_c.source(CONV, "c")
    start = text.index("void solution(")
    arguments = text[start + len("void solution(") : text.index(")", start)]
    names = ", ".join(part.split()[-1].lstrip("*") for part in arguments.split(","))
    late = LEFT_TO_A_CHILD.replace("ARGUMENTS", arguments).replace("NAMES", names)
    verdict = judge(
        text[:start] + late + text[start:].replace("void solution(", "static void honest(", 1), CONV, ".c"
    ).verdict
    assert verdict.word == (NOT_ALLOWED if missing else WRONG_VALUES), verdict


def test_a_native_kernel_with_calls_of_another_architecture(need, judge) -> None:
    if compiler_of("c") is None or os.uname().machine != "x86_64":
        pytest.skip("needs a C compiler for x86-64")
    need("seccomp")
    text = kernels_c.source(CONV, "c").replace("    free(x);\n", f"    free(x);\n    {OTHER_ARCHITECTURE}\n")
    verdict = judge(text, CONV, ".c", cases=("sample",)).verdict
    assert verdict.word == CRASH
    assert "SIGSYS" in verdict.reason


def test_threads_of_openmp(judge) -> None:
    """What the filter must let through."""
    if compiler_of("c") is None:
        pytest.skip("no C compiler on this machine")
    team = (
        "int n = 0;\n#pragma omp parallel num_threads(4)\n    __atomic_add_fetch(&n, 1, 5);\n"
        "#ifdef _OPENMP\n    if (n != 4) abort();\n#endif"
    )
    text = kernels_c.source(CONV, "c").replace("    free(x);\n", f"    free(x);\n    {team}\n")
    verdict = judge(text, CONV, ".c", cases=("sample",)).verdict
    assert verdict.passed, verdict


def test_a_kernel_that_hides_its_memory_map(judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sandbox, "maps", lambda box: "")
    verdict = judge(HONEST, CONV, cases=("sample",)).verdict
    assert verdict.word == NOT_ALLOWED
    assert "memory map" in verdict.reason


@pytest.mark.parametrize("missing", [(), ("Landlock",)])
def test_the_command_says_what_is_missing(here, without, capsys, tmp_path: Path, missing: tuple[str, ...]) -> None:
    path = tmp_path / "mine.py"
    path.write_text(HONEST)
    without(*missing)
    words = ["check", str(path), "--problem", CONV, "--case", "sample"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["unprotected"]
    expected = [name for name in PROTECTIONS if name in missing or name not in here]
    assert list(found) == expected
    assert ("protections off" in text) == bool(expected)
    assert all(f"{name} (refuses {PROTECTIONS[name]})" in " ".join(text.split()) for name in expected)
