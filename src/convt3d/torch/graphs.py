"""Nodes of a captured graph: what they call, what they write to, and what must not be moved past them."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from .patterns import FUNCTIONS, METHODS

_DROPOUTS = (functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d)
_NORMS = (functional.batch_norm, functional.instance_norm)
# Parts of the names of functions that change how later ones compute.
_CONTEXTS = ("autocast", "set_grad_enabled", "inference_mode", "functorch")


def name_of(node: Any) -> tuple[str, bool]:
    """The name of the rule for what a node calls, and whether it writes to its first argument."""
    name, writes = "", False
    if node.op == "call_function":
        try:
            name, writes = FUNCTIONS.get(node.target, ("", False))
        except TypeError:  # a target that cannot be hashed
            return "", False
    elif node.op == "call_method":
        name, writes = METHODS.get(node.target, ("", False))
    return name, writes or _asks_to_write(node)


def _asks_to_write(node: Any) -> bool:
    """Whether a function is called with `inplace=True`, by name or by position."""
    if node.kwargs.get("inplace") is True:
        return True
    place = _inplace_parameter(node.target) if node.op == "call_function" else None
    return place is not None and len(node.args) > place and node.args[place] is True


@lru_cache(maxsize=1024)
def _inplace_parameter(function: Any) -> int | None:
    """The place of the parameter `inplace` among those of a function."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # it is built in, and has none
        return None
    return names.index("inplace") if "inplace" in names else None


def example(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, fx.Node) else None


def is_tensor(node: Any) -> bool:
    return isinstance(example(node), torch.Tensor)


def target_of(node: Any) -> Any:
    """The tensor that a node writes to."""
    return node.args[0] if node.args else node.kwargs.get("input")


def after_writes(nodes: Sequence[Any]) -> None:
    """Who reads a tensor after a function has written to it reads what the function gives, which is the same tensor."""
    places = {node: at for at, node in enumerate(nodes)}
    for node in nodes:
        written = target_of(node) if name_of(node)[1] else None
        if isinstance(written, fx.Node) and is_tensor(written) and is_tensor(node):
            for user in list(written.users):
                if places[user] > places[node]:
                    user.replace_input_with(written, node)


def without_dropouts(graph: Any) -> None:
    """In place: a dropout in eval gives its input, the very tensor."""
    for node in list(graph.nodes):
        given = node.args[0] if node.args else node.kwargs.get("input")
        if node.target in _DROPOUTS and isinstance(given, fx.Node) and _argument(node, 2, "training") is False:
            node.replace_all_uses_with(given)
            graph.erase_node(node)


def _argument(node: Any, place: int, name: str) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name)


def is_barrier(node: Any) -> bool:
    """Whether tensors, or how they are computed, may be others behind this node than before it."""
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    if name_of(node)[1]:
        return True
    name = str(node.target if node.op == "call_method" else getattr(node.target, "__name__", node.target))
    if node.op == "call_method":
        return name.startswith("__i") or name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    if node.op == "call_module" or isinstance(node.target, torch._ops.HigherOrderOperator):
        return True
    if str(getattr(node.target, "__module__", "")).startswith("torch._dynamo"):  # of numpy arrays, say
        return True
    if getattr(getattr(node.target, "_schema", None), "is_mutable", False) or _moves_statistics(node, name):
        return True
    if name in ("embedding", "embedding_bag") and (len(node.args) > 3 or node.kwargs.get("max_norm") is not None):
        return True  # it may scale rows of its table
    writes = name.endswith("_") and not name.endswith("__")
    known = name in ("setitem", "delitem") or (name[:1] == "i" and getattr(operator, name, None) is node.target)
    return writes or known or "out" in node.kwargs or any(word in str(node.target) for word in _CONTEXTS)


def _moves_statistics(node: Any, name: str) -> bool:
    """Whether a norm may write to its running statistics, the fourth argument of those functions that have the weight
    before them. The sixth says whether the statistics of the batch count."""
    if "batch_norm" not in name and "instance_norm" not in name:
        return False
    mean = _argument(node, 1 if node.target in _NORMS else 3, "running_mean")
    flag = "use_input_stats" if "instance_norm" in name else "training"
    counts = _argument(node, 5, flag)
    return mean is not None and counts is not False and not (counts is None and flag == "training")


def shown(node: Any) -> str:
    """What a node calls, for people."""
    return str(node.target) if node.op != "call_function" else getattr(node.target, "__name__", str(node.target))
