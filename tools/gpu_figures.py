"""Writes tests/gpu_proof/figures.json: loop instructions, registers, spills, shared memory and bytes of the operators'
GPU kernels, compiled without a GPU; and prints what became worse, and the time that is expected of each.

    python tools/gpu_figures.py [--compare]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from gpu_proof import figures

from convt3d.units import duration


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", action="store_true", help="write nothing; exit code 1 if something became worse")
    args = parser.parse_args()
    then = figures.recorded()["plans"] if figures.RECORDED.exists() else {}
    found, faults = {}, 0
    print("| plan | arithmetic | memory | L2 | issue slots | expected |\n|---|---|---|---|---|---|")
    for job in figures.recorded_jobs():
        rows, name = figures.rows(job), figures.name_of(job)
        found[name] = figures.figures_of(job, rows)
        time = figures.expected(job, rows, figures.device_of(job))
        level = " to ".join(map(duration, time.cached))
        bounds = " | ".join([duration(time.arithmetic), duration(time.memory), level, duration(time.issue)])
        print(f"| {name} | {bounds} | {' to '.join(map(duration, time.range))} |", flush=True)
        for words in figures.worse(found[name], then.get(name, found[name])):
            faults += 1
            print(f"worse: {name}: {words}", file=sys.stderr)
    if not args.compare:
        figures.write(found)
    return 1 if args.compare and faults else 0


if __name__ == "__main__":
    sys.exit(main())
