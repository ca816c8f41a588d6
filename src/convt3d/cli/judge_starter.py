"""`convt3d starter`: a file with the right signature to start from."""

from __future__ import annotations

import argparse
import os

from ..errors import ArgumentError
from ..judge.starter import file_name, starter
from ..spec.problems import PROBLEMS, Problem
from .report import OK, emit, emit_json


def write_starter(args: argparse.Namespace) -> int:
    problem = PROBLEMS[args.slug]
    path = args.output or file_name(problem, args.lang)
    return write_file(args, problem, path, starter(problem, args.lang))


def write_file(args: argparse.Namespace, problem: Problem, path: str, content: str) -> int:
    """A new file; one that is there is left alone."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(content)
    except FileExistsError:
        rule = "exists, and is not overwritten"
        raise ArgumentError(problem.slug, "--output", path, rule, "Choose another name, or remove it") from None
    except OSError as error:
        rule = f"cannot be written ({error.strerror})"
        raise ArgumentError(problem.slug, "--output", path, rule, "Choose another file") from None
    document = {"slug": problem.slug, "language": args.lang, "path": os.path.abspath(path)}
    text = f"wrote {path}\nnext: convt3d sample {path}; convt3d check {path}; convt3d bench {path}"
    emit_json(document) if args.json else emit(text)
    return OK
