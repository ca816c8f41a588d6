"""The operators as one would write them in eager PyTorch, and arguments to try them with."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

import convt3d.torch as ct


def _norm(v: Any, weight: Any, bias: Any, eps: float) -> Any:
    return functional.layer_norm(v.movedim(1, -1), v.shape[1:2], weight, bias, eps).movedim(-1, 1)


def max_max_sum(x: Any, w: Any, bias: Any = None, stride: Any = 2, padding: Any = 2, **conv: Any) -> Any:
    value = functional.conv_transpose3d(x, w, bias, stride, padding, **conv)
    return functional.max_pool3d(functional.max_pool3d(value, 2), 3).sum(1, keepdim=True)


def sum_layernorm_avgpool_gelu(
    x: Any, w: Any, sum_weight: float = 1.0, stride: Any = 2, padding: Any = 1, output_padding: Any = 1, **rest: Any
) -> Any:
    norm = rest.pop("norm_weight", None), rest.pop("norm_bias", None), rest.pop("eps", 1e-5)
    approximate = rest.pop("approximate", "none")
    value = functional.conv_transpose3d(x, w, rest.pop("bias", None), stride, padding, output_padding, **rest)
    return functional.gelu(functional.avg_pool3d(_norm(value + sum_weight, *norm), 2), approximate=approximate)


def avgpool_clamp_softmax_multiply(
    x: Any,
    w: Any,
    scale: Any,
    stride: Any = 2,
    padding: Any = 1,
    output_padding: Any = 1,
    pool_kernel: Any = 2,
    clamp_min: Any = 0.0,
    clamp_max: Any = 1.0,
    **rest: Any,
) -> Any:
    pooled = functional.avg_pool3d(x, pool_kernel)
    value = functional.conv_transpose3d(pooled, w, rest.pop("bias", None), stride, padding, output_padding, **rest)
    value = value.clamp(clamp_min, clamp_max)
    return torch.softmax(value.flatten(2), 2).reshape(value.shape) * scale.reshape(1, -1, 1, 1, 1)


def layernorm_gelu_scaling(
    x: Any, w: Any, scaling_factor: float = 1.0, stride: Any = 2, padding: Any = 1, output_padding: Any = 0, **rest: Any
) -> Any:
    norm = rest.pop("norm_weight", None), rest.pop("norm_bias", None), rest.pop("eps", 1e-5)
    approximate = rest.pop("approximate", "none")
    value = functional.conv_transpose3d(x, w, rest.pop("bias", None), stride, padding, output_padding, **rest)
    return functional.gelu(_norm(value, *norm), approximate=approximate) * scaling_factor


def tensors(*shapes: tuple[int, ...], dtype: Any = torch.float32, grad: bool = True) -> list[Any]:
    """Signed and of moderate size."""
    return [torch.randn(shape).to(dtype).div_(2).requires_grad_(grad) for shape in shapes]


# why -> (function of ours, eager, shapes of tensors, the arguments after them)
CASES: dict[str, tuple[Any, Any, tuple[tuple[int, ...], ...], dict[str, Any]]] = {
    "conv, all defaults": (
        ct.conv_transpose3d,
        functional.conv_transpose3d,
        ((2, 3, 2, 3, 4), (3, 2, 2, 3, 2)),
        {},
    ),
    "conv, nothing equal": (
        ct.conv_transpose3d,
        functional.conv_transpose3d,
        ((1, 4, 2, 1, 3), (4, 3, 1, 3, 2), (6,)),
        {"stride": (1, 3, 2), "padding": (0, 1, 1), "output_padding": (0, 2, 1), "groups": 2, "dilation": (3, 1, 2)},
    ),
    "conv, depthwise": (
        ct.conv_transpose3d,
        functional.conv_transpose3d,
        ((2, 3, 3, 2, 2), (3, 1, 3, 3, 3), (3,)),
        {"stride": 2, "padding": 1, "groups": 3},
    ),
    "conv, unbatched, kernel below stride": (
        ct.conv_transpose3d,
        functional.conv_transpose3d,
        ((2, 3, 1, 2), (2, 2, 1, 2, 1), (2,)),
        {"stride": 3},
    ),
    "conv3d, all defaults": (ct.conv3d, functional.conv3d, ((2, 3, 3, 3, 4), (2, 3, 2, 3, 2)), {}),
    "conv3d, nothing equal": (
        ct.conv3d,
        functional.conv3d,
        ((1, 4, 5, 2, 6), (6, 2, 2, 3, 1), (6,)),
        {"stride": (1, 3, 2), "padding": (0, 1, 2), "groups": 2, "dilation": (3, 1, 2)},
    ),
    "conv3d, depthwise": (
        ct.conv3d,
        functional.conv3d,
        ((2, 3, 3, 2, 4), (6, 1, 3, 3, 3), (6,)),
        {"stride": 2, "padding": 1, "groups": 3},
    ),
    "conv3d, unbatched, kernel below stride": (
        ct.conv3d,
        functional.conv3d,
        ((2, 3, 1, 4), (2, 2, 1, 1, 2), (2,)),
        {"stride": 3},
    ),
    "max-max-sum": (ct.conv_transpose3d_max_max_sum, max_max_sum, ((2, 2, 5, 6, 5), (2, 3, 3, 4, 3), (3,)), {}),
    "max-max-sum, dilated groups": (
        ct.conv_transpose3d_max_max_sum,
        max_max_sum,
        ((1, 2, 5, 4, 4), (2, 1, 2, 3, 2), (2,)),
        {"stride": (1, 2, 2), "padding": 0, "groups": 2, "dilation": (2, 1, 1)},
    ),
    "sum-layernorm-avgpool-gelu": (
        ct.conv_transpose3d_sum_layernorm_avgpool_gelu,
        sum_layernorm_avgpool_gelu,
        ((2, 2, 2, 3, 2), (2, 5, 3, 3, 3)),
        {"sum_weight": 0.75},
    ),
    "sum-layernorm-avgpool-gelu, tanh": (
        ct.conv_transpose3d_sum_layernorm_avgpool_gelu,
        sum_layernorm_avgpool_gelu,
        ((1, 2, 3, 2, 3), (2, 4, 2, 3, 2)),
        {"sum_weight": -1.5, "stride": (2, 1, 2), "output_padding": 0, "approximate": "tanh", "eps": 1e-3},
    ),
    "avgpool-clamp-softmax-multiply": (
        ct.conv_transpose3d_avgpool_clamp_softmax_multiply,
        avgpool_clamp_softmax_multiply,
        ((2, 2, 4, 4, 5), (2, 3, 3, 3, 3), (3,)),
        {"clamp_min": -0.7, "clamp_max": 0.6},
    ),
    "avgpool-clamp-softmax-multiply, one-sided": (
        ct.conv_transpose3d_avgpool_clamp_softmax_multiply,
        avgpool_clamp_softmax_multiply,
        ((1, 4, 3, 4, 2), (4, 2, 2, 2, 3), (1, 4, 1, 1, 1)),
        {"clamp_min": None, "clamp_max": 0.5, "pool_kernel": (1, 2, 2), "groups": 2},
    ),
    "layernorm-gelu-scaling": (
        ct.conv_transpose3d_layernorm_gelu_scaling,
        layernorm_gelu_scaling,
        ((2, 2, 2, 3, 3), (2, 4, 4, 4, 4)),
        {"scaling_factor": 0.5},
    ),
    "layernorm-gelu-scaling, stride 3": (
        ct.conv_transpose3d_layernorm_gelu_scaling,
        layernorm_gelu_scaling,
        ((1, 3, 2, 2, 2), (3, 3, 3, 2, 4)),
        {"scaling_factor": -2.0, "stride": (3, 2, 1), "output_padding": (2, 1, 0), "eps": 0.1},
    ),
}
OVERLOADS = {case: getattr(torch.ops.convt3d, row[0].__name__).default for case, row in CASES.items()}


def positional(case: str, values: list[Any]) -> tuple[Any, ...]:
    """Arguments in the order of the operator's schema, defaults filled in as far as the last given one."""
    schema, given = OVERLOADS[case]._schema.arguments, dict(CASES[case][3])
    names = [argument.name for argument in schema]
    given.update(zip(names, values, strict=False))
    last = max(names.index(name) for name in given)
    rows = [(given.get(a.name, a.default_value), "List[int]" in str(a.type)) for a in schema[: last + 1]]
    return tuple([value] * 3 if sizes and isinstance(value, int) else value for value, sizes in rows)
