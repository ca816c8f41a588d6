"""Compiles every GPU kernel of the five operators and writes docs/gpu_report.md; needs triton, and no GPU.

    python tools/gpu_report.py [--output FILE] [--processes 2] [--all]

Triton's cache keeps what was compiled: after a change only the kernels that it touches are compiled again. Exit code 1
if a kernel spills, leaves tensor cores idle or loads its tiles in small pieces.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from gpu_proof import report as gpu_report  # noqa: E402
from gpu_proof.amd import amd_jobs, amd_rows  # noqa: E402
from gpu_proof.jobs import Job, further_jobs, jobs, tuned  # noqa: E402

from convt3d.bench.record import version  # noqa: E402

REPORT = ROOT / "docs" / "gpu_report.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=REPORT)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--all", action="store_true", help="compile all that is tested, and tell its faults")
    args = parser.parse_args()
    os.environ.pop("TRITON_INTERPRET", None)  # the interpreter's functions cannot be compiled
    wanted = jobs()
    if args.all:
        wanted += further_jobs() + [other for job in jobs() + further_jobs() for other in tuned(job)]
    begun = time.monotonic()
    rows: dict[Job, list[gpu_report.Row]] = {}
    wrong = 0
    with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(gpu_report.rows_of, job): job for job in wanted}
        for done in as_completed(waiting):
            rows[waiting[done]] = done.result()
            for row in done.result():
                for fault in gpu_report.faults(row):
                    wrong += 1
                    print(f"\n{gpu_report.line(row)}: {fault}", flush=True)
            spent = time.monotonic() - begun
            print(f"\r{len(rows)} of {len(wanted)} plans, {spent:.0f} s ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    amd = [row for job, architecture in amd_jobs() for row in amd_rows(job, architecture)]
    for row in amd:
        for fault in row.faults():
            wrong += 1
            print(f"{row.line()}: {fault}", flush=True)
    found = [row for job in jobs() for row in rows[job]]
    args.output.write_text(gpu_report.report(found, amd, version("triton")) + "\n", encoding="utf-8")
    print(f"{len(found) + len(amd)} kernels, {wrong} faults; wrote {args.output}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
