"""Runs drawn cases one after the other and prints what it does: `python -m soak.worker SEED FIRST STEP LAST`.

Before a case runs it is printed, so that the last line names the one that ended the process. Lines are "case N TEXT",
"failed N WHAT" and, at the end, "done".
"""

from __future__ import annotations

import os
import sys

import numpy as np
from soak.check import Failed, check
from soak.draw import drawn


def main(seed: int, first: int, step: int, last: int) -> None:
    """Pipelines first, first + step, ... below last; case number n is a variant of pipeline n // 100."""
    for number in range(first, last, step):
        for variant, draw in enumerate(drawn(np.random.default_rng([seed, number]))):
            case = 100 * number + variant
            print(f"case {case} {draw!r}", flush=True)
            try:
                check(draw)
            except Failed as problem:
                print(f"failed {case} {' '.join(str(problem).split())}", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
    os._exit(0)
