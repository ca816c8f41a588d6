"""What the CPU engine cannot take goes to stock PyTorch, with one warning; autocast gives eager's types."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from helpers.eager import CASES, tensors  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import convt3d.torch as ct  # noqa: E402
from convt3d.errors import Error  # noqa: E402
from convt3d.spec.pipeline import Pipeline  # noqa: E402
from convt3d.spec.stages import ConvTranspose3d  # noqa: E402
from convt3d.torch import engine, gpu  # noqa: E402


@pytest.fixture(autouse=True)
def _nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_told", set())


def test_complex_numbers_with_one_warning() -> None:
    x, w = (
        torch.randn(*shape, dtype=torch.complex64, requires_grad=True) for shape in ((1, 2, 3, 3, 3), (2, 2, 2, 2, 2))
    )
    with pytest.warns(UserWarning, match="runs on stock PyTorch: the CPU engine knows no torch.complex64"):
        y = ct.conv_transpose3d(x, w, stride=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ct.conv_transpose3d(x, w, stride=2)  # told once
    expected = functional.conv_transpose3d(x, w, stride=2)
    torch.testing.assert_close(y, expected)
    for a, b in zip(
        torch.autograd.grad(y.abs().sum(), (x, w)), torch.autograd.grad(expected.abs().sum(), (x, w)), strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32], ids=str)
def test_the_warning_points_at_the_user_s_line(grad: bool, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Called as a function or as a module, straight or through the dispatcher."""
    x = torch.randn(1, 2, 3, 3, 3, dtype=dtype, requires_grad=grad)
    conv = ct.ConvTranspose3d(2, 2, 2, dtype=dtype)
    monkeypatch.setattr(engine, "_reason", lambda *_: "a test says so")
    for call in (conv, lambda x: ct.conv_transpose3d(x, conv.weight)):
        engine._told.clear()
        with pytest.warns(UserWarning, match="runs on stock PyTorch") as told:
            call(x)
        assert [each.filename for each in told] == [__file__]


def test_meta_tensors() -> None:
    x, w = torch.empty(2, 3, 4, 4, 4, device="meta"), torch.empty(3, 2, 2, 2, 2, device="meta")
    y = ct.conv_transpose3d(x, w, stride=2)
    assert y.is_meta
    assert y.shape == (2, 2, 8, 8, 8)
    built = ct.ConvTranspose3d(3, 2, 2, 2, device="meta")
    assert built(x).shape == y.shape


def test_other_devices_have_a_kernel() -> None:
    """No other device is here to run on; the registered kernel is PyTorch's own operations."""
    for name in ("conv_transpose3d", "pipeline"):
        for key in ("CUDA", "MPS", "XPU"):
            assert torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"convt3d::{name}", key)
    x, w = tensors((1, 2, 3, 3, 3), (2, 2, 2, 2, 2), grad=False)
    from convt3d.torch.operators import BY_NAME
    from convt3d.torch.ops import _elsewhere

    with pytest.warns(UserWarning, match="takes no strided tensors on cpu"):
        y = _elsewhere(BY_NAME["conv_transpose3d"])(x, w, None, [2, 2, 2])
    assert torch.equal(y, functional.conv_transpose3d(x, w, None, 2))


REFUSED = {
    "types that differ": lambda x, w: (x, w.double()),
    "channels that differ": lambda x, w: (x, w[:1]),
    "a 3-D input": lambda x, w: (x[0, 0], w),
    "a sparse input": lambda x, w: (x.to_sparse(), w),
}


@pytest.mark.filterwarnings("ignore:convt3d.torch")
@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("grad", [False, True])
def test_errors_are_pytorch_s_own(what: str, grad: bool) -> None:
    x, w = REFUSED[what](*tensors((1, 2, 3, 3, 3), (2, 2, 2, 2, 2), grad=False))
    if grad and w.is_floating_point():
        w.requires_grad_()
    with pytest.raises(Exception, match=r".") as theirs:
        functional.conv_transpose3d(x, w, stride=2)
    with pytest.raises(type(theirs.value)):
        ct.conv_transpose3d(x, w, stride=2)


def test_wrong_parameters() -> None:
    """Refused by PyTorch or, where it would not know why, by an error of ours."""
    x, w = tensors((1, 2, 3, 3, 3), (2, 2, 2, 2, 2), grad=False)
    for wrong in ({"stride": 0}, {"padding": -1}, {"output_padding": 5}, {"groups": 3}, {"stride": (1, 2)}):
        with pytest.raises(RuntimeError):
            functional.conv_transpose3d(x, w, **wrong)
        with pytest.raises((RuntimeError, Error)):
            ct.conv_transpose3d(x, w, **wrong)


def test_integers() -> None:
    x, w = torch.arange(54).reshape(1, 2, 3, 3, 3), torch.arange(32).reshape(2, 2, 2, 2, 2)
    with pytest.warns(UserWarning, match="knows no torch.int64"):
        y = ct.conv_transpose3d(x, w, stride=2)
    assert torch.equal(y, functional.conv_transpose3d(x, w, stride=2))


def test_what_pytorch_accepts_is_accepted() -> None:
    """No channels, no voxels: the engine knows no such arrays."""
    w = torch.randn(2, 3, 2, 2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in (torch.randn(0, 2, 3, 3, 3), torch.randn(1, 2, 3, 3, 3)):
            expected = functional.conv_transpose3d(x, w)
            assert ct.conv_transpose3d(x, w).shape == expected.shape


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_autocast_gives_eager_s_type(case: str, low: Any) -> None:
    ours, eager, shapes, rest = CASES[case]
    torch.manual_seed(0)
    values = tensors(*shapes)
    with torch.autocast("cpu", dtype=low):
        expected, got = eager(*values, **rest), ours(*values, **rest)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got.float(), expected.float(), rtol=0.05, atol=0.05)
    for a, b in zip(
        torch.autograd.grad(got.float().sum(), values),
        torch.autograd.grad(expected.float().sum(), values),
        strict=True,
    ):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=0.1, atol=0.1 * max(1.0, float(b.abs().max())))


def test_autocast_leaves_float64_and_nested_regions_alone() -> None:
    x, w = tensors((1, 2, 3, 3, 3), (2, 2, 2, 2, 2), dtype=torch.float64, grad=False)
    with torch.autocast("cpu"):
        assert ct.conv_transpose3d(x, w).dtype == functional.conv_transpose3d(x, w).dtype == torch.float64
        with torch.autocast("cpu", enabled=False):
            assert ct.conv_transpose3d(x.float(), w.float()).dtype == torch.float32


def test_autocast_of_swapped_models() -> None:
    torch.manual_seed(1)
    x = torch.randn(2, 3, 4, 4, 4)
    for tail in (nn.BatchNorm3d(4), nn.InstanceNorm3d(4, affine=True), nn.MaxPool3d(2), nn.PReLU(), nn.ReLU()):
        model = nn.Sequential(nn.ConvTranspose3d(3, 4, 3, 2), tail, nn.GELU()).eval()
        with torch.no_grad(), torch.autocast("cpu"):
            expected = model(x)
            ct.swap(model)
            got = model(x)
        assert got.dtype == expected.dtype, tail
        torch.testing.assert_close(got.float(), expected.float(), rtol=0.05, atol=0.05)


# --- triton -----------------------------------------------------------------------------------------------------------


TWICE = Pipeline(ConvTranspose3d(stride=2))


@pytest.fixture
def _triton_again() -> Iterator[None]:
    """What was found out about triton holds for a process."""
    gpu._why_no_triton.cache_clear()
    yield
    gpu._why_no_triton.cache_clear()


@pytest.mark.usefixtures("_triton_again")
def test_triton_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    x, w = tensors((1, 2, 2, 2, 2), (2, 2, 2, 2, 2), grad=False)
    with pytest.warns(UserWarning, match="needs triton, which is not installed"):
        gpu.run("conv_transpose3d", TWICE, x, [w])


@pytest.mark.usefixtures("_triton_again")
@pytest.mark.parametrize("found", ["3.3.1", "3.0.0", "2.3.1", "3.3.0+git1234"])
def test_triton_may_be_too_old(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda name: True)
    monkeypatch.setattr(gpu, "version", lambda name: found)
    x, w = tensors((1, 2, 2, 2, 2), (2, 2, 2, 2, 2), grad=False)
    with pytest.warns(UserWarning, match=f"needs triton 3.4, and {re.escape(found)} is installed"):
        got = gpu.run("conv_transpose3d", TWICE, x, [w])
    torch.testing.assert_close(got, functional.conv_transpose3d(x, w, None, 2))


@pytest.mark.usefixtures("_triton_again")
@pytest.mark.parametrize("found", ["3.4.0", "3.10.0", "4.0.0rc1", "3.4"])
def test_triton_that_is_new_enough(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda name: True)
    monkeypatch.setattr(gpu, "version", lambda name: found)
    assert gpu._why_no_triton() is None


@pytest.mark.usefixtures("_triton_again")
def test_the_triton_that_is_here() -> None:
    triton = pytest.importorskip("triton")
    said = gpu._why_no_triton()
    if tuple(map(int, triton.__version__.split(".")[:2])) < gpu.LEAST_TRITON:
        assert said == f"the GPU engine needs triton 3.4, and {triton.__version__} is installed"
    else:
        assert said is None


@pytest.mark.usefixtures("_triton_again")
def test_triton_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(gpu, "find_spec", lambda name: True)
    monkeypatch.setattr(gpu, "version", version)
    assert gpu._why_no_triton() is None


def test_the_extras_ask_for_the_triton_that_the_engine_asks_for() -> None:
    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
    asked = re.findall(r'"triton>=([\d.]+);', text)
    assert asked == ["{}.{}".format(*gpu.LEAST_TRITON)] * 2
