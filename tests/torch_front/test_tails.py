"""Gradients behind the convolution by our kernels: when they are taken, and that they are eager's."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from helpers.eager import CASES, tensors  # noqa: E402

import convt3d.torch as ct  # noqa: E402
from convt3d.cpu.runtime import tails as runtime_tails  # noqa: E402
from convt3d.spec.pipeline import Pipeline  # noqa: E402
from convt3d.spec.stages import BatchNorm  # noqa: E402
from convt3d.spec.text import read_stages  # noqa: E402
from convt3d.torch import convolutions, stock, tails  # noqa: E402

inf, nan = float("inf"), float("nan")


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that took a gradient back."""
    found: list[str] = []

    def spy(honest: Any) -> Any:
        def spied(plan: Any, *rest: Any) -> Any:
            found.extend(planned.structure.name for planned in plan.sweeps)
            return honest(plan, *rest)

        return spied

    for name in ("run_tail",):
        monkeypatch.setattr(tails, name, spy(getattr(tails, name)))
    return found


@pytest.mark.parametrize("case", [name for name in CASES if not name.startswith("conv")])
def test_the_fused_operators_go_back_by_kernels(case: str, sweeps: list[str]) -> None:
    ours, eager, shapes, rest = CASES[case]
    torch.manual_seed(0)
    values = tensors(*shapes, dtype=torch.float64)
    mine, theirs = ours(*values, **rest), eager(*values, **rest)
    upstream = torch.randn_like(theirs)
    got, truth = torch.autograd.grad(mine, values, upstream), torch.autograd.grad(theirs, values, upstream)
    assert sweeps
    for a, b in zip(got, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=0.0, atol=1e-10 * max(1.0, float(b.abs().max())))


@pytest.mark.parametrize(
    ("norms", "training"),
    [
        (["BatchNorm(affine=True)"], True),
        (["InstanceNorm(affine=True)"], False),
        (["GroupNorm(3, affine=True)"], False),
        (["InstanceNorm()", "GroupNorm(2, affine=True)"], False),
        (["InstanceNorm(affine=True)", "BatchNorm(affine=True)"], True),
    ],
    ids=str,
)
def test_what_forward_sums_of_a_norm_serves_backward(
    norms: list[str], training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moments of each norm are summed once in a step, and belong to that norm."""
    summed: list[Any] = []
    honest = runtime_tails._TailRun._run_sweep

    def spied(run: Any, binding: Any) -> Any:
        summed.append(run.plan.norms.get(getattr(binding.planned.sweep.finish, "result", None)))
        return honest(run, binding)

    monkeypatch.setattr(runtime_tails._TailRun, "_run_sweep", spied)
    text = " -> ".join(["Conv3d(padding=1, bias=True)", *(f"{norm} -> GELU()" for norm in norms)])
    pipeline = Pipeline(*read_stages(text))
    torch.manual_seed(4)
    x, w = (2, 4, 3, 5, 4), (6, 4, 3, 3, 3)
    values = tensors(x, *pipeline.operand_shapes(x, w), dtype=torch.float64)
    fixed = [False, *(slot.operand.role.startswith("running_") for slot in pipeline.slots)]
    values = [each.detach() if still else each for each, still in zip(values, fixed, strict=True)]
    wanted = [each for each in values if each.requires_grad]
    mine = ct.pipeline(values[0], [each.clone() for each in values[1:]], text, training=training)

    def by_batch(stage: Any, v: Any, mean: Any, var: Any, *affine: Any) -> Any:
        return torch.nn.functional.batch_norm(v, None, None, *affine, training=True, eps=stage.eps)

    others = {BatchNorm: by_batch} if training else {}
    theirs = stock.run(pipeline, values[0], values[1:], others)
    torch.testing.assert_close(mine, theirs)
    upstream = torch.randn_like(theirs)
    got, truth = torch.autograd.grad(mine, wanted, upstream), torch.autograd.grad(theirs, wanted, upstream)
    for a, b in zip(got, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=0.0, atol=1e-10 * max(1.0, float(b.abs().max())))
    assert sorted(place for place in summed if place is not None) == [1 + 2 * at for at in range(len(norms))]


def grads(pipeline: Pipeline, given: list[Any], wanted: list[bool], upstream: Any, ours: bool) -> list[Any]:
    leaves = [each.detach().requires_grad_(want) for each, want in zip(given, wanted, strict=True)]
    function = ct.pipeline if ours else lambda x, own, stages: stock.run(stages, x, own)
    result = function(leaves[0], leaves[1:], pipeline)
    return list(torch.autograd.grad(result, [each for each in leaves if each.requires_grad], upstream))


@pytest.mark.parametrize("layout", ["contiguous", "channels last", "unbatched", "expanded gradient"])
@pytest.mark.parametrize(
    "tail",
    [
        "InstanceNorm(affine=True) -> LeakyReLU(0.2)",
        "GroupNorm(2) -> SiLU() -> MaxPool3d(2) -> Sigmoid()",
        "LayerNorm(affine=True) -> AvgPool3d(2) -> GELU() -> Mean('spatial')",
        "MaxPool3d(3, 2, 1) -> Multiply('channel') -> Sum()",
        "ReLU()",
    ],
)
def test_layouts_and_parts_of_the_gradients(tail: str, layout: str, sweeps: list[str]) -> None:
    torch.manual_seed(1)
    pipeline = Pipeline(*read_stages(f"Conv3d(padding=1, bias=True) -> {tail}"))
    x, weight = torch.randn(2, 3, 7, 6, 5, dtype=torch.float64), torch.randn(6, 3, 3, 3, 3, dtype=torch.float64)
    vectors = [torch.rand(6, dtype=torch.float64) + 0.5 for _ in pipeline.slots[1:]]
    if layout == "channels last":
        x = x.contiguous(memory_format=torch.channels_last_3d)
    x = x[0] if layout == "unbatched" and "Norm" not in tail else x
    given = [x, weight, *vectors]
    upstream = torch.randn_like(stock.run(pipeline, x, given[1:]))
    if layout == "expanded gradient":
        upstream = torch.ones(1, dtype=torch.float64).expand(upstream.shape)
    every = [True] * len(given)
    for wanted in (every, [True, *every[:-1], False], [False, *every[1:]], [True, *[False] * (len(given) - 1)]):
        wanted = wanted[: len(given)]
        truth = grads(pipeline, given, wanted, upstream, False)
        for mine, theirs in zip(grads(pipeline, given, wanted, upstream, True), truth, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0.0, atol=1e-10 * max(1.0, float(theirs.abs().max())))
    assert sweeps


@pytest.mark.parametrize(
    "text",
    [
        "Conv3d() -> GELU() -> Max()",
        "Conv3d() -> Max() -> InstanceNorm()",
        "Conv3d() -> Sum() -> GroupNorm(1) -> Tanh()",
        "Conv3d() -> Max() -> Softmax('spatial')",
        "Conv3d() -> LogSumExp('spatial') -> Tanh()",
        "Conv3d() -> SiLU() -> LogSumExp('width') -> Max('depth')",
        "Conv3d() -> Keep('y') -> Sigmoid() -> Multiply('y')",
        "Conv3d() -> GELU() -> Multiply('tensor') -> Tanh() -> Add('tensor') -> SiLU()",
        "Conv3d() -> Multiply(2.0)",
        "Conv3d(padding=1) -> InstanceNorm(affine=True) -> ReLU() -> Add('x') -> ReLU()",
        "Conv3d(padding=1) -> Sigmoid() -> Multiply('x') -> Add(9.0) -> Divide(3.0, reverse=True) -> Mean()",
        "Conv3d() -> Keep('y') -> Mean('spatial') -> Sigmoid() -> Multiply('y') -> GELU()",
        "Conv3d() -> Keep('y') -> AvgPool3d(3, 1, 1) -> Subtract('y', reverse=True) -> Softmax()",
        "Conv3d() -> LayerNorm('width') -> GELU() -> MaxPool3d(2, 1) -> LayerNorm('width')",
        "Conv3d() -> Softmax('spatial', scale='channel') -> Log()",
        "GELU() -> AvgPool3d(2, 1) -> Conv3d(padding=1) -> SiLU() -> AvgPool3d(2, 1)",
        "MaxPool3d(2, 1) -> Keep('y') -> Sigmoid() -> Multiply('y') -> Conv3d(padding=1, padding_mode='circular')",
        "Tanh() -> Keep('y') -> Conv3d(padding=1) -> GELU() -> Add('y')",
        "Sum('height') -> Conv3d(padding=1) -> GELU()",
    ],
)
def test_every_stage_goes_back(text: str, sweeps: list[str]) -> None:
    """Also what a stage between two segments leaves to PyTorch, and stages before the convolution; every subset of the
    gradients."""
    torch.manual_seed(2)
    pipeline = Pipeline(*read_stages(text))
    size = 3 if "padding" in text else 1
    x, weight = torch.randn(2, 3, 4, 5, 6, dtype=torch.float64), torch.randn(3, 3, size, size, size).double()
    kinds = {"tensor": (2, 3, 4, 5, 6), "channel": (3,)}
    given = [x, weight, *(torch.rand(kinds[slot.operand.kind]).double() + 0.5 for slot in pipeline.slots[1:])]
    upstream = torch.randn_like(stock.run(pipeline, x, given[1:]))
    every = [True] * len(given)
    for wanted in (every, *([at == one for at in range(len(given))] for one in range(len(given)))):
        found = [grads(pipeline, given, wanted, upstream, ours) for ours in (True, False)]
        torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)
    assert sweeps


def test_a_profiler_sees_pytorchs_operations(sweeps: list[str]) -> None:
    x, weight = tensors((1, 2, 3, 4, 5), (2, 3, 2, 2, 2))
    y = ct.pipeline(x, [weight], "ConvTranspose3d() -> GELU()").sum()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        y.backward()
    assert not sweeps
    assert "aten::gelu_backward" in {event.key for event in profile.key_averages()}


CORNERS = (-inf, -4.0, -3.0, -1.0, -0.0, 0.0, 0.5, 1.0, 3.0, 6.0, 20.0, 21.0, inf, nan, 1e-30, -1e30)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(
    "stage",
    [
        *("ReLU()", "LeakyReLU(0.1)", "PReLU()", "Clamp(0.0, 1.0)", "Clamp(0.5)", "Clamp(None, 3.0)", "HardTanh()"),
        *("HardSwish()", "Sigmoid()", "Tanh()", "SiLU()", "Mish()", "Softplus()", "Softplus(2.0, 6.0)", "GELU()"),
        *("GELU('tanh')", "Exp()", "Log()", "Divide(2.0, reverse=True)"),
    ],
)
def test_corners_nan_and_infinities_as_eager(stage: str, dtype: Any, sweeps: list[str]) -> None:
    """Each number fills whole vectors: PyTorch's own code for the rest of an array differs in some of them."""
    pipeline = Pipeline(*read_stages(f"Conv3d() -> {stage}"))
    x = torch.tensor(CORNERS, dtype=dtype).repeat_interleave(64).reshape(len(CORNERS), 1, 4, 4, 4)
    own = [torch.tensor([0.3], dtype=dtype) for _ in pipeline.slots[1:]]
    given = [x, torch.ones(1, 1, 1, 1, 1, dtype=dtype), *own]
    wanted = [True] + [False] * (len(given) - 1)
    upstream = torch.full(x.shape, 2.0, dtype=dtype)
    (mine,), (theirs,) = (grads(pipeline, given, wanted, upstream, ours) for ours in (True, False))
    assert sweeps
    close = 1e-12 if dtype is torch.float64 else 4e-6
    torch.testing.assert_close(mine, theirs, rtol=close, atol=close, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bit_is_rounded_once(dtype: Any, sweeps: list[str]) -> None:
    """Nearer to float64 than PyTorch's operations are, which round after each stage."""
    torch.manual_seed(3)
    pipeline = Pipeline(*read_stages("Conv3d() -> LayerNorm(affine=True) -> GELU() -> Multiply(0.3)"))
    x, weight = torch.randn(2, 4, 6, 7, 8).to(dtype), torch.eye(4).reshape(4, 4, 1, 1, 1).to(dtype)
    given = [x, weight, (torch.rand(4) + 0.5).to(dtype), torch.randn(4).to(dtype)]
    upstream = torch.randn(2, 4, 6, 7, 8).to(dtype)
    wanted = [True, False, True, True]
    got, eager = (grads(pipeline, given, wanted, upstream, ours) for ours in (True, False))
    truth = grads(pipeline, [each.double() for each in given], wanted, upstream.double(), False)
    assert sweeps
    for mine, theirs, exact in zip(got, eager, truth, strict=True):
        error, other = (float((each.double() - exact).abs().max()) for each in (mine, theirs))
        assert error <= max(other, torch.finfo(dtype).eps * float(exact.abs().max()))


@pytest.mark.parametrize("text", ["Conv3d(padding=1) -> GELU()", "GELU() -> Conv3d(padding=1) -> InstanceNorm()"])
def test_little_work_is_left_to_pytorch(text: str, sweeps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """By the number of multiply-adds of the convolution."""
    torch.manual_seed(4)
    pipeline = Pipeline(*read_stages(text))
    given = [torch.randn(1, 2, 3, 4, 5, dtype=torch.float64), torch.randn(3, 2, 3, 3, 3, dtype=torch.float64)]
    upstream = torch.randn(1, 3, 3, 4, 5, dtype=torch.float64)
    for limit, ours in ((30 * 162, True), (30 * 162 + 1, False)):  # twice as many where stages follow
        monkeypatch.setattr(convolutions, "SMALL", limit)
        sweeps.clear()
        found = [grads(pipeline, given, [True, True], upstream, which) for which in (True, False)]
        assert bool(sweeps) == ours
        torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)
