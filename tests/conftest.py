"""What all tests share: a seeded generator, one hypothesis profile, few threads, a kernel cache of their own, and skips
where an optional library is absent."""

import os
import signal
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

OPTIONAL = ("torch", "triton", "ml_dtypes", "hypothesis", "mpmath")

try:
    from hypothesis import settings
except ImportError:
    pass
else:
    settings.register_profile("convt3d", deadline=None, derandomize=os.environ.get("CI") == "true", print_blob=True)
    settings.load_profile("convt3d")

# `nohup` and shells that start jobs in the background have interrupts ignored, and children inherit that; some tests
# interrupt theirs.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

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


class Module(pytest.Module):
    """A file of tests that imports an optional library, itself or through what it imports, is skipped without it."""

    def collect(self) -> "Iterator[pytest.Item | pytest.Collector]":
        try:
            return super().collect()
        except self.CollectError as problem:
            _skip_without(problem.__cause__)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> Module:
    return Module.from_parent(parent, path=module_path)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """So is a test that imports one itself; where the package does, that is its failure."""
    outcome = yield
    problem = outcome.excinfo[1] if outcome.excinfo else None
    if isinstance(problem, ModuleNotFoundError) and outcome.excinfo[2]:
        innermost = outcome.excinfo[2]
        while innermost.tb_next:
            innermost = innermost.tb_next
        if Path(innermost.tb_frame.f_code.co_filename).is_relative_to(Path(__file__).parent):
            try:
                _skip_without(problem)
            except pytest.skip.Exception as skipped:
                outcome.force_exception(skipped)


def _skip_without(problem: BaseException | None) -> None:
    if isinstance(problem, ModuleNotFoundError) and problem.name in OPTIONAL:
        pytest.skip(f"{problem.name} is not installed", allow_module_level=True)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels are kept in a temporary directory, one for all processes of a run, never in the user's cache; one that is
    set is used as it is."""
    if "CONVT3D_CACHE_DIR" in os.environ:
        yield
        return
    folder = tmp_path_factory.getbasetemp()
    kernels = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "kernels"
    kernels.mkdir(mode=0o700, exist_ok=True)
    os.environ["CONVT3D_CACHE_DIR"] = str(kernels)
    yield
    del os.environ["CONVT3D_CACHE_DIR"]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as people install it."""
    from helpers.wheel import build_wheel

    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator that is the same in every run and different in every test."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
