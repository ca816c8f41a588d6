"""`check --watch`: judged again when the file has changed and stands still."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.command import environment


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")
def test_watch_judges_again_when_the_file_changes(kernel, tmp_path: Path) -> None:
    path = kernel("def solution(*a): raise ValueError('the first')")
    command = [sys.executable, "-m", "convt3d", "check", path, "--case", "sample", "--watch"]
    watcher = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert "ValueError: the first" in _until("waiting for changes", watcher.stdout)
        other = tmp_path / "other.py"
        other.write_text("nothing")
        other.replace(path)
        assert _until("waiting for changes", watcher.stdout).startswith("waiting for changes")  # the error is on stderr
        kernel()
        assert "passed" in _until("waiting for changes", watcher.stdout)
        watcher.send_signal(signal.SIGINT)
        out, err = watcher.communicate(timeout=60)
        assert (watcher.returncode, out) == (130, "")
        assert "has no line `convt3d problem: SLUG`" in err
    finally:
        watcher.kill()
        watcher.communicate()


def _until(words: str, stream: Any) -> str:
    seen = ""
    while words not in seen:
        line = stream.readline()
        assert line, f"ended after {seen!r}"
        seen += line
    return seen


def test_a_watched_file_is_judged_once_it_stands_still(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sleep of the watcher is a moment in which an editor empties the file, removes it, or writes a piece."""
    path = tmp_path / "mine.py"
    path.write_text("first")
    moments = iter([None, "", "", "a piece", None, "a piece", "a piece", "the whole", "the whole", "the whole"])
    judged = []

    def sleep(seconds: float) -> None:
        text = next(moments)
        if text is None:
            path.unlink(missing_ok=True)
        elif not path.exists() or path.read_text() != text:
            path.write_text(text)

    def check_once(args: Any, before_text: str) -> None:
        judged.append(path.read_text())
        if len(judged) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("convt3d.cli.judge_check.time.sleep", sleep)
    monkeypatch.setattr("convt3d.cli.judge_check._check_once", check_once)
    assert run("check", path, "--watch")[0] == 130
    assert judged == ["first", "the whole"]
    assert next(moments, "nothing left") == "nothing left"


def test_watch_is_for_people(run, kernel) -> None:
    code, _, err = run("check", kernel(), "--watch", "--json")
    assert code == 2
    assert "Leave --json out" in err
