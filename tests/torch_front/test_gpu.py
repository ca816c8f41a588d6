"""CUDA tensors take the Triton kernels. No GPU is here: the same path runs on CPU tensors by Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from helpers.eager import tensors  # noqa: E402
from torch.nn import functional  # noqa: E402

import convt3d as ct  # noqa: E402
import convt3d.torch  # noqa: E402
from convt3d.plan.gpu_config import MOST_CONFIGURATIONS  # noqa: E402
from convt3d.run import gpu_tune  # noqa: E402
from convt3d.spec.pipeline import Pipeline  # noqa: E402
from convt3d.torch import engine, gpu  # noqa: E402
from convt3d.torch.operators import OPERATORS  # noqa: E402
from convt3d.torch.ops import _cuda  # noqa: E402


@pytest.fixture(autouse=True)
def _nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_told", set())


def test_cuda_has_a_kernel_of_its_own() -> None:
    for operator in OPERATORS:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"convt3d::{operator.name}", "CUDA")


@pytest.mark.filterwarnings("error")
def test_the_kernel_of_an_operator() -> None:
    """Without a warning: nothing of it runs on stock PyTorch."""
    x, w, bias = tensors((1, 2, 2, 3, 3), (2, 3, 2, 2, 2), (3,), grad=False)
    got = _cuda(OPERATORS[0])(x, w, bias, [2, 2, 2], [1, 1, 1])
    torch.testing.assert_close(got, functional.conv_transpose3d(x, w, bias, 2, 1))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d], ids=str)
def test_results_have_the_memory_format_that_tracing_expects(layout: Any) -> None:
    x, w = tensors((2, 16, 2, 2, 3), (16, 8, 2, 2, 2), grad=False)
    x, w = x.to(memory_format=layout), w.to(memory_format=layout)
    got = gpu.on_gpu(Pipeline(ct.ConvTranspose3d(2)), x, [w])
    expected = functional.conv_transpose3d(x, w, None, 2)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert got.is_contiguous(memory_format=layout)


def test_unbatched_input_and_a_vector_written_as_a_column() -> None:
    x, w, scale = tensors((2, 2, 3, 3), (2, 3, 2, 2, 2), (1, 3, 1, 1, 1), grad=False)
    got = gpu.on_gpu(Pipeline(ct.ConvTranspose3d(2), ct.Multiply("channel")), x, [w, scale])
    torch.testing.assert_close(got, functional.conv_transpose3d(x, w, None, 2) * scale[0])


def test_what_has_no_kernels_goes_to_stock_with_one_warning() -> None:
    x, w = tensors((1, 2, 2, 2, 2), (2, 2, 2, 2, 2), grad=False)
    pipeline = Pipeline(ct.ConvTranspose3d(2), ct.LayerNorm("width"))
    with pytest.warns(UserWarning, match="runs on stock PyTorch: LayerNorm along the width has no GPU kernel"):
        got = gpu.run("pipeline", pipeline, x, [w])
    torch.testing.assert_close(got, functional.layer_norm(functional.conv_transpose3d(x, w, None, 2), (4,)))


REFUSED: dict[str, Any] = {
    "knows no torch.complex64": lambda x, w: (x.to(torch.complex64), w.to(torch.complex64)),
    "of different types": lambda x, w: (x, w.double()),
    "on one device": lambda x, w: (x, w.to("meta")),
}


@pytest.mark.parametrize("why", REFUSED)
def test_tensors_it_cannot_take(why: str) -> None:
    x, w = REFUSED[why](*tensors((1, 2, 2, 2, 2), (2, 2, 2, 2, 2), grad=False))
    assert why in gpu.why_not(x, [w])


def test_triton_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_why_no_triton", lambda: "the GPU engine needs triton, which is not installed")
    x, w = tensors((1, 2, 2, 2, 2), (2, 2, 2, 2, 2), grad=False)
    with pytest.warns(UserWarning, match="needs triton, which is not installed"):
        gpu.run("conv_transpose3d", Pipeline(ct.ConvTranspose3d(2)), x, [w])


# --- settings ---------------------------------------------------------------------------------------------------------


def _matmul(monkeypatch: pytest.MonkeyPatch, matmul: str, conv: str, legacy: str | None) -> None:
    """PyTorch's settings as they would be; changing the real ones would mix its older and newer ways."""
    from types import SimpleNamespace as Names

    def precision() -> str:
        if legacy is None:
            raise RuntimeError("mixed")
        return legacy

    backends = Names(cuda=Names(matmul=Names(fp32_precision=matmul)), cudnn=Names(conv=Names(fp32_precision=conv)))
    monkeypatch.setattr(gpu.torch, "backends", backends)
    monkeypatch.setattr(gpu.torch, "get_float32_matmul_precision", precision)


@pytest.mark.parametrize(("matmul", "conv", "legacy", "expected"), [
    ("none", "tf32", "highest", "ieee"),  # PyTorch's defaults
    ("tf32", "tf32", "high", "tf32x3"),
    ("tf32", "tf32", "medium", "tf32"),
    ("tf32", "tf32", None, "tf32"),
    ("tf32", "ieee", None, "ieee"),
    ("ieee", "tf32", None, "ieee"),
])  # fmt: skip
def test_float32_is_exact_unless_both_settings_allow_less(
    matmul: str, conv: str, legacy: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _matmul(monkeypatch, matmul, conv, legacy)
    assert gpu.float32_precision() == expected


def test_by_default_float32_is_exact() -> None:
    assert gpu.float32_precision() == "ieee"


def test_autotuning_measures_once_and_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_tune, "_fastest", {})
    measured: list[int] = []

    def seconds(number: int) -> float:
        measured.append(number)
        return abs(number - 2)

    assert gpu_tune.choice("a", seconds) is None  # nobody asked
    with convt3d.torch.autotune():
        assert gpu_tune.choice("a", seconds) == 2
    assert measured == list(range(MOST_CONFIGURATIONS))
    assert gpu_tune.choice("a", seconds) == 2
    assert gpu_tune.choice("b", seconds) is None
    assert measured == list(range(MOST_CONFIGURATIONS))
