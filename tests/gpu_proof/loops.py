"""Instructions of a kernel's innermost loop of products, read from machine code: the table of docs/gpu.md.

cd tests && python -m gpu_proof.loops float32,ieee,float16 80,90
"""

from __future__ import annotations

import re
import sys

from convt3d.spec.problems import PROBLEMS

from . import compile as gpu_compile
from .jobs import Job

_LINE = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")
_LABEL = re.compile(r"\s*(\.L_x_\d+):")
_BRANCH = re.compile(r"BRA.*?(\.L_x_\d+)")
_PRODUCTS = ("HGMMA", "HMMA", "UTC", "DMMA", "FFMA")


def loop(code: str) -> tuple[int, int] | None:
    """Instructions of the loop in which most are products, and how many are; None if there is none."""
    labels: dict[str, int] = {}
    names: list[str] = []
    found: list[tuple[int, int]] = []
    for line in code.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(names)
        elif instruction := _LINE.match(line):
            names.append(instruction[1])
            branch = _BRANCH.search(line)
            if branch and branch[1] in labels:
                body = names[labels[branch[1]] :]
                found.append((len(body), sum(name.startswith(_PRODUCTS) for name in body)))
    return max((one for one in found if one[1]), key=lambda one: one[1] / one[0], default=None)


def main(kinds: str, generations: str) -> None:
    for slug in PROBLEMS:
        for kind in kinds.split(","):
            for generation in map(int, generations.split(",")):
                for launch in gpu_compile.launches(Job(slug, kind, generation).plan()):
                    if launch.step.label == "dot":
                        where = ("cuda", generation, 32)
                        made = gpu_compile.compiled_call(launch.function, where, *launch.arguments, **launch.options)
                        code, registers = gpu_compile.disassembled(made.asm["cubin"])
                        print(slug, kind, generation, "loop", loop(code), "registers", registers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
