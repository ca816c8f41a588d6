"""Recorded calls: which way they go, what they keep, and that a convolution's result that is kept serves once, twice,
in several threads, and for gradients of gradients."""

from __future__ import annotations

import copy
import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from helpers.eager import tensors  # noqa: E402
from torch import nn  # noqa: E402

import convt3d.torch as ct  # noqa: E402
from convt3d.spec.pipeline import Pipeline  # noqa: E402
from convt3d.spec.text import read_stages  # noqa: E402
from convt3d.torch import convolutions, stock  # noqa: E402

KEPT = "Conv3d(padding=1, bias=True) -> InstanceNorm(affine=True) -> GELU()"  # 108 multiply-adds a number


def given(dtype: Any = torch.float64) -> list[Any]:
    torch.manual_seed(3)
    return tensors((2, 4, 3, 5, 4), (6, 4, 3, 3, 3), (6,), (6,), (6,), dtype=dtype)


def eager(x: Any, *own: Any) -> Any:
    return stock.run(Pipeline(*read_stages(KEPT)), x, own)


def nodes(result: Any) -> set[str]:
    """Names of all nodes of its graph."""
    found, left = set(), [result.grad_fn]
    while left:
        node = left.pop()
        if node is not None:
            found.add(node.name())
            left += [each for each, _ in node.next_functions]
    return found


def test_the_kept_result_serves_twice_and_for_gradients_of_gradients() -> None:
    """Backward, backward again over the same graph, then with gradients of gradients, which reach the weight."""
    values = given()
    got, truth = ct.pipeline(values[0], values[1:], KEPT), eager(*values)
    assert "_BehindBackward" in nodes(got)
    upstream = torch.randn_like(truth)
    expected = torch.autograd.grad(truth, values, upstream, retain_graph=True)
    for _ in range(2):
        for mine, theirs in zip(torch.autograd.grad(got, values, upstream, retain_graph=True), expected, strict=True):
            torch.testing.assert_close(mine, theirs)
    twice = [
        torch.autograd.grad(
            sum(each.square().sum() for each in torch.autograd.grad(result, values, upstream, create_graph=True)),
            values,
        )
        for result in (got, truth)
    ]
    for mine, theirs in zip(*twice, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_graph_that_is_kept_serves_threads_at_once() -> None:
    torch.manual_seed(3)
    values = tensors((2, 8, 12, 12, 12), (16, 8, 3, 3, 3), (16,), (16,), (16,), dtype=torch.float64)
    got = ct.pipeline(values[0], values[1:], KEPT)
    assert "_BehindBackward" in nodes(got)
    expected = torch.autograd.grad(eager(*values).sum(), values)

    def back(_: int) -> Any:
        return torch.autograd.grad(got.sum(), values, retain_graph=True)

    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(back, range(12)):
            for mine, theirs in zip(found, expected, strict=True):
                torch.testing.assert_close(mine, theirs)


def test_what_hooks_have_seen_does_not_change() -> None:
    """Saved tensors that somebody holds, and gradients of a graph that is gone back through again; the kept result is
    written over where nobody does."""
    values, held = given(), []

    def pack(tensor: Any) -> Any:
        held.append((tensor, tensor.detach().clone()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        ct.pipeline(values[0], values[1:], KEPT).sum().backward()
    result = ct.pipeline(values[0], values[1:], KEPT)
    convolution, kept = result.grad_fn.next_functions[1][0], result.grad_fn.saved_tensors[1]
    convolution.register_prehook(lambda grads: held.append((grads[0], grads[0].clone())))
    result.sum().backward(retain_graph=True)
    result.sin().sum().backward()
    assert all(torch.equal(tensor, before) for tensor, before in held)
    assert held[-1][0].data_ptr() == kept.data_ptr()


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (3,), (4,), (0, 3)])
def test_gradients_of_some_beside_a_kept_result(wanted: Any) -> None:
    values = [each.detach().requires_grad_(at in wanted) for at, each in enumerate(given())]
    got, truth = ct.pipeline(values[0], values[1:], KEPT), eager(*values)
    asked = [values[at] for at in wanted]
    for mine, theirs in zip(*(torch.autograd.grad(each.sin().sum(), asked) for each in (got, truth)), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [("channel", ()), ("channel", (6,)), ("tensor", (4,)), ("tensor", (5, 1)), ("tensor", (1, 6, 1, 1, 1))],
)
def test_operands_of_any_shape_behind_a_kept_result(kind: str, shape: Any, again: bool) -> None:
    """Also by PyTorch's operations, where gradients of gradients are recorded."""
    x, w, _, _, slope = given()
    factor = torch.randn(shape, dtype=x.dtype, requires_grad=True)
    text = f"Conv3d(padding=1) -> Multiply('{kind}') -> PReLU() -> GELU()"
    values = x, w, factor, slope
    got = ct.pipeline(x, values[1:], text)
    truth = stock.run(Pipeline(*read_stages(text)), x, values[1:])
    assert "_BehindBackward" in nodes(got)
    for mine, theirs in zip(
        *(torch.autograd.grad(each.sin().sum(), values, create_graph=again) for each in (got, truth)), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_an_empty_batch_keeps_nothing() -> None:
    values = [each.detach()[:0].requires_grad_() if at == 0 else each for at, each in enumerate(given())]
    for grad, value in zip(
        torch.autograd.grad(ct.pipeline(values[0], values[1:], KEPT).sum(), values), values, strict=True
    ):
        assert torch.equal(grad, torch.zeros_like(value))


def held(function: Any, values: Any) -> int:
    """Bytes that the graph of function(*values) keeps beside its leaves."""
    found: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        if not tensor.is_leaf:
            found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function(*values)
    return sum(found.values()) + 0 * result.dim()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_graph_holds_no_more_than_eager(dtype: Any) -> None:
    """In 16 bits the convolution's result is computed again, and not rounded in between."""
    values = given(dtype)
    ours = held(lambda x, *own: ct.pipeline(x, list(own), KEPT), values)
    assert ours <= held(eager, values)
    assert (ours > 0) == (dtype == torch.float32)


def test_changes_in_place_are_noticed() -> None:
    for at in (0, 1, 3):  # input, the convolution's weight, the norm's
        values = given()
        result = ct.pipeline(values[0], values[1:], KEPT)
        with torch.no_grad():
            values[at].add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


@pytest.mark.parametrize(
    "text",
    [
        KEPT,
        "Conv3d(padding=1, bias=True) -> MaxPool3d(2) -> LayerNorm(over='width') -> Sum('channels')",
        "Conv3d(padding=1, bias=True) -> Max('width') -> Softmax(scale=2.0)",
    ],
)
def test_steps_leave_nothing_for_the_garbage_collector(text: str) -> None:
    """What a step has held is free when it is over: large values must not wait for a collection."""
    values = given()[: 5 if text is KEPT else 3]

    def step() -> None:
        torch.autograd.grad(ct.pipeline(values[0], values[1:], text).sum(), values)

    step()
    gc.collect()
    gc.disable()
    try:
        step()
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_one_slope_for_all_channels_between_convolutions() -> None:
    """Its gradient has the slope's shape (found by a campaign of drawn pipelines)."""
    torch.manual_seed(4)
    x, w, slope, second = tensors((2, 2, 3, 4, 5), (3, 2, 2, 2, 2), (1,), (3, 2, 2, 2, 2), dtype=torch.float64)
    text, values = "Conv3d() -> PReLU() -> ConvTranspose3d(stride=2)", (x, w, slope, second)
    results = ct.pipeline(x, values[1:], text), stock.run(Pipeline(*read_stages(text)), x, values[1:])
    for mine, theirs in zip(*(torch.autograd.grad(each.sin().sum(), values) for each in results), strict=True):
        torch.testing.assert_close(mine, theirs)


# --- where there is little to do --------------------------------------------------------------------------------------


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "SMALL", 1 << 23)


@pytest.mark.usefixtures("usual")
def test_small_steps_are_those_of_eager() -> None:
    """Function, module and swapped sequence, with its norm in training: the graph is PyTorch's, and so are the bits;
    without gradients the kernel is ours."""
    x, w = tensors((2, 4, 3, 4, 5), (6, 4, 3, 3, 3))
    assert nodes(ct.conv3d(x, w)) == nodes(nn.functional.conv3d(x, w))
    layers = nn.Sequential(nn.Conv3d(4, 6, 3), nn.BatchNorm3d(6), nn.ReLU(), nn.ConvTranspose3d(6, 3, 2, 2))
    swapped = copy.deepcopy(layers)
    ct.swap(swapped)
    results = swapped(x), layers(x)
    assert nodes(results[0]) == nodes(results[1])
    assert torch.equal(*results)
    for mine, theirs in zip(swapped.state_dict().values(), layers.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("most", [0, 1 << 23])
def test_wrong_shapes_are_refused_as_eager_refuses_them(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "SMALL", most)
    for shapes in (((1, 4, 3, 3, 3), (6, 4, 3, 3)), ((1, 4, 3, 3, 3), (6, 3, 3, 3, 3)), ((4, 3, 3), (6, 4, 3, 3, 3))):
        x, w = tensors(*shapes)
        with pytest.raises(RuntimeError) as error:
            nn.functional.conv3d(x, w)
        with pytest.raises(RuntimeError) as ours:
            ct.conv3d(x, w)
        assert str(ours.value) == str(error.value)


@pytest.mark.usefixtures("usual")
def test_deterministic_algorithms_are_ours() -> None:
    """The bits of PyTorch's kernels may depend on the number of threads."""
    x, w = tensors((1, 4, 3, 4, 5), (6, 4, 3, 3, 3))
    torch.use_deterministic_algorithms(True)
    try:
        assert "_RecordedBackward" in nodes(ct.conv3d(x, w))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("usual")
def test_what_is_small() -> None:
    """By multiply-adds: strides and groups count, and stages that follow."""
    conv, strided, grouped = nn.Conv3d(32, 32, 3), nn.Conv3d(32, 32, 3, stride=2), nn.Conv3d(32, 32, 3, groups=32)
    cases = [(each, each.weight.shape) for each in (conv, strided, grouped)]
    assert [convolutions.small(each, (1, 32, 8, 8, 8), weight) for each, weight in cases] == [False, True, True]
    assert [convolutions.small(each, (1, 32, 16, 16, 16), weight) for each, weight in cases] == [False, True, False]
    assert not convolutions.small(strided, (1, 32, 48, 48, 48), strided.weight.shape)
    shape, weight = (1, 32, 8, 8, 8), conv.weight.shape
    assert convolutions.small(conv, shape, weight, alone=False)
    assert not convolutions.small(conv, (1, 32, 16, 8, 8), weight, alone=False)


@pytest.mark.usefixtures("usual")
@pytest.mark.parametrize(
    ("layer", "size", "left"),
    [
        (nn.Conv3d(1, 16, 3), 32, True),
        (nn.Conv3d(4, 16, 3), 32, False),
        (nn.Conv3d(1, 8, 3), 48, False),
        (nn.Conv3d(64, 64, 1), 16, True),
        (nn.Conv3d(64, 8, 1), 32, False),
        (nn.ConvTranspose3d(64, 32, 2, 2), 8, True),
        (nn.ConvTranspose3d(64, 16, 2, 2), 16, False),
        (nn.ConvTranspose3d(64, 32, 2, 2), 16, False),
        (nn.ConvTranspose3d(256, 128, 4, 2), 10, True),
        (nn.ConvTranspose3d(256, 128, 2, 2), 8, False),
        (nn.ConvTranspose3d(768, 128, 2, 2), 6, True),
        (nn.Conv3d(256, 128, 2, 2), 16, True),
    ],
    ids=str,
)
def test_what_pytorch_does_well(layer: Any, size: int, left: bool) -> None:
    """Images, strides and single taps, with whole vectors of channels; few positions to a weight."""
    assert convolutions.small(layer, (1, layer.in_channels, size, size, size), layer.weight.shape) is left
