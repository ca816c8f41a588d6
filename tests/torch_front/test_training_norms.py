"""BatchNorm in training: values, running statistics and gradients of PyTorch's, by swapped models and by pipelines."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import convt3d  # noqa: E402
import convt3d.torch as ct  # noqa: E402
from convt3d.spec.text import read_stages  # noqa: E402
from convt3d.torch import stock, training  # noqa: E402
from convt3d.torch.tails import trained_way  # noqa: E402


@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
@pytest.mark.parametrize("tracked", [True, False])
def test_swapped_models(momentum: float | None, tracked: bool) -> None:
    """momentum=None is the average over all batches."""
    torch.manual_seed(0)
    stock = nn.Sequential(
        nn.ConvTranspose3d(2, 4, 3, 2, bias=False),
        nn.BatchNorm3d(4, momentum=momentum, track_running_stats=tracked),
        nn.ReLU(),
    ).double()
    ours = copy.deepcopy(stock)
    ct.swap(ours)
    for step in range(3):
        results = []
        for model in (stock, ours):
            model.train(step != 2)
            x = torch.randn(2, 2, 3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
            y = model(x.requires_grad_())
            results.append([y, *torch.autograd.grad(y.pow(3).sum(), [x, *model.parameters()])])
        torch.testing.assert_close(*results)
    assert list(stock.state_dict()) == list(ours.state_dict())
    torch.testing.assert_close(ours.state_dict(), stock.state_dict())
    if tracked:
        assert int(ours[1].num_batches_tracked) == 2


STAGES = (
    convt3d.ConvTranspose3d(stride=2, bias=True),
    convt3d.BatchNorm(eps=1e-3, affine=True),
    convt3d.Keep("y"),
    convt3d.Sigmoid(),
    convt3d.Multiply("y"),
)


@pytest.mark.parametrize("shape", [(2, 2, 3, 2, 4), (2, 3, 2, 4)], ids=str)
def test_pipelines(shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    values = [torch.randn(each, dtype=torch.float64) for each in (shape, (2, 4, 3, 3, 3), (4,), (4,), (4,))]
    x, w, bias, weight, shift = (value.requires_grad_() for value in values)
    statistics = [(torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)) for _ in range(2)]
    pipeline = convt3d.Pipeline(*STAGES)
    for _ in range(2):
        got = ct.pipeline(x, [w, bias, *statistics[0], weight, shift], pipeline, training=True, momentum=0.3)
        batch = functional.conv_transpose3d(x if x.dim() == 5 else x[None], w, bias, 2)
        value = functional.batch_norm(batch, *statistics[1], weight, shift, True, 0.3, 1e-3)
        expected = functional.silu(value if x.dim() == 5 else value[0])
        torch.testing.assert_close(got, expected)
        upstream = torch.randn_like(expected)
        given = [x, w, bias, weight, shift]
        torch.testing.assert_close(
            torch.autograd.grad(got, given, upstream), torch.autograd.grad(expected, given, upstream)
        )
        torch.testing.assert_close(*statistics)
    assert float(statistics[0][0].abs().max()) > 0
    evaluated = ct.pipeline(x, [w, bias, *statistics[0], weight, shift], pipeline)  # the running ones, left as they are
    with torch.no_grad():
        scaled = functional.batch_norm(batch, *statistics[1], weight, shift, False, 0.3, 1e-3)
        torch.testing.assert_close(evaluated.detach(), functional.silu(scaled if x.dim() == 5 else scaled[0]))
    torch.testing.assert_close(*statistics)


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.filterwarnings("ignore:Dynamo")  # it compiles the parts, and says where it parts them
def test_compiled() -> None:
    """The update of the statistics survives torch.compile."""
    x, w, text = torch.randn(2, 2, 3, 3, 3), torch.randn(2, 4, 2, 2, 2), "ConvTranspose3d() -> BatchNorm() -> Tanh()"
    found = []
    for wrap in (lambda f: f, lambda f: torch.compile(f, backend="aot_eager")):
        mean, var = torch.zeros(4), torch.ones(4)
        y = wrap(lambda x, m, v: ct.pipeline(x, [w, m, v], text, training=True))(x, mean, var)
        found.append((y, mean, var))
    torch.testing.assert_close(*found)
    assert float(mean.abs().max()) > 0


def test_one_value_for_each_channel_is_refused_as_in_pytorch() -> None:
    operands: list[Any] = [torch.randn(2, 4, 1, 1, 1), torch.zeros(4), torch.ones(4)]
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        ct.pipeline(torch.randn(1, 2, 1, 1, 1), operands, "ConvTranspose3d() -> BatchNorm()", training=True)


def test_the_average_over_all_batches() -> None:
    """momentum=None, as BatchNorm3d has it, with the number of batches."""
    norm, conv = nn.BatchNorm3d(4, momentum=None), torch.randn(2, 4, 2, 2, 2)
    mean, var, count = torch.zeros(4), torch.ones(4), torch.tensor(0)
    operands = [conv, mean, var, norm.weight, norm.bias]
    text = "ConvTranspose3d() -> BatchNorm(affine=True)"
    for step in range(3):
        x = torch.randn(2, 2, 3, 2, 2) + step
        got = ct.pipeline(x, operands, text, training=True, momentum=None, num_batches_tracked=count)
        torch.testing.assert_close(got, norm(functional.conv_transpose3d(x, conv)), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close((mean, var, count), (norm.running_mean, norm.running_var, norm.num_batches_tracked))
    ct.pipeline(x, operands, text, training=True, num_batches_tracked=count)
    assert int(count) == 4
    for wrong, message in (
        ({"momentum": None}, "momentum = None: asks for the average .* Pass num_batches_tracked="),
        ({"momentum": "much"}, "momentum = 'much': must be a real number"),
        ({"num_batches_tracked": 3}, "num_batches_tracked = int: must be a tensor"),
    ):
        with pytest.raises(convt3d.Error, match=message):
            ct.pipeline(x, operands, text, training=True, **wrong)
    assert int(count) == 4


class Watched(torch.Tensor):  # type: ignore[misc]
    seen: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append((func, kwargs))
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("place", ["input", "operand"])
def test_subclasses_see_the_call(place: str) -> None:
    x, w, mean, var = torch.randn(2, 2, 3, 2, 4), torch.randn(2, 4, 2, 2, 2), torch.zeros(4), torch.ones(4)
    expected = ct.pipeline(x, [w, mean.clone(), var.clone()], "ConvTranspose3d() -> BatchNorm()", training=True)
    x, w = (x.as_subclass(Watched), w) if place == "input" else (x, w.as_subclass(Watched))
    Watched.seen.clear()
    got = ct.pipeline(x, [w, mean, var], "ConvTranspose3d() -> BatchNorm()", training=True, momentum=0.5)
    assert Watched.seen[0][0] is ct.pipeline
    assert Watched.seen[0][1]["training"] is True
    assert Watched.seen[0][1]["momentum"] == 0.5
    assert isinstance(got, Watched)
    torch.testing.assert_close(got.as_subclass(torch.Tensor), expected)


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("tail", ["", " -> ReLU()", " -> SiLU()"])
@pytest.mark.parametrize("changed", ["mean", "var"])
def test_statistics_that_changed_before_backward_are_an_error(affine: bool, tail: str, changed: str) -> None:
    """As PyTorch's batch_norm says it in eval: its backward would use the new ones."""
    x, w = torch.randn(2, 2, 3, 2, 4, requires_grad=True), torch.randn(2, 4, 2, 2, 2, requires_grad=True)
    statistics = {"mean": torch.zeros(4), "var": torch.ones(4)}
    more = [torch.ones(4, requires_grad=True), torch.zeros(4, requires_grad=True)] if affine else []
    text = f"ConvTranspose3d() -> BatchNorm(affine={affine}){tail}"
    y = ct.pipeline(x, [w, *statistics.values(), *more], text)
    statistics[changed].add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


TAILS = (
    "BatchNorm(affine=True) -> ReLU()",
    "BatchNorm(eps=0.01) -> GELU() -> Multiply('channel')",
    "LeakyReLU() -> BatchNorm(affine=True) -> SiLU() -> BatchNorm() -> PReLU()",
    "BatchNorm(affine=True) -> Keep('y') -> MaxPool3d(3, 1, 1) -> Tanh() -> Subtract('y') -> AvgPool3d(2)",
)


def _eager(pipeline: convt3d.Pipeline, x: Any, operands: list[Any]) -> Any:
    """As PyTorch's functions compute it, running statistics included."""

    def batch_norm(stage: Any, v: Any, mean: Any, var: Any, *affine: Any) -> Any:
        weight, bias = affine or (None, None)
        return functional.batch_norm(v, mean, var, weight, bias, True, 0.3, stage.eps)

    return stock.run(pipeline, x, operands, {convt3d.BatchNorm: batch_norm})


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("layout", ["contiguous_format", "channels_last_3d"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_kernels_of_ours(tail: str, layout: str, dtype: str) -> None:
    """Values, running statistics and all gradients; in float32 as near to float64's as PyTorch's own are."""
    torch.manual_seed(2)
    pipeline = convt3d.Pipeline(*read_stages(f"ConvTranspose3d(stride=2) -> {tail}"))
    assert trained_way(pipeline, (True,) * (1 + len(pipeline.slots))) is not None
    shapes = [(2, 3, 4, 5, 6), (3, 6, 3, 3, 3), *((6,) for _ in pipeline.slots[1:])]
    fixed = [False, *(slot.operand.role.startswith("running_") for slot in pipeline.slots)]
    made = [torch.rand(shape, dtype=torch.float64) + 0.25 for shape in shapes]
    made[0] = torch.randn(shapes[0], dtype=torch.float64)
    made[1] -= 0.75
    found = []
    for kind, function in (
        (dtype, lambda x, own: ct.pipeline(x, own, pipeline, training=True, momentum=0.3)),
        ("float64", lambda x, own: _eager(pipeline, x, own)),
    ):
        given = [each.to(getattr(torch, kind), copy=True) for each in made]
        given[0] = given[0].contiguous(memory_format=getattr(torch, layout))
        leaves = [each.requires_grad_() for each, stays in zip(given, fixed, strict=True) if not stays]
        for _ in range(2):
            y = function(given[0], given[1:])
        if kind == dtype:
            assert y.stride() == _eager(pipeline, given[0], [each.clone() for each in given[1:]]).stride()
        grads = torch.autograd.grad(y.square().sum(), leaves)
        found.append([y.detach(), *grads, *(each for each, stays in zip(given, fixed, strict=True) if stays)])
    for mine, theirs in zip(*found, strict=True):
        scale = max(1.0, float(theirs.abs().max()))
        torch.testing.assert_close(
            mine.double(), theirs, rtol=0.0, atol=(1e-11 if dtype == "float64" else 2e-5) * scale
        )


@pytest.mark.parametrize("tail", TAILS)
def test_gradients_of_gradients(tail: str) -> None:
    torch.manual_seed(3)
    pipeline = convt3d.Pipeline(*read_stages(f"Conv3d(padding=1) -> {tail}"))
    own = [torch.rand(4, dtype=torch.float64) + 0.5 for _ in pipeline.slots[1:]]
    x, w = torch.randn(2, 2, 2, 3, 2, dtype=torch.float64), torch.randn(4, 2, 3, 3, 3, dtype=torch.float64)

    def trained(x: Any, w: Any) -> Any:
        return ct.pipeline(x, [w, *(each.clone() for each in own)], pipeline, training=True)

    given = (x.requires_grad_(), w.requires_grad_())
    assert torch.autograd.gradcheck(trained, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(trained, given, fast_mode=True)


def test_gradients_with_a_graph_are_those_without() -> None:
    """A gradient penalty takes the gradient of a gradient: the first one must not change by that."""
    torch.manual_seed(3)
    eager = nn.Sequential(nn.Conv3d(3, 8, 3, padding=1), nn.BatchNorm3d(8), nn.SiLU()).double()
    ours = copy.deepcopy(eager)
    ct.swap(ours)
    x = torch.randn(2, 3, 6, 5, 4, dtype=torch.float64, requires_grad=True)
    found = []
    for model in (ours, eager):
        given = (x, model[0].weight, model[1].weight)
        first = torch.autograd.grad((model(x) ** 3).sum(), given, create_graph=True)
        found.append([*first, *torch.autograd.grad(sum(each.square().sum() for each in first), given)])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("between", [nn.MaxPool3d(4), nn.AvgPool3d(2)])
def test_values_behind_a_pool_are_counted(between: Any) -> None:
    torch.manual_seed(4)
    eager = nn.Sequential(nn.Conv3d(3, 8, 3, padding=1), between, nn.BatchNorm3d(8))
    ours = copy.deepcopy(eager)
    ct.swap(ours)
    x = torch.randn(2, 3, 4, 4, 4)
    torch.testing.assert_close(ours(x), eager(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours[2].running_var, eager[2].running_var)
    if between.kernel_size == 4:
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            ours(x[:1])


def test_one_value_for_each_channel_is_refused() -> None:
    x, w = torch.randn(1, 2, 1, 1, 1), torch.randn(4, 2, 1, 1, 1)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        ct.pipeline(x, [w, torch.zeros(4), torch.ones(4)], "Conv3d() -> BatchNorm()", training=True)


@pytest.mark.parametrize("kind", ["momentum", "average", "untracked", "plain", "eval untracked", "two", "frozen first"])
@pytest.mark.parametrize("recorded", [True, False])
def test_swapped_norms_take_the_batch(kind: str, recorded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Result, gradients, running statistics and their count, over three steps, beside PyTorch's own modules."""
    named = {
        "momentum": {"momentum": 0.3},
        "average": {"momentum": None},
        "plain": {"affine": False},
        "frozen first": {},
        "two": {},
    }.get(kind, {"track_running_stats": False, "affine": kind == "untracked"})
    torch.manual_seed(5)
    more = [nn.BatchNorm3d(4)] if kind in ("two", "frozen first") else []
    conv, norm = nn.Conv3d(3, 4, 3, padding=1), nn.BatchNorm3d(4, eps=0.01, **named)
    eager = nn.Sequential(conv, norm, *more, nn.LeakyReLU(0.2), nn.MaxPool3d(2)).double()
    if kind == "eval untracked":
        eager.eval()
    elif kind == "frozen first":
        norm.eval()
    ours = copy.deepcopy(eager)
    report = ct.swap(ours)
    assert "fused with BatchNorm3d" in report.swapped["0"]
    calls: list[str] = []
    honest = training.train
    monkeypatch.setattr(training, "train", lambda *rest: calls.append("") or honest(*rest))
    for step in range(3):
        x = torch.randn(2, 3, 5, 4, 6).double() + step
        found = []
        for model in (ours, eager):
            with torch.set_grad_enabled(recorded):
                y = model(x)
            if recorded:
                model.zero_grad()
                y.square().sum().backward()
            found.append([y.detach(), *(each.grad for each in model.parameters()), *model.buffers()])
        torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)
    assert len(calls) == (0 if kind == "frozen first" else 3)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_moves_running_statistics_as_eager_does(reentrant: bool) -> None:
    """Twice: it runs the norm again, and ends as soon as the last tensor is saved."""
    torch.manual_seed(0)
    stock = nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU())
    ours = copy.deepcopy(stock)
    ct.swap(ours)
    x = torch.randn(2, 2, 5, 6, 7)
    found = []
    for model in (stock, ours):
        given = x.clone().requires_grad_()
        result = checkpoint(model, given, use_reentrant=reentrant)
        result.pow(2).sum().backward()
        found.append([result.detach(), given.grad, *(each.grad for each in model.parameters()), *model.buffers()])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    assert int(ours[1].num_batches_tracked) == 2
