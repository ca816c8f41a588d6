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
