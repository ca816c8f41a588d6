"""What all tests share: a seeded generator, one hypothesis profile, and no more threads than the machine has."""

import os
import zlib

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("convt3d", deadline=None, derandomize=os.environ.get("CI") == "true", print_blob=True)
settings.load_profile("convt3d")

try:
    import torch
except ImportError:  # tests that compare with PyTorch skip themselves
    pass
else:
    torch.set_num_threads(2)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator that is the same in every run and different in every test."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
