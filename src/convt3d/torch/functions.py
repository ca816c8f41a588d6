"""The operators of spec/operators.py as functions on tensors; gradients, autocast and tracing included.

Their signatures are written out for people and tools that read sources; a test compares them with the declaration, from
which their help is made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from torch.overrides import handle_torch_function, has_torch_function

from ..front.help import tensor_help
from ..spec.checks import answers
from ..spec.operators import OPERATORS
from ..spec.pipeline import Pipeline
from ..spec.text import write_pipeline
from . import ops, stock
from .arguments import checked, padding_in_numbers, text, word_in_numbers
from .direct import direct
from .engine import knows, one_type, run, tell, unknown
from .operators import BY_NAME
from .recorded import recorded, recording
from .stock import Tensor
from .training import train

Size: TypeAlias = int | Sequence[int]
Padding: TypeAlias = int | Sequence[int] | str
Function = TypeVar("Function", bound=Callable[..., Any])


def _declared(function: Function) -> Function:
    function.__doc__ = tensor_help(OPERATORS[function.__name__])
    return answers(function)


@_declared
def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Padding = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    padding_mode: str = "zeros",
) -> Tensor:
    return _call("conv3d", input, weight, bias, stride, padding, dilation, groups, padding_mode)


@_declared
def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    return _call("conv_transpose3d", input, weight, bias, stride, padding, output_padding, groups, dilation)


@_declared
def conv_transpose3d_max_max_sum(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 2,
    padding: Size = 2,
    *,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    return _call("conv_transpose3d_max_max_sum", input, weight, bias, stride, padding, output_padding, groups, dilation)


@_declared
def conv_transpose3d_sum_layernorm_avgpool_gelu(
    input: Tensor,
    weight: Tensor,
    sum_weight: float = 1.0,
    stride: Size = 2,
    padding: Size = 1,
    output_padding: Size = 1,
    *,
    bias: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    eps: float = 1e-5,
    approximate: str = "none",
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    norm = bias, norm_weight, norm_bias, eps, approximate
    conv = stride, padding, output_padding
    name = "conv_transpose3d_sum_layernorm_avgpool_gelu"
    return _call(name, input, weight, sum_weight, *conv, *norm, groups, dilation)


@_declared
def conv_transpose3d_avgpool_clamp_softmax_multiply(
    input: Tensor,
    weight: Tensor,
    scale: Tensor,
    stride: Size = 2,
    padding: Size = 1,
    output_padding: Size = 1,
    pool_kernel: Size = 2,
    clamp_min: float | None = 0.0,
    clamp_max: float | None = 1.0,
    *,
    bias: Tensor | None = None,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    conv = stride, padding, output_padding
    name = "conv_transpose3d_avgpool_clamp_softmax_multiply"
    return _call(name, input, weight, scale, *conv, pool_kernel, clamp_min, clamp_max, bias, groups, dilation)


@_declared
def conv_transpose3d_layernorm_gelu_scaling(
    input: Tensor,
    weight: Tensor,
    scaling_factor: float = 1.0,
    stride: Size = 2,
    padding: Size = 1,
    output_padding: Size = 0,
    *,
    bias: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    eps: float = 1e-5,
    approximate: str = "none",
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    norm = bias, norm_weight, norm_bias, eps, approximate
    conv = stride, padding, output_padding
    name = "conv_transpose3d_layernorm_gelu_scaling"
    return _call(name, input, weight, scaling_factor, *conv, *norm, groups, dilation)


def pipeline(
    input: Tensor,
    operands: Sequence[Tensor],
    stages: str | Pipeline,
    *,
    training: bool = False,
    momentum: float | None = 0.1,
    num_batches_tracked: Tensor | None = None,
) -> Tensor:
    """A pipeline, or the text of one, such as "ConvTranspose3d(stride=2, bias=True) -> InstanceNorm() -> ReLU()".

    Parameters
    ----------
    input : Tensor
        (B, Cin, D, H, W), or unbatched (Cin, D, H, W).
    operands : list of Tensor
        The tensors of the pipeline's `operand_names`, in order.
    stages : str or Pipeline
        What is computed.
    training : bool, default False
        Whether a BatchNorm takes mean and variance of the batch, and moves the running statistics among the operands
        towards them, as `torch.nn.functional.batch_norm` does.
    momentum : float or None, default 0.1
        How far it moves them; None: they are the average over the batches that `num_batches_tracked` counts.
    num_batches_tracked : Tensor, optional
        Counted up in training, as that of `torch.nn.BatchNorm3d` is.

    Returns
    -------
    Tensor
        On the device and of the type of `input`; gradients are recorded.

    Raises
    ------
    convt3d.ArgumentError
        A text that is no pipeline, or a parameter outside its range.
    convt3d.ArgumentTypeError
        Not the operands of the pipeline.
    convt3d.ShapeError
        Sizes that do not fit together.

    Examples
    --------
    >>> import torch, convt3d.torch
    >>> x, w = torch.ones(1, 8, 3, 4, 5), torch.ones(8, 4, 2, 2, 2)
    >>> convt3d.torch.pipeline(x, [w], "ConvTranspose3d(stride=2) -> ReLU()").shape
    torch.Size([1, 4, 6, 8, 10])
    """
    words = write_pipeline(stages) if isinstance(stages, Pipeline) else text("pipeline", "stages", stages)
    if not training:
        return _call("pipeline", input, list(operands) if isinstance(operands, tuple) else operands, words)
    flat = _flat((input, operands))
    if not torch.compiler.is_compiling() and has_torch_function(flat):
        named = {"training": True, "momentum": momentum, "num_batches_tracked": num_batches_tracked}
        return handle_torch_function(pipeline, flat, input, operands, words, **named)
    x, tensors, _ = checked("pipeline", (input, operands, words))
    return train(x, tensors, words, momentum, num_batches_tracked)


def _call(name: str, *arguments: Any) -> Tensor:
    operator = BY_NAME[name]
    if direct(arguments, recorded=True):
        pipeline, x, operands = operator.lower(*arguments)
        if not recording(x, operands):
            return run(name, pipeline, x, operands)
        if one_type(x, operands):
            # the next call has other weights, after a step of the optimiser
            learnt = any(each.requires_grad for each in operands)
            return recorded(pipeline, x, operands, lambda part, own: run(name, part, x, own, passing=learnt))
    if not torch.compiler.is_compiling():
        flat = _flat(arguments)
        if has_torch_function(flat):
            rest = dict(zip(operator.names[1:], arguments[1:], strict=False))
            return handle_torch_function(globals()[name], flat, arguments[0], **rest)
    given = checked(name, arguments)
    reason = _why_stock(given)
    if not reason and word_in_numbers(name, given):
        numbers = padding_in_numbers(*given[1:6])
        if numbers is None:
            return _by_text(name, given)
        given = [*given[:4], numbers, *given[5:]]
    if not reason:
        return getattr(ops.NAMESPACE, name)(*given)
    result = stock.run(*operator.lower(*given))
    if not torch.compiler.is_compiling() and not torch.onnx.is_in_onnx_export():
        tell(name, reason)
    return result


def _by_text(name: str, arguments: Sequence[Any]) -> Tensor:
    """The call as that of the pipeline it means: its text has words that the operator's schema has not."""
    if not torch.compiler.is_compiling():
        BY_NAME[name].lower(*arguments)  # refuses what is wrong by the operator's own name
    operands = [each for each in arguments[1:] if isinstance(each, torch.Tensor)]
    kinds = [each is not None if each is None or isinstance(each, torch.Tensor) else each for each in arguments]
    return ops.NAMESPACE.pipeline(arguments[0], operands, _text_of(name, *kinds))


def _text_of(name: str, *parameters: Any) -> str:
    return write_pipeline(OPERATORS[name].pipeline(parameters))


_text_of._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compiler.assume_constant_result


def _why_stock(arguments: Sequence[Any]) -> str:
    """Why all of it is stock PyTorch's: types it could not differentiate the operator for, tensors in shards, which it
    shares out by its own operations, and ONNX, which knows no others."""
    if not knows(arguments[0].dtype):
        return unknown(arguments[0].dtype)
    if torch.onnx.is_in_onnx_export():
        return "ONNX knows no other operations"
    sharded = sys.modules.get("torch.distributed.tensor")
    kind = getattr(sharded, "DTensor", None)
    return "its tensors are sharded" if kind and any(isinstance(each, kind) for each in _flat(arguments)) else ""


def _flat(arguments: Sequence[Any]) -> list[Any]:
    return [each for value in arguments for each in (value if isinstance(value, (list, tuple)) else (value,))]
