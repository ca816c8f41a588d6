"""What needs a process of its own: peak memory, the first call, and cases under another instruction set.

python -m convt3d.bench.alone < task.json      # prints the answer as one line of JSON
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from ..cpu.plan.machine import ISA_VARIABLE
from ..front.memory import PeakMemory
from .cases import Case, read_case
from .figures import DIRECT, OWN

LONGEST = 300.0  # seconds a process may take
_WARM_PROCESSES = 3


def peak_memory(case: Case, contender: str) -> int | None:
    """Bytes by which two calls raise the memory of a process beyond inputs, prepared contender and result."""
    answer = _ask({"task": "memory", "case": case.document(), "contender": contender}, {})
    return None if answer is None else answer["extra_bytes"]


def first_calls(case: Case, contender: str) -> dict[str, float]:
    """Seconds by which the first call in a process exceeds a repeated one, with an empty and with a warm disk cache:
    the median of some processes, since each has one first call only. The cache is empty for one of them."""
    found: dict[str, list[float]] = {"empty": [], "warm": []}
    with tempfile.TemporaryDirectory() as folder:  # only its owner may enter it
        for cache in ("empty", *["warm"] * _WARM_PROCESSES):
            task = {"task": "first", "case": case.document(), "contender": contender}
            answer = _ask(task, {"CONVT3D_CACHE_DIR": folder})
            if answer is not None:
                found[cache].append(answer["seconds"])
    return {cache: median(seconds) for cache, seconds in found.items() if seconds}


def row_under_isa(case: Case, quick: bool) -> dict[str, Any]:
    """The case measured with its instruction set forced; a failure is a row too."""
    answer = _ask({"task": "row", "case": case.document(), "quick": quick}, {ISA_VARIABLE: case.isa})
    why = f"not measured: this machine may lack {case.isa}"
    return answer or {"contenders": {"convt3d": {"status": "unsupported", "note": why}}}


def _ask(task: Mapping[str, Any], environment: Mapping[str, str]) -> Any:
    """The answer of a fresh process, None where it failed."""
    source = str(Path(__file__).parents[2])
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([source, inherited] if inherited else [source])
    try:
        done = subprocess.run(
            [sys.executable, "-m", "convt3d.bench.alone"],
            input=json.dumps(task),
            env={**os.environ, "PYTHONPATH": path, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=LONGEST,
            check=False,
        )
        return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
    except (subprocess.TimeoutExpired, IndexError, ValueError):
        return None


# --- inside the process -----------------------------------------------------------------------------------------------


def _memory(case: Case, contender: str) -> dict[str, Any]:
    from .contenders import find_contender

    taking_part = find_contender(contender)
    tiny = case.tiny()
    taking_part.prepare(tiny, tiny.draw()).run()  # code that is only now read from disk does not count
    ready = taking_part.prepare(case, case.draw())
    result = case.result_bytes if ready.allocates else 0
    watch = PeakMemory()
    with ready.around():
        for _ in range(2):
            ready.run()
    extra = watch.extra()
    return {"extra_bytes": None if extra is None else max(0, extra - result)}


def _first(case: Case, contender: str) -> dict[str, Any]:
    from .contenders import find_contender

    ready = find_contender(contender).prepare(case, case.draw())  # arrays, that of the result included
    seconds = []
    for _ in range(4):
        begun = time.perf_counter()
        ready.run()
        seconds.append(time.perf_counter() - begun)
    return {"seconds": max(0.0, seconds[0] - median(seconds[1:]))}


def _row(case: Case, quick: bool) -> dict[str, Any]:
    from .contenders import find_contender
    from .measure import measure_case

    own = {name: find_contender(name) for name in (OWN, DIRECT)}  # peers cannot be told to use fewer instructions
    return measure_case(case, own, quick=quick, apart=False)


def main() -> None:
    task = json.load(sys.stdin)
    case = read_case(task["case"])
    if task["task"] == "row":
        answer = _row(case, task["quick"])
    else:
        answer = (_memory if task["task"] == "memory" else _first)(case, task["contender"])
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
