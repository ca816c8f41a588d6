"""swap(model): every nn.ConvTranspose3d computed by convt3d, and what follows it in an nn.Sequential fused into it;
subclasses of nn.Sequential too, as long as running their modules in order is all they do.

Nothing is moved or copied: a module changes its class and nothing else, so parameters, hooks, state_dict, references
from elsewhere and optimisers stay as they are; `Report.undo()` gives the classes back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn

from .engine import knows
from .fold import fold_chain, why_apart
from .functions import pipeline
from .modules import ConvTranspose3d, LazyConvTranspose3d
from .stock import Tensor


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

    def forward(self, input: Tensor) -> Tensor:
        modules = flat(self)
        at = 0
        while at < len(modules):
            count = 1
            # Of 4-D values norms and softmax mean others. A symbol of torch.fx is no tensor: it sees every module.
            if type(modules[at]) is ConvTranspose3d and isinstance(input, torch.Tensor) and input.dim() == 5:
                text, operands, count, _ = fold_chain(modules[at:], input.shape)
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
        """A class made here for a subclass of nn.Sequential is found again by that subclass."""
        if type(self) is FusedSequential:
            return super().__reduce_ex__(protocol)
        return _remade, (type(self).__mro__[2],), self.__dict__.copy()


_fused_classes: dict[type[Any], type[Any]] = {nn.Sequential: FusedSequential}


def fused_class(kind: type[Any]) -> type[Any]:
    """The class of a fused sequence that was of class `kind`, and still is an instance of it."""
    if kind not in _fused_classes:
        named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        _fused_classes[kind] = type(kind.__name__, (FusedSequential, kind), named)
    return _fused_classes[kind]


def _remade(kind: type[Any]) -> FusedSequential:
    fused: Any = fused_class(kind)
    return cast(FusedSequential, fused.__new__(fused))


def is_sequence(module: nn.Module) -> bool:
    """Whether it calls its modules in order, and does nothing else: subclasses of nn.Sequential may."""
    kind = type(module)
    if not isinstance(module, nn.Sequential) or kind.forward not in (nn.Sequential.forward, FusedSequential.forward):
        return False
    return kind.__iter__ is nn.Sequential.__iter__ and kind.__call__ is nn.Module.__call__


def flat(sequence: nn.Sequential) -> list[nn.Module]:
    """Its modules in order, those of sequences inside it in their place."""
    modules: list[nn.Module] = []
    for module in sequence:
        modules = modules + (flat(module) if _is_inlined(module) else [module])
    return modules


def _is_inlined(module: nn.Module) -> bool:
    return is_sequence(module) and not why_apart(module)


def _one_type(input: Tensor, operands: list[Tensor]) -> bool:
    """Whether an engine can take the fused chain: norms may be kept in a wider type than the rest of a model."""
    if torch.is_autocast_enabled(input.device.type):
        return True
    there = input.is_cpu or input.is_cuda
    return knows(input.dtype) and there and all(each.dtype == input.dtype for each in operands)


@dataclass(frozen=True)
class Change:
    """A module that got another class."""

    name: str
    module: nn.Module
    before: type[Any]
    after: type[Any]

    def taken_back(self) -> bool:
        given = {self.after: self.before}
        if self.after is LazyConvTranspose3d:  # one that has got its weight meanwhile has left that class
            given[ConvTranspose3d] = nn.ConvTranspose3d
        if type(self.module) not in given:
            return False
        self.module.__class__ = given[type(self.module)]
        return True


@dataclass
class Report:
    """What `swap` did. `swapped` maps names of convolutions to what is fused into them when the model runs as it was
    at the time (in eval() mode, BatchNorm and dropout too); `left` maps names to reasons. `undo()` takes it back.

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
        return "\n".join(rows) or "nothing to swap: no nn.ConvTranspose3d in the model"


_KINDS = {nn.ConvTranspose3d: ConvTranspose3d, nn.LazyConvTranspose3d: LazyConvTranspose3d}


def swap(model: nn.Module) -> Report:
    """Makes convt3d compute the transposed convolutions of a model, in place.

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
    convt3d.Error
        No module.

    Examples
    --------
    >>> import torch, convt3d.torch
    >>> model = torch.nn.Sequential(torch.nn.ConvTranspose3d(8, 4, 2, 2), torch.nn.ReLU())
    >>> report = convt3d.torch.swap(model)
    >>> report.undo()
    []
    """
    report = Report()
    names = {module: name or "(model)" for name, module in model.named_modules()}
    convolutions = {module: name for module, name in names.items() if isinstance(module, nn.ConvTranspose3d)}
    for module, name in convolutions.items():
        reason = _why_left(module)
        if reason:
            report.left[name] = reason
        else:
            _change(report, name, module, _KINDS[type(module)])
    places = _places(model)
    changed = {change.module for change in report._changes}
    for sequence in [module for module in names if is_sequence(module) and not isinstance(module, FusedSequential)]:
        chains = list(_chains(sequence))
        if any(len(chain) > 1 for chain in chains):
            _change(report, names[sequence], sequence, fused_class(type(sequence)))
            changed.update(chain[0] for chain in chains)
    for module, name in convolutions.items():
        if module in changed:
            report.swapped[name] = "; at another place: ".join(dict.fromkeys(places[module]))
            report.left.pop(name, None)
    return report


def _places(model: nn.Module) -> dict[nn.Module, list[str]]:
    """What happens to each convolution, wherever it stands in the model."""
    places: dict[nn.Module, list[str]] = {module: [] for module in model.modules()}
    sequences = [module for module in places if is_sequence(module)]
    inside = {module for sequence in sequences for module in sequence if _is_inlined(module)}
    for sequence in sequences:
        for chain in () if sequence in inside else _chains(sequence):
            places[chain[0]].append(_describe(chain))
    places[model].append("alone: it is the whole model")
    for parent in places:
        for child in () if is_sequence(parent) else parent.children():
            places[child].append(f"alone: {type(parent).__name__} decides what follows it")
    return places


def _change(report: Report, name: str, module: nn.Module, kind: type[Any]) -> None:
    report._changes.append(Change(name, module, type(module), kind))
    module.__class__ = kind


def _why_left(conv: nn.ConvTranspose3d) -> str:
    if isinstance(conv, ConvTranspose3d):
        return "is convt3d's already"
    if type(conv) not in _KINDS:
        return f"is a {type(conv).__name__}, which may compute something else"
    if "forward" in conv.__dict__:
        return "has a forward of its own"
    weight = conv.weight
    if weight.device.type not in ("cpu", "meta"):
        return f"its weight is on {weight.device.type}"
    return "" if knows(weight.dtype) else f"its weight is {weight.dtype}"


def _chains(sequence: nn.Sequential) -> Iterator[list[nn.Module]]:
    """Each convolution of the sequence, with all that follows it."""
    modules = flat(sequence)
    for at, module in enumerate(modules):
        if type(module) in _KINDS.values():
            yield modules[at:]


def _describe(chain: list[nn.Module]) -> str:
    if type(chain[0]) is LazyConvTranspose3d:
        return "lazy: fused with what can be, once it has its weight"
    _, _, count, why = fold_chain(chain)
    fused = ", ".join(type(module).__name__ for module in chain[1:count])
    first = f"fused with {fused}" if fused else "alone"
    return f"{first}; then {why}" if why else first if fused else "alone: last of its sequence"
