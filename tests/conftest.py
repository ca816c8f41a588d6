"""What all tests share: a seeded generator, one hypothesis profile, few threads, and a kernel cache of their own."""

import os
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("convt3d", deadline=None, derandomize=os.environ.get("CI") == "true", print_blob=True)
settings.load_profile("convt3d")

# oneDNN 3.12, in PyTorch 2.13, dies of an illegal instruction in bfloat16 convolutions with a stride where a processor
# has AMX: it uses tiles that it has not configured.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# GPU kernels run through Triton's interpreter here; it looks when it is imported, which torch may do.
os.environ.setdefault("TRITON_INTERPRET", "1")

try:
    import torch
except ImportError:  # tests that compare with PyTorch skip themselves
    pass
else:
    torch.set_num_threads(2)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels are kept in a temporary directory, never in the user's cache; one that is set is used as it is."""
    if "CONVT3D_CACHE_DIR" in os.environ:
        yield
        return
    os.environ["CONVT3D_CACHE_DIR"] = str(tmp_path_factory.mktemp("kernels"))
    yield
    del os.environ["CONVT3D_CACHE_DIR"]


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator that is the same in every run and different in every test."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
