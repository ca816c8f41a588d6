"""Native code is there as long as anybody can jump to it: first calls on many threads, evictions, forks, exits."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

import convt3d as ct
from convt3d.cpu.runtime import compiled
from convt3d.cpu.runtime.build import Function
from convt3d.cpu.runtime.compiled import loaded

# Channels that lie side by side, weights large enough to be compared by all threads, and a packing of its own.
PROGRAM = """
import os, sys, threading
import numpy as np
import convt3d as ct
from convt3d.cpu.runtime import compiled

sys.setswitchinterval(1e-6)
threads, loads = 6, []
load = compiled.load
compiled.load = lambda *given: loads.append(given[1]) or load(*given)
rng = np.random.default_rng(0)
x = np.moveaxis(rng.standard_normal((2, 3, 4, 5, 40), dtype="f"), -1, 1)
w = rng.standard_normal((40, 130, 3, 3, 3), dtype="f")
together, results = threading.Barrier(threads), []

def call(index):
    together.wait()
    with ct.num_threads(1 + index % 3):
        results.extend(ct.conv_transpose3d(x, w, stride=2) for _ in range(2))
"""
FIRST_CALLS = (
    PROGRAM
    + """
started = [threading.Thread(target=call, args=(index,)) for index in range(threads)]
for thread in started: thread.start()
for thread in started: thread.join()
assert len(results) == 2 * threads
assert all(np.array_equal(result, results[0]) for result in results)
assert len(loads) == len({tuple(names) for names in loads}), loads   # nothing was loaded twice
"""
)
FORKS = (
    PROGRAM
    + """
started = [threading.Thread(target=call, args=(index,)) for index in range(threads)]
for thread in started: thread.start()
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        together = threading.Barrier(1)
        before = len(results)
        call(0)
        os._exit(0 if np.array_equal(results[before], results[-1]) else 1)
    children.append(child)
for thread in started: thread.join()
assert all(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 for child in children)
"""
)
EXIT = (
    PROGRAM
    + """
together = threading.Barrier(threads + 1)
def for_ever(index):
    call(index)
    while True:
        ct.conv_transpose3d(x, w + np.float32(index), stride=2)
for index in range(threads):
    threading.Thread(target=for_ever, args=(index,), daemon=True).start()
together.wait()
while len(results) < int(sys.argv[1]): pass   # 0: while all of them still look for code and load it
"""
)


def run(program: str, cache: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-X", "faulthandler", "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CONVT3D_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("warm") / "cache"


@pytest.mark.parametrize("round_", range(8))
def test_first_calls_of_a_process_on_many_threads(round_: int, warm: Path) -> None:
    """The first round compiles, the others find the code on disk: half of them crashed when each thread had a copy of
    its own and the copies replaced each other."""
    run(FIRST_CALLS, warm)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("temperature", ["cold", "warm"])
def test_forks_while_threads_load_and_compile(temperature: str, warm: Path, tmp_path: Path) -> None:
    run(FORKS, warm if temperature == "warm" else tmp_path / "cold")


@pytest.mark.parametrize("results", [0, 6], ids=["while loading", "while computing"])
def test_the_interpreter_ends_while_threads_are_inside(results: int, warm: Path) -> None:
    run(EXIT, warm, str(results))


def test_code_in_use_outlives_the_table_and_other_code_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table drops what it has no room for; a call in progress holds a Function, and so the memory."""
    ir = "define void @nothing(ptr %a, i64 %i) {\n  ret void\n}"
    code = compiled.compiled("lifetime", lambda: ir, ["nothing"])
    assert compiled.compiled("lifetime", lambda: ir, ["nothing"]) is code
    function, memory = code["nothing"], weakref.ref(code._owner)
    loaded.clear()
    del code
    gc.collect()
    assert memory() is not None
    assert isinstance(function, Function)
    del function
    gc.collect()
    assert memory() is None


def test_calls_go_on_where_the_table_has_room_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels, packing, comparing and squares take turns in pushing each other out."""
    monkeypatch.setattr(loaded, "most", 0)
    x = np.moveaxis(np.ones((1, 2, 3, 4, 40), np.float32), -1, 1)
    w = np.ones((40, 130, 3, 3, 3), np.float32)
    loaded.clear()
    pipe = ct.Pipeline(ct.ConvTranspose3d(stride=2), ct.Softmax("spatial"))
    first = pipe(x, w)
    for _ in range(3):
        assert np.array_equal(pipe(x, w), first)
        assert len(loaded) <= 1
