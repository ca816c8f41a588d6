"""PyTorch's own samples for conv3d and conv_transpose3d, put to our functions: values, both derivatives, and errors."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="torch's sample inputs need expecttest, which is not installed")
from torch._subclasses import CrossRefFakeMode  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.testing._internal import composite_compliance  # noqa: E402

import convt3d.torch as ct  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's own, and ours about complex numbers


NAMES = ("conv3d", "conv_transpose3d")


@pytest.fixture(scope="module", params=NAMES)
def opinfo(request: pytest.FixtureRequest) -> Iterator[Any]:
    threads = torch.get_num_threads()
    from torch.testing._internal.common_methods_invocations import op_db

    yield next(op for op in op_db if op.name == f"nn.functional.{request.param}")
    torch.set_num_threads(threads)


def both(opinfo: Any) -> tuple[Any, Any]:
    """PyTorch's function and ours."""
    name = opinfo.name.rpartition(".")[2]
    return getattr(functional, name), getattr(ct, name)


TOLERANCE = {torch.float16: 5e-3, torch.bfloat16: 3e-2, torch.float32: 1e-4, torch.complex64: 1e-4}


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.int64],
    ids=str,
)
def test_values(opinfo: Any, dtype: Any) -> None:
    count, (stock, ours) = 0, both(opinfo)
    for sample in opinfo.sample_inputs("cpu", dtype):
        expected, got = called(stock, sample), called(ours, sample)
        assert got.stride() == expected.stride()
        scale = max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(got, expected, rtol=0, atol=scale * TOLERANCE.get(dtype, 1e-10))
        count += 1
    assert count >= 8


def test_derivatives(opinfo: Any) -> None:
    """Reverse and forward mode, batched and twice, against finite differences."""
    samples = sorted(opinfo.sample_inputs("cpu", torch.float64, requires_grad=True), key=lambda s: s.input.numel())
    for sample in samples[:6]:
        given = [each for each in (sample.input, *sample.args) if isinstance(each, torch.Tensor)]
        rest = [each for each in (sample.input, *sample.args) if not isinstance(each, torch.Tensor)]
        named = {key: value for key, value in sample.kwargs.items() if not isinstance(value, torch.Tensor)}
        bias = sample.kwargs.get("bias")

        def call(*tensors: Any, rest: Any = rest, named: Any = named, bias: Any = bias) -> Any:
            return both(opinfo)[1](*tensors, *rest, **named, **({} if bias is None else {"bias": bias}))

        flags = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
        assert torch.autograd.gradcheck(call, given, fast_mode=True, **flags)
        assert torch.autograd.gradgradcheck(call, given, fast_mode=True, check_fwd_over_rev=True)


def called(function: Any, sample: Any) -> Any:
    return function(sample.input, *sample.args, **sample.kwargs)


def compliant(function: Any, sample: Any) -> None:
    """With tensors that are wrapped, one by one, as subclasses are."""
    given = (sample.input, *sample.args)
    composite_compliance.check_with_mode(function, given, sample.kwargs, close)
    composite_compliance.check_all_permutations(function, given, sample.kwargs, close)
    undo = sample.output_process_fn_grad
    composite_compliance.check_backward_formula(function, given, sample.kwargs, undo, None, close)
    composite_compliance.check_forward_ad_formula(function, given, sample.kwargs, None, close)


def crossed(function: Any, sample: Any) -> None:
    """Shapes, types and strides of every operation, forward and backward, beside those of fake tensors."""
    with CrossRefFakeMode(ignore_op_fn=lambda _: False, check_strides=True):
        called(function, sample).abs().sum().backward()


def viewed(view: Any) -> Any:
    """Lazily negated or conjugated tensors, others with gaps between elements; with gradients."""

    def check(function: Any, sample: Any) -> Any:
        again = lambda t: view(t.detach()).requires_grad_() if tensor(t) else t  # noqa: E731
        changed = sample.noncontiguous() if view is None else sample.transform(again)
        y = called(function, changed)
        given = [t for t in (changed.input, *changed.args) if tensor(t)]
        return y, *torch.autograd.grad(y, given, torch.ones_like(y))

    return check


def tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def close(got: Any, expected: Any, **more: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-7, check_stride=True)


CHECKS: dict[str, Any] = {
    "gaps": viewed(None),
    "negated": viewed(torch._neg_view),
    "conjugated": viewed(torch.conj),
    "subclasses": compliant,
    "fake tensors": crossed,
}


@pytest.mark.parametrize(
    ("check", "dtype"),
    [
        *((check, torch.float64) for check in CHECKS),
        *((check, torch.complex128) for check in ("gaps", "negated", "conjugated")),  # the rest is PyTorch's own
    ],
    ids=str,
)
def test_all_that_stock_passes(opinfo: Any, check: str, dtype: Any) -> None:
    """PyTorch's checks of its own operators, with its function and with ours in its place."""
    samples = list(opinfo.sample_inputs("cpu", dtype, requires_grad=True))
    for sample in samples[:2] if check == "subclasses" else samples:  # each takes seconds
        stock, ours = both(opinfo)
        expected = CHECKS[check](stock, sample)
        close(CHECKS[check](ours, sample), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_memory_formats(name: str, dtype: Any) -> None:
    """Strides are those of PyTorch's result for every mix of formats, also where it computes it."""
    x, w = (torch.randn(each).mul(3).to(dtype) for each in ((2, 4, 3, 5, 4), (4, 4, 3, 2, 3)))
    stock, ours = getattr(functional, name), getattr(ct, name)
    formats = torch.contiguous_format, torch.channels_last_3d
    for mine, theirs in product(formats, repeat=2):
        given = x.contiguous(memory_format=mine), w.contiguous(memory_format=theirs)
        expected = stock(*given, stride=2)
        assert ours(*given, stride=2).stride() == expected.stride()
        assert getattr(torch.ops.convt3d, name)(*given, None, [2, 2, 2]).stride() == expected.stride()
        metas = [each.to("meta") for each in given]
        expected = stock(*metas, stride=2)
        assert ours(*metas, stride=2).stride() == expected.stride()


@pytest.mark.parametrize("kind", ["Conv3d", "LazyConv3d", "ConvTranspose3d", "LazyConvTranspose3d"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_modules(kind: str, dtype: Any) -> None:
    """PyTorch's inputs for its modules."""
    from torch.testing._internal.common_modules import module_db

    stock, ours = getattr(torch.nn, kind), getattr(ct, kind)
    info = next(each for each in module_db if each.module_cls is stock)
    inputs = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=True)
    for each in inputs:
        made, given, found = each.constructor_input, each.forward_input, []
        for build in (stock, ours):
            torch.manual_seed(0)
            module = build(*made.args, **made.kwargs).to(dtype)
            y = module(*given.args, **given.kwargs)
            found.append([y, *torch.autograd.grad(y.abs().sum(), [*given.args, *module.parameters()])])
            assert repr(module) == repr(stock(*made.args, **made.kwargs)) or kind.startswith("Lazy")
        close(*reversed(found))
    assert len(inputs) >= 2


def test_errors(opinfo: Any) -> None:
    for error in opinfo.error_inputs("cpu") if opinfo.error_inputs_func else ():
        sample = error.sample_input
        with pytest.raises(error.error_type):
            called(both(opinfo)[1], sample)
    x, w = torch.randn(1, 2, 3, 3, 3), torch.randn(2, 2, 2, 2, 2)
    for call in (functional.conv_transpose3d, ct.conv_transpose3d):
        with pytest.raises(TypeError):
            call(x, w, None, 1, "same")
