"""Results that are not the kernel's own work, or not done in the timed call: ready-made ones, and ones made before."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from helpers import kernels_python

from convt3d.judge import timing
from convt3d.judge import verdict as words
from convt3d.judge.check import Options
from convt3d.judge.child import ANSWERS
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.problems import PROBLEMS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")
CONV = "conv-transpose-3d-asym-input-sq-kernel"
HONEST = kernels_python.solution(CONV, kernels_python.NUMPY) + "\nhonest = solution\n"

# A package of the name, as if it were installed.
INSTALLED = """
import importlib, os, sys
def installed(name):
    folder = ""
    for part in name.split("."):
        folder = os.path.join(folder, part)
        os.makedirs(folder, exist_ok=True)
        open(os.path.join(folder, "__init__.py"), "a").close()
    importlib.invalidate_caches()
    return importlib.import_module(name)
sys.path.insert(0, os.getcwd())
"""
ONNX = INSTALLED + 'installed("onnx.reference")\ndef solution(*args):\n    pass\n'
ALL_OF_THEM = f"""{INSTALLED}
def refused(name):
    try:
        return not installed(name)
    except ImportError as error:
        return type(error).__name__ == "NotAllowed"
through = [name for name in {ANSWERS!r} if not refused(name)]
assert not through, through
installed("innocent.reference")
"""


def test_onnx_computes_the_answer(judge) -> None:
    verdict = judge(ONNX, CONV, cases=("sample",)).verdict
    assert verdict.word == words.NOT_ALLOWED
    assert "onnx" in verdict.reason


def test_every_package_with_an_answer_is_refused(judge) -> None:
    verdict = judge(HONEST + ALL_OF_THEM, CONV, cases=("sample",)).verdict
    assert verdict.passed, verdict


# Code that runs when the arguments are bound or the arrays are made, before the clock; what it has seen is used later.
BEFORE_THE_CLOCK = {
    "Signature.bind": """
import inspect
bind = inspect.Signature.bind
def early(self, *args):
    seen[:] = [args[1].copy()]
    return bind(self, *args)
inspect.Signature.bind = early
""",
    "numpy.frombuffer": """
frombuffer = np.frombuffer
def early(raw, *more):
    array = frombuffer(raw, *more)
    every.append(array)
    seen[:] = [each.copy() for each in every]
    return array
every = []
np.frombuffer = early
""",
}
SOLVE = """
seen = []
def solve(*args):
    if seen and not any(kept.any() for kept in seen):
        args[2][...] = 0  # nothing was to be had
        return
    honest(*args)
"""


@pytest.mark.parametrize("name", BEFORE_THE_CLOCK)
def test_no_data_before_the_clock(judge, name: str) -> None:
    text = f"{HONEST}{SOLVE}{BEFORE_THE_CLOCK[name]}\ndef solution(*args):\n    solve(*args)\n"
    verdict = judge(text, CONV, cases=("sample",)).verdict
    assert verdict.word == words.WRONG_VALUES, verdict


def test_a_seed_from_the_command_line_tells_nothing_about_timed_data(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    drawn = []

    class Race:
        def __init__(self, problem: object, values: object, dtype: object, rng: np.random.Generator) -> None:
            drawn.append(rng.random(4).tolist())
            raise words.rejected(words.CRASH, "seen enough")

    monkeypatch.setattr(timing, "_Race", Race)
    path = tmp_path / "mine.py"
    path.write_text(HONEST)
    for _ in range(2):
        with pytest.raises(words.Rejected):
            timing.time_file(str(path), PROBLEMS[CONV], PROBLEMS[CONV].sample, Options(DTYPES["float32"], seed=7), 1)
    assert drawn[0] != drawn[1]
    assert np.random.default_rng(7).random(4).tolist() not in drawn
