"""Absurd values for every parameter of every stage and function: a result, or an error of ours that can be read."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import convt3d as ct
from convt3d.spec.stage import Stage

METHODS = (
    *("__array__", "__bool__", "__dlpack__", "__eq__", "__float__", "__getattribute__", "__hash__", "__index__"),
    *("__iter__", "__len__", "__repr__", "__str__"),
)


ERRORS = (OSError, KeyError)


def raising(*methods: str, error: type[Exception] = ZeroDivisionError) -> Any:
    """An object of a library we do not know, some methods of which fail."""

    def fail(*arguments: Any) -> Any:
        raise error("on purpose")

    return type("Foreign", (), dict.fromkeys(methods, fail))()


def of_objects() -> Any:
    array = np.empty(2, object)
    array[0] = raising("__repr__", "__float__", "__index__")
    return array


def endless() -> Any:
    return iter(int, 1)


VALUES: dict[str, Callable[[], Any]] = {
    **{f"{name} raises": lambda name=name: raising(name) for name in METHODS},
    **{
        f"all raise {error.__name__}": lambda error=error: raising(*METHODS, error=error)
        for error in (OSError, KeyError)
    },
    "array": lambda: np.ones(3),
    "array of three": lambda: np.array([1, 2, 3]),
    "array of strings": lambda: np.array(["a", "b"]),
    "array of objects": of_objects,
    "no array": lambda: np.empty((0,)),
    "endless": endless,
    "huge": lambda: 10**5000,
    "-huge": lambda: -(10**5000),
    "2^63": lambda: 2**63,
    "2^62": lambda: 2**62,
    "2^40": lambda: 2**40,
    "0": lambda: 0,
    "-1": lambda: -1,
    "1.5": lambda: 1.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "1e308": lambda: 1e308,
    "1j": lambda: 1j,
    "True": lambda: True,
    "None": lambda: None,
    "text": lambda: "x" * 100_000,
    "bytes": lambda: b"abc",
    "list": lambda: [[1, 2], 3],
    "four": lambda: (1, 2, 3, 4),
    "dict": dict,
    "set": lambda: {1, 2, 3},
    "type": lambda: int,
    "object": object,
    "itself": lambda: ct,
}
STAGES = sorted(
    (kind for kind in vars(ct).values() if isinstance(kind, type) and issubclass(kind, Stage) and kind is not Stage),
    key=lambda kind: kind.__name__,
)
X, W = np.ones((1, 2, 1, 1, 3), np.float32), np.ones((2, 2, 2, 2, 2), np.float32)
FUNCTIONS = [function for name, function in vars(ct).items() if name.startswith("conv_transpose3d")]


def returns_or_says_why(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    try:
        return call(*arguments, **named)
    except ct.Error as error:
        why = error
    assert 20 < len(str(why)) < 2000
    assert why.operator
    assert why.rule
    return None


USUAL = {"kernel_size": 2, "num_groups": 1, "label": "kept", "other": 1.0}


@pytest.mark.parametrize("kind", STAGES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", sorted(VALUES))
def test_every_parameter_of_every_stage(kind: type[Stage], name: str) -> None:
    needed = {field.name: USUAL[field.name] for field in fields(kind) if field.name in USUAL}
    for field in fields(kind):
        stage = returns_or_says_why(kind, **{**needed, field.name: VALUES[name]()})
        if stage is None:
            continue
        assert repr(stage)
        assert hash(stage) == hash(stage)
        before = [] if kind is ct.ConvTranspose3d else [ct.ConvTranspose3d()]
        pipeline = returns_or_says_why(ct.Pipeline, *before, stage)
        if pipeline is not None:
            returns_or_says_why(pipeline.explain, X.shape, W.shape)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@settings(max_examples=40)
@given(data=st.data())
def test_every_parameter_of_every_function(function: Callable[..., Any], data: st.DataObject) -> None:
    scale = {"scale": np.ones(2, np.float32)} if "scale" in inspect.signature(function).parameters else {}
    names = st.sampled_from(sorted(inspect.signature(function).parameters))
    drawn = data.draw(st.dictionaries(names, st.sampled_from(sorted(VALUES)), min_size=1, max_size=2))
    changed = {name: VALUES[value]() for name, value in drawn.items()}
    returns_or_says_why(lambda: function(**{"input": X, "weight": W, "stride": 1, "padding": 0, **scale, **changed}))


@pytest.mark.parametrize("name", sorted(VALUES))
def test_everything_else(name: str) -> None:
    def value() -> Any:
        return VALUES[name]()

    def scoped() -> None:
        with ct.num_threads(value()):
            pass

    pipeline = ct.Pipeline(ct.ConvTranspose3d())
    slug = next(iter(ct.problems))
    for call in (
        lambda: ct.problems[value()],
        lambda: ct.problems[slug].solution(value()),
        lambda: ct.problems[slug].solution(*[value() for _ in ct.problems[slug].parameters]),
        lambda: ct.set_num_threads(value()),
        scoped,
        lambda: ct.Pipeline(value()),
        lambda: pipeline(value(), W),
        lambda: pipeline(X, value()),
        lambda: pipeline(X, W, out=value()),
        lambda: pipeline.explain(value(), W.shape),
        lambda: pipeline.explain(X.shape, value()),
        lambda: pipeline.explain(X.shape, W.shape, value()),
    ):
        returns_or_says_why(call)
        ct.set_num_threads(None)


ONE = np.ones((1, 1, 1, 1, 1), np.float32)
SUM = ct.Pipeline(ct.ConvTranspose3d(), ct.Sum())
ALL = ct.Pipeline(ct.ConvTranspose3d(), ct.Sum("spatial"))


def repeated(*shape: int) -> Any:
    return np.broadcast_to(ONE, shape)


@pytest.mark.parametrize(
    ("call", "kind", "argument", "words"),
    [
        (lambda: SUM(ONE, repeated(1, 2**40, 1, 1, 1)), ct.AllocationError, "weight", "4,398,046,511,104 bytes"),
        (lambda: SUM(ONE, repeated(1, 1, 1, 1, 2**40)), ct.AllocationError, "weight", "4,398,046,511,104 bytes"),
        (lambda: SUM(ONE, repeated(1, 1, 1, 1, 2**17)), ct.ShapeError, "weight", "65,536 taps"),
        (lambda: SUM(ONE, repeated(1, 2**25, 1, 1, 1)), ct.ShapeError, "weight", "16,777,216 channels"),
        (
            lambda: ALL(repeated(1, 1, 2**20, 2**20, 2**18), ONE),
            ct.AllocationError,
            "input",
            "bytes: must fit in memory",
        ),
        (lambda: ALL(repeated(1, 1, 2**20, 2**20, 2**20), ONE), ct.ShapeError, "output shape", "64-bit offsets"),
        (
            lambda: ct.conv_transpose3d(repeated(2**40, 1, 1, 1, 1), ONE),
            ct.AllocationError,
            "output",
            "bytes: does not",
        ),
        (lambda: ct.set_num_threads(2**63), ct.ArgumentError, "count", "must be at most 1,024"),
        (lambda: ct.problems[10**5000], ct.UnknownProblemError, "slug", "a int that cannot be shown"),
        (lambda: ct.Softmax(scale=np.ones(3)), ct.ArgumentTypeError, "scale", "must be a real number"),
        (lambda: ct.conv_transpose3d(X, W, raising("__repr__")), ct.ArgumentTypeError, "bias", "Foreign"),
        (
            lambda: ct.conv_transpose3d(X, W, stride=raising("__index__")),
            ct.ArgumentTypeError,
            "stride",
            "ZeroDivision",
        ),
    ],
)
def test_words(call: Callable[[], Any], kind: type[Exception], argument: str, words: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert caught.value.argument == argument  # type: ignore[attr-defined]
    assert words in str(caught.value)


LITTLE = """
import resource, sys
import numpy as np, convt3d as ct
x, w = np.ones((2, 16, 16, 16, 16), "f"), np.ones((16, 64, 3, 3, 3), "f")
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (int(sys.argv[1]) << 20),) * 2)
try:
    print(float(ct.conv_transpose3d(x, w, stride=2).sum()))
except ct.Error as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's limits")
@pytest.mark.parametrize("megabytes", [16, 40, 80, 120, 200])
@pytest.mark.parametrize(("cache", "threads"), [("cold", 40), ("warm", 2)])
def test_too_little_memory_is_said(cache: str, megabytes: int, threads: int, tmp_path: Path) -> None:
    """Fewer threads, or an error that names bytes: never a traceback of somebody else's, nor a dead process."""
    place = {} if cache == "warm" else {"CONVT3D_CACHE_DIR": str(tmp_path / "cache")}
    limits = {"CONVT3D_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1", **place}
    done = subprocess.run(
        [sys.executable, "-c", LITTLE, str(megabytes)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **limits},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "bytes" in done.stdout or "LLVM cannot be loaded" in done.stdout or float(done.stdout) > 0
