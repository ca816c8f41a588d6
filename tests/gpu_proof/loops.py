"""Instructions of a kernel's innermost loop of products, read from machine code: the table of docs/gpu.md.

cd tests && python -m gpu_proof.loops float32,ieee,float16 80,90
"""

from __future__ import annotations

import sys

from convt3d.spec.problems import PROBLEMS

from . import compile as gpu_compile
from .jobs import Job


def main(kinds: str, generations: str) -> None:
    for slug in PROBLEMS:
        for kind in kinds.split(","):
            for generation in map(int, generations.split(",")):
                for launch in gpu_compile.launches(Job(slug, kind, generation).plan()):
                    if launch.step.label == "dot":
                        where = ("cuda", generation, 32)
                        made = gpu_compile.compiled_call(launch.function, where, *launch.arguments, **launch.options)
                        code, registers = gpu_compile.disassembled(made.asm["cubin"])
                        print(
                            slug,
                            kind,
                            generation,
                            "loop",
                            gpu_compile.loop_of(code),
                            "registers",
                            registers,
                            flush=True,
                        )


if __name__ == "__main__":
    main(*sys.argv[1:])
