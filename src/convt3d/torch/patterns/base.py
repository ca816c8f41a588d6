"""What a rule is: what it is given, and what it gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ...spec import stages as s
from ...spec.stage import Stage
from ..views import NoStageError, Value, View

# What stands for a label until labels are given: the value that the stages are applied to, the second one, and two that
# are used among these stages only.
SELF, SECOND, OWN, OTHER = "self_", "second_", "own_", "other_"


_SAME_NUMBERS = ("view", "reshape", "unsqueeze", "squeeze", "to", "contiguous", "flatten", "expand", "detach")


@dataclass(frozen=True)
class Outer:
    """A tensor that the pipeline takes from outside."""

    node: Any
    example: Any  # a tensor of its shape and type

    @property
    def shape(self) -> tuple[Any, ...]:
        return tuple(self.example.shape)

    @property
    def passing(self) -> bool:
        """Whether each call computes it anew, so that nothing made from it can be kept: a gate of one sample, say. Not
        where its gradient is wanted: that of a vector is sooner computed."""
        node = self.node
        while node.op == "call_method" and node.target in _SAME_NUMBERS:
            node = node.args[0]
        return bool(node.op.startswith("call")) and not self.example.requires_grad


@dataclass(frozen=True)
class Given:
    """An operand: an outer tensor, with axes of size 1 in front, and then permuted; or flattened to a vector."""

    node: Any
    ones: int = 0
    order: tuple[int, ...] = ()
    vector: bool = False


Part: TypeAlias = tuple[Stage, tuple[Given, ...]]


@dataclass(frozen=True)
class Meaning:
    """What a node means: stages applied to `main`, and the view of their value that is the node's tensor."""

    main: Value
    parts: tuple[Part, ...]
    view: View
    sizes: tuple[Any, ...]
    second: Value | None = None
    alias: bool = False  # whether it is main's memory


@dataclass(frozen=True)
class Start:
    """A convolution: its stage, its input, its operands."""

    stage: s.Convolution
    input: Any
    operands: tuple[Given, ...] = field(default=())


Rule: TypeAlias = Callable[..., Meaning]
RULES: dict[str, Rule] = {}
STARTS: dict[str, Callable[..., Start]] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enters a rule for functions and methods of these names."""

    def enter(entry: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, entry))
        return entry

    return enter


def mapped(value: Any, *stages: Stage) -> Meaning:
    """Stages that take numbers one by one, in whatever view."""
    return Meaning(inside(value), tuple((stage, ()) for stage in stages), value.view, value.sizes)


def inside(value: Any) -> Value:
    if not isinstance(value, Value):
        raise NoStageError("takes the value as another argument than its input")
    return value


def number(value: Any, what: str = "a parameter") -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise NoStageError(f"has {what} that is no plain number")
    return value


def triple(value: Any) -> Any:
    """Integers, one or one for each axis."""
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not all(type(each) is int for each in values) or len(values) not in (1, 3):
        raise NoStageError("has sizes that are no plain integers")
    return values * 3 if len(values) == 1 else values


def outer(value: Any) -> Outer:
    if not isinstance(value, Outer):
        raise NoStageError("has a parameter that the pipeline computes itself")
    return value


def without_gradient(value: Value, where: str) -> None:
    if inside(value).node.meta["example_value"].requires_grad:
        raise NoStageError(f"has another gradient {where}")
