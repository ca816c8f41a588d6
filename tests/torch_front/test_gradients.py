"""Gradients: of every stage against autograd on stock operations, of the operators by gradcheck, and what they keep."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from helpers.draws import drawn, make  # noqa: E402
from helpers.eager import CASES, tensors  # noqa: E402
from spec.stage_rows import ROWS  # noqa: E402

import convt3d.torch as ct  # noqa: E402
from convt3d import num_threads  # noqa: E402
from convt3d.errors import Error  # noqa: E402
from convt3d.spec.pipeline import Pipeline  # noqa: E402
from convt3d.spec.stages import Convolution, Log  # noqa: E402
from convt3d.spec.text import read_stages, write_pipeline  # noqa: E402
from convt3d.torch import gradients, stock  # noqa: E402


def leaves(case: Any) -> list[Any]:
    arrays = [case.x, *case.operands]
    statistics = [False, *(slot.operand.role.startswith("running_") for slot in case.pipeline.slots)]
    return [
        torch.from_numpy(np.ascontiguousarray(array)).requires_grad_(not fixed)
        for array, fixed in zip(arrays, statistics, strict=True)
    ]


@pytest.mark.parametrize("seed", range(60))
def test_drawn_pipelines(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Value and all gradients in float64, sample by sample, in chunks, and for a random part of the inputs."""
    rng = np.random.default_rng(seed)
    case = drawn(rng, "float64")
    x, *operands = leaves(case)
    text = write_pipeline(case.pipeline)
    result, expected = ct.pipeline(x, operands, text), stock.run(case.pipeline, x, operands)
    scale = max(1.0, float(expected.detach().abs().max()))
    torch.testing.assert_close(result, expected, rtol=0.0, atol=1e-9 * scale)
    upstream = torch.from_numpy(rng.standard_normal(tuple(result.shape)))
    wanted = [t for t in (x, *operands) if t.requires_grad]
    wanted = [t for t in wanted if rng.integers(4)] or wanted[:1]
    truth = torch.autograd.grad(expected, wanted, upstream, allow_unused=True)
    monkeypatch.setattr(gradients, "CHUNK_BYTES", int(rng.choice([1, 1 << 30])))
    got = torch.autograd.grad(result, wanted, upstream, allow_unused=True)
    for mine, theirs in zip(got, truth, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            scale = max(1.0, float(theirs.abs().max()))
            torch.testing.assert_close(mine, theirs, rtol=0.0, atol=1e-7 * scale)


@pytest.mark.parametrize("case", CASES)
def test_gradcheck(case: str) -> None:
    ours, _, shapes, rest = CASES[case]
    torch.manual_seed(6)
    values = tensors(*shapes, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *given: ours(*given, **rest), values, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda *given: ours(*given, **rest), values, fast_mode=True)


SMOOTH = [row for row in ROWS if not (row.stage.uses or isinstance(row.stage, Convolution))]


@pytest.mark.parametrize("conv", ["Conv3d(padding=1, bias=True)", "ConvTranspose3d(stride=2, padding=1, bias=True)"])
@pytest.mark.parametrize("row", SMOOTH, ids=lambda row: row.id)
def test_gradcheck_of_every_stage(row: Any, conv: str) -> None:
    """Behind both convolutions, against finite differences."""
    kernel = (6, 2, 3, 3, 3) if conv.startswith("Conv3d") else (2, 6, 3, 3, 3)
    pipeline = Pipeline(*read_stages(conv), row.stage)
    try:
        case = make(pipeline, (1, 2, 3, 3, 4), kernel, "float64", 3)
        assert case.output[0]
    except Error:
        pytest.skip("does not fit the sizes of this test")
    if isinstance(row.stage, Log):
        case = replace(case, x=np.abs(case.x), operands=tuple(map(np.abs, case.operands)))
    text = write_pipeline(pipeline)
    given = leaves(case)
    if not ct.pipeline(given[0], given[1:], text).isfinite().all():
        pytest.skip("has no finite differences")
    assert torch.autograd.gradcheck(lambda x, *own: ct.pipeline(x, list(own), text), given, fast_mode=True)


@pytest.mark.parametrize("seed", [*range(16), *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(16, 100))])
def test_gradcheck_of_drawn_pipelines(seed: int) -> None:
    """Against finite differences, of pipelines that have them: no stage near a pole makes large numbers."""
    rng = np.random.default_rng(1000 + seed)
    while True:
        case = drawn(rng, "float64")
        text, given = write_pipeline(case.pipeline), leaves(case)
        result = stock.run(case.pipeline, given[0], given[1:])
        if result.numel() and result.isfinite().all():
            slopes = torch.autograd.grad(result.square().sum(), [each for each in given if each.requires_grad])
            if all(each.abs().max() < 1e3 for each in (result, *slopes)):
                break
    assert torch.autograd.gradcheck(lambda x, *own: ct.pipeline(x, list(own), text), given, fast_mode=True)


def test_the_same_bits_for_any_number_of_threads() -> None:
    """Of all gradients of a convolution."""
    torch.manual_seed(10)
    for text, shapes in (
        ("Conv3d(stride=2, padding=1, bias=True) -> GELU()", ((2, 16, 19, 20, 21), (24, 16, 3, 3, 3))),
        ("ConvTranspose3d(stride=2, padding=1, bias=True) -> SiLU()", ((2, 16, 5, 6, 7), (16, 24, 4, 3, 3))),
    ):
        x, w, bias = tensors(*shapes, (24,))
        upstream = torch.randn_like(ct.pipeline(x, [w, bias], text))
        found = []
        for threads in (1, 2, 5):
            with num_threads(threads):
                grads = torch.autograd.grad(ct.pipeline(x, [w, bias], text), (x, w, bias), upstream)
                found.append(torch.cat([each.flatten() for each in grads]))
        assert all(torch.equal(found[0], each) for each in found[1:])


@pytest.mark.parametrize("case", CASES)
def test_float32_as_eager(case: str) -> None:
    ours, eager, shapes, rest = CASES[case]
    torch.manual_seed(7)
    values = tensors(*shapes)
    mine, theirs = ours(*values, **rest), eager(*values, **rest)
    upstream = torch.randn_like(theirs)
    got, truth = torch.autograd.grad(mine, values, upstream), torch.autograd.grad(theirs, values, upstream)
    for a, b in zip(got, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=0.0, atol=1e-4 * max(1.0, float(b.abs().max())))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bit(dtype: Any) -> None:
    """Also where PyTorch itself has no such kernel (average pools)."""
    for case in ("conv, nothing equal", "sum-layernorm-avgpool-gelu", "avgpool-clamp-softmax-multiply"):
        ours, eager, shapes, rest = CASES[case]
        torch.manual_seed(8)
        values = tensors(*shapes, dtype=dtype)
        wide = [value.detach().float().requires_grad_() for value in values]
        mine, theirs = ours(*values, **rest), eager(*wide, **rest)
        upstream = torch.randn_like(theirs)
        got = torch.autograd.grad(mine, values, upstream.to(dtype))
        truth = torch.autograd.grad(theirs, wide, upstream)
        for a, b in zip(got, truth, strict=True):
            assert a.dtype == dtype
            torch.testing.assert_close(a.float(), b, rtol=0.0, atol=0.06 * max(1.0, float(b.abs().max())))


def test_ties_and_nan_take_the_stock_way() -> None:
    """Equal largest values in a pool's window, NaN through relu, clamp and max-pool: gradients go where eager's go."""
    torch.manual_seed(9)
    x = torch.randint(-1, 2, (2, 2, 4, 4, 4)).double()
    x[0, 0, 1, 1, 1] = torch.nan
    w = torch.randint(-1, 2, (2, 3, 2, 2, 2)).double()
    for tail in (
        "MaxPool3d(2) -> ReLU()",
        "Clamp(-1.0, 1.0)",
        "Max('channels')",
        "HardTanh(0.0, 6.0) -> MaxPool3d(3, 1)",
    ):
        text = f"ConvTranspose3d(stride=2) -> {tail}"
        values = [x.clone().requires_grad_(), w.clone().requires_grad_()]
        got = torch.autograd.grad(ct.pipeline(values[0], values[1:], text).nansum(), values)
        truth = torch.autograd.grad(stock.run(Pipeline(*read_stages(text)), values[0], values[1:]).nansum(), values)
        for a, b in zip(got, truth, strict=True):
            torch.testing.assert_close(a, b, equal_nan=True)


def test_result_is_kept_only_if_needed_and_guarded() -> None:
    """Writing into a result that the gradient needs is refused, as for PyTorch's own relu; else it is allowed."""
    x, w = tensors((1, 2, 3, 3, 3), (2, 2, 2, 2, 2))
    kept = ct.pipeline(x, [w], "ConvTranspose3d(stride=2) -> ReLU()")
    kept.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.sum().backward()
    free = ct.pipeline(x, [w], "ConvTranspose3d(stride=2) -> SiLU()")
    free.add_(1.0).sum().backward()


def peak(step: Any) -> int:
    """Most bytes of tensor memory alive at once during step(), by the allocator's own account."""
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    assert len(changes) > 4
    return int(np.cumsum(changes).max())


def norm_relu(x: Any, w: Any, weight: Any, bias: Any) -> Any:
    mean, var = torch.zeros(8), torch.ones(8)
    value = torch.nn.functional.conv_transpose3d(x, w, None, 2, 1)
    return torch.relu(torch.nn.functional.batch_norm(value, mean, var, weight, bias))


def fused_norm_relu(x: Any, w: Any, weight: Any, bias: Any) -> Any:
    text = "ConvTranspose3d(stride=2, padding=1) -> BatchNorm(affine=True) -> ReLU()"
    return ct.pipeline(x, [w, torch.zeros(8), torch.ones(8), weight, bias], text)


STEPS = {
    "conv": (ct.conv_transpose3d, torch.nn.functional.conv_transpose3d, ((8,),), {"stride": 2, "padding": 1}),
    "conv, norm, relu": (fused_norm_relu, norm_relu, ((8,), (8,)), {}),
    **{
        row[0].__name__: (row[0], row[1], ((8,),) if "softmax" in row[0].__name__ else (), {})
        for name, row in CASES.items()
        if not name.startswith("conv")
    },
}


@pytest.mark.parametrize(("name", "batch"), [*((name, 4) for name in STEPS), ("conv", 1), ("conv, norm, relu", 1)])
def test_training_takes_no_more_memory_than_eager(name: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, eager, more, rest = STEPS[name]
    monkeypatch.setattr(gradients, "CHUNK_BYTES", 1 << 20)
    values = tensors((batch, 4, 8, 16, 16), (4, 8, 3, 3, 3), *more)

    def step(function: Any) -> Any:
        def run() -> None:
            function(*values, **rest).square().mean().backward()

        return run

    for function in (ours, eager):
        step(function)()  # gradients of leaves exist from here on, for both
    assert peak(step(ours)) <= peak(step(eager)) + 4096  # a few numbers for each channel


@pytest.mark.parametrize("affine", [False, True])
def test_empty_batch_through_batch_norm(affine: bool) -> None:
    x, w, weight, bias = tensors((0, 2, 3, 3, 3), (2, 4, 2, 2, 2), (4,), (4,))
    values = [x, w, *([weight, bias] if affine else [])]
    operands = [w, torch.zeros(4), torch.ones(4), *values[2:]]
    y = ct.pipeline(x, operands, f"ConvTranspose3d() -> BatchNorm(affine={affine}) -> ReLU()")
    for value, grad in zip(values, torch.autograd.grad(y.sum(), values), strict=True):
        assert torch.equal(grad, torch.zeros_like(value))


def test_chunks_leave_the_gradient_handed_in_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a tensor that is added to all samples is a sum of slices of the gradient handed in."""
    monkeypatch.setattr(gradients, "CHUNK_BYTES", 1)
    x, w, o = tensors((3, 2, 3, 3, 3), (2, 4, 1, 1, 1), (1, 4, 3, 3, 3))
    upstream = torch.randn(3, 4, 3, 3, 3)
    before = upstream.clone()
    y = ct.pipeline(x, [w, o], "ConvTranspose3d() -> GELU() -> Add('tensor')")
    (of_o,) = torch.autograd.grad(y, o, upstream, retain_graph=True)
    torch.autograd.grad(y, (x, w, o), upstream)
    assert torch.equal(upstream, before)
    torch.testing.assert_close(of_o, before.sum(0, keepdim=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_many_chunks_of_16_bit_are_rounded_once(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(10)
    x, w = tensors((64, 4, 4, 4, 4), (4, 4, 3, 3, 3), dtype=dtype)
    upstream = torch.rand(64, 4, 6, 6, 6).to(dtype)
    y = ct.pipeline(x, [w], "ConvTranspose3d() -> GELU()")
    monkeypatch.setattr(gradients, "CHUNK_BYTES", 1)
    (got,) = torch.autograd.grad(y, w, upstream)
    wide = [each.detach().double().requires_grad_() for each in (x, w)]
    truth = torch.nn.functional.gelu(torch.nn.functional.conv_transpose3d(*wide))
    (truth,) = torch.autograd.grad(truth, wide[1], upstream.double())
    assert got.dtype == dtype
    error = (got.double() - truth).abs().max() / truth.abs().max()
    assert error < torch.finfo(dtype).eps


def test_operands_that_no_gradient_reads_may_change() -> None:
    """As in eager: a bias is not kept for conv -> ReLU, nor a norm's, nor what is added."""
    shapes = (2, 2, 3, 3, 3), (2, 4, 2, 2, 2), (4,), (4,), (4,), (1, 4, 4, 4, 4)
    x, w, bias, weight, shift, other = values = tensors(*shapes)

    def run(stages: str) -> Any:
        operands = [w, bias, torch.zeros(4), torch.ones(4), weight, shift, other]
        return ct.pipeline(x, operands if "Norm" in stages else [w, bias], f"ConvTranspose3d(bias=True) -> {stages}")

    norm = "BatchNorm(affine=True) -> Add('tensor')"
    for stages, free in (("ReLU()", [bias]), (norm, [shift, other])):
        result = run(stages)
        expected = torch.autograd.grad(result.sum(), values, allow_unused=True, retain_graph=True)
        with torch.no_grad():
            for each in free:
                each.add_(1.0)
        for got, right in zip(torch.autograd.grad(result.sum(), values, allow_unused=True), expected, strict=True):
            assert (got is right is None) or torch.equal(got, right), stages
    result = run(norm)
    with torch.no_grad():
        weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@pytest.mark.parametrize("tail", ["Add('channel')", "Divide('tensor', reverse=True)", "PReLU()", "Multiply('channel')"])
def test_one_number_for_all_channels_gets_all_their_gradients(tail: str) -> None:
    torch.manual_seed(5)
    x, w = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 2, 2, 3, 2), (2, 3, 2, 2, 2)))
    number = torch.tensor(0.75, dtype=torch.float64, requires_grad=True)
    text = f"ConvTranspose3d() -> Sigmoid() -> Add(1.0) -> {tail}"
    assert torch.autograd.gradcheck(lambda *given: ct.pipeline(given[0], list(given[1:]), text), (x, w, number))


@pytest.mark.parametrize("shape", [(3, 1, 1, 1), (1, 3, 1, 1, 1)])
def test_a_tensor_without_its_batch_is_not_cut_into_chunks(shape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many channels as samples: the first axis of the operand is not the batch."""
    monkeypatch.setattr("convt3d.torch.gradients.CHUNK_BYTES", 1)
    torch.manual_seed(6)
    x, w, o = (torch.randn(s, requires_grad=True) for s in ((3, 2, 2, 3, 2), (2, 3, 2, 2, 2), shape))
    got = torch.autograd.grad(
        ct.pipeline(x, [w, o], "ConvTranspose3d() -> Multiply('tensor') -> GELU()").sum(), [x, w, o]
    )
    value = torch.nn.functional.gelu(torch.nn.functional.conv_transpose3d(x, w) * o.reshape(1, 3, 1, 1, 1))
    for mine, eager in zip(got, torch.autograd.grad(value.sum(), [x, w, o]), strict=True):
        assert mine.shape == eager.shape
        torch.testing.assert_close(mine, eager)
