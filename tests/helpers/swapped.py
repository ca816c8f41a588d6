"""Swapped models: how close they must be, and how many fused chains a call runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from convt3d.torch import forget
from convt3d.torch.operators import BY_NAME


def close(got: Any, expected: Any, tolerance: float = 2e-5) -> None:
    scale = max(1.0, float(expected.detach().abs().max()))
    torch.testing.assert_close(got, expected, rtol=0.0, atol=tolerance * scale)


def fused_calls(model: Any, x: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many fused chains a call runs."""
    texts: list[str] = []
    lower = BY_NAME["pipeline"].meaning

    def spy(input: Any, operands: Any, stages: str) -> Any:
        texts.append(stages)
        return lower(input, operands, stages)

    forget(model)  # what its chains mean is asked once
    monkeypatch.setitem(BY_NAME["pipeline"].__dict__, "meaning", spy)
    with torch.no_grad():
        model(x)
    monkeypatch.setitem(BY_NAME["pipeline"].__dict__, "meaning", lower)
    return len(texts)
