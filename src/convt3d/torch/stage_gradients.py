"""How a gradient passes each stage: back(stage, g, v, r, operands, wanted, shape) -> (gradient of v, of each operand).

g is the gradient of the stage's result r, v its input of `shape`; v and r are there if `uses` names them. All of it is
PyTorch's own backward operations, which can be traced, and differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from ..spec import stages
from ..spec.backends import StageTable
from ..spec.checks import as_triple
from ..spec.pipeline import Pipeline
from ..spec.stage import Stage
from .convolutions import input_gradient, small, takes, weight_gradients
from .stock import AXES, Tensor, avg_pool_type, column, padded_input, softmax_over

aten: Any = torch.ops.aten


@dataclass(frozen=True)
class Gradient:
    back: Callable[..., tuple[Any, ...]]
    uses: str | Callable[[Any], str] = ""  # "v", "r" or "vr"; some stages say it by their parameters
    operands_use: str = ""  # beyond that, if a gradient of an operand is wanted
    reads: int = 0  # how many of the stage's operands, in their order, are read for more than their shape
    # For a stage that uses an earlier value o: back_to_both(stage, g, v, o, shape, shape of o) -> gradients of v and o.
    back_to_both: Callable[..., tuple[Any, Any]] | None = None

    def uses_of(self, stage: Stage) -> str:
        return self.uses if isinstance(self.uses, str) else self.uses(stage)


def needed_values(pipeline: Pipeline, wanted: Sequence[bool]) -> set[int]:
    """Numbers of the values that the wanted gradients (of x and each operand) take; value i enters stage i."""
    own = [
        any(want for slot, want in zip(pipeline.slots, wanted[1:], strict=True) if slot.stage == index)
        for index in range(len(pipeline.stages))
    ]
    first = first_stage(pipeline, wanted)
    return {
        number
        for index in range(first, len(pipeline.stages))
        for number in values_of_stage(pipeline, index, own[index])
    }


def values_of_stage(pipeline: Pipeline, index: int, operands_wanted: bool) -> set[int]:
    """Numbers of those that one stage's rule takes."""
    stage = pipeline.stages[index]
    rule = GRADIENTS[type(stage)]
    uses = rule.uses_of(stage) + (rule.operands_use if operands_wanted or stage.uses else "")
    named = {label_places(pipeline)[stage.uses]} if stage.uses and rule.operands_use else set()
    return named | {index + offset for offset, word in enumerate("vr") if word in uses}


def through_stage(
    pipeline: Pipeline,
    index: int,
    grad: Tensor | None,
    value: Callable[[int], Tensor],
    own: Sequence[Tensor],
    wants: Sequence[bool],
    shapes: Sequence[Any],
    pending: dict[int, Tensor],
) -> tuple[Tensor | None, list[Tensor | None]]:
    """The gradient of the stage's input, and those of its operands; `value` gives values by their number, `wants` tells
    which of all these are asked for. Gradients of named values are gathered in `pending`, by number."""
    stage = pipeline.stages[index]
    rule = GRADIENTS[type(stage)]
    if stage.keeps:
        if index in pending:
            grad = pending.pop(index) if grad is None else grad + pending.pop(index)
        return grad, []
    if grad is None:  # of a convolution that the pipeline goes back behind
        return None, [None] * len(own)
    taken = values_of_stage(pipeline, index, any(wants[1:]))
    v = value(index) if index in taken else None
    if stage.uses and rule.back_to_both:
        at = label_places(pipeline)[stage.uses]
        named = value(at) if at in taken else None
        grad, other = rule.back_to_both(stage, grad, v, named, shapes[index], shapes[at])
        pending[at] = pending[at] + other if at in pending else other
        return grad, []
    r = value(index + 1) if index + 1 in taken else None
    grad, *of_operands = rule.back(stage, grad, v, r, own, wants, shapes[index])
    return grad, of_operands


def label_places(pipeline: Pipeline) -> dict[str, int]:
    """Numbers of the labelled values."""
    return {"x": 0, **{stage.keeps: index for index, stage in enumerate(pipeline.stages) if stage.keeps}}


def first_stage(pipeline: Pipeline, wanted: Sequence[bool]) -> int:
    """The first stage that a gradient must reach."""
    if wanted[0]:
        return 0
    return min(slot.stage for slot, want in zip(pipeline.slots, wanted[1:], strict=True) if want)


def fitted(grad: Tensor, shape: Sequence[int]) -> Tensor:
    """The gradient of a tensor of `shape` that was repeated: summed where it was."""
    return grad if grad.shape == tuple(shape) else grad.sum_to_size(*shape)


def per_channel(grad: Tensor) -> Tensor:
    return grad.sum((0, 2, 3, 4))


# --- convolution and pools --------------------------------------------------------------------------------------------


def _conv(stage: Any, g: Tensor, v: Tensor, r: None, own: Sequence[Tensor], want: Sequence[bool], shape: Any) -> Any:
    stride, padding, output_padding, dilation = map(list, stage.triples)
    mask = [want[0], want[1], len(want) > 2 and want[2]]
    ours = not small(stage, shape, own[0].shape)
    if ours and want[0] and takes(g, own[0]):
        found = input_gradient(stage, g, own[0], shape)
        return found, *_conv(stage, g, v, r, own, (False, *want[1:]), shape)[1:]
    if not any(mask):
        return (None,) * (1 + len(own))
    if ours and not want[0] and (found := weight_gradients(stage, g, v, stage.triples[1], own, want[1:])):
        return None, *found
    grads = aten.convolution_backward(
        g, v, own[0], [g.shape[1]], stride, padding, dilation, True, output_padding, stage.groups, mask
    )
    return grads[: 1 + len(own)]


def _conv_forward(
    stage: Any, g: Tensor, v: Tensor, r: None, own: Sequence[Tensor], want: Sequence[bool], shape: Any
) -> Any:
    stride, dilation = list(as_triple(stage.stride)), list(as_triple(stage.dilation))
    mask = [want[0], want[1], len(want) > 2 and want[2]]
    ours = not small(stage, shape, own[0].shape)
    if ours and want[0] and stage.padding_mode == "zeros" and takes(g, own[0]):
        found = input_gradient(stage, g, own[0], shape)
        return found, *_conv_forward(stage, g, v, r, own, (False, *want[1:]), shape)[1:]
    if not any(mask):
        return (None,) * (1 + len(own))
    padded, padding = padded_input(stage, v, own[0])
    if ours and not want[0] and (found := weight_gradients(stage, g, padded, padding, own, want[1:])):
        return None, *found
    sizes = stride, list(padding), dilation, False, [0, 0, 0], stage.groups
    grad, *rest = aten.convolution_backward(g, padded, own[0], [g.shape[1]], *sizes, mask)
    if want[0] and padded is not v:
        d, h, w = stage.paddings(own[0].shape)
        grad = _unpadded(stage, grad, v, [*w, *h, *d])
    return (grad, *rest[: len(own)])


def _unpadded(stage: Any, g: Tensor, v: Tensor, padding: list[int]) -> Tensor:
    """The gradient of an input that was padded."""
    if stage.padding_mode == "replicate":
        return aten.replication_pad3d_backward(g, v, padding)
    if stage.padding_mode == "reflect":
        return aten.reflection_pad3d_backward(g, v, padding)
    if stage.padding_mode == "zeros":
        return torch.nn.functional.pad(g, [-size for size in padding])
    for axis, (before, after) in zip((4, 3, 2), zip(padding[::2], padding[1::2], strict=True), strict=True):
        size, sides = v.shape[axis], g.split([before, v.shape[axis], after], axis)
        zeros = [0, 0] * (4 - axis)
        g = sides[1] + torch.nn.functional.pad(sides[0], [*zeros, size - before, 0])
        g = g + torch.nn.functional.pad(sides[2], [*zeros, 0, size - after])
    return g


def _max_pool(stage: Any, g: Tensor, v: Tensor, r: None, own: Any, want: Any, shape: Any) -> Any:
    kernel, stride, padding = map(list, stage.triples)
    indices = aten.max_pool3d_with_indices(v, kernel, stride, padding, [1, 1, 1], stage.ceil_mode)[1]
    return (aten.max_pool3d_with_indices_backward(g, v, kernel, stride, padding, [1, 1, 1], stage.ceil_mode, indices),)


def _avg_pool(stage: Any, g: Tensor, v: Tensor, r: None, own: Any, want: Any, shape: Any) -> Any:
    kernel, stride, padding = map(list, stage.triples)
    wide = avg_pool_type(g)
    like = wide.new_empty(1).expand(shape)  # only its shape is read
    rest = stage.ceil_mode, stage.count_include_pad, stage.divisor_override
    back = aten.avg_pool3d_backward(wide, like, kernel, stride, padding, *rest)
    return (back.to(g.dtype),)


# --- reductions and softmax -------------------------------------------------------------------------------------------


def _max(stage: Any, g: Tensor, v: Tensor, r: Tensor, own: Any, want: Any, shape: Any) -> Any:
    """Equal largest values share the gradient, as amax has it."""
    at = (v == r).to(g.dtype)
    return (g * at / at.sum(AXES[stage.over], keepdim=True),)


def _mean(stage: Any, g: Tensor, v: None, r: None, own: Any, want: Any, shape: Any) -> Any:
    count = prod(shape[axis] for axis in AXES[stage.over])
    return ((g / count).expand(shape),)


def _softmax(stage: Any, g: Tensor, v: Tensor | None, r: Tensor, own: Sequence[Tensor], want: Any, shape: Any) -> Any:
    grads: tuple[Tensor, ...] = ()
    if stage.scale is not None:
        r = softmax_over(stage, v)
        grads = (per_channel(g * r),) if own else ()
        g = g * (column(own[0]) if own else stage.scale)
    if stage.over == "channels":
        return (aten._softmax_backward_data(g, r, 1, g.dtype), *grads)
    rows = (*shape[:2], shape[2] * shape[3] * shape[4])  # not flatten(2), of which PyTorch's older vmap knows nothing
    return (aten._softmax_backward_data(g.reshape(rows), r.reshape(rows), 2, g.dtype).reshape(shape), *grads)


# --- norms ------------------------------------------------------------------------------------------------------------


def wider(tensor: Tensor) -> Tensor:
    """In the type that norms are computed in."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _normalised(g: Tensor, v: Tensor, weight: Tensor | None, dims: Sequence[int], eps: float) -> tuple[Tensor, Tensor]:
    """Gradient of v, and the normalised v; in place where nobody differentiates this again."""
    variance, mean = torch.var_mean(v, tuple(dims), correction=0, keepdim=True)
    scale = torch.rsqrt(variance + eps)
    g = g if weight is None else g * weight
    if torch.is_grad_enabled():
        unit = (v - mean) * scale
        return scale * (g - g.mean(dims, keepdim=True) - unit * (g * unit).mean(dims, keepdim=True)), unit
    unit = (v - mean).mul_(scale)
    along = (g * unit).mean(dims, keepdim=True)
    back = g - g.mean(dims, keepdim=True)
    return back.addcmul_(unit, along, value=-1).mul_(scale), unit


def _layer_norm(
    stage: Any, g: Tensor, v: Tensor, r: None, own: Sequence[Tensor], want: Sequence[bool], shape: Any
) -> Any:
    axis, kind = 1 if stage.over == "channels" else 4, g.dtype
    g, v, weight = wider(g), wider(v), wider(own[0]) if own else None
    shaped = weight if weight is None or axis == 4 else column(weight)
    back, unit = _normalised(g, v, shaped, (axis,), stage.eps)
    rest = tuple(index for index in range(5) if index != axis)
    grads = ((g * unit).sum(rest).to(kind), g.sum(rest).to(kind)) if own else ()
    return (back.to(kind), *grads)


def _instance_norm(stage: Any, g: Tensor, v: Tensor, r: None, own: Sequence[Tensor], want: Any, shape: Any) -> Any:
    return _by_groups(stage, shape[1], g, v, own, shape)


def _group_norm(stage: Any, g: Tensor, v: Tensor, r: None, own: Sequence[Tensor], want: Any, shape: Any) -> Any:
    return _by_groups(stage, stage.num_groups, g, v, own, shape)


def _by_groups(stage: Any, groups: int, g: Tensor, v: Tensor, own: Sequence[Tensor], shape: Any) -> Any:
    kind = g.dtype
    g, v, weight = wider(g), wider(v), wider(own[0]) if own else None
    batch, channels, *space = shape
    split = (batch, groups, channels // groups, *space)
    if torch.is_grad_enabled():
        shaped = None if weight is None else weight.reshape(1, groups, -1, 1, 1, 1)
        back, unit = _normalised(g.reshape(split), v.reshape(split), shaped, (2, 3, 4, 5), stage.eps)
        back, unit = back.reshape(shape), unit.reshape(shape)
        grads = [per_channel(g * unit), per_channel(g)] if own else []
    else:
        flat = None if weight is None else weight.reshape(-1)
        voxels, mask = space[0] * space[1] * space[2], [True, bool(own), bool(own)]
        g, v = g.contiguous(), v.contiguous()
        # its statistics alone: torch.var_mean takes twice as long
        _, mean, scale = aten.native_group_norm(v, None, None, batch, channels, voxels, groups, stage.eps)
        back, *grads = aten.native_group_norm_backward(g, v, mean, scale, flat, batch, channels, voxels, groups, mask)
    return (back.to(kind), *(each.to(kind) for each in grads[: len(own)]))


def _batch_norm(
    stage: Any, g: Tensor, v: Tensor, r: None, own: Sequence[Tensor], want: Sequence[bool], shape: Any
) -> Any:
    """Running statistics are no parameters: they get no gradient."""
    mean, var, *affine = (each.reshape(-1) for each in own)
    if torch.is_grad_enabled() or v is None or g.numel() == 0:  # PyTorch's kernel divides by the number of elements
        scale = torch.rsqrt(var + stage.eps)
        back = g * column(scale * affine[0] if affine else scale)
        if not affine:
            return back, None, None
        about = None if v is None else (per_channel(g * v) - per_channel(g) * mean) * scale
        return back, None, None, about, per_channel(g)
    weight, mask = affine[0] if affine else None, [True, bool(affine), bool(affine)]
    grads = aten.native_batch_norm_backward(g, v, weight, mean, var, None, None, False, stage.eps, mask)
    return grads[0], None, None, *grads[1 : 1 + len(affine)]


# --- arithmetic -------------------------------------------------------------------------------------------------------


def _binary(sides: Callable[..., tuple[Any, Any]], **rest: Any) -> Gradient:
    """`sides` gives the gradients of the value and of the second one, before they are fitted to their shapes; the
    second is None where v is."""

    def to_both(stage: Any, g: Tensor, v: Tensor | None, second: Any, shape: Any, second_shape: Any) -> Any:
        mine, theirs = sides(stage, g, v, second)
        return fitted(mine, shape), None if theirs is None else fitted(theirs, second_shape)

    def back(stage: Any, g: Tensor, v: Tensor | None, r: None, own: Sequence[Tensor], want: Any, shape: Any) -> Any:
        if not own:
            return (fitted(sides(stage, g, v, stage.other)[0], shape),)
        second = column(own[0]) if stage.other == "channel" else own[0]
        return to_both(stage, g, v if want[1] or "v" in gradient.uses_of(stage) else None, second, shape, second.shape)

    gradient = Gradient(back, back_to_both=to_both, **rest)
    return gradient


def _add(stage: Any, g: Tensor, v: Tensor | None, second: Any) -> Any:
    return g, g


def _subtract(stage: Any, g: Tensor, v: Tensor | None, second: Any) -> Any:
    return stage.sides(g, -g)


def _multiply(stage: Any, g: Tensor, v: Tensor | None, second: Any) -> Any:
    return g * second, None if v is None else g * v


def _divide(stage: Any, g: Tensor, v: Tensor | None, second: Any) -> Any:
    left, right = stage.sides(v, second)
    return stage.sides(g / right, None if left is None else -g * left / (right * right))


# --- pointwise functions ----------------------------------------------------------------------------------------------


def _clamp(stage: Any, g: Tensor, v: Tensor, r: None, own: Any, want: Any, shape: Any) -> Any:
    low = -torch.inf if stage.min is None else stage.min
    high = torch.inf if stage.max is None else stage.max
    inside = (v >= low) & (v <= high)
    return (torch.where(inside, g, 0.0),)


def _prelu(stage: Any, g: Tensor, v: Tensor, r: None, own: Sequence[Tensor], want: Any, shape: Any) -> Any:
    slope = column(own[0])
    positive = v > 0
    grad_slope = fitted(torch.where(positive, 0.0, g * v), slope.shape) if want[1] else None
    return torch.where(positive, g, g * slope), grad_slope


def _mish(stage: Any, g: Tensor, v: Tensor, r: None, own: Any, want: Any, shape: Any) -> Any:
    if not torch.is_grad_enabled():
        return (aten.mish_backward(g, v),)
    flat, sigmoid = torch.tanh(torch.nn.functional.softplus(v)), torch.sigmoid(v)
    return (g * (flat + v * sigmoid * (1 - flat * flat)),)


def _silu(stage: Any, g: Tensor, v: Tensor, r: None, own: Any, want: Any, shape: Any) -> Any:
    if not torch.is_grad_enabled():
        return (aten.silu_backward(g, v),)
    sigmoid = torch.sigmoid(v)  # PyTorch's own has no derivative
    return (g * sigmoid * (1 + v * (1 - sigmoid)),)


_ENTRIES: dict[type[Stage], Gradient] = {
    stages.ConvTranspose3d: Gradient(_conv, "v", reads=1),
    stages.Conv3d: Gradient(_conv_forward, "v", reads=1),
    stages.MaxPool3d: Gradient(_max_pool, "v"),
    stages.AvgPool3d: Gradient(_avg_pool),
    stages.Sum: Gradient(lambda stage, g, v, r, own, want, shape: (g.expand(shape),)),
    stages.Mean: Gradient(_mean),
    stages.Max: Gradient(_max, "vr"),
    stages.LogSumExp: Gradient(lambda stage, g, v, r, own, want, shape: (g * (v - r).exp(),), "vr"),
    stages.Softmax: Gradient(_softmax, lambda stage: "r" if stage.scale is None else "v", reads=1),
    stages.LayerNorm: Gradient(_layer_norm, "v", reads=1),
    stages.GroupNorm: Gradient(_group_norm, "v", reads=1),
    stages.InstanceNorm: Gradient(_instance_norm, "v", reads=1),
    stages.BatchNorm: Gradient(_batch_norm, "", "v", reads=3),
    stages.Add: _binary(_add),
    stages.Subtract: _binary(_subtract),
    stages.Multiply: _binary(_multiply, operands_use="v", reads=1),
    stages.Divide: _binary(_divide, uses=lambda stage: "v" if stage.reverse else "", operands_use="v", reads=1),
    stages.Clamp: Gradient(_clamp, "v"),
    stages.GELU: Gradient(
        lambda stage, g, v, r, own, want, shape: (aten.gelu_backward(g, v, approximate=stage.approximate),), "v"
    ),
    stages.ReLU: Gradient(lambda stage, g, v, r, own, want, shape: (aten.threshold_backward(g, r, 0),), "r"),
    stages.LeakyReLU: Gradient(
        lambda stage, g, v, r, own, want, shape: (aten.leaky_relu_backward(g, v, stage.negative_slope, False),), "v"
    ),
    stages.PReLU: Gradient(_prelu, "v", reads=1),
    stages.Sigmoid: Gradient(lambda stage, g, v, r, own, want, shape: (aten.sigmoid_backward(g, r),), "r"),
    stages.Tanh: Gradient(lambda stage, g, v, r, own, want, shape: (aten.tanh_backward(g, r),), "r"),
    stages.SiLU: Gradient(_silu, "v"),
    stages.HardSwish: Gradient(lambda stage, g, v, r, own, want, shape: (aten.hardswish_backward(g, v),), "v"),
    stages.HardTanh: Gradient(
        lambda stage, g, v, r, own, want, shape: (aten.hardtanh_backward(g, v, stage.min_val, stage.max_val),), "v"
    ),
    stages.Mish: Gradient(_mish, "v"),
    stages.Softplus: Gradient(
        lambda stage, g, v, r, own, want, shape: (aten.softplus_backward(g, v, stage.beta, stage.threshold),), "v"
    ),
    stages.Exp: Gradient(lambda stage, g, v, r, own, want, shape: (g * r,), "r"),
    stages.Log: Gradient(lambda stage, g, v, r, own, want, shape: (g / v,), "v"),
    stages.Keep: Gradient(lambda stage, g, v, r, own, want, shape: (g,)),
    # the value before it has a name, by which its gradient comes
    stages.Recall: Gradient(lambda *_: (None,), back_to_both=lambda stage, g, *_: (None, g)),
}
GRADIENTS: StageTable[Gradient] = StageTable("gradients", __name__, _ENTRIES)
