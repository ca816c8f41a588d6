"""Classes of swapped modules: subclasses of nn.Sequential, lazy modules, copies, and all or nothing."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
from typing import Any, ClassVar
from weakref import ref

import pytest

torch = pytest.importorskip("torch")
from helpers.swapped import close, fused_calls  # noqa: E402
from torch import nn  # noqa: E402

import convt3d.torch as ct  # noqa: E402

swap_module = sys.modules["convt3d.torch.swap"]  # its name is the function's in the package


class Adn(nn.Sequential):  # type: ignore[misc]
    """Norm, dropout and activation, as MONAI puts them together."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.add_module("N", nn.InstanceNorm3d(channels))
        self.add_module("D", nn.Dropout(0.2))
        self.add_module("A", nn.PReLU())


class Convolution(nn.Sequential):  # type: ignore[misc]
    """A convolution and its Adn, with attributes of its own."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.cin, self.cout = cin, cout
        self.add_module("conv", nn.ConvTranspose3d(cin, cout, 3, 2, 1, 1))
        self.add_module("adn", Adn(cout))

    @property
    def channels(self) -> tuple[int, int]:
        return self.cin, self.cout


class Doubled(nn.Sequential):  # type: ignore[misc]
    """Does more than run its modules in order."""

    def forward(self, input: Any) -> Any:
        return 2 * super().forward(input)


class Backwards(nn.Sequential):  # type: ignore[misc]
    def __iter__(self) -> Any:
        return iter(list(self._modules.values())[::-1])


def test_subclasses_of_sequential_are_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(5)
    model = nn.Sequential(Convolution(2, 4), nn.Sequential(Convolution(4, 3), nn.Tanh())).eval()
    x, text, copied = torch.randn(2, 2, 3, 4, 3), repr(model), copy.deepcopy(model)
    with torch.no_grad():
        expected = model(x)
    report = ct.swap(model)
    assert report.swapped == {
        "0.conv": "in eval: fused with InstanceNorm3d, Dropout, PReLU; not with ConvTranspose3d, which is no stage "
        "of convt3d. In training: fused with InstanceNorm3d; not with Dropout, which draws random numbers",
        "1.0.conv": "in eval: fused with InstanceNorm3d, Dropout, PReLU, Tanh. "
        "In training: fused with InstanceNorm3d; not with Dropout, which draws random numbers",
    }
    assert repr(model) == text
    assert isinstance(model[0], Convolution)
    assert model[0].channels == (2, 4)
    with torch.no_grad():
        close(model(x), expected)
        close(model[0](x), copied[0](x))  # also when it is called by itself
        for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert isinstance(again[0], Convolution)
            assert again[0].channels == (2, 4)
            assert fused_calls(again, x, monkeypatch) == 2
            close(again(x), expected)
    assert fused_calls(model, x, monkeypatch) == 2
    model.train()  # dropout draws: conv and norm are fused, what follows is not
    assert fused_calls(model, x, monkeypatch) == 2
    report.undo()
    assert [type(m) for m in model.modules()] == [type(m) for m in copied.modules()]


def test_subclasses_with_a_forward_of_their_own_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(6)
    for kind, tail in ((Doubled, (nn.ConvTranspose3d(2, 2, 2), nn.ReLU())), (Backwards, (nn.ReLU(), nn.Tanh()))):
        model = nn.Sequential(nn.ConvTranspose3d(2, 2, 2), kind(*tail), nn.SiLU()).eval()
        x = torch.randn(1, 2, 3, 3, 3)
        with torch.no_grad():
            expected = model(x)
            report = ct.swap(model)
            close(model(x), expected)
        assert type(model[1]) is kind
        assert report.swapped["0"] == f"alone; not with {kind.__name__}, which is no stage of convt3d"
        if kind is Doubled:
            assert report.swapped["1.0"] == "alone: Doubled decides what follows it"
        assert fused_calls(model, x, monkeypatch) == 0
    bare = ct.swap(nn.ConvTranspose3d(2, 2, 2))
    assert bare.swapped == {"(model)": "alone: it is the whole model"}


def test_lazy_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.LazyConvTranspose3d(4, 3, 2), nn.ReLU())
    stock, x = copy.deepcopy(model), torch.randn(1, 2, 3, 3, 3)
    report = ct.swap(model)
    assert report.swapped == {"0": "lazy: fused with what can be, once it has its weight"}
    torch.manual_seed(0)
    expected = stock(x)
    torch.manual_seed(0)
    close(model(x), expected)
    assert type(model[0]) is ct.ConvTranspose3d
    assert fused_calls(model, x, monkeypatch) == 1
    assert report.undo() == []
    assert type(model[0]) is nn.ConvTranspose3d
    lazy = nn.Sequential(nn.LazyConvTranspose3d(4, 3))
    ct.swap(lazy).undo()
    assert type(lazy[0]) is nn.LazyConvTranspose3d
    own = ct.LazyConvTranspose3d(4, 3, bias=False)
    assert own(x).shape == (1, 4, 5, 5, 5)
    assert type(own) is ct.ConvTranspose3d


class Registered(nn.Sequential):  # type: ignore[misc]
    """Its subclasses must say something, and are listed."""

    known: ClassVar[list[str]] = []

    def __init_subclass__(cls, word: str) -> None:
        Registered.known.append(word)


class Entry(Registered, word="entry"):
    pass


class Strict(type):
    def __new__(meta, name: str, bases: Any, namespace: Any, *, allowed: bool = False) -> Any:
        if not allowed:
            raise RuntimeError("no subclasses")
        return super().__new__(meta, name, bases, namespace)


class Closed(nn.Sequential, metaclass=Strict, allowed=True):  # type: ignore[misc]
    pass


class Frozen(nn.Sequential):  # type: ignore[misc]
    """Lets nobody change its attributes."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "__class__":
            raise AttributeError(name)
        super().__setattr__(name, value)


def tail() -> tuple[Any, ...]:
    return nn.ConvTranspose3d(2, 2, 2), nn.ReLU()


@pytest.mark.parametrize("kind", [Registered, Entry, Frozen])
def test_a_class_may_be_particular_about_its_subclasses(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.ModuleList([kind(*tail()), nn.ConvTranspose3d(2, 2, 2)]), torch.randn(1, 2, 3, 3, 3)
    known, expected = list(Registered.known), model[0](x)
    report = ct.swap(model)
    assert report.swapped["0.0"] == "fused with ReLU"
    assert isinstance(model[0], kind)
    assert Registered.known == known
    assert fused_calls(model[0], x, monkeypatch) == 1
    close(model[0](x), expected)
    report.undo()
    assert type(model[0]) is kind


def test_a_class_that_allows_no_subclass_is_not_fused() -> None:
    model, x = nn.Sequential(nn.ModuleList([Closed(*tail())]), nn.Sequential(*tail())), torch.randn(1, 2, 3, 3, 3)
    expected = model[0][0](x)
    report = ct.swap(model)
    assert report.swapped == {"0.0.0": "alone: no class can be made from Closed", "1.0": "fused with ReLU"}
    assert type(model[0][0]) is Closed
    assert type(model[0][0][0]) is ct.ConvTranspose3d
    close(model[0][0](x), expected)


def test_all_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception at any of the changes leaves the model as it was."""
    model = nn.Sequential(*tail(), Convolution(2, 2), nn.LazyConvTranspose3d(2, 2))
    before = [type(module) for module in model.modules()]
    real, calls = swap_module._set_class, 0

    def failing(module: Any, kind: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        real(module, kind)

    monkeypatch.setattr(swap_module, "_set_class", failing)
    with pytest.raises(KeyboardInterrupt):
        ct.swap(model)
    assert calls > 3
    assert [type(module) for module in model.modules()] == before


class Counted(nn.Sequential):  # type: ignore[misc]
    """Leaves something out of its state, and says how often it was restored."""

    def __getstate__(self) -> Any:
        return {**self.__dict__, "cache": None}

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self.restored = True


class Rebuilt(nn.Sequential):  # type: ignore[misc]
    def __reduce__(self) -> Any:
        return type(self), tuple(self), {"rebuilt": True}


class Elsewhere(nn.Sequential):  # type: ignore[misc]
    def __reduce__(self) -> Any:
        return rebuild, (list(self),)


def rebuild(modules: list[Any]) -> Any:
    made = Elsewhere(*modules)
    made.rebuilt = True
    return made


@pytest.mark.parametrize("kind", [Counted, Rebuilt, Elsewhere])
@pytest.mark.parametrize(
    "again", [copy.deepcopy, copy.copy, *(lambda m, p=p: pickle.loads(pickle.dumps(m, p)) for p in (0, 1, 2, 5))]
)
def test_copies_are_made_as_the_class_says(kind: Any, again: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = kind(*tail()), torch.randn(1, 2, 3, 3, 3)
    expected, model.cache = model(x), [1, 2, 3]
    ct.swap(model)
    copied = again(model)
    assert isinstance(copied, kind)
    assert isinstance(copied, ct.FusedSequential)
    assert copied.restored and copied.cache is None if kind is Counted else copied.rebuilt
    assert fused_calls(copied, x, monkeypatch) == 1
    close(copied(x), expected)


def test_made_classes_go_with_their_modules() -> None:
    def use() -> Any:
        class Local(nn.Sequential):  # type: ignore[misc]
            pass

        model = Local(*tail())
        ct.swap(model)
        assert type(model) is not Local
        return ref(Local), ref(type(model))

    seen = use()
    gc.collect()  # the made class
    gc.collect()  # and the one that it was made for
    assert [each() for each in seen] == [None, None]


@pytest.mark.parametrize("name", ["__call__", "_call_impl", "forward", "__iter__"])
def test_what_runs_its_modules_in_another_way_is_no_sequence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def watched(self: Any, *arguments: Any) -> Any:
        seen.append(name)
        return getattr(nn.Sequential, name)(self, *arguments)

    seen: list[str] = []
    kind, x = type("Watched", (nn.Sequential,), {name: watched}), torch.randn(1, 2, 3, 3, 3)
    model = nn.Sequential(nn.ConvTranspose3d(2, 2, 2), kind(*tail()), nn.Tanh())
    expected = model(x)
    seen.clear()
    report = ct.swap(model)
    assert type(model[1]) is kind
    seen.clear()
    assert fused_calls(model, x, monkeypatch) == 0
    assert seen == [name]
    close(model(x), expected)
    own = nn.Sequential(*tail())
    own.forward = lambda x: x  # an instance may have one, too
    report = ct.swap(own)
    assert report.swapped == {"0": "alone: Sequential decides what follows it"}
    assert type(own) is nn.Sequential
