"""Parts of captured graphs that nothing enters: computed once, unless somebody could write to what is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import convt3d.torch  # noqa: E402
from convt3d.torch import constants  # noqa: E402


def _mask(x: Any) -> Any:
    """Of windows, as Swin has it."""
    mask = torch.zeros(1, 4, 6)
    mask[:, :2] = 1
    mask[:, 2:, 3:] = 2
    rows = mask.view(4, 6)
    different = rows[:, None] - rows[:, :, None]
    return x + different.masked_fill(different != 0, -100.0)[0]


def _ramp(x: Any) -> Any:
    return x * torch.arange(6) + torch.ones(6, 1)


def _returned(x: Any) -> Any:
    mask = torch.ones(6, 6) * 2
    return x + 1, mask[1:]


def _written(x: Any) -> Any:
    mask = torch.zeros(6, 6)
    rows = mask[2:]
    rows += x[2:]
    return mask + x


def _random(x: Any) -> Any:
    return x * 0 + torch.rand(6, 6) + torch.ones(6, 6)


class _Model(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "FROM", 0)
    torch._dynamo.reset()


@pytest.mark.parametrize("function", [_mask, _ramp], ids=lambda each: each.__name__[1:])
def test_constants_are_computed_once(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    usual = constants.Kept.__init__

    def noted(self: Any, module: Any) -> None:
        usual(self, module)
        made.append(self)

    monkeypatch.setattr(constants.Kept, "__init__", noted)
    fast = convt3d.torch.optimize(_Model(function))
    for seed in range(3):
        x = torch.randn(6, 6, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            torch.testing.assert_close(fast(x), function(x), rtol=0, atol=0)
    x.requires_grad_()
    fast(x).sum().backward()
    assert made[0]._results is not None
    assert made[0]() is made[0]()


@pytest.mark.parametrize("function", [_returned, _written, _random], ids=lambda each: each.__name__[1:])
def test_what_others_could_change_is_computed_each_time(function: Any) -> None:
    fast = convt3d.torch.optimize(_Model(function))
    x = torch.randn(6, 6)
    with torch.no_grad():
        for _ in range(3):
            torch.manual_seed(0)
            result = fast(x)
            torch.manual_seed(0)
            torch.testing.assert_close(result, function(x), rtol=0, atol=0)
            for each in result if isinstance(result, tuple) else [result]:
                each.fill_(7)


def test_little_and_very_much_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("FROM", 1 << 20), ("MOST", 10)):
        with monkeypatch.context() as patch:
            patch.setattr(constants, name, size)
            torch._dynamo.reset()
            found = convt3d.torch.explain(_Model(_mask), torch.ones(6, 6), times=False, quiet=True)
            assert found.rest["setitem"] == 2
