"""What tests about JAX share: numbers of 64 bits, and records as in a new process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")


@pytest.fixture(autouse=True)
def wide_numbers() -> Iterator[None]:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)
