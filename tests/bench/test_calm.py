"""What others use of the processor is seen, and what this process and its children use is not counted as theirs."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from convt3d.bench.calm import Watch

BURN = "import time\nend = time.process_time() + 0.6\nwhile time.process_time() < end: pass"


def test_another_process_is_foreign() -> None:
    watch = Watch()
    if watch.foreign_seconds() is None:
        pytest.skip("this system does not tell how busy it is")
    other = subprocess.Popen([sys.executable, "-c", BURN])
    while not _is_zombie(other.pid):
        time.sleep(0.05)
    seen = watch.foreign_seconds()
    other.wait()
    assert seen is not None
    assert seen > 0.4, "not waited for yet, so not counted as ours"


def _is_zombie(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


def test_own_work_is_not_foreign() -> None:
    """On a busy machine others are seen too; but never less than nothing, and a child that ended is ours."""
    watch = Watch()
    if watch.foreign_seconds() is None:
        pytest.skip("this system does not tell how busy it is")
    subprocess.run([sys.executable, "-c", BURN], check=True)
    seen = watch.foreign_seconds()
    assert seen is not None
    assert seen >= 0.0
