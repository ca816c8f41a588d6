"""Operators and functions: PyTorch's own checks pass, and results have eager PyTorch's values, strides and types."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from helpers.eager import CASES, OVERLOADS, positional, tensors  # noqa: E402
from torch.nn import functional  # noqa: E402

import convt3d.torch as ct  # noqa: E402
from convt3d.spec.pipeline import Pipeline  # noqa: E402
from convt3d.spec.text import read_stages  # noqa: E402

LAST = torch.channels_last_3d
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def close(got: Any, expected: Any, dtype: Any = torch.float32) -> None:
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    scale = max(1.0, float(expected.detach().abs().max())) if expected.numel() else 1.0
    torch.testing.assert_close(got.double(), expected.double(), rtol=0.0, atol=TOLERANCE[dtype] * scale)


FULL = (
    "conv, nothing equal",
    "conv3d, nothing equal",
    "layernorm-gelu-scaling",
)  # tracing takes seconds, and all are pipelines
QUICK = ("test_schema", "test_autograd_registration", "test_faketensor")


@pytest.mark.parametrize("case", CASES)
def test_opcheck(case: str) -> None:
    torch.manual_seed(0)
    arguments = positional(case, tensors(*CASES[case][2]))
    utils = (*QUICK, "test_aot_dispatch_dynamic") if case in FULL else QUICK
    torch.library.opcheck(OVERLOADS[case], arguments, test_utils=utils)


LAYOUTS = {
    "channels_last_3d": lambda t: t.contiguous(memory_format=LAST) if t.dim() == 5 else t,
    "reversed axes": lambda t: t.permute(*reversed(range(t.dim()))).contiguous().permute(*reversed(range(t.dim()))),
    "every second": lambda t: torch.stack([t, t], -1).flatten(-2)[..., ::2],
    "repeated batch": lambda t: t[:1].expand(t.shape) if t.dim() == 5 and t.shape[0] == 2 else t,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_opcheck_other_layouts_and_types(layout: str, dtype: Any) -> None:
    """Values, strides and type of the real and the fake result agree, whatever comes in."""
    torch.manual_seed(1)
    for case in ("conv, nothing equal", "conv3d, nothing equal", "layernorm-gelu-scaling", "max-max-sum"):
        values = [LAYOUTS[layout](t) for t in tensors(*CASES[case][2], dtype=dtype, grad=False)]
        torch.library.opcheck(OVERLOADS[case], positional(case, values), test_utils=QUICK)


@pytest.mark.parametrize(
    "stages",
    [
        "ConvTranspose3d(stride=2, bias=True) -> BatchNorm(affine=True) -> ReLU()",
        "ConvTranspose3d(stride=2, bias=True) -> InstanceNorm(affine=True) -> PReLU()",
        "ConvTranspose3d(padding=1, bias=True) -> Keep('y') -> HardSwish() -> Multiply('y') -> Softmax() -> "
        "Max('spatial')",
        "ConvTranspose3d(stride=2) -> Keep('y') -> Tanh() -> Keep('t') -> Recall('y') -> Sigmoid() -> Multiply('t') -> "
        "Exp() -> Divide('tensor', reverse=True) -> Subtract('channel', reverse=True)",
        "ConvTranspose3d(stride=2) -> LogSumExp('depth', keepdim=False) -> Mean('width', False) -> Sigmoid() -> Log()",
        "AvgPool3d(2, divisor_override=3) -> ConvTranspose3d() -> Max('height') -> Sum('depth') -> LogSumExp()",
        "AvgPool3d(2) -> ConvTranspose3d(stride=(1, 2, 3)) -> Add('tensor') -> GroupNorm(2) -> LeakyReLU(0.2) -> "
        "Mean()",
    ],
)
def test_opcheck_pipelines(stages: str) -> None:
    """In float64: compiled graphs have PyTorch's gradients of weights, whose float32 sums err by more than opcheck
    allows."""
    torch.manual_seed(2)
    pipeline = Pipeline(*read_stages(stages))
    shapes = pipeline.operand_shapes((2, 2, 4, 3, 4), (2, 4, 3, 2, 3))
    x, *operands = tensors((2, 2, 4, 3, 4), *shapes, dtype=torch.float64)
    with torch.no_grad():
        for operand, slot in zip(operands, pipeline.slots, strict=True):
            if slot.operand.role in ("running_var", "running_mean"):
                operand.abs_().add_(0.5).requires_grad_(False)
    utils = (*QUICK, "test_aot_dispatch_dynamic") if "Batch" in stages else QUICK
    torch.library.opcheck(torch.ops.convt3d.pipeline.default, (x, operands, stages), test_utils=utils)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_as_eager(case: str, dtype: Any) -> None:
    ours, eager, shapes, rest = CASES[case]
    torch.manual_seed(3)
    values = tensors(*shapes, dtype=dtype, grad=False)
    try:
        expected = eager(*values, **rest)
    except RuntimeError:  # PyTorch pools no 16-bit numbers on the CPU
        expected = eager(*(value.float() for value in values), **rest).to(dtype)
    close(ours(*values, **rest), expected, dtype)


def test_optional_tensors_of_the_norms() -> None:
    torch.manual_seed(4)
    x, w, bias, norm_weight, norm_bias = tensors((2, 2, 2, 3, 3), (2, 4, 4, 4, 4), (4,), (4,), (4,), grad=False)
    for name in ("sum_layernorm_avgpool_gelu", "layernorm_gelu_scaling"):
        case = next(row for row in CASES.values() if row[0].__name__.endswith(name))
        for given in ({"norm_weight": norm_weight}, {"norm_bias": norm_bias, "bias": bias}):
            one = given.get("norm_weight", torch.ones(4)), given.get("norm_bias", torch.zeros(4))
            conv = functional.conv_transpose3d(x, w, given.get("bias"), 2, 1, 1 if "avgpool" in name else 0)
            value = conv + 1.0 if "avgpool" in name else conv
            value = functional.layer_norm(value.movedim(1, -1), (4,), *one).movedim(-1, 1)
            value = functional.avg_pool3d(value, 2) if "avgpool" in name else value
            close(case[0](x, w, **given), functional.gelu(value))


SIZES = [(1, 4, 6), (2, 4, 6), (1, 1, 1), (1, 1, 6), (1, 4, 1), (4, 4, 4)]


@pytest.mark.parametrize(("groups", "cin", "cout"), SIZES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_strides_as_eager(dtype: Any, groups: int, cin: int, cout: int) -> None:
    """PyTorch chooses them by type, sizes and kernel; axes of size 1 leave room to differ."""
    for batch, size, kernel in [
        (1, (3, 4, 5), 3),
        (2, (3, 4, 5), 1),
        (2, (1, 1, 1), 3),
        (1, (1, 1, 1), 1),
        (2, (1, 5, 1), 3),
    ]:
        x, w = tensors((batch, cin, *size), (cin, cout // groups, *(kernel,) * 3), dtype=dtype, grad=False)
        swapped = x.transpose(2, 3).contiguous().transpose(2, 3)
        for a, b in itertools.product((x, x.contiguous(memory_format=LAST), swapped), (w, w.to(memory_format=LAST))):
            expected = functional.conv_transpose3d(a, b, None, 2, 0, 0, groups)
            got = ct.conv_transpose3d(a, b, None, 2, 0, 0, groups)
            assert got.stride() == expected.stride()
            close(got, expected, dtype)
            unbatched = ct.conv_transpose3d(a[0], b, None, 2, 0, 0, groups)
            assert unbatched.stride() == functional.conv_transpose3d(a[0], b, None, 2, 0, 0, groups).stride()


@pytest.mark.filterwarnings("ignore:convt3d.torch")  # an output of size 0 is left to PyTorch
@pytest.mark.parametrize("seed", range(40))
def test_drawn_convolutions(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def three(low: int, high: int) -> tuple[int, ...]:
        return tuple(int(v) for v in rng.integers(low, high, 3))

    stride, dilation, padding, groups = three(1, 4), three(1, 4), three(0, 3), int(rng.integers(1, 4))
    extra = tuple(int(rng.integers(0, max(s, d))) for s, d in zip(stride, dilation, strict=True))
    shapes = (int(rng.integers(0, 3)), groups * 2, *three(1, 6)), (groups * 2, int(rng.integers(1, 4)), *three(1, 4))
    torch.manual_seed(seed)
    x, w, bias = tensors(*shapes, (shapes[1][1] * groups,), grad=False)
    arguments = (bias if seed % 2 else None, stride, padding, extra, groups, dilation)
    try:
        expected = functional.conv_transpose3d(x, w, *arguments)
    except RuntimeError as error:  # sizes that leave nothing: refused in PyTorch's words
        with pytest.raises(RuntimeError, match=str(error)[:30].replace("(", r"\(")):
            ct.conv_transpose3d(x, w, *arguments)
        return
    got = ct.conv_transpose3d(x, w, *arguments)
    close(got, expected)
    assert got.stride() == expected.stride()


def test_names_order_and_defaults_are_pytorch_s() -> None:
    ours = torch.ops.convt3d.conv_transpose3d.default._schema.arguments
    theirs = torch.ops.aten.conv_transpose3d.input._schema.arguments
    assert [a.name for a in ours] == [a.name for a in theirs]
    assert [a.default_value for a in ours] == [a.default_value for a in theirs]


@pytest.mark.parametrize(
    ("dtype", "layout"),
    list(zip(TOLERANCE, (torch.contiguous_format, LAST, LAST, torch.contiguous_format), strict=True)),
    ids=str,
)
def test_large_results_have_memory_that_is_used_again(dtype: Any, layout: Any) -> None:
    """From some megabytes on: the values, strides and gradients of small ones."""
    torch.manual_seed(0)
    x = torch.randn(1, 4, 24, 24, 32).to(dtype).contiguous(memory_format=layout).requires_grad_()
    w = torch.randn(4, 16, 2, 2, 2).to(dtype)
    expected = functional.conv_transpose3d(x, w, stride=2)
    addresses = set()
    for _ in range(3):
        got = ct.conv_transpose3d(x, w, stride=2)
        close(got, expected, dtype)
        assert got.stride() == expected.stride()
        addresses.add(got.data_ptr())
        got.sum().backward()
        del got
    assert len(addresses) == 1
    plain = ct.conv_transpose3d(x[0].detach(), w, stride=2)
    close(plain, expected[0], dtype)
    assert plain.stride() == functional.conv_transpose3d(x[0].detach(), w, stride=2).stride()
