"""Modules that own their weights: folded and packed once, made again when PyTorch says that a parameter has changed.

What a module owns is kept beside it, not in it: its attributes, pickles and copies are those of PyTorch's own module.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import nn

from ..errors import ArgumentTypeError, Error, described
from ..front.arrays import tensor_storage
from ..front.prepared import Weights
from ..front.witness import Tracked
from ..spec.pipeline import Pipeline
from .direct import plain, plain_thread
from .engine import Room, dtype_of, knows, run_prepared
from .engine import run as run_on_cpu
from .operators import BY_NAME
from .recorded import recorded, recording
from .stock import Tensor

_CONSTANT = frozenset((bool, int, float, str, type(None)))


class _Absent:
    """An operand that is not there."""

    nbytes = 0

    def confirms(self, tensor: Any) -> bool:
        return tensor is None


class _Passing:
    """An operand of the value's shape, such as a skip: another one at each call, from which nothing is made."""

    nbytes = 0

    def confirms(self, tensor: Any) -> bool:
        return plain(tensor)


class _State(NamedTuple):
    """What a module's arguments mean, and what was made from its tensors as they are."""

    asked: tuple[Any, ...]  # arguments that are no tensors
    witnesses: tuple[Tracked | _Absent | _Passing, ...]
    order: tuple[int, ...]  # of the tensors among the operands
    pipeline: Pipeline
    dtype: Any
    weights: Weights
    in_front: Weights  # of the pipeline as far as its convolution


class _Owned:
    """All that is kept for a module."""

    def __init__(self, module: Any) -> None:
        key = id(module)
        self.module = weakref.ref(module, lambda _: _owned.pop(key, None))
        self.states: dict[Any, _State] = {}
        self.notes: Any = None  # of whoever decides what is fused


_owned: dict[int, _Owned] = {}  # by the id of a module that lives: it goes when the module goes


def owned(module: Any) -> _Owned:
    """What is kept for a module, or another owner, from now until it is gone."""
    found = _owned.get(id(module))
    if found is None or found.module() is not module:
        found = _owned[id(module)] = _Owned(module)
    return found


def run(
    module: Any,
    place: int,
    operator: str,
    x: Any,
    tensors: Sequence[Tensor | None],
    asked: tuple[Any, ...],
    arguments: Callable[[], Sequence[Any]],
    room: Room | None = None,
) -> Tensor | None:
    """operator(x, *arguments()), where nothing but the CPU kernel, and autograd, would see the call; else None.
    `tensors` are those among the arguments, `asked` all others; `place` tells what one module owns apart. `room` gives
    memory for a contiguous result that nobody differentiates."""
    if not (plain_thread() and plain(x)):
        return None
    mine = owned(module).states
    state = mine.get(place)
    if state is None or not _holds(state, tensors, asked):
        state = _new(operator, x, tensors, asked, arguments)
        if state is None:
            return None
        mine[place] = state
    if x.dtype is not state.dtype:
        return None
    operands = [tensors[at] for at in state.order]
    if recording(x, operands):

        def compute(pipeline: Pipeline, own: Sequence[Tensor]) -> Tensor:
            weights = state.weights if pipeline is state.pipeline else state.in_front
            if any(each.requires_grad for each in own):  # a step of the optimiser changes them
                return run_on_cpu(operator, pipeline, x, own, weights, passing=True)
            return run_prepared(operator, pipeline, x, own, weights)

        return recorded(state.pipeline, x, operands, compute)
    return run_prepared(operator, state.pipeline, x, operands, state.weights, room)


def forget_dead(states: dict[Any, _State]) -> None:
    """Frees what was made from tensors that are gone."""
    for place, state in tuple(states.items()):
        if any(isinstance(each, Tracked) and each.gone for each in state.witnesses):
            states.pop(place, None)


def _holds(state: _State, tensors: Sequence[Tensor | None], asked: tuple[Any, ...]) -> bool:
    if len(asked) != len(state.asked) or len(tensors) != len(state.witnesses) or not all(map(is_, asked, state.asked)):
        return False
    for own, tensor in zip(state.witnesses, tensors, strict=True):  # noqa: SIM110 - a loop is quicker
        if not own.confirms(tensor):
            return False
    return True


def _new(
    operator: str,
    x: Tensor,
    tensors: Sequence[Tensor | None],
    asked: tuple[Any, ...],
    arguments: Callable[[], Sequence[Any]],
) -> _State | None:
    given = [each for each in tensors if each is not None]
    kind = given[0].dtype
    if not (knows(kind) and all(map(_constant, asked))):
        return None
    if not all(each.dtype is kind and plain(each) and not each.is_inference() for each in given):
        return None
    try:
        pipeline, _, operands = BY_NAME[operator].lower(x, *arguments())
    except Error:  # whoever calls the operator gets it
        return None
    places = {id(tensor): at for at, tensor in enumerate(tensors)}
    order = tuple(places[id(operand)] for operand in operands)
    dtype = dtype_of(kind)
    passing = {at for at, slot in zip(order, pipeline.slots, strict=True) if slot.operand.kind == "tensor"}

    def witness(at: int, tensor: Tensor | None) -> Tracked | _Absent | _Passing:
        if tensor is None or at in passing:
            return _Absent() if tensor is None else _Passing()
        return Tracked(tensor, tensor_storage(tensor, dtype, torch, holding=False))

    witnesses = tuple(witness(at, each) for at, each in enumerate(tensors))
    tracked = [each for each in witnesses if isinstance(each, Tracked)]
    return _State(asked, witnesses, order, pipeline, kind, Weights(tracked, dtype), Weights((), dtype))


def _constant(value: Any) -> bool:
    """Whether the same object is the same value."""
    return type(value) in _CONSTANT or (type(value) is tuple and all(type(each) in _CONSTANT for each in value))


# --- for callers ------------------------------------------------------------------------------------------------------


def prepared_bytes(model: nn.Module) -> int:
    """Memory of the folded and packed weights that the modules of a model own.

    Parameters
    ----------
    model : Module
        With all modules inside it.

    Returns
    -------
    int
        In bytes, beside the parameters themselves. 0 before the first call.

    Raises
    ------
    convt3d.ArgumentTypeError
        No module.

    Examples
    --------
    >>> import torch, convt3d.torch
    >>> layer = convt3d.torch.ConvTranspose3d(8, 4, 2, stride=2)
    >>> convt3d.torch.prepared_bytes(layer)
    0
    """
    states = [state for each in _of(model, "prepared_bytes") for state in tuple(each.states.values())]
    return sum(state.weights.nbytes + state.in_front.nbytes for state in states)


def forget(model: nn.Module) -> None:
    """Frees the folded and packed weights that the modules of a model own; the next call makes them again.

    Also for weights that were changed behind PyTorch's back: some elements of a large one through `.data`, say.

    Parameters
    ----------
    model : Module
        With all modules inside it.

    Returns
    -------
    None
        Nothing about the model has changed.

    Raises
    ------
    convt3d.ArgumentTypeError
        No module.

    Examples
    --------
    >>> import torch, convt3d.torch
    >>> convt3d.torch.forget(convt3d.torch.ConvTranspose3d(8, 4, 2, stride=2))
    """
    for each in _of(model, "forget"):
        each.states, each.notes = {}, None


def _of(model: nn.Module, operator: str) -> Iterator[_Owned]:
    if not isinstance(model, nn.Module):
        what = described(type(model).__name__)
        raise ArgumentTypeError(operator, "model", what, "must be an nn.Module", "Pass the model itself")
    found = ((_owned.get(id(module)), module) for module in model.modules())
    return iter([each for each, module in found if each is not None and each.module() is module])
