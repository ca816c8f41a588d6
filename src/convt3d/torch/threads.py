"""PyTorch's threads, which compute for convt3d as well."""

from __future__ import annotations

from contextlib import suppress

import torch

from ..cpu.runtime.openmp import OpenMP
from ..cpu.runtime.team import share


def share_threads() -> None:
    """Where PyTorch's OpenMP can be called by others, as on Linux; elsewhere convt3d has threads of its own."""
    with suppress(OSError, AttributeError):
        share(OpenMP(torch._C.__file__))
