"""A model through the backend beside the model itself: results, gradients, and what was found in its graphs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from convt3d.torch import backend
from convt3d.torch.capture import Captured
from convt3d.torch.graphs import shown


class Recorder:
    """The backend, which also remembers what it found; errors that it would hide are errors here."""

    def __init__(self) -> None:
        self.found: list[Captured] = []
        self.graphs: list[Any] = []

    def __call__(self, gm: Any, example_inputs: Sequence[Any]) -> Any:
        rewritten, found = backend.fused(gm)
        assert not found.failed, found.failed
        self.found.append(found)
        self.graphs.append(rewritten)
        return rewritten.forward

    @property
    def texts(self) -> list[str]:
        """The pipelines of all graphs."""
        return [fused.text for found in self.found for fused in found.fused]

    @property
    def rest(self) -> list[str]:
        """What PyTorch still computes of the model."""
        old = (node for found in self.found for node in found.rest)
        return [shown(node) for node in old if node.op.startswith("call")]


def compiled(model: Any, *inputs: Any, **named: Any) -> tuple[Any, Recorder]:
    """What the model gives through the backend, and what became of it."""
    torch._dynamo.reset()
    recorder = Recorder()
    result = torch.compile(model, backend=recorder, **named)(*inputs)
    return result, recorder


def close(got: Any, expected: Any, share: float | None = None, least: float = 1e-30) -> None:
    """Nested results of the same structure, shapes and types; equal to a share of their scale, or of `least`."""
    if isinstance(expected, (tuple, list)):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            close(one, other, share, least)
        return
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    share = share or {torch.float64: 1e-11, torch.float32: 2e-5}.get(expected.dtype, 2e-2)
    atol = share * max(scale_of(expected), least)
    torch.testing.assert_close(got, expected, rtol=0, atol=atol, equal_nan=True)


def scale_of(tensor: Any) -> float:
    finite = tensor[torch.isfinite(tensor)].abs()
    return float(finite.max()) if finite.numel() else 1.0


def agrees(model: Any, *inputs: Any) -> Recorder:
    """Without gradients, the model gives the same through the backend; what became of it."""
    with torch.no_grad():
        expected = model(*(each.clone() for each in inputs))
        got, recorder = compiled(model, *(each.clone() for each in inputs))
    low = {torch.float64: None, torch.float32: 2e-5}.get(inputs[0].dtype, 2e-2)  # the type that the model computes in
    close(got, expected, low)
    return recorder


def agrees_in_training(model: Any, *inputs: Any) -> Recorder:
    """Gradients of all inputs and parameters, too."""
    rows = []
    recorder = Recorder()
    for through in (False, True):
        own = copy.deepcopy(model)
        torch._dynamo.reset()
        called = torch.compile(own, backend=recorder) if through else own
        tensors = [each.clone().requires_grad_() for each in inputs]
        result = called(*tensors)
        torch.manual_seed(1)
        (result * torch.randn(result.shape, dtype=result.dtype)).sum().backward()
        wanted = [*tensors, *own.parameters()]
        rows.append([result.detach(), *(torch.zeros(()) if each.grad is None else each.grad for each in wanted)])
    # Some gradients are sums that cancel (of a bias before a norm, say).
    close(rows[1], rows[0], 1e-9 if rows[0][0].dtype == torch.float64 else 1e-4, max(map(scale_of, rows[0])) / 100)
    return recorder
