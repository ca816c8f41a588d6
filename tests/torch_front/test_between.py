"""Arithmetic between results of pipelines: a pipeline of its own where no other takes it, and the same numbers."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from helpers.captured import agrees, agrees_in_training, close, compiled  # noqa: E402
from torch import nn  # noqa: E402

import convt3d.torch as ct  # noqa: E402


class Gate(nn.Module):  # type: ignore[misc]
    """f(x, skip, gate): both are convolutions of x and have other users, so that neither takes the other."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.skip, self.gate = nn.Conv3d(4, 5, 3, padding=1), nn.Conv3d(5, 1, 1)

    def forward(self, x: Any) -> Any:
        skip = self.skip(x).relu()
        return self.function(x, skip, self.gate(skip).sigmoid())


def given(dtype: Any = torch.float32) -> Any:
    torch.manual_seed(1)
    return torch.randn(2, 4, 3, 5, 7, dtype=dtype)


ONE = "ConvTranspose3d(groups=5) -> Recall(label='x') -> "
CASES: dict[str, tuple[Any, str]] = {
    "a gate": (lambda x, skip, gate: skip * gate, f"{ONE}Multiply(other='tensor')"),
    "what follows": (lambda x, skip, gate: (gate - skip).tanh() * 2,
                     f"{ONE}Subtract(other='tensor', reverse=True) -> Tanh() -> Multiply(other=2.0)"),
    "a quotient": (lambda x, skip, gate: torch.div(skip, gate), f"{ONE}Divide(other='tensor')"),
    "into a concatenation": (lambda x, skip, gate: torch.cat([x, skip * gate], 1), f"{ONE}Multiply(other='tensor')"),
    "with PyTorch's": (lambda x, skip, gate: skip * gate.sin(), ""),
    "an alpha": (lambda x, skip, gate: torch.add(skip, gate, alpha=2), ""),
    "of itself": (lambda x, skip, gate: torch.sin(gate) + torch.cos(skip) + skip * skip, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_between(name: str) -> None:
    function, text = CASES[name]
    recorder = agrees(Gate(function), given())
    assert [each for each in recorder.texts if each.startswith(ONE)] == ([text] if text else [])
    assert text == "" or recorder.rest == []
    assert "convolution" not in " ".join(recorder.rest)


def test_not_finite() -> None:
    x = given()
    x[0, 0, 0, 0, 0], x[1, 2, 1, 1, 1] = torch.nan, torch.inf
    agrees(Gate(CASES["a gate"][0]), x)


def test_the_sign_of_zero() -> None:
    """A quotient tells it."""

    class Negative(Gate):
        def forward(self, x: Any) -> Any:
            skip = -self.skip(x)
            gate = self.gate(skip).sigmoid()
            return 1 / (skip * gate), skip.sin(), gate.sin()

    model = Negative(None)
    model.skip.bias.data.zero_()
    with torch.no_grad():
        expected = model(given() * 0)
        got, recorder = compiled(model, given() * 0)
    assert [each.count("Recall(label='x')") for each in recorder.texts] == [0, 0, 1]
    assert bool((expected[0] == -torch.inf).all())
    close(got, expected)


def test_other_types_and_gradients_are_left() -> None:
    function = CASES["a gate"][0]
    assert agrees(Gate(function).bfloat16(), given(torch.bfloat16)).rest == ["mul"]
    assert agrees_in_training(Gate(function).double(), given(torch.float64)).rest == ["mul"]
    assert len(agrees(Gate(function).double(), given(torch.float64)).texts) == 3


def test_explained() -> None:
    made = ct.explain(Gate(CASES["a gate"][0]).eval(), given(), quiet=True)
    assert len(made.rows) == 3
    assert all(row.eager and row.ours for row in made.rows)


@pytest.mark.parametrize("tail", ["", " -> Multiply('x')"])
def test_gradients_where_a_convolution_is_thrown_away(tail: str) -> None:
    torch.manual_seed(0)
    x, first, second = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 3, 4, 5, 6), (3, 3, 1, 1, 1), (3, 3, 1, 1, 1))
    )
    ours = ct.pipeline(x, [first, second], f"Conv3d() -> Recall('x') -> Conv3d(){tail}")
    eager = nn.functional.conv3d(x, second) * (x if tail else 1)
    found = [torch.autograd.grad(y.square().sum(), (x, second)) for y in (ours, eager)]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)
