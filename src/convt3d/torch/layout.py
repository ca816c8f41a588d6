"""Shapes and strides of results: those that PyTorch's own kernels would give, asked of PyTorch where it decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..spec.checks import as_triple
from ..spec.pipeline import Pipeline
from ..spec.shapes import Shape
from ..spec.stages import (
    AvgPool3d,
    Convolution,
    ConvTranspose3d,
    InstanceNorm,
    Keep,
    LayerNorm,
    LogSumExp,
    Max,
    Mean,
    Recall,
    Softmax,
    Sum,
)

_LAST = torch.channels_last_3d
_CONTIGUOUS = torch.contiguous_format
# Kernels of PyTorch that write contiguous results whatever they read; all others keep channels_last_3d.
_MAKE_CONTIGUOUS = (AvgPool3d, InstanceNorm, LogSumExp, Max, Mean, Softmax, Sum)


def shapes_of(pipeline: Pipeline, x: Sequence[int], kernels: Sequence[Sequence[int]]) -> list[Shape]:
    """Shapes of all values, x (5-D) first, for weights of these shapes, one for each convolution. Sizes may be
    symbolic, so nothing but the rules themselves is asked."""
    b, c, d, h, w = x
    shape = (b, c, d, h, w)
    shapes, labelled, rest = [shape], {"x": shape}, iter(kernels)
    for stage in pipeline.stages:
        if isinstance(stage, Convolution):
            kernel = next(rest)
            d, h, w = (axis.out for axis in stage.axes(shape, kernel))
            shape = (shape[0], stage.kernel(kernel)[1] * stage.groups, d, h, w)
        elif isinstance(stage, Recall):
            shape = labelled[stage.label]
        elif stage.uses:
            other = labelled[stage.uses]
            b, c, d, h, w = (o if v == 1 else v for v, o in zip(shape, other, strict=True))
            shape = (b, c, d, h, w)
        else:
            shape = stage.out_shape(shape, ())
        if isinstance(stage, Keep):
            labelled[stage.label] = shape
        shapes.append(shape)
    return shapes


def result_format(pipeline: Pipeline, x: Any, weights: Sequence[Any]) -> Any:
    """The memory format of the result for a batched x: the last convolution's, as far as later stages keep it."""
    if _plainly_contiguous(x) and all(map(_plainly_contiguous, weights)):
        return _CONTIGUOUS
    shapes = shapes_of(pipeline, x.shape, [weight.shape for weight in weights])
    # of the value; None: x itself, whatever its strides are
    kept: dict[str, Any] = {"x": None}
    found, rest = None, iter(weights)
    for index, stage in enumerate(pipeline.stages):
        if isinstance(stage, Convolution):
            found = _conv_format(stage, x if found is None else empty(x, shapes[index], found), next(rest))
        elif isinstance(stage, Recall):
            found = kept[stage.label]
        elif _makes_contiguous(stage):
            found = _CONTIGUOUS
        elif found is None and not isinstance(stage, Keep):
            found = _LAST if x.is_contiguous(memory_format=_LAST) else _CONTIGUOUS
        if isinstance(stage, Keep):
            kept[stage.label] = found
    return _CONTIGUOUS if found is None else found


def empty(like: Any, shape: Sequence[int], memory_format: Any) -> Any:
    """Memory for a result."""
    return torch.empty(tuple(shape), dtype=like.dtype, device=like.device, memory_format=memory_format)


def _plainly_contiguous(tensor: Any) -> bool:
    """Contiguous by strides that PyTorch cannot take for channels_last_3d, whatever axes have size 1."""
    return bool(tensor.is_contiguous() and tensor.stride(4) == 1 and tensor.stride(1) != 1)


def _makes_contiguous(stage: Any) -> bool:
    return isinstance(stage, _MAKE_CONTIGUOUS) or (isinstance(stage, LayerNorm) and stage.over == "width")


def _conv_format(conv: Convolution, x: Any, weight: Any) -> Any:
    """PyTorch chooses the kernel by type, sizes and strides, and the kernel chooses the format."""
    if x.is_complex() and weight.is_complex():  # PyTorch convolves real and imaginary parts
        x, weight = (torch.view_as_real(each.resolve_conj()).select(-1, 0) for each in (x, weight))
    transposed = isinstance(conv, ConvTranspose3d)
    extra = as_triple(conv.output_padding) if isinstance(conv, ConvTranspose3d) else (0, 0, 0)
    padding = [axis.padding for axis in conv.axes(x.shape, weight.shape)]
    sizes = list(as_triple(conv.stride)), padding, list(as_triple(conv.dilation)), transposed, list(extra)
    backend = torch._C._select_conv_backend(x, weight, None, *sizes, conv.groups, None)
    return torch._C._conv_determine_backend_memory_format(x, weight, backend)
