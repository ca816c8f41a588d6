"""The operators of spec/operators.py as functions on JAX arrays; jit, vmap, grad and sharding included.

Their signatures are written out for people and tools that read sources; a test compares them with the declaration, from
which their help is made. Whatever is wrong with a call is said when it is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import ArgumentTypeError, DTypeError, ShapeError, described, named
from ..front.apply import same_dtype
from ..front.help import jax_help
from ..spec.checks import answers
from ..spec.dtypes import DTYPES
from ..spec.operators import OPERATORS, shared
from ..spec.pipeline import Pipeline, bind
from ..spec.text import read_stages
from .formulas import Array
from .primitives import apply

Size: TypeAlias = int | Sequence[int]
Padding: TypeAlias = int | Sequence[int] | str
Function = TypeVar("Function", bound=Callable[..., Any])


def _declared(function: Function) -> Function:
    function.__doc__ = jax_help(OPERATORS[function.__name__])
    return answers(function)


@_declared
def conv3d(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Size = 1,
    padding: Padding = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    padding_mode: str = "zeros",
) -> Array:
    return _call("conv3d", input, weight, bias, stride, padding, dilation, groups, padding_mode)


@_declared
def conv_transpose3d(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Array:
    return _call("conv_transpose3d", input, weight, bias, stride, padding, output_padding, groups, dilation)


@_declared
def conv_transpose3d_max_max_sum(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Size = 2,
    padding: Size = 2,
    *,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Array:
    return _call("conv_transpose3d_max_max_sum", input, weight, bias, stride, padding, output_padding, groups, dilation)


@_declared
def conv_transpose3d_sum_layernorm_avgpool_gelu(
    input: Array,
    weight: Array,
    sum_weight: float = 1.0,
    stride: Size = 2,
    padding: Size = 1,
    output_padding: Size = 1,
    *,
    bias: Array | None = None,
    norm_weight: Array | None = None,
    norm_bias: Array | None = None,
    eps: float = 1e-5,
    approximate: str = "none",
    groups: int = 1,
    dilation: Size = 1,
) -> Array:
    norm = bias, norm_weight, norm_bias, eps, approximate
    conv = stride, padding, output_padding
    name = "conv_transpose3d_sum_layernorm_avgpool_gelu"
    return _call(name, input, weight, sum_weight, *conv, *norm, groups, dilation)


@_declared
def conv_transpose3d_avgpool_clamp_softmax_multiply(
    input: Array,
    weight: Array,
    scale: Array,
    stride: Size = 2,
    padding: Size = 1,
    output_padding: Size = 1,
    pool_kernel: Size = 2,
    clamp_min: float | None = 0.0,
    clamp_max: float | None = 1.0,
    *,
    bias: Array | None = None,
    groups: int = 1,
    dilation: Size = 1,
) -> Array:
    conv = stride, padding, output_padding
    name = "conv_transpose3d_avgpool_clamp_softmax_multiply"
    return _call(name, input, weight, scale, *conv, pool_kernel, clamp_min, clamp_max, bias, groups, dilation)


@_declared
def conv_transpose3d_layernorm_gelu_scaling(
    input: Array,
    weight: Array,
    scaling_factor: float = 1.0,
    stride: Size = 2,
    padding: Size = 1,
    output_padding: Size = 0,
    *,
    bias: Array | None = None,
    norm_weight: Array | None = None,
    norm_bias: Array | None = None,
    eps: float = 1e-5,
    approximate: str = "none",
    groups: int = 1,
    dilation: Size = 1,
) -> Array:
    norm = bias, norm_weight, norm_bias, eps, approximate
    conv = stride, padding, output_padding
    name = "conv_transpose3d_layernorm_gelu_scaling"
    return _call(name, input, weight, scaling_factor, *conv, *norm, groups, dilation)


@answers
def pipeline(input: Array, operands: Sequence[Array], stages: str | Pipeline) -> Array:
    """A pipeline, or the text of one, such as "ConvTranspose3d(stride=2, bias=True) -> InstanceNorm() -> ReLU()".

    Parameters
    ----------
    input : Array
        (B, Cin, D, H, W), or unbatched (Cin, D, H, W).
    operands : list of Array
        The arrays of the pipeline's `operand_names`, in order.
    stages : str or Pipeline
        What is computed.

    Returns
    -------
    Array
        Of the type of `input`; it can be differentiated.

    Raises
    ------
    convt3d.ArgumentError
        A text that is no pipeline, or a parameter outside its range.
    convt3d.ArgumentTypeError
        Not the operands of the pipeline.
    convt3d.DTypeError
        A type that is unknown here, or arrays of different types.
    convt3d.ShapeError
        Sizes that do not fit together.

    Examples
    --------
    >>> import jax.numpy as jnp, convt3d.jax
    >>> x, w = jnp.ones((1, 8, 3, 4, 5)), jnp.ones((8, 4, 2, 2, 2))
    >>> convt3d.jax.pipeline(x, [w], "ConvTranspose3d(stride=2) -> ReLU()").shape
    (1, 4, 6, 8, 10)
    """
    with named("pipeline"):
        if isinstance(stages, str):
            stages = Pipeline(*read_stages(stages))
        if not isinstance(stages, Pipeline):
            rule, remedy = "must be a Pipeline or its text", "Write it like 'ConvTranspose3d(stride=2) -> ReLU()'"
            raise ArgumentTypeError("pipeline", "stages", stages, rule, remedy)
        if not isinstance(operands, (list, tuple)):
            kind = described(type(operands).__name__)
            raise ArgumentTypeError("pipeline", "operands", kind, "must be a list of arrays", "Write [weight, ...]")
        given = bind("pipeline", ("input",), stages.operand_names, operands, {})
        return _run("pipeline", shared(stages), input, given)


def _call(name: str, *arguments: Any) -> Array:
    operator = OPERATORS[name]
    with named(name, operator.renamed):
        stages, operands = operator.lower(arguments)
        return _run(name, stages, arguments[0], operands)


def _run(operator: str, stages: Pipeline, input: Any, operands: Sequence[Any]) -> Array:
    x = _array(operator, "input", input)
    unbatched = x.ndim == 4
    x = x[None] if unbatched else x
    arrays = []
    for slot, operand in zip(stages.slots, operands, strict=True):
        array = _array(operator, slot.name, operand)
        same_dtype(operator, slot.name, DTYPES[array.dtype.name], "input", DTYPES[x.dtype.name])
        if slot.operand.kind == "tensor" and array.ndim == 4:
            array = array[None]
        arrays.append(array)
    shapes = stages.trace(x.shape, [array.shape for array in arrays]).operand_shapes
    arrays = [
        array.reshape(shape) if array.ndim else jnp.full(shape, array)
        for array, shape in zip(arrays, shapes, strict=True)
    ]
    y = apply(stages, x, arrays)
    return y[0] if unbatched else y


def _array(operator: str, name: str, value: Any) -> Array:
    if not isinstance(value, (jax.Array, np.ndarray, np.generic)):
        rule, remedy = "must be a JAX array", "Convert it, for example with jax.numpy.asarray"
        raise ArgumentTypeError(operator, name, described(type(value).__name__), rule, remedy)
    if value.dtype.name not in DTYPES:
        received = described(f"array of {value.dtype.name}")
        raise DTypeError(operator, name, received, f"must be {', '.join(DTYPES)}", "Convert the array")
    if not all(isinstance(size, int) for size in value.shape):
        received = described(f"array of shape {value.shape}")
        raise ShapeError(
            operator, name, received, "sizes must be numbers", "Trace it with the shapes it is called with"
        )
    return jnp.asarray(value)
