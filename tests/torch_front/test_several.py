"""Pipelines of several convolutions on tensors: gradients, layouts, autocast, tracing, FLOP, beside PyTorch's chain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from helpers.draws import make, several  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.autograd import gradcheck  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import convt3d as ct  # noqa: E402
import convt3d.torch as ctt  # noqa: E402
from convt3d.spec.text import read_stages  # noqa: E402
from convt3d.torch import stock  # noqa: E402

X, K3 = (2, 4, 5, 6, 7), (4, 4, 3, 3, 3)
BLOCK = "Conv3d(padding=1, bias=True) -> ReLU() -> Conv3d(padding=1, bias=True) -> Add('x') -> ReLU()"
NET = (
    "Conv3d(padding=1, bias=True) -> GroupNorm(2) -> SiLU() -> Keep('y') -> Conv3d(stride=2, padding=1) -> Tanh() -> "
    "ConvTranspose3d(stride=2, padding=1, output_padding=(0, 1, 0)) -> Multiply('y') -> Keep('z') -> "
    "Mean('spatial') -> Sigmoid() -> Multiply('z')"
)


def drawn(text: str, kernels: Any, dtype: str = "float64", seed: int = 0) -> tuple[Any, list[Any]]:
    case = make(ct.Pipeline(*read_stages(text)), X, kernels[0], dtype, seed, kernels[1:])
    x, *operands = (torch.from_numpy(array) for array in (case.x, *case.operands))
    return x, operands


def by_hand(x: Any, w: Any, b: Any, w2: Any, b2: Any) -> Any:
    y = functional.conv3d(functional.relu(functional.conv3d(x, w, b, padding=1)), w2, b2, padding=1)
    return functional.relu(y + x)


def test_a_block_is_the_chain_of_pytorch() -> None:
    x, operands = drawn(BLOCK, [K3, K3])
    tensors = [tensor.clone().requires_grad_() for tensor in (x, *operands)]
    ours, theirs = ctt.pipeline(tensors[0], tensors[1:], BLOCK), by_hand(*tensors)
    torch.testing.assert_close(ours, theirs)
    grad = torch.randn(ours.shape, dtype=ours.dtype, generator=torch.Generator().manual_seed(1))
    for one, other in zip(
        torch.autograd.grad(ours, tensors, grad), torch.autograd.grad(theirs, tensors, grad), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_gradients() -> None:
    x, operands = drawn(NET, [K3] * 3)
    tensors = [tensor.clone().requires_grad_() for tensor in (x, *operands)]
    assert gradcheck(lambda x, *rest: ctt.pipeline(x, list(rest), NET), tensors, fast_mode=True)
    wanted = tensors[3:4]  # of the second weight alone
    (found,) = torch.autograd.grad(ctt.pipeline(tensors[0], tensors[1:], NET).sum(), wanted)
    (expected,) = torch.autograd.grad(stock.run(ct.Pipeline(*read_stages(NET)), tensors[0], tensors[1:]).sum(), wanted)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("seed", range(4))
def test_drawn_gradients_are_those_of_pytorch(seed: int) -> None:
    case = several(np.random.default_rng(100 + seed), "float64")
    tensors = [torch.from_numpy(np.array(array)) for array in (case.x, *case.operands)]
    roles = ["", *(slot.operand.role for slot in case.pipeline.slots)]
    learnt = [each.requires_grad_() for each, role in zip(tensors, roles, strict=True) if "running" not in role]
    ours = ctt.pipeline(tensors[0], tensors[1:], case.pipeline)
    theirs = stock.run(case.pipeline, tensors[0], tensors[1:])
    torch.testing.assert_close(ours, theirs)
    grad = torch.randn(ours.shape, dtype=ours.dtype, generator=torch.Generator().manual_seed(seed))
    found, expected = (torch.autograd.grad(y, learnt, grad, allow_unused=True) for y in (ours, theirs))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("layout", ["contiguous_format", "channels_last_3d"])
def test_strides_are_eagers_and_those_that_tracing_expects(layout: str) -> None:
    x, operands = drawn(BLOCK, [K3, K3], "float32")
    x = x.contiguous(memory_format=getattr(torch, layout))
    ours = ctt.pipeline(x, operands, BLOCK)
    assert ours.stride() == by_hand(x, *operands).stride()
    with FakeTensorMode() as mode:
        fake = ctt.pipeline(mode.from_tensor(x), list(map(mode.from_tensor, operands)), BLOCK)
    assert (fake.shape, fake.stride()) == (ours.shape, ours.stride())


def test_compiled_and_mapped_and_cast() -> None:
    x, operands = drawn(BLOCK, [K3, K3], "float32")
    expected = ctt.pipeline(x, operands, BLOCK)
    compiled = torch.compile(lambda x, rest: ctt.pipeline(x, rest, BLOCK), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, operands), expected)
    mapped = torch.vmap(lambda one: ctt.pipeline(one, operands, BLOCK))(x)
    torch.testing.assert_close(mapped, expected)
    with torch.autocast("cpu", torch.bfloat16):
        low = ctt.pipeline(x, operands, BLOCK)
        eager = by_hand(x, *operands)
    assert low.dtype is torch.bfloat16
    torch.testing.assert_close(low.float(), expected, rtol=0.05, atol=0.05)
    assert eager.shape == low.shape


def test_flop_of_all_convolutions() -> None:
    text = "Conv3d(stride=2, padding=1) -> ReLU() -> ConvTranspose3d(stride=2)"
    x, operands = drawn(text, [K3, K3], "float32")
    with FlopCounterMode(display=False) as ours:
        ctt.pipeline(x, operands, text)
    with FlopCounterMode(display=False) as theirs:
        stock.run(ct.Pipeline(*read_stages(text)), x, operands)
    assert ours.get_total_flops() == theirs.get_total_flops() > 0


def test_batch_norm_in_training() -> None:
    text = "Conv3d(padding=1) -> BatchNorm() -> ReLU() -> Conv3d(padding=1) -> BatchNorm()"
    x, operands = drawn(text, [K3, K3])
    running = [tensor.clone() for tensor in operands]
    found = ctt.pipeline(x, operands, text, training=True)
    y = functional.conv3d(x, running[0], padding=1)
    y = functional.relu(functional.batch_norm(y, running[1], running[2], training=True))
    y = functional.batch_norm(functional.conv3d(y, running[3], padding=1), running[4], running[5], training=True)
    torch.testing.assert_close(found, y)
    torch.testing.assert_close(operands, running)


@pytest.mark.parametrize("wide", [False, True])
def test_gradients_where_the_convolution_is_not_computed(wide: bool) -> None:
    """Arithmetic without one: the weight gets none."""
    text = "ConvTranspose3d(groups=4) -> Recall('x') -> Multiply('tensor') -> InstanceNorm() -> Tanh() -> MaxPool3d(2)"
    x = torch.randn(X, dtype=torch.float64, requires_grad=True)
    other = torch.randn(X if wide else (2, 1, 5, 6, 7), dtype=torch.float64, requires_grad=True)
    weight = torch.full((4, 1, 1, 1, 1), torch.nan, dtype=torch.float64, requires_grad=True)
    expected = functional.max_pool3d(functional.instance_norm(x * other).tanh(), 2)
    got = ctt.pipeline(x, [weight, other], text)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    grad = torch.randn_like(got)
    wanted = torch.autograd.grad(expected, (x, other), grad)
    *found, of_weight = torch.autograd.grad(got, (x, other, weight), grad, allow_unused=True)
    torch.testing.assert_close(found, list(wanted), rtol=0, atol=1e-11)
    assert of_weight is None
