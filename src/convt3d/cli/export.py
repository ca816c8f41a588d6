"""`convt3d export`: a problem's GPU kernels as one file, or a problem or pipeline as a library for C."""

from __future__ import annotations

import argparse
import os

from ..errors import ArgumentError
from ..judge import export
from ..spec.dtypes import DTYPES
from ..spec.problems import PROBLEMS
from .judge_starter import write_file
from .report import OK, emit, emit_json

LANGUAGES = (*export.LANGUAGES, "c")
_OF_LIBRARIES = ("name", "dtype", "target", "static")


def write_export(args: argparse.Namespace) -> int:
    if args.lang == "c":
        if args.finite:
            rule = "is for files of GPU kernels: a library looks at its numbers as it goes"
            raise ArgumentError("export", "--finite", True, rule, "Write --lang triton, or leave it out")
        return _library(args)
    given = [f"--{name}" for name in _OF_LIBRARIES if getattr(args, name)]
    if given:
        rule = "is for libraries: a file of kernels serves all types, and runs where Triton does"
        raise ArgumentError("export", given[0], getattr(args, given[0][2:]), rule, "Write --lang c, or leave it out")
    problem = PROBLEMS[args.subject]
    path = args.output or export.file_name(problem, args.lang)
    return write_file(args, problem, path, export.export(problem, args.lang, args.finite))


def _library(args: argparse.Namespace) -> int:
    from ..export.library import subject_of, write_library  # here: other commands need no LLVM

    subject = subject_of(args.subject, args.name)
    folder = args.output or subject.name
    dtype = DTYPES[args.dtype or "float32"]
    made = write_library(subject, dtype, folder, target=args.target, static=args.static)
    document = {"name": subject.name, "dtype": dtype.name, "folder": os.path.abspath(folder), "library": made.path}
    emit_json(document) if args.json else emit(f"wrote {made.path}\nnext: read {os.path.join(folder, 'README.md')}")
    return OK
