"""PyTorch's own samples for conv_transpose3d, put to our function: values, both derivatives, and errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="torch's sample inputs need expecttest, which is not installed")
from torch.nn import functional  # noqa: E402

import convt3d.torch as ct  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's own, and ours about complex numbers


@pytest.fixture(scope="module")
def opinfo() -> Iterator[Any]:
    threads = torch.get_num_threads()
    from torch.testing._internal.common_methods_invocations import op_db

    yield next(op for op in op_db if op.name == "nn.functional.conv_transpose3d")
    torch.set_num_threads(threads)


TOLERANCE = {torch.float16: 5e-3, torch.bfloat16: 3e-2, torch.float32: 1e-4, torch.complex64: 1e-4}


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.int64],
    ids=str,
)
def test_values(opinfo: Any, dtype: Any) -> None:
    count = 0
    for sample in opinfo.sample_inputs("cpu", dtype):
        expected = functional.conv_transpose3d(sample.input, *sample.args, **sample.kwargs)
        got = ct.conv_transpose3d(sample.input, *sample.args, **sample.kwargs)
        assert got.stride() == expected.stride()
        scale = max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(got, expected, rtol=0, atol=scale * TOLERANCE.get(dtype, 1e-10))
        count += 1
    assert count >= 8


def test_derivatives(opinfo: Any) -> None:
    """Reverse and forward mode, batched and twice, against finite differences."""
    for sample in opinfo.sample_inputs("cpu", torch.float64, requires_grad=True):
        given = [each for each in (sample.input, *sample.args) if isinstance(each, torch.Tensor)]
        rest = [each for each in (sample.input, *sample.args) if not isinstance(each, torch.Tensor)]
        named = {key: value for key, value in sample.kwargs.items() if not isinstance(value, torch.Tensor)}
        bias = sample.kwargs.get("bias")

        def call(*tensors: Any, rest: Any = rest, named: Any = named, bias: Any = bias) -> Any:
            return ct.conv_transpose3d(*tensors, *rest, **named, **({} if bias is None else {"bias": bias}))

        flags = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
        assert torch.autograd.gradcheck(call, given, fast_mode=True, **flags)
        assert torch.autograd.gradgradcheck(call, given, fast_mode=True, check_fwd_over_rev=True)


def test_errors(opinfo: Any) -> None:
    for error in opinfo.error_inputs("cpu") if opinfo.error_inputs_func else ():
        sample = error.sample_input
        with pytest.raises(error.error_type):
            ct.conv_transpose3d(sample.input, *sample.args, **sample.kwargs)
