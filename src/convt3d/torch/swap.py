"""swap(model): every nn.Conv3d and nn.ConvTranspose3d computed by convt3d, and what follows it in an nn.Sequential
fused into it; subclasses of nn.Sequential too, as long as running their modules in order is all they do.

Nothing is moved or copied: a module changes its class and nothing else, so parameters, hooks, state_dict, references
from elsewhere and optimisers stay as they are; `Report.undo()` gives the classes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from sys import intern
from textwrap import fill
from typing import Any, TypeAlias
from weakref import WeakValueDictionary, ref

import torch
from torch import nn

from ..errors import ArgumentTypeError, described
from .convolutions import small
from .direct import plain, plain_thread
from .engine import knows
from .fold import Watch, fold_chain, nothing, shape_after, takes_batch, why_apart
from .functions import pipeline
from .modules import Conv3d, ConvTranspose3d, LazyConv3d, LazyConvTranspose3d
from .prepared import forget, owned, run
from .recorded import recording
from .stock import Tensor
from .training import train_module

# How PyTorch runs the modules of a sequence, also where somebody else changes that later.
_STOCK = {name: getattr(nn.Sequential, name) for name in ("__call__", "_call_impl", "__iter__")}
_STOCK_FORWARD = nn.Sequential.forward
_KINDS = {
    nn.Conv3d: Conv3d,
    nn.LazyConv3d: LazyConv3d,
    nn.ConvTranspose3d: ConvTranspose3d,
    nn.LazyConvTranspose3d: LazyConvTranspose3d,
}
_CONVOLUTIONS = (nn.Conv3d, nn.ConvTranspose3d)
Classes: TypeAlias = Mapping[nn.Module, type[Any]]  # those that modules are to have, where it is another than now


class FusedSequential(nn.Sequential):  # type: ignore[misc]
    """An nn.Sequential whose convolutions take the stages that follow them into their kernel, where nothing about
    their meaning changes: decided at each call, so train(), eval(), hooks and new parameters count at once.

    Parameters
    ----------
    *args : Module
        As `torch.nn.Sequential` takes them.

    Examples
    --------
    >>> import torch, convt3d.torch
    >>> layers = convt3d.torch.FusedSequential(convt3d.torch.ConvTranspose3d(8, 4, 2, stride=2), torch.nn.ReLU())
    >>> layers(torch.ones(1, 8, 3, 4, 5)).shape
    torch.Size([1, 4, 6, 8, 10])
    """

    def __init_subclass__(cls, **named: Any) -> None:
        """A class made by `fused_class` is nobody's subclass to register, and has no arguments for that."""

    def forward(self, input: Tensor) -> Tensor:
        known = None if torch.compiler.is_compiling() or type(input) is not torch.Tensor else decisions(self)
        modules = flat(self) if known is None else known.modules
        at = 0
        while at < len(modules):
            count = 1
            # Of 4-D values norms and softmax mean others. A symbol of torch.fx is no tensor: it sees every module.
            if type(modules[at]) in (Conv3d, ConvTranspose3d) and isinstance(input, torch.Tensor) and input.dim() == 5:
                if known is None:
                    text, operands, count, _ = fold_chain(modules[at:], input.shape)
                elif not _left_to_torch(modules[at], input):
                    text, operands, count, norm = known.chain(at, input.shape, True)
                    if norm is not None and _trains(modules[at], input, operands):
                        channels = shape_after(modules[at : at + 1], input.shape)[1]
                        input = train_module(input, operands, text, norm, channels)
                        at += count
                        continue
                    text, operands, count, _ = known.chain(at, input.shape, False)
                    if count > 1:
                        result = run(self, at, "pipeline", input, operands, (text,), partial(_both, operands, text))
                        if result is not None:
                            input = result
                            at += count
                            continue
                if count > 1 and _one_type(input, operands):
                    input = pipeline(input, operands, text)
                    at += count
                    continue
            input = modules[at](input)
            at += 1
        return input

    def _get_name(self) -> str:
        return "Sequential" if type(self) is FusedSequential else str(super()._get_name())

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A class made by `fused_class` cannot be imported: the class it was made for says how its instances are
        written, and makes them again."""
        made, before = type(self), type(self).__mro__[2]
        found = super().__reduce_ex__(protocol)
        if _fused_classes.get(before) is not made or isinstance(found, str):
            return found
        build, arguments, *rest = found
        build, *given = (before if each is made else each for each in (build, *arguments))
        return _remade, (build, *given), *rest


def _little(conv: nn.Module, input: Tensor) -> bool:
    """Whether PyTorch takes the gradients of a convolution and what follows it, since there is little to do."""
    return small(conv, input.shape, conv.weight.shape, alone=False)


def _left_to_torch(conv: nn.Module, input: Tensor) -> bool:
    """The same, and there are gradients to be recorded: modules are then called one by one."""
    return recording(input, (conv.weight, conv.bias)) and _little(conv, input)


def _trains(conv: nn.Module, input: Tensor, operands: list[Tensor]) -> bool:
    """Whether a BatchNorm behind a convolution takes the statistics of the batch by our kernels."""
    return plain_thread() and plain(input) and not _little(conv, input) and _one_type(input, operands)


def _remade(build: Callable[..., Any], *arguments: Any) -> Any:
    module = build(*arguments)
    _set_class(module, fused_class(type(module)))
    return module


def _both(operands: list[Tensor], text: str) -> tuple[list[Tensor], str]:
    """The arguments of a pipeline after its input."""
    return operands, text


# By the class they are made for; gone with the last module of theirs.
_fused_classes: WeakValueDictionary[type[Any], type[Any]] = WeakValueDictionary({nn.Sequential: FusedSequential})


def fused_class(kind: type[Any]) -> type[Any]:
    """The class of a fused sequence that was of class `kind`, and still is an instance of it."""
    made = _fused_classes.get(kind)
    if made is None:
        named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
        made = _fused_classes[kind] = type(kind.__name__, (FusedSequential, kind), named)
    return made


def is_sequence(module: nn.Module) -> bool:
    """Whether it calls its modules in order, and does nothing else: subclasses of nn.Sequential may."""
    kind = type(module)
    if not isinstance(module, nn.Sequential) or kind.forward not in (_STOCK_FORWARD, FusedSequential.forward):
        return False
    return all(getattr(kind, name) is stock for name, stock in _STOCK.items()) and "forward" not in module.__dict__


def flat(sequence: nn.Sequential) -> list[nn.Module]:
    """Its modules in order, those of sequences inside it in their place."""
    modules: list[nn.Module] = []
    for module in sequence:
        modules = modules + (flat(module) if _is_inlined(module) else [module])
    return modules


class Decisions:
    """What a sequence has fused, for as long as all that was looked at is as it was. It keeps no module and no tensor:
    they may refer to the sequence."""

    def __init__(self, sequence: nn.Sequential) -> None:
        self.watch = Watch(sequence)
        self._modules = [ref(each) for each in flat(sequence)]
        self._chains: dict[Any, tuple[str, list[Any], int, Any]] = {}

    @property
    def modules(self) -> list[nn.Module]:
        return [each() for each in self._modules]

    def chain(self, at: int, shape: Sequence[int], by_batch: bool) -> tuple[str, list[Tensor], int, Any]:
        """Text, operands and number of the modules that are fused into the convolution at this place; `by_batch`: also
        a BatchNorm by the statistics of the batch, which is the last that is given."""
        found = self._chains.get((at, shape, by_batch))
        if found is None:
            modules = self.modules[at:]
            text, tensors, count, _ = fold_chain(modules, shape, by_batch=by_batch)
            norm = batch_norm(modules[1:count]) if by_batch else None
            if len(self._chains) >= _SHAPES:
                self._chains = {}
            refs = [nothing if each is None else ref(each) for each in tensors]
            found = intern(text), refs, count, nothing if norm is None else ref(norm)
            self._chains[at, shape, by_batch] = found
        text, operands, count, norm = found
        return text, [each() for each in operands], count, norm()


_SHAPES = 64  # that decisions are remembered for


def decisions(sequence: nn.Sequential) -> Decisions | None:
    """Those that hold here and now; None where something that nobody can watch decides."""
    mine = owned(sequence)
    known: Decisions | None = mine.notes
    if known is None or not known.watch.holds():
        made = Decisions(sequence)
        known = mine.notes = made if made.watch.complete else None
    return known


def _is_inlined(module: nn.Module) -> bool:
    return is_sequence(module) and not why_apart(module)


def _one_type(input: Tensor, operands: list[Tensor]) -> bool:
    """Whether an engine can take the fused chain: norms may be kept in a wider type than the rest of a model."""
    if torch.is_autocast_enabled(input.device.type):
        return True
    there = input.is_cpu or input.is_cuda
    given = (each for each in operands if each is not None)
    return knows(input.dtype) and there and all(each.dtype == input.dtype for each in given)


def batch_norm(modules: Sequence[nn.Module]) -> Any:
    """The one among them that takes the statistics of the batch, or None."""
    found = (each for each in modules if type(each) is nn.BatchNorm3d and takes_batch(each, each.training))
    return next(found, None)


@dataclass(frozen=True)
class Change:
    """A module that gets another class."""

    name: str
    module: nn.Module
    before: type[Any]
    after: type[Any]

    def taken_back(self) -> bool:
        given = {self.after: self.before, self.before: self.before}
        if self.after in (LazyConv3d, LazyConvTranspose3d):  # one that has got its weight has left that class
            given[self.after.cls_to_become] = self.before.cls_to_become
        if type(self.module) not in given:
            return False
        _set_class(self.module, given[type(self.module)])
        forget(self.module)
        return True


def _set_class(module: nn.Module, kind: type[Any]) -> None:
    """Past what a module may do about its attributes."""
    object.__setattr__(module, "__class__", kind)


@dataclass
class Report:
    """What `swap` did. `swapped` maps the name of a convolution to what is fused into it, in eval() and in training
    where these differ; `left` maps the name of one that stays PyTorch's to the reason. `undo()` takes it back.

    Examples
    --------
    >>> import torch, convt3d.torch
    >>> report = convt3d.torch.swap(torch.nn.Sequential(torch.nn.ConvTranspose3d(2, 2, 2), torch.nn.ReLU()))
    >>> list(report.swapped)
    ['0']
    """

    swapped: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    _changes: list[Change] = field(default_factory=list, repr=False)

    def undo(self) -> list[str]:
        """Gives every module the class it had, but where something else has changed it since (a parametrization, say):
        names of modules that so stay as they are. Once that is taken back, undo() can be called again."""
        self._changes = [change for change in self._changes if not change.taken_back()]
        return [change.name for change in self._changes]

    def __str__(self) -> str:
        rows = [f"swapped {name}: {what}" for name, what in self.swapped.items()]
        rows += [f"left    {name}: {why}" for name, why in self.left.items()]
        lines = [fill(row, 100, subsequent_indent=" " * 8) for row in rows]
        return "\n".join(lines) or "nothing to swap: no nn.Conv3d or nn.ConvTranspose3d in the model"


def swap(model: nn.Module) -> Report:
    """Makes convt3d compute the convolutions and transposed convolutions of a model, in place: all that can be, or, if
    an exception ends it, none.

    Parameters
    ----------
    model : Module
        Parameters, state_dict, hooks and optimisers stay as they are.

    Returns
    -------
    Report
        What is fused, what is left and why; `report.undo()` restores.

    Raises
    ------
    convt3d.ArgumentTypeError
        No module.

    Examples
    --------
    >>> import torch, convt3d.torch
    >>> model = torch.nn.Sequential(torch.nn.ConvTranspose3d(8, 4, 2, 2), torch.nn.ReLU())
    >>> report = convt3d.torch.swap(model)
    >>> report.undo()
    []
    """
    if not isinstance(model, nn.Module):
        what = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise ArgumentTypeError("swap", "model", described(what), "must be an nn.Module", "Pass the model itself")
    names = {module: name or "(model)" for name, module in model.named_modules()}
    convolutions = [module for module in names if isinstance(module, _CONVOLUTIONS)]
    left = {module: why for module in convolutions if (why := _why_left(module))}
    classes = {module: _KINDS[type(module)] for module in convolutions if module not in left}
    concerned = set(classes)
    for sequence in [module for module in names if is_sequence(module) and not isinstance(module, FusedSequential)]:
        chains = list(_chains(sequence, classes))
        if any(len(chain) > 1 for chain in chains):
            try:
                classes[sequence] = fused_class(type(sequence))
            except Exception:  # a metaclass that wants no such subclass: its convolutions are swapped, nothing is fused
                continue
            concerned.update(chain[0] for chain in chains)
    places = _places(model, classes)
    report = Report(
        {names[each]: "; at another place: ".join(dict.fromkeys(places[each])) for each in names if each in concerned},
        {names[module]: why for module, why in left.items() if module not in concerned},
        [Change(names[module], module, type(module), kind) for module, kind in classes.items()],
    )
    try:
        for change in report._changes:
            _set_class(change.module, change.after)
    except BaseException:
        report.undo()
        raise
    return report


def _why_left(conv: nn.Conv3d | nn.ConvTranspose3d) -> str:
    if isinstance(conv, (Conv3d, ConvTranspose3d)):
        return "is convt3d's already"
    if type(conv) not in _KINDS:
        return f"is a {type(conv).__name__}, which may compute something else"
    if "forward" in conv.__dict__:
        return "has a forward of its own"
    weight = conv.weight
    if weight.device.type not in ("cpu", "cuda", "meta"):
        return f"its weight is on {weight.device.type}"
    return "" if knows(weight.dtype) else f"its weight is {weight.dtype}"


def _chains(sequence: nn.Sequential, classes: Classes) -> Iterator[list[nn.Module]]:
    """Each convolution of the sequence that is or becomes ours, with all that follows it."""
    modules = flat(sequence)
    for at, module in enumerate(modules):
        if classes.get(module, type(module)) in _KINDS.values():
            yield modules[at:]


# --- the words of the report ------------------------------------------------------------------------------------------


def _places(model: nn.Module, classes: Classes) -> dict[nn.Module, list[str]]:
    """What happens to each convolution, wherever it stands in the model."""
    places: dict[nn.Module, list[str]] = {module: [] for module in model.modules()}
    sequences = [module for module in places if is_sequence(module)]
    inside = {module for sequence in sequences for module in sequence if _is_inlined(module)}
    for sequence in sequences:
        fused = isinstance(sequence, FusedSequential) or sequence in classes
        apart = f"alone: no class can be made from {type(sequence).__name__}"
        for chain in () if sequence in inside else _chains(sequence, classes):
            places[chain[0]].append(_described(chain) if fused or len(chain) == 1 else apart)
    places[model].append("alone: it is the whole model")
    for parent in places:
        for child in () if is_sequence(parent) else parent.children():
            places[child].append(f"alone: {type(parent).__name__} decides what follows it")
    return places


def _described(chain: list[nn.Module]) -> str:
    """What a convolution is fused with, of the modules that follow it."""
    if isinstance(chain[0], (nn.LazyConv3d, nn.LazyConvTranspose3d)):
        return "lazy: fused with what can be, once it has its weight"
    evaluated, trained = (_in_mode(chain, training) for training in (False, True))
    return evaluated if evaluated == trained else f"in eval: {evaluated}. In training: {trained}"


def _in_mode(chain: list[nn.Module], training: bool) -> str:
    _, _, count, why = fold_chain(chain, training=training, by_batch=True)
    if count == 0:
        return f"alone: it {why}"
    fused = ", ".join(type(module).__name__ for module in chain[1:count])
    first = f"fused with {fused}" if fused else "alone"
    if why:
        return f"{first}; not with {type(chain[count]).__name__}, which {why}"
    return first if fused else "alone: nothing follows it in its sequence"
