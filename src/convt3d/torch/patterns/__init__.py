"""Which nodes of a captured graph are stages of a pipeline: one rule for each function of PyTorch.

A rule has the parameters of the function. Tensors that the pipeline computes reach it as a Value, others as an Outer.
It gives the stages that the node means, or raises a NoStageError that says why there are none.
"""

from __future__ import annotations

import inspect
import operator
from typing import Any

import torch
from torch.nn import functional

from . import arithmetic, conv, norms, pointwise, pools, reductions, views  # noqa: F401  # they enter their rules
from .base import OTHER, OWN, RULES, SECOND, SELF, STARTS, Given, Meaning, Outer, Part, Start

__all__ = [
    "ALIASES",
    "FUNCTIONS",
    "METHODS",
    "NEED_RESULT",
    "OTHER",
    "OWN",
    "RULES",
    "SECOND",
    "SELF",
    "STARTS",
    "Given",
    "Meaning",
    "Outer",
    "Part",
    "Start",
]

# Rules that are told the tensor that the node gives.
NEED_RESULT = frozenset(name for name, rule in RULES.items() if "result" in inspect.signature(rule).parameters)


# Rules of functions that give the memory of their input, or may.
ALIASES = frozenset(name for name, rule in RULES.items() if rule.__module__ == views.__name__)

_IN_PLACE_OPERATORS = {
    operator.iadd: "add",
    operator.isub: "sub",
    operator.imul: "mul",
    operator.itruediv: "div",
}


def _functions() -> dict[Any, tuple[str, bool]]:
    """Functions of PyTorch and of Python -> the name of their rule, and whether they write to their input."""
    found: dict[Any, tuple[str, bool]] = {each: (name, True) for each, name in _IN_PLACE_OPERATORS.items()}
    for name in (*RULES, *STARTS, "max", "min"):
        for module in (torch, functional, torch.special, torch._C._nn, operator):
            for suffix in ("", "_"):
                function = getattr(module, name + suffix, None)
                if callable(function) and (module is not operator or not suffix):
                    found.setdefault(function, (name, bool(suffix)))
    return found


FUNCTIONS = _functions()
METHODS = {name + suffix: (name, bool(suffix)) for name in (*RULES, "max", "min") for suffix in ("", "_")}
