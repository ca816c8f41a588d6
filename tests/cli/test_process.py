"""The command line as a process: `python -m convt3d` in pipes, on a terminal, and interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest
from helpers.command import environment

import convt3d

MAX = "conv-transpose3d-max-max-sum"
NORM = "conv-transpose3d-layernorm-gelu-scaling"


def _environment(**more: str) -> dict[str, str]:
    plain = environment(TERM="xterm", PYTHONIOENCODING="utf-8")
    return {**{name: value for name, value in plain.items() if name not in ("NO_COLOR", "COLUMNS")}, **more}


def _command(*argv: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "convt3d", *argv]


def test_info_does_not_import_torch() -> None:
    script = "import sys; from convt3d.cli.main import main; main(['info']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], env=_environment(), stdout=subprocess.DEVNULL).returncode == 0


def test_python_m_convt3d() -> None:
    done = subprocess.run(_command("list", "--json"), env=_environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)) == 5
    bad = subprocess.run(_command("show", "nothing"), env=_environment(), capture_output=True, text=True)
    assert bad.returncode == 2
    assert bad.stderr.startswith("convt3d: error: problems: slug = 'nothing'")


def test_help_and_version() -> None:
    done = subprocess.run(_command("--version"), env=_environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"convt3d {convt3d.__version__}\n")
    done = subprocess.run(_command("--help"), env=_environment(), capture_output=True, text=True)
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("list", "show", "run", "explain", "info", "demo", "130"))


def test_a_forced_instruction_set_that_does_not_exist() -> None:
    environment = _environment(CONVT3D_ISA="avx1024")
    done = subprocess.run(_command("info"), env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("convt3d: error: environment: CONVT3D_ISA = 'avx1024': ")


def test_a_reader_who_leaves_early_is_no_error() -> None:
    process = subprocess.Popen(
        _command("show", MAX), env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0
    process.stderr.close()


def test_an_ascii_pipe_gets_ascii() -> None:
    environment = _environment(PYTHONIOENCODING="ascii")
    done = subprocess.run(_command("run", MAX), env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()


class Session:
    """A command on a terminal of its own."""

    def __init__(self, argv: Sequence[str], **environment: str) -> None:
        pty = pytest.importorskip("pty")
        self.terminal, theirs = pty.openpty()
        self.process = subprocess.Popen(
            argv, env=_environment(COLUMNS="200", **environment), stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        self.seen = ""

    def read_until(self, text: str | None) -> None:
        while text is None or text not in self.seen:
            try:
                data = os.read(self.terminal, 65536)
            except OSError:  # the other side is closed
                break
            if not data:
                break
            self.seen += data.decode("utf-8", "replace")
        assert text is None or text in self.seen

    def end(self) -> int:
        self.read_until(None)
        os.close(self.terminal)
        return self.process.wait()


def test_a_terminal_gets_boxes_and_colours() -> None:
    session = Session(_command("run", MAX))
    assert session.end() == 0
    assert "┌─" in session.seen
    assert "\x1b[32mpassed\x1b[0m" in session.seen
    plain = Session(_command("list"), NO_COLOR="1")
    assert plain.end() == 0
    assert "│ slug" in plain.seen
    assert "\x1b" not in plain.seen


def test_long_work_shows_a_bar_and_can_be_interrupted() -> None:
    session = Session(_command("run", NORM, "--size", "benchmark", "--repeat", "1000", "--json"))
    session.read_until("so far")
    assert "run 1 of 1000" in session.seen or "preparing" in session.seen
    session.process.send_signal(signal.SIGINT)
    assert session.end() == 130
    assert session.seen.rstrip().endswith("\r\x1b[Kconvt3d: interrupted")
    assert "Traceback" not in session.seen
