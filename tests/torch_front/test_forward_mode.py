"""Forward mode and torch.func: dual numbers, jvp, jacfwd, linearize and hessian give eager PyTorch's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from helpers.eager import CASES, OVERLOADS, positional, tensors  # noqa: E402
from torch import nn  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.func import grad, hessian, jacfwd, jacrev, jvp, linearize, vmap  # noqa: E402

import convt3d.torch as ct  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch.func's own use of torch.jit
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node"),  # linearize's own
]


def both(case: str) -> tuple[Any, Any, tuple[Any, ...], tuple[Any, ...]]:
    ours, eager, shapes, rest = CASES[case]
    torch.manual_seed(0)
    values, tangents = (tuple(tensors(*shapes, dtype=torch.float64, grad=False)) for _ in range(2))
    return lambda *v: ours(*v, **rest), lambda *v: eager(*v, **rest), values, tangents


def close(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-8)


def dual(function: Callable[..., Any], values: Any, tangents: Any) -> tuple[Any, Any]:
    with forward_ad.dual_level():
        pair = forward_ad.unpack_dual(function(*map(forward_ad.make_dual, values, tangents)))
        return pair.primal, pair.tangent


@pytest.mark.parametrize("case", CASES)
def test_tangents(case: str) -> None:
    """Of all tensors at once and of each alone; by functions and by the operators themselves."""
    ours, eager, values, tangents = both(case)
    close(jvp(ours, values, tangents), jvp(eager, values, tangents))
    close(dual(ours, values, tangents), dual(eager, values, tangents))
    close(dual(lambda *v: OVERLOADS[case](*positional(case, list(v))), values, tangents), dual(eager, values, tangents))
    with torch.no_grad():  # forward mode is no business of grad mode
        close(dual(ours, values, tangents), dual(eager, values, tangents))
    for place in range(len(values)):

        def at(function: Any, place: int = place) -> Any:
            return lambda v: function(*values[:place], v, *values[place + 1 :])

        one = (values[place],), (tangents[place],)
        close(jvp(at(ours), *one), jvp(at(eager), *one))


@pytest.mark.parametrize("case", CASES)
def test_transforms(case: str) -> None:
    ours, eager, (x, w, *rest), (dx, dw, *_) = both(case)

    def of(function: Any) -> Any:
        return lambda w: function(x, w, *rest).square().sum()

    truth = grad(of(eager))(w)
    close(grad(of(ours))(w), truth)
    second = jvp(grad(of(eager)), (w,), (dw,))[1]
    close(jvp(grad(of(ours)), (w,), (dw,))[1], second)  # forward over reverse
    close(grad(lambda w: (grad(of(ours))(w) * dw).sum())(w), second)  # reverse over reverse
    many = torch.stack([x, 2 * x, -x]), torch.stack([dx, dx, dx])
    close(vmap(lambda x, w: grad(lambda w: ours(x, w, *rest).sum())(w), (0, None))(many[0], w)[0].shape, w.shape)
    batched = [vmap(lambda x, f=function: f(x, w, *rest)) for function in (ours, eager)]
    close(jvp(batched[0], (many[0],), (many[1],)), jvp(batched[1], (many[0],), (many[1],)))


@pytest.mark.parametrize("case", ["conv, nothing equal", "conv, unbatched, kernel below stride", "max-max-sum"])
def test_jacobians(case: str) -> None:
    ours, eager, values, tangents = both(case)
    close(jacfwd(ours, 1)(*values), jacfwd(eager, 1)(*values))
    close(jacrev(ours, 0)(*values), jacrev(eager, 0)(*values))
    close(torch.autograd.functional.jacobian(ours, values, vectorize=True), jacrev(eager, (0, 1, 2))(*values))
    close(linearize(ours, *values)[1](*tangents), jvp(eager, values, tangents)[1])


@pytest.mark.parametrize("case", ["avgpool-clamp-softmax-multiply", "layernorm-gelu-scaling, stride 3"])
def test_hessian(case: str) -> None:
    ours, eager, (x, w, *rest), _ = both(case)
    few = w[:, :, :1, :1, :1]

    def of(function: Any) -> Any:
        return lambda few: function(x, few * torch.ones_like(w), *rest).square().sum()

    close(hessian(of(ours))(few), hessian(of(eager))(few))
    close(torch.autograd.functional.hessian(of(ours), few, vectorize=True), hessian(of(eager))(few))


def test_gradients_of_tangents() -> None:
    """A tangent is recorded as any result is."""
    ours, eager, values, tangents = both("conv, nothing equal")
    found = []
    for function in (ours, eager):
        leaves = [value.clone().requires_grad_() for value in values]
        with forward_ad.dual_level():
            pair = forward_ad.unpack_dual(function(*map(forward_ad.make_dual, leaves, tangents)).square())
            found.append(torch.autograd.grad((pair.tangent * pair.primal).sum(), leaves))
    close(*found)


@pytest.mark.parametrize("case", ["conv, nothing equal", "max-max-sum", "layernorm-gelu-scaling"])
def test_tangents_of_gradients(case: str) -> None:
    """Dual numbers go through backward: forward over reverse without torch.func."""
    ours, eager, values, tangents = both(case)
    found = []
    for function in (ours, eager):
        leaves = [value.clone().requires_grad_() for value in values]
        with forward_ad.dual_level():
            duals = list(map(forward_ad.make_dual, leaves, tangents))
            got = torch.autograd.grad(function(*duals).square().sum(), duals, create_graph=True)
            found.append([forward_ad.unpack_dual(each).tangent for each in got])
    assert all(each is not None for each in found[0])
    close(*found)


@pytest.mark.parametrize(
    "norm", ["LayerNorm('channels', affine=True)", "LayerNorm('width')", "GroupNorm(2, affine=True)", "InstanceNorm()"]
)
def test_second_derivatives_of_norms(norm: str) -> None:
    """Forward over forward, which eager PyTorch has wrong, is what reverse over reverse is."""
    x, w, dw, a, b = tensors((1, 2, 2, 3, 2), *[(2, 4, 2, 2, 2)] * 2, (4,), (4,), dtype=torch.float64, grad=False)
    text = f"ConvTranspose3d() -> {norm} -> Tanh()"

    def loss(w: Any) -> Any:
        return ct.pipeline(x, [w, a, b] if "affine" in norm else [w], text).pow(3).sum()

    twice = jvp(lambda w: jvp(loss, (w,), (dw,))[1], (w,), (dw,))[1]
    close(twice, (torch.autograd.functional.hvp(loss, w, dw)[1] * dw).sum())


def swapped() -> tuple[Any, Any]:
    torch.manual_seed(1)
    models = [nn.Sequential(nn.ConvTranspose3d(2, 4, 3, 2), nn.BatchNorm3d(4), nn.SiLU()) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    ct.swap(models[1])
    return tuple(model.double().eval() for model in models)


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("fixed", [True, False])
def test_compiled(backend: str, fixed: bool) -> None:
    """Nothing requires grad, and yet the derivative is not zero."""
    stock, ours = swapped()
    for parameter in [*stock.parameters(), *ours.parameters()]:
        parameter.requires_grad_(not fixed)
    x, dx = tensors((1, 2, 3, 2, 3), (1, 2, 3, 2, 3), dtype=torch.float64, grad=False)
    weight = stock[0].weight
    for mine, eager in (
        (ours, stock),
        (
            lambda x: ct.conv_transpose3d(x, weight, None, 2),
            lambda x: nn.functional.conv_transpose3d(x, weight, None, 2),
        ),
    ):
        expected = jvp(eager, (x,), (dx,))[1]
        assert float(expected.detach().abs().max()) > 0.01
        compiled = torch.compile(lambda x, dx, m=mine: jvp(m, (x,), (dx,))[1], backend=backend, fullgraph=True)
        close(compiled(x, dx), expected)


def test_what_is_not_recorded_stays_so_below_a_level() -> None:
    """no_grad inside a function that is differentiated twice: its result counts as a constant, as in eager."""
    x, w = torch.randn(1, 2, 4, 4, 4, dtype=torch.float64), torch.randn(2, 4, 3, 3, 3, dtype=torch.float64)

    def twice(conv: Any) -> Any:
        def f(v: Any) -> Any:
            with torch.no_grad():
                c = conv(v, w)
            return (c * v.sum()).sum() + (v**3).sum()

        return torch.func.grad(lambda v: torch.func.grad(f)(v).sum())(x)

    torch.testing.assert_close(twice(ct.conv_transpose3d), twice(torch.nn.functional.conv_transpose3d))
