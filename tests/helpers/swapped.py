"""Swapped models: how close they must be, and how many fused chains a call runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from convt3d.torch import functions


def close(got: Any, expected: Any, tolerance: float = 2e-5) -> None:
    scale = max(1.0, float(expected.detach().abs().max()))
    torch.testing.assert_close(got, expected, rtol=0.0, atol=tolerance * scale)


def fused_calls(model: Any, x: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many fused chains a call runs."""
    texts: list[str] = []
    real = functions._call

    def spy(name: str, *arguments: Any) -> Any:
        if name == "pipeline":
            texts.append(arguments[2])
        return real(name, *arguments)

    monkeypatch.setattr(functions, "_call", spy)
    with torch.no_grad():
        model(x)
    monkeypatch.setattr(functions, "_call", real)
    return len(texts)
