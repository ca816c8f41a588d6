"""A failing case as files: the arrays as .npz, and a script of three lines that judges the kernel on them again."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from pathlib import Path

import numpy as np

from ..errors import ArgumentError, ProblemFileError
from ..front.verify import Storage
from ..spec.dtypes import DTYPES
from ..spec.problem_file import Case
from ..spec.problems import PROBLEMS
from .cases import Trial, trial_of

SCRIPT = """\
# The case {name!r} of {slug} ({dtype}): arrays, expected and, if there was one, the result are in {arrays}.
from convt3d.cli.main import main
raise SystemExit(main({command!r}))
"""


def keep(trial: Trial, output: Storage | None, path: str, folder: str, *, allow_torch: bool) -> tuple[str, str]:
    """Writes both into `folder`; their names."""
    stem = f"failing-{trial.case.name}"
    arrays, script = (os.path.join(os.path.abspath(folder), stem + end) for end in (".npz", ".py"))
    about = {
        "slug": trial.problem.slug,
        "dtype": trial.dtype.name,
        "name": trial.case.name,
        "values": dict(trial.values),
    }
    extra = {"expected": trial.expected.values, "about": np.array(json.dumps(about))}
    extra |= {} if output is None else {"got": output}
    command = ["check", os.path.abspath(path), "--case", arrays, *["--allow-torch"] * allow_torch]
    text = SCRIPT.format(**about | {"arrays": arrays, "command": command})
    try:
        os.makedirs(folder, exist_ok=True)
        np.savez(arrays, **trial.arrays, **extra)  # type: ignore[arg-type]
        Path(script).write_text(text, encoding="utf-8")
    except OSError as error:
        rule = f"cannot be written ({error.strerror})"
        raise ArgumentError("judge", "--keep", folder, rule, "Choose another folder") from None
    return arrays, script


def kept(path: str) -> Trial:
    """The trial in a file that `keep` wrote."""
    try:
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
            problem, dtype = PROBLEMS[about["slug"]], DTYPES[about["dtype"]]
            values = problem.checked(about["values"])
            arrays = {name: file[name] for name in ("input", *problem.operand_names)}
    except (OSError, KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        rule = f"is no case that --keep wrote ({error})"
        raise ProblemFileError("judge", "--case", path, rule, "Give the .npz file of a failing case") from None
    shapes = problem.shapes(values)
    for name, array in arrays.items():
        if array.shape != shapes[name] or array.dtype != np.dtype(dtype.storage):
            rule = f"holds `{name}` of shape {array.shape} and {array.dtype}, not {shapes[name]} and {dtype.storage}"
            raise ProblemFileError("judge", "--case", path, rule, "Do not change the file")
    return trial_of(problem, Case(about["name"], "kept", values), dtype, arrays, np.random.default_rng(0))
