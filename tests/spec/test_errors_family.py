"""The family of errors: parts as attributes, one text, copies, and the names a caller knows."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from convt3d import errors
from convt3d.errors import ArgumentError, Error, described, named
from convt3d.spec.stages import Add, ConvTranspose3d


def test_named_replaces_the_operator() -> None:
    with pytest.raises(ArgumentError) as caught, named("my_solution", {"stride": "step"}):
        ConvTranspose3d(stride=0)
    assert (caught.value.operator, caught.value.argument) == ("my_solution", "step")
    assert str(caught.value).startswith("my_solution: step = 0: ")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert str(copy.deepcopy(caught.value)) == str(caught.value)


def test_named_keeps_other_arguments_and_other_errors() -> None:
    with pytest.raises(ArgumentError) as caught, named("op", {"stride": "step"}):
        ConvTranspose3d(groups=0)
    assert (caught.value.operator, caught.value.argument) == ("op", "groups")
    with pytest.raises(ZeroDivisionError), named("op"):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "error",
    [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Error)],
    ids=lambda c: c.__name__,
)
def test_each_class_shows_all_parts(error: type[Error]) -> None:
    """Also where the second base has a text of its own (KeyError quotes, MemoryError is empty)."""
    raised = error("op", "arg", [1, 2], "the rule", "The remedy")
    assert str(raised) == "op: arg = [1, 2]: the rule. The remedy."
    assert issubclass(error, (ValueError, TypeError, MemoryError, KeyError, RuntimeError)) or error is Error


@pytest.mark.parametrize(
    ("received", "shown"),
    [
        pytest.param("text", "'text'", id="a text is quoted"),
        pytest.param(described("array of shape (2,)"), "array of shape (2,)", id="a description is not"),
        pytest.param("y" * 500, "'" + "y" * 116 + "...", id="long values are cut"),
    ],
)
def test_how_the_received_value_is_shown(received: Any, shown: str) -> None:
    assert str(Error("op", "arg", received, "rule", "Remedy")) == f"op: arg = {shown}: rule. Remedy."


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: ConvTranspose3d(stride=10**5000), id="integer"),
        pytest.param(lambda: Add(10**5000), id="real"),
    ],
)
def test_a_number_python_will_not_print_still_gives_an_error_with_a_text(call: Callable[[], Any]) -> None:
    """repr of an int beyond 4300 digits raises ValueError."""
    with pytest.raises(ArgumentError) as caught:
        call()
    assert caught.value.rule in str(caught.value)
