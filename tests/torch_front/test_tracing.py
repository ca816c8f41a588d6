"""torch.compile, torch.export, vmap, inference mode and modes: PyTorch sees the operators where it looks for them."""

from __future__ import annotations

import copy
import shutil
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from helpers.eager import CASES, tensors  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import convt3d.torch as ct  # noqa: E402
from convt3d.torch import direct  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def model() -> Any:
    torch.manual_seed(0)
    built = nn.Sequential(
        nn.ConvTranspose3d(3, 4, 3, 2, 1, 1),
        nn.BatchNorm3d(4),
        nn.LeakyReLU(0.2),
        nn.Conv3d(4, 2, 1),
        nn.ConvTranspose3d(2, 2, 2, 2),
        nn.Softplus(1.5),
    )
    built(torch.randn(2, 3, 4, 4, 4))
    return built.eval()


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic: bool) -> None:
    """One graph without breaks, forward and backward, for shapes that change when they may."""
    stock, swapped = model(), model()
    ct.swap(swapped)
    compiled = torch.compile(swapped, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for shape in ((2, 3, 4, 5, 6), (3, 3, 6, 5, 4))[: 2 if dynamic else 1]:
        x = torch.randn(shape, requires_grad=True)
        expected, got = stock(x), compiled(x)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        truth = torch.autograd.grad(expected.square().sum(), [x, *stock.parameters()])
        mine = torch.autograd.grad(got.square().sum(), [x, *swapped.parameters()])
        for a, b in zip(mine, truth, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("case", ["conv, nothing equal", "avgpool-clamp-softmax-multiply", "layernorm-gelu-scaling"])
def test_compile_functions(case: str) -> None:
    ours, eager, shapes, rest = CASES[case]
    values = tensors(*shapes)
    compiled = torch.compile(lambda *given: ours(*given, **rest), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*values), eager(*values, **rest), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own use of torch.jit
@pytest.mark.parametrize("ci", [False, True], ids=["", "CI"])
def test_inductor(ci: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where CI is set, inductor refuses operators with a decomposition that it was told nothing about."""
    torch._dynamo.reset()
    if ci:
        monkeypatch.setenv("CI", "true")
    else:
        monkeypatch.delenv("CI", raising=False)
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("inductor needs a C++ compiler")
    swapped = model()
    ct.swap(swapped)
    compiled = torch.compile(swapped, fullgraph=True)
    x = torch.randn(2, 3, 4, 4, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model()(x), rtol=1e-4, atol=1e-5)


def test_export() -> None:
    swapped = model()
    ct.swap(swapped)
    x = torch.randn(2, 3, 4, 5, 6)
    shapes = ({0: torch.export.Dim("batch"), 2: torch.export.Dim("depth"), 4: torch.export.Dim("width")},)
    exported = torch.export.export(swapped, (x,), dynamic_shapes=shapes)
    used = [str(node.target) for node in exported.graph.nodes if "convt3d" in str(node.target)]
    assert used == [f"convt3d.{name}.default" for name in ("pipeline", "conv3d", "pipeline")]
    other = torch.randn(3, 3, 7, 5, 2)
    torch.testing.assert_close(exported.module()(other), model()(other), rtol=1e-4, atol=1e-5)
    plain = nn.Sequential(ct.ConvTranspose3d(3, 2, 2, 2))
    graph = torch.export.export(plain, (x,)).graph
    assert any(str(node.target) == "convt3d.conv_transpose3d.default" for node in graph.nodes)


def test_vmap() -> None:
    x, w, bias = tensors((3, 2, 4, 3, 3, 3), (4, 2, 2, 2, 2), (2,), grad=False)

    def ours(x: Any, w: Any = w) -> Any:
        return ct.conv_transpose3d(x, w, bias, 2)

    expected = functional.conv_transpose3d(x.flatten(0, 1), w, bias, 2).unflatten(0, (3, 2))
    torch.testing.assert_close(torch.func.vmap(ours)(x), expected)
    torch.testing.assert_close(torch.func.vmap(ours)(x[0]), expected[0])  # unbatched samples
    torch.testing.assert_close(torch.func.vmap(ours, in_dims=1, out_dims=1)(x), expected)
    torch.testing.assert_close(torch.func.vmap(torch.func.vmap(ours))(x), expected)
    weights = torch.stack([w, 2 * w, -w])
    each = torch.func.vmap(ours)(x, weights)
    torch.testing.assert_close(each[1], functional.conv_transpose3d(x[1], 2 * w, bias, 2))
    text = "ConvTranspose3d(stride=2, bias=True) -> ReLU()"
    fused = torch.func.vmap(lambda x, w: ct.pipeline(x, [w, bias], text))(x, weights)
    torch.testing.assert_close(fused, each.relu())


@pytest.mark.parametrize("batch", [(2,), (1,), ()], ids=str)
def test_vmap_of_a_tensor_added(batch: tuple[int, ...]) -> None:
    """It may have the batch of each sample, one for all, or none, as each sample then has none."""
    x, w, o = tensors((5, *(batch and (2,)), 3, 4, 4, 4), (3, 4, 2, 2, 2), (*batch, 4, 5, 5, 5), grad=False)

    def ours(x: Any) -> Any:
        return ct.pipeline(x, [w, o], "ConvTranspose3d() -> Add('tensor')")

    torch.testing.assert_close(torch.func.vmap(ours)(x), torch.stack([ours(each) for each in x]))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_other_transforms() -> None:
    x, w = tensors((2, 2, 3, 3, 3), (2, 2, 2, 2, 2), grad=False)

    def loss(function: Any) -> Any:
        return lambda w: function(x, w, None, 2).square().sum()

    ours, stock = loss(ct.conv_transpose3d), loss(functional.conv_transpose3d)
    torch.testing.assert_close(torch.func.grad(ours)(w), torch.func.grad(stock)(w))
    torch.testing.assert_close(torch.func.jvp(ours, (w,), (w,))[1], torch.func.jvp(stock, (w,), (w,))[1])
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(w, w)
        tangent = torch.autograd.forward_ad.unpack_dual(ours(dual)).tangent
    torch.testing.assert_close(tangent, torch.func.jvp(stock, (w,), (w,))[1])


def test_inference_mode() -> None:
    _, w = tensors((1,), (2, 2, 2, 2, 2))
    with torch.inference_mode():
        x = torch.randn(1, 2, 3, 3, 3)
        y = ct.conv_transpose3d(x, w, stride=2)
        assert y.is_inference()
        assert not y.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(ct.conv_transpose3d(x, w, stride=2), y.clone())
    with pytest.raises(RuntimeError, match=r"[Ii]nference"):
        ct.conv_transpose3d(x, w, stride=2)  # as for PyTorch's own: it cannot be saved for a gradient


def test_requires_grad_mixes() -> None:
    values = tensors((1, 2, 3, 3, 3), (2, 2, 2, 2, 2), (2,), grad=False)
    upstream = torch.randn(1, 2, 6, 6, 6)
    for mask in range(1, 8):
        for at, value in enumerate(values):
            value.requires_grad_(bool(mask >> at & 1)).grad = None
        y, truth = ct.conv_transpose3d(*values, 2), functional.conv_transpose3d(*values, 2)
        wanted = [value for value in values if value.requires_grad]
        expected = torch.autograd.grad(truth, wanted, upstream)
        for got, right in zip(torch.autograd.grad(y, wanted, upstream), expected, strict=True):
            torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class SeenFunctions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(f"{func.__module__}.{func.__name__}")
        return func(*args, **(kwargs or {}))


class Tagged(torch.Tensor):  # type: ignore[misc]
    """A subclass sees every operation and stays itself."""


def test_small_calls_skip_the_dispatcher_only_where_nobody_looks() -> None:
    x, w = tensors((1, 2, 3, 3, 3), (2, 2, 2, 2, 2), grad=False)
    assert direct.direct((x, w, None, 2))
    assert direct.direct((x, [w, nn.Parameter(w, requires_grad=False)], "text"))
    assert not direct.direct((x, w.clone().requires_grad_()))
    with torch.no_grad():
        assert direct.direct((x, w.clone().requires_grad_()))
    with torch.inference_mode():
        assert direct.direct((x, torch.randn(2)))
    for other in (
        torch._neg_view(x),
        x.to("meta"),
        x.to_sparse(),
        x.as_subclass(Tagged),
        torch._to_functional_tensor(x),
    ):
        assert not direct.direct((other, w))
        assert not direct.direct((x, [other]))
    with torch.autocast("cpu"):
        assert not direct.direct((x, w))
    with Seen() as seen:
        ct.conv_transpose3d(x, w)
    assert "convt3d.conv_transpose3d.default" in seen.names
    with SeenFunctions() as functions:
        ct.conv_transpose3d(x, w)
    assert "convt3d.torch.functions.conv_transpose3d" in functions.names
    with torch.profiler.profile() as profile:
        ct.conv_transpose3d(x, w)
    assert "convt3d::conv_transpose3d" in {event.key for event in profile.key_averages()}
    assert isinstance(ct.conv_transpose3d(x.as_subclass(Tagged), w), Tagged)
    assert torch.equal(ct.conv_transpose3d(torch._neg_view(x), w), ct.conv_transpose3d(-x, w))
    torch.func.vmap(lambda v: (v, not direct.direct((v, w)) or pytest.fail("looked past vmap"))[0])(x)


def test_compiled_backward_takes_our_weight_gradients() -> None:
    """The graph of backward holds our operator for them, and none of PyTorch's convolutions."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    graphs: list[str] = []

    def noted(graph: Any, given: Any) -> Any:
        graphs.append(graph.code)
        return make_boxed_func(graph)

    torch.manual_seed(0)
    eager = nn.Sequential(nn.Conv3d(4, 6, 3, padding=1, groups=2), nn.SiLU(), nn.ConvTranspose3d(6, 3, 2, 2)).double()
    ours = copy.deepcopy(eager)
    ct.swap(ours)
    backend = aot_autograd(fw_compiler=lambda graph, given: make_boxed_func(graph), bw_compiler=noted)
    x = torch.randn(2, 4, 3, 4, 5, dtype=torch.float64)
    torch.compile(ours, backend=backend, fullgraph=True)(x).square().sum().backward()
    eager(x).square().sum().backward()
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert "convolution_gradients" in graphs[0]
    assert "convolution_backward" not in graphs[0]


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_weight_gradients_as_an_operator(wanted: Any) -> None:
    grad, x, w = (torch.randn(shape) for shape in ((2, 6, 5, 3, 4), (2, 4, 5, 3, 4), (6, 2, 3, 1, 3)))
    given = grad, x, w, (1, 1, 1), (1, 0, 1), (1, 1, 1), 2, False, wanted
    torch.library.opcheck(torch.ops.convt3d.convolution_gradients.default, given)
