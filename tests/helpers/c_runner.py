"""A program around an exported library that reads cases and writes results: for systems that only an emulator runs."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convt3d.export.forms import Subject
from convt3d.spec.dtypes import DType
from convt3d.spec.problem_file import SIZE

from .c_library import Array

PROGRAM = """\
#include "{name}.h"
#include <stdio.h>
#include <stdlib.h>

static void need(size_t got, size_t wanted) {{
    if (got != wanted)
        exit(3);
}}

static void read_array(struct {name}_array *a) {{
    size_t count = 1;
    need(fread(a->shape, 8, 5, stdin), 5);
    for (int axis = 0; axis < 5; axis++)
        count *= (size_t)a->shape[axis];
    a->data = malloc(count * sizeof({name}_real) + 1);
    need(fread(a->data, sizeof({name}_real), count, stdin), count);
}}

int main(void) {{
    int64_t threads;
    while (fread(&threads, 8, 1, stdin) == 1) {{
        struct {name}_args args = {{0}};
        args.threads = (int)threads;
{reads}
        if ({name}_run(&args)) {{
            fprintf(stderr, "%s\\n", {name}_message());
            return 1;
        }}
        size_t count = 1;
        for (int axis = 0; axis < 5; axis++)
            count *= (size_t)args.output.shape[axis];
        need(fwrite(args.output.data, sizeof({name}_real), count, stdout), count);
{frees}
    }}
    fprintf(stderr, "%s\\n", {name}_isa());
    return 0;
}}
"""


def program(subject: Subject) -> str:
    reads = [f"        read_array(&args.{name});" for name in ("input", *subject.operands, "output")]
    reads += [f"        need(fread(&args.{name}, 8, 1, stdin), 1);" for name, _ in subject.parameters]
    frees = [f"        free(args.{name}.data);" for name in ("input", *subject.operands, "output")]
    return PROGRAM.format(name=subject.name, reads="\n".join(reads), frees="\n".join(frees))


class Case:
    def __init__(
        self, x: Array, operands: Sequence[Array], out: Array, values: Mapping[str, Any], threads: int
    ) -> None:
        self.arrays, self.out, self.values, self.threads = (x, *operands, out), out, values, threads

    def written(self, subject: Subject) -> bytes:
        parts = [np.int64(self.threads).tobytes()]
        for array in self.arrays:
            parts += [np.array([*array.shape, *[1] * (5 - array.ndim)], np.int64).tobytes(), array.tobytes()]
        for name, kind in subject.parameters:
            parts.append((np.int64 if kind == SIZE else np.float64)(self.values[name]).tobytes())
        return b"".join(parts)


def run_cases(command: Sequence[str], subject: Subject, dtype: DType, cases: Sequence[Case]) -> tuple[list[Array], str]:
    """The results, and the instruction set that was used."""
    given = b"".join(case.written(subject) for case in cases)
    done = subprocess.run(command, input=given, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    results, at = [], 0
    for case in cases:
        flat = np.frombuffer(done.stdout, dtype.storage, case.out.size, at)
        results.append(flat.reshape(case.out.shape))
        at += flat.nbytes
    assert at == len(done.stdout)
    return results, done.stderr.decode().strip()


def build_program(compiler: str, subject: Subject, folder: str, static: bool) -> Path:
    """Beside the library, which is an archive or not."""
    root = Path(folder)
    (root / "runner.c").write_text(program(subject))
    library = root / f"lib{subject.name}.{'a' if static else 'so'}"
    linked = [str(library), "-lm", "-pthread", *(["-static"] if static else [f"-Wl,-rpath,{root}"])]
    subprocess.run(
        [compiler, "-O1", "-Wall", f"-I{root}", str(root / "runner.c"), *linked, "-o", str(root / "runner")], check=True
    )
    return root / "runner"
