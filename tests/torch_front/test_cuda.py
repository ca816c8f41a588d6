"""The operators on CUDA tensors, with gradients and torch.compile, beside PyTorch. Needs a GPU: `make test-gpu`."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional  # noqa: E402

import convt3d.torch  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1",
    reason="needs a GPU and TRITON_INTERPRET=0: `make test-gpu`",
)


def drawn(*shapes: tuple[int, ...], dtype: str = "float32") -> list:
    torch.manual_seed(5)
    return [torch.randn(shape, device="cuda", dtype=getattr(torch, dtype), requires_grad=True) for shape in shapes]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_results_and_gradients(dtype: str) -> None:
    """Without a warning: nothing of it ran on stock PyTorch."""
    x, w, bias = drawn((2, 8, 5, 6, 7), (8, 12, 4, 3, 3), (12,), dtype=dtype)
    got = convt3d.torch.conv_transpose3d(x, w, bias, stride=(2, 1, 2), padding=1)
    expected = functional.conv_transpose3d(x.double(), w.double(), bias.double(), stride=(2, 1, 2), padding=1)
    close = {"float32": 1e-4, "float64": 1e-10, "float16": 2e-2, "bfloat16": 1e-1}[dtype]
    torch.testing.assert_close(got.double(), expected, rtol=close, atol=close)
    gradients = torch.autograd.grad(got.double().square().sum(), (x, w, bias))
    wanted = torch.autograd.grad(expected.square().sum(), (x, w, bias))
    for one, other in zip(gradients, wanted, strict=True):
        scale = float(other.double().abs().max())
        assert float((one.double() - other.double()).abs().max()) <= 20 * close * scale


@pytest.mark.filterwarnings("error:convt3d.torch")
def test_torch_compile() -> None:
    x, w = (tensor.detach() for tensor in drawn((1, 8, 4, 4, 4), (8, 16, 3, 3, 3)))
    call = torch.compile(lambda x, w: convt3d.torch.conv_transpose3d_layernorm_gelu_scaling(x, w, 0.5) + 1)
    expected = convt3d.torch.conv_transpose3d_layernorm_gelu_scaling(x.cpu(), w.cpu(), 0.5) + 1
    torch.testing.assert_close(call(x, w).cpu(), expected, rtol=1e-4, atol=1e-4)


def test_a_second_stream_and_autotuning() -> None:
    x, w = (tensor.detach() for tensor in drawn((1, 16, 6, 6, 6), (16, 16, 3, 3, 3), dtype="float16"))
    expected = convt3d.torch.conv_transpose3d(x, w, stride=2)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()), convt3d.torch.autotune():
        got = convt3d.torch.conv_transpose3d(x, w, stride=2)
    torch.cuda.synchronize()
    torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-2)


def test_a_cuda_graph_records_the_kernels() -> None:
    """Nothing of a call waits for the device or copies from the host; autotuning keeps away."""
    x, w = (tensor.detach() for tensor in drawn((1, 16, 4, 4, 4), (16, 16, 3, 3, 3)))
    first = convt3d.torch.conv_transpose3d_layernorm_gelu_scaling(x, w, 0.5)  # compiles
    graph = torch.cuda.CUDAGraph()
    with convt3d.torch.autotune(), torch.cuda.graph(graph):
        recorded = convt3d.torch.conv_transpose3d_layernorm_gelu_scaling(x, w, 0.5)
    graph.replay()
    assert torch.equal(recorded, first)
    x.neg_()
    graph.replay()
    assert torch.equal(recorded, convt3d.torch.conv_transpose3d_layernorm_gelu_scaling(x, w, 0.5))
