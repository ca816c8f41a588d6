"""What a node of a graph means as stages, and whether a pipeline would give what its last node gives."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ..errors import Error
from ..spec.pipeline import Pipeline
from ..spec.stage import Stage
from ..spec.text import write_pipeline
from . import functions
from .graphs import example, is_tensor, name_of
from .patterns import NEED_RESULT, RULES, STARTS, Given, Meaning, Outer
from .views import NoStageError, Value, View, calls, same


@dataclass(frozen=True)
class Fused:
    """A pipeline with the nodes that it takes the place of, in order; the last one is its result."""

    nodes: tuple[Any, ...]
    stages: tuple[Stage, ...]
    input: Any
    operands: tuple[Given, ...]
    view: View  # of the pipeline's value that the last node is
    laid_out: bool  # whether the result has the strides of the last node
    why: str  # it ends there

    @property
    def text(self) -> str:
        return write_pipeline(Pipeline(*self.stages))

    @property
    def conv(self) -> Any:
        """The node of its convolution."""
        return next(node for node in self.nodes if name_of(node)[0] in STARTS)


def reason(error: Exception) -> str:
    if isinstance(error, Error):
        return f"has parameters that no stage takes ({error.argument} {error.rule})"
    return str(error)


def called(rule: Any, node: Any, values: Mapping[Any, Value], like: Any, **more: Any) -> Any:
    """The rule for a node, called as the node is: with tensors of `values` as what they are, others of the type of
    `like` as outer ones."""

    def seen(argument: Any) -> Any:
        return _seen(argument, values, like)

    args = fx.node.map_aggregate(node.args, seen)
    kwargs = fx.node.map_aggregate(node.kwargs, seen)
    kwargs = {("input" if name == "self" else name): value for name, value in kwargs.items()}
    try:
        return rule(*args, **kwargs, **more)
    except TypeError as error:
        if isinstance(error, Error):
            raise
        raise NoStageError("is called with arguments that no stage has") from None


def _seen(argument: Any, values: Mapping[Any, Value], like: Any) -> Any:
    """An argument of a node as rules see it."""
    if not isinstance(argument, fx.Node):
        return argument
    if argument in values:
        return values[argument]
    tensor = example(argument)
    if isinstance(tensor, torch.Tensor):
        if tensor.dtype != like.dtype or tensor.device != like.device:
            raise NoStageError(f"takes tensors of {like.dtype} and of {tensor.dtype}")
        return Outer(argument, tensor)
    return argument


def meaning_of(node: Any, values: Mapping[Any, Value], like: Any) -> Meaning:
    """What a node means that reads a value of the pipeline."""
    name, _ = name_of(node)
    if node.op == "call_function" and node.target is operator.getitem:
        source, index = node.args
        if name_of(source)[0] in ("max", "min") and source in values and index == 0:
            value = values[source]
            return Meaning(value, (), value.view, value.sizes, alias=True)
    if name in ("max", "min"):
        indexed = any(user.target is not operator.getitem or user.args[1] != 0 for user in node.users)
        if indexed and not is_tensor(node):
            raise NoStageError("gives indices that are used")
        name = f"{name}.values"
    if name not in RULES:
        raise NoStageError("is no stage of convt3d")
    if not is_tensor(node) and not name.endswith(".values"):
        raise NoStageError("gives several tensors")
    more = {"result": example(node)} if name in NEED_RESULT else {}
    meaning: Meaning = called(RULES[name], node, values, like, **more)
    return meaning


def insert_operand(graph: Any, given: Given) -> Any:
    if given.vector:
        return graph.call_method("reshape", (given.node, -1))
    node = given.node
    if given.ones:
        node = graph.call_function(operator.getitem, (node, (None,) * given.ones + (Ellipsis,)))
    return graph.call_method("permute", (node, *given.order)) if given.order else node


def insert_view(graph: Any, node: Any, view: View) -> Any:
    for method, args in calls(view):
        node = graph.call_method(method, (node, *args))
    return node


def check_result(stages: Sequence[Stage], input: Any, operands: Sequence[Given], last: Any, view: View) -> bool:
    """The operator itself, on tensors without numbers, must give the shape and type that PyTorch gives; whether it
    gives the strides, too."""
    graph = fx.Graph()
    made: dict[Any, Any] = {}

    def tensor(given: Given) -> Any:
        node = graph.placeholder(f"given{len(made)}")
        made[node] = example(given.node)
        return insert_operand(graph, replace(given, node=node))

    x = tensor(Given(input))
    rest = [tensor(given) for given in operands]
    new = graph.call_function(functions.pipeline, (x, rest, write_pipeline(Pipeline(*stages))))
    graph.output(insert_view(graph, new, view))
    mode = getattr(example(last), "fake_mode", None)
    if mode is None:
        return True
    with mode, torch.set_grad_enabled(False):
        result = fx.Interpreter(fx.GraphModule({}, graph)).run(*made.values())
    expected = example(last)
    fits = len(result.shape) == expected.dim() and all(map(same, result.shape, expected.shape))
    if not fits or result.dtype != expected.dtype:
        raise NoStageError("would have a result of another shape")
    return all(map(same, result.stride(), expected.stride()))
