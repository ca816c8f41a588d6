"""What several files of tests about PyTorch use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """torch.compile as in a new process."""
    import torch

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def _kernels_for_small_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests are small: PyTorch's kernels would take the gradients."""
    from convt3d.torch import convolutions

    monkeypatch.setattr(convolutions, "SMALL", 0)
