"""help() of every public name says what a caller asks: parameters, result, errors; and its example runs."""

from __future__ import annotations

import doctest
import inspect
import re
from importlib import import_module
from typing import Any

import pytest

import convt3d
from convt3d.errors import Error
from convt3d.spec.stage import Stage


def everything() -> dict[str, Any]:
    found = {f"convt3d.{name}": getattr(convt3d, name) for name in convt3d.__all__}
    found |= {
        f"convt3d.Pipeline.{name}": getattr(convt3d.Pipeline, name) for name in ("__call__", "explain", "prepare")
    }
    found["convt3d.Prepared.__call__"] = convt3d.Prepared.__call__
    for library in ("torch", "jax"):
        try:
            front = import_module(f"convt3d.{library}")
        except ImportError:
            continue
        found |= {f"convt3d.{library}.{name}": getattr(front, name) for name in front.__all__}
    return found


PUBLIC = everything()
SECTION = re.compile(r"^(\w+)\n(-+)$", re.MULTILINE)


def text_of(value: Any) -> str:
    text = value.__doc__ if callable(value) else type(value).__doc__
    return inspect.cleandoc(text or "")


def sections(text: str) -> dict[str, str]:
    """Of a numpydoc text: title -> what stands below it."""
    parts = SECTION.split(text)
    for title, line in zip(parts[1::3], parts[2::3], strict=True):
        assert len(title) == len(line), title
    return dict(zip(parts[1::3], parts[3::3], strict=True))


def wanted(value: Any) -> set[str]:
    """Sections that help on it must have."""
    if inspect.isclass(value) and issubclass(value, Error):
        return {"Examples"} | ({"Parameters"} if value is Error else set())
    parameters = [p for p in signature_of(value) if p != "self"]
    titles = {"Examples"} | ({"Parameters"} if parameters else set())
    if inspect.isfunction(value):
        return titles | {"Returns"} | ({"Raises"} if parameters else set())
    return titles | ({"Raises"} if parameters and issubclass(value, Stage | convt3d.Pipeline) else set())


def signature_of(value: Any) -> list[str]:
    if not callable(value) or value.__name__ == "Report":  # nobody makes one
        return []
    return list(inspect.signature(value).parameters)


@pytest.mark.parametrize("name", PUBLIC)
def test_sections(name: str) -> None:
    value = PUBLIC[name]
    text = text_of(value)
    found = sections(text)
    summary = text.partition("\n\n")[0]
    assert summary.rstrip('"').endswith((".", "`.")), "the first sentence says what it is"
    if callable(value):
        assert wanted(value) <= set(found)
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("name", [n for n, v in PUBLIC.items() if inspect.isfunction(v) or inspect.isclass(v)])
def test_parameters_are_those_of_the_signature(name: str) -> None:
    value = PUBLIC[name]
    if "Parameters" not in wanted(value) or "torch.nn" in sections(text_of(value))["Parameters"]:
        return  # one that takes what a module of PyTorch takes
    lines = re.findall(r"^(\S.*)$", sections(text_of(value))["Parameters"], re.MULTILINE)
    named = [word.strip("* ") for line in lines for word in line.partition(" : ")[0].split(",")]
    assert named == [p for p in signature_of(value) if p != "self"]
    defaults = {p.name: p.default for p in inspect.signature(value).parameters.values()}
    for line in lines:
        word, _, kind = line.partition(" : ")
        default = defaults.get(word)
        if ", default " in kind:
            assert kind.partition(", default ")[2] == repr(default)
        elif word in defaults and not kind.endswith("optional") and word not in ("dtype", "algorithm", "precision"):
            assert default is inspect.Parameter.empty, line


@pytest.mark.parametrize("name", PUBLIC)
def test_example_runs(name: str) -> None:
    text = sections(text_of(PUBLIC[name]))["Examples"]
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    assert test.examples
    results = doctest.DocTestRunner().run(test)
    assert results.failed == 0


def test_a_name_without_help_is_found() -> None:
    def bare(count: int) -> int:
        """Says little."""
        return count

    assert wanted(bare) - set(sections(text_of(bare))) == {"Parameters", "Returns", "Raises", "Examples"}
