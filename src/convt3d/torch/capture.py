"""A captured graph cut into pipelines: each starts at a convolution and takes in what follows, as far as it is stages.

For each convolution, later nodes are collected that read its values and that a rule of `patterns` knows. The pipeline
ends at the last of them that is the only one whose value leaves. Values that are used again get names. The last
convolution of the graph comes first, so that a sum of two branches goes to the branch that is computed last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch

from ..errors import Error
from ..spec.pipeline import Pipeline
from ..spec.stage import Stage
from ..spec.stages import Binary, Divide, Keep, Recall, Subtract
from .before import with_stages_before
from .engine import knows
from .graphs import after_writes, example, is_barrier, is_tensor, name_of, shown, target_of
from .meanings import Fused, called, check_result, insert_operand, insert_view, meaning_of, reason
from .owned_call import OwnedCall
from .patterns import ALIASES, OTHER, OWN, SECOND, SELF, STARTS, Given, Meaning, Outer, Part, Start
from .views import PLAIN, NoStageError, Value, is_plain, same

# In the meta of new nodes: the Fused that a pipeline comes from, and the name of the old node whose value they give.
FUSED, RESULT = "convt3d_fused", "convt3d_result"
UNCHANGED = "convt3d_unchanged"  # in the meta of a convolution that gives its input


@dataclass
class Captured:
    """What was found in a graph; `left` says of each other convolution why it is PyTorch's still."""

    fused: list[Fused] = field(default_factory=list)
    left: dict[Any, str] = field(default_factory=dict)
    rest: list[Any] = field(default_factory=list)  # all other nodes that compute something
    joined: list[Any] = field(default_factory=list)  # concatenations that take no copy of what pipelines compute
    pieces: list[Any] = field(default_factory=list)  # attention that PyTorch computes in pieces
    failed: str = ""  # the error that ended it


def capture(graph: Any) -> Captured:
    """Finds the pipelines of a graph whose nodes have an `example_value`, a tensor of their shape and type."""
    nodes = list(graph.nodes)
    after_writes(nodes)
    found = Captured()
    taken: set[Any] = set()
    for at in reversed(range(len(nodes))):
        name, _ = name_of(nodes[at])
        if name not in STARTS:
            continue
        try:
            fused = _Walk(nodes, at, taken).fused()
        except (NoStageError, Error) as error:
            found.left[nodes[at]] = reason(error)
            continue
        found.fused.insert(0, fused)
        taken |= set(fused.nodes)
    found.fused = with_stages_before(nodes, found.fused, taken)
    taken |= {node for node in nodes if _is_number(node) and all(user in taken for user in node.users)}
    found.rest = [node for node in nodes if node not in taken and node.op.startswith("call") and not _is_size(node)]
    return found


def _is_size(node: Any) -> bool:
    return isinstance(example(node), (int, torch.SymInt))


def _is_number(node: Any) -> bool:
    """Whether it makes a tensor of a number in the model's code, as a bound for instance."""
    return bool(node.target is torch.tensor)


def rewrite(graph: Any, found: Captured) -> None:
    """Puts the pipelines into the graph, in the place of their nodes."""
    places = {node: at for at, node in enumerate(graph.nodes)}
    result: dict[Any, Any] = {}  # node -> the pipeline in its place
    for fused in sorted(found.fused, key=lambda each: places[each.nodes[-1]]):
        last = fused.nodes[-1]
        with graph.inserting_before(last):
            given = [replace(each, node=result.get(each.node, each.node)) for each in fused.operands]
            operands = [insert_operand(graph, each) for each in given]
            x = result.get(fused.input, fused.input)
            call = graph.call_function(OwnedCall(), (x, operands, fused.text))
            new = insert_view(graph, call, fused.view)
        new.meta, result[last] = {RESULT: last.name} | dict(last.meta), new
        call.meta = call.meta | {FUSED: fused}
        if not fused.laid_out:
            new = _with_layout(graph, new, last)
        last.replace_all_uses_with(new)
        for node in reversed(fused.nodes):
            graph.erase_node(node)
    for node in list(graph.nodes):
        if _is_number(node) and not node.users:
            graph.erase_node(node)


def _with_layout(graph: Any, new: Any, last: Any) -> Any:
    """A result with other strides than PyTorch's (LayerNorm over channels, say). Views of it become reshapes; it is
    copied where it might leave the graph, or where something later writes, which a reshape might not see."""
    leaves, shares, seen, todo = False, {last}, {last}, [last]
    while todo:
        node = todo.pop()
        for user in node.users:
            leaves |= node in shares and (user.op == "output" or is_barrier(user))
            shares |= {user} if node in shares and name_of(user)[0] in ALIASES else set()
            todo += [] if user in seen else [user]
            seen.add(user)
            if user.op == "call_method" and user.target == "view":
                user.target = "reshape"
    if not leaves:
        return new
    expected, formats = example(last), (torch.contiguous_format, torch.channels_last_3d)
    wanted = next((each for each in formats if expected.is_contiguous(memory_format=each)), None)
    with graph.inserting_before(last):
        if wanted is not None:
            copied = graph.call_method("contiguous", (new,), {"memory_format": wanted})
        else:
            order = sorted(range(expected.dim()), key=expected.stride, reverse=True)
            dense = graph.call_method("contiguous", (graph.call_method("permute", (new, *order)),))
            copied = graph.call_method("permute", (dense, *map(order.index, range(expected.dim()))))
    copied.meta = {key: value for key, value in new.meta.items() if key != FUSED}
    return copied


# --- one pipeline -----------------------------------------------------------------------------------------------------


class _Walk:
    """From one convolution on: what it could take in, and what it does."""

    def __init__(self, nodes: Sequence[Any], at: int, taken: set[Any]) -> None:
        self.nodes, self.at, self.taken = nodes, at, taken
        self.places = {node: place for place, node in enumerate(nodes)}
        self.values: dict[Any, Value] = {}
        self.meanings: dict[Any, Meaning] = {}
        self.whys: dict[Any, str] = {}
        self.like = example(nodes[at])
        self.start: Start = self._start(nodes[at])
        self.values[nodes[at]] = Value(nodes[at], PLAIN, tuple(self.like.shape), nodes[at])
        self._collect()

    def _start(self, node: Any) -> Start:
        name, _ = name_of(node)
        like = example(node)
        if node in self.taken:
            raise NoStageError("is taken")
        if not isinstance(like, torch.Tensor) or like.dim() != 5:
            raise NoStageError("has no batch")
        if like.device.type not in ("cpu", "cuda"):
            raise NoStageError(f"is computed on {like.device.type}")
        if not knows(like.dtype):
            raise NoStageError(f"computes in {like.dtype}")
        if any(same(size, 0) for size in like.shape):
            raise NoStageError("has an empty result")
        start: Start = called(STARTS[name], node, {}, self.like)
        if not isinstance(start.input, Outer):
            raise NoStageError("has no tensor as input")
        return replace(start, input=start.input.node)

    def _collect(self) -> None:
        for node in self.nodes[self.at + 1 :]:
            if any(argument in self.values for argument in node.all_input_nodes) and node.op != "output":
                try:
                    self._take(node)
                    continue
                except (NoStageError, Error) as error:
                    self.whys[node] = reason(error)
            if node not in self.taken and is_barrier(node):
                return

    def _take(self, node: Any) -> None:
        if node in self.taken:
            raise NoStageError("belongs to another convolution")
        meaning = meaning_of(node, self.values, self.like)
        name, writes = name_of(node)
        if writes:
            self._check_write(node, meaning)
        result = example(node)
        if name not in ("max", "min"):
            if result.dtype != self.like.dtype or result.device != self.like.device:
                raise NoStageError("changes the type")
            if not self._fits(result, meaning):
                raise NoStageError("has a result of another shape")
        root = self.values[meaning.main.node].root if meaning.alias or writes else node
        self.meanings[node] = meaning
        self.values[node] = Value(node, meaning.view, meaning.sizes, root)

    def _check_write(self, node: Any, meaning: Meaning) -> None:
        """What it writes to must be a value of the pipeline, and nobody may see that it was written to."""
        if target_of(node) is not meaning.main.node:
            raise NoStageError("writes to a tensor that is used elsewhere")
        root = meaning.main.root
        for value in self.values.values():
            later = (user for user in value.node.users if user is not node and self.places[user] > self.places[node])
            if value.root is root and any(later):
                raise NoStageError("writes to a tensor that is used later under another name")
        if not same(prod(meaning.sizes), prod(meaning.main.sizes)):
            raise NoStageError("has a result of another shape")

    def _fits(self, result: Any, meaning: Meaning) -> bool:
        """Whether the node's tensor has the shape of the view."""
        value = Value(None, meaning.view, meaning.sizes, None)
        shape = tuple(result.shape)
        return len(shape) == len(meaning.view) and all(
            same(size, value.size(group)) for size, group in zip(shape, meaning.view, strict=True)
        )

    # --- where it ends ---

    def fused(self) -> Fused:
        """The longest pipeline."""
        refused = ""
        for last in reversed([self.nodes[self.at], *self.meanings]):
            nodes = self._between(last)
            view = self.values[last].view
            if not is_tensor(last) or not self._closed(nodes) or not self._worth_taking(last):
                continue
            try:
                stages, operands = self._line(nodes)
                Pipeline(*stages)
                laid_out = check_result(stages, self.start.input, operands, last, view)
            except Error as error:
                refused = reason(error)
                continue
            except NoStageError as error:
                refused = str(error)
                continue
            return Fused(nodes, stages, self.start.input, operands, view, laid_out, self._why(last, nodes))
        raise NoStageError(refused)

    def _worth_taking(self, last: Any) -> bool:
        """Not views after all that is computed, which are PyTorch's at no cost, unless they only take axes away."""
        view = self.values[last].view
        axes = [axis for group in view for axis in group]
        computes = last not in self.meanings or bool(self.meanings[last].parts)
        return computes or is_plain(view) or (all(len(group) == 1 for group in view) and axes == sorted(axes))

    def _between(self, last: Any) -> tuple[Any, ...]:
        """The nodes that `last` needs, in order."""
        needed, todo = {self.nodes[self.at]}, [last]
        while todo:
            node = todo.pop()
            if node not in needed:
                needed.add(node)
                meaning = self.meanings[node]
                todo += [each.node for each in (meaning.main, meaning.second) if each is not None]
        return tuple(node for node in self.values if node in needed)

    def _closed(self, nodes: Sequence[Any]) -> bool:
        """Whether all values but the last stay inside."""
        return all(user in nodes for node in nodes[:-1] for user in node.users)

    def _line(self, nodes: Sequence[Any]) -> tuple[tuple[Stage, ...], tuple[Given, ...]]:
        """The nodes as stages one after the other, with Keep and Recall where a value is used that is not at hand."""
        same_value = self._without_stages(nodes)
        steps = [node for node in nodes[1:] if self.meanings[node].parts]
        named = {same_value[value] for value in self._used_by_name(nodes[0], steps, same_value)}
        labels = {value: f"v{number}" for number, value in enumerate(node for node in nodes if node in named)}
        parts: list[Part] = [(self.start.stage, self.start.operands)]
        parts += [(Recall("x"), ())] if UNCHANGED in nodes[0].meta else []
        current = nodes[0]
        for node in steps:
            parts += [(Keep(labels[current]), ())] if current in labels and not _keeps(parts, labels[current]) else []
            main, second, own = self._step(node, current, same_value)
            parts += [] if main is current else [(Recall(labels[main]), ())]
            given_names = {SELF: labels.get(main), SECOND: labels.get(second)}
            words = given_names | {OWN: f"w{len(parts)}", OTHER: f"u{len(parts)}"}
            parts += [(_labelled(stage, words), given) for stage, given in own]
            current = node
        return tuple(stage for stage, _ in parts), tuple(each for _, given in parts for each in given)

    def _without_stages(self, nodes: Sequence[Any]) -> dict[Any, Any]:
        """The node that computes each value: a view has the numbers of what it shows."""
        found: dict[Any, Any] = {nodes[0]: nodes[0]}
        for node in nodes[1:]:
            meaning = self.meanings[node]
            found[node] = node if meaning.parts else found[meaning.main.node]
        return found

    def _step(self, node: Any, current: Any, same_value: dict[Any, Any]) -> tuple[Any, Any, tuple[Part, ...]]:
        """The value that a node's stages are applied to, the one they take by name, and the stages: the other way round
        if that spares a Recall."""
        meaning = self.meanings[node]
        main = same_value[meaning.main.node]
        second = None if meaning.second is None else same_value[meaning.second.node]
        if second is current and main is not current:
            (stage, given), *_ = meaning.parts
            if isinstance(stage, Binary):
                return second, main, ((_turned(stage), given),)
        return main, second, meaning.parts

    def _used_by_name(self, first: Any, steps: Sequence[Any], same_value: dict[Any, Any]) -> Iterator[Any]:
        current = first
        for node in steps:
            main, second, parts = self._step(node, current, same_value)
            if main is not current:
                yield main
            if second is not None:
                yield second
            if any(stage.uses == SELF for stage, _ in parts):
                yield main
            current = node

    def _why(self, last: Any, nodes: Sequence[Any]) -> str:
        """Why it ends at its last node."""
        users = [user for user in last.users if user.op != "output"]
        if not users:
            return "the end of the graph"
        if len(last.users) > 1:
            return "used more than once"
        user = users[0]
        if name_of(user)[0] in STARTS:
            return "the next convolution"
        return f"{shown(user)} {self.whys[user]}" if user in self.whys else f"{shown(user)} cannot end a pipeline"


def _keeps(parts: Sequence[Part], label: str) -> bool:
    return any(isinstance(stage, Keep) and stage.label == label for stage, _ in parts)


def _labelled(stage: Stage, words: dict[str, str | None]) -> Stage:
    """The stage with a name in the place of a word."""
    if isinstance(stage, (Keep, Recall)):
        return replace(stage, label=words.get(stage.label) or stage.label)
    if isinstance(stage, Binary) and isinstance(stage.other, str):
        return replace(stage, other=words.get(stage.other) or stage.other)
    return stage


def _turned(stage: Binary) -> Binary:
    """The same with its sides exchanged."""
    if isinstance(stage, (Subtract, Divide)):
        return replace(stage, reverse=not stage.reverse)
    return stage
