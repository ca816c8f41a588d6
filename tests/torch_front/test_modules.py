"""Modules: PyTorch's constructor, repr and state_dict; copies, pickles, forked workers; threads as torch has them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from helpers import eager  # noqa: E402
from torch import nn  # noqa: E402

import convt3d.torch as ct  # noqa: E402
from convt3d.cpu.plan.cores import get_num_threads  # noqa: E402

CONV = ((4, 6, (3, 2, 3)), {"stride": (2, 1, 2), "padding": 1, "output_padding": (1, 0, 0), "groups": 2})
FUSED = {
    ct.ConvTranspose3dMaxMaxSum: (eager.max_max_sum, {}, {}),
    ct.ConvTranspose3dSumLayerNormAvgPoolGELU: (
        eager.sum_layernorm_avgpool_gelu,
        {"sum_weight": 0.5, "elementwise_affine": True},
        {"sum_weight": 0.5},
    ),
    ct.ConvTranspose3dAvgPoolClampSoftmaxMultiply: (
        eager.avgpool_clamp_softmax_multiply,
        {"clamp_min": -0.3, "clamp_max": 0.4},
        {"clamp_min": -0.3, "clamp_max": 0.4},
    ),
    ct.ConvTranspose3dLayerNormGELUScaling: (
        eager.layernorm_gelu_scaling,
        {"scaling_factor": 2.0, "approximate": "tanh"},
        {"scaling_factor": 2.0, "approximate": "tanh"},
    ),
}


def pair() -> tuple[Any, Any]:
    stock, ours = nn.ConvTranspose3d(*CONV[0], **CONV[1]), ct.ConvTranspose3d(*CONV[0], **CONV[1])
    ours.load_state_dict(stock.state_dict())
    return stock, ours


def test_state_dict_and_repr() -> None:
    stock, ours = pair()
    assert repr(ours) == repr(stock)
    assert isinstance(ours, nn.ConvTranspose3d)
    assert [(k, v.shape) for k, v in ours.state_dict().items()] == [(k, v.shape) for k, v in stock.state_dict().items()]
    stock.load_state_dict(ours.state_dict())
    torch.manual_seed(0)
    a = nn.ConvTranspose3d(3, 2, 3, bias=False, dtype=torch.float64)
    torch.manual_seed(0)
    b = ct.ConvTranspose3d(3, 2, 3, bias=False, dtype=torch.float64)
    assert torch.equal(a.weight, b.weight)
    assert b.bias is None


@pytest.mark.parametrize("shape", [(2, 4, 3, 4, 2), (4, 3, 4, 2), (0, 4, 3, 4, 2)], ids=str)
@pytest.mark.parametrize("output_size", [None, True, "batch"])
def test_forward(shape: tuple[int, ...], output_size: Any) -> None:
    stock, ours = pair()
    x = torch.randn(shape)
    default = stock(x).shape
    size = None
    if output_size:
        size = [default[-3] - 1, default[-2], default[-1] + 1] if output_size is True else [*default]
        if output_size == "batch" and len(shape) == 4:
            size = [*default[-3:]]
    expected, got = stock(x, size), ours(x, size)
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="requested an output size"):
        ours(x, [90, 90, 90])


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("padding_mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [0, (1, 2, 0), "same", "valid"], ids=str)
def test_convolution(padding: Any, padding_mode: str) -> None:
    """Parameters, repr, values, strides and gradients are those of nn.Conv3d."""
    torch.manual_seed(0)
    sizes = {"padding": padding, "padding_mode": padding_mode, "dilation": (1, 1, 2), "groups": 2}
    stock, ours = nn.Conv3d(4, 6, (3, 2, 3), **sizes), ct.Conv3d(4, 6, (3, 2, 3), **sizes)
    ours.load_state_dict(stock.state_dict())
    assert repr(ours) == repr(stock)
    for shape in ((2, 4, 4, 5, 6), (4, 4, 5, 6)):
        x, found = torch.randn(shape), []
        for module in (stock, ours):
            with torch.no_grad():
                alone = module(x)
            own = x.clone().requires_grad_()
            y = module(own)
            assert y.stride() == alone.stride()
            torch.testing.assert_close(y, alone, rtol=1e-5, atol=1e-5)
            found.append((y, *torch.autograd.grad(y.square().sum(), [own, *module.parameters()])))
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4, check_stride=True)


@pytest.mark.parametrize("kind", FUSED, ids=lambda kind: kind.__name__)
def test_fused(kind: Any) -> None:
    function, constructor, arguments = FUSED[kind]
    torch.manual_seed(1)
    module = kind(3, 4, 3, stride=2, padding=1, output_padding=1, **constructor)
    stock = nn.ConvTranspose3d(3, 4, 3, stride=2, padding=1, output_padding=1)
    missing, unexpected = module.load_state_dict(stock.state_dict(), strict=False)
    assert unexpected == []
    assert set(missing) <= {"scale", "norm_weight", "norm_bias"}
    stock.load_state_dict({name: module.state_dict()[name] for name in ("weight", "bias")})
    tensors = {name: getattr(module, name) for name in missing}
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.copy_(torch.randn_like(tensor))
    x = torch.randn(2, 3, 5, 6, 6, requires_grad=True)
    expected = function(
        x, module.weight, stride=2, padding=1, output_padding=1, bias=module.bias, **tensors, **arguments
    )
    torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-5)
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(copied(x), module(x))
        assert repr(copied) == repr(module)
    module(x).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_copies() -> None:
    _, ours = pair()
    x = torch.randn(1, 4, 3, 4, 2)
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert type(copied) is ct.ConvTranspose3d
        assert torch.equal(copied(x), ours(x))
        assert copied.weight is not ours.weight


class Upsampled(torch.utils.data.Dataset):  # type: ignore[misc]
    """Computes in the worker."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        with torch.no_grad():
            return self.module(torch.full((4, 3, 4, 2), float(index)))


def test_forked_workers() -> None:
    """After the parent has computed, so that kernels, threads and locks exist when it forks."""
    _, ours = pair()
    with torch.no_grad():
        expected = torch.stack([ours(torch.full((4, 3, 4, 2), float(index))) for index in range(4)])
    loader = torch.utils.data.DataLoader(
        Upsampled(ours), batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=600
    )
    assert torch.equal(torch.cat(list(loader)), expected)


def test_threads_are_torch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONVT3D_NUM_THREADS", raising=False)
    _, ours = pair()
    x, before = torch.randn(2, 4, 8, 9, 7), torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert get_num_threads() == count
            results.append(ours(x))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
