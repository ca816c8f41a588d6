"""Four operations that JAX can trace, differentiate and map over: a pipeline, a convolution alone, and the gradients of
its weight and of its bias.

A convolution is linear in its input and in its weight, and so is the gradient of the weight in what it is made from:
their derivatives are each other. A pipeline is one call of our kernels; its derivatives are those of its stages in
JAX's own operations around the convolution, from values that are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ..spec.checks import as_triple
from ..spec.pipeline import Pipeline
from ..spec.shapes import Shape
from ..spec.stages import Conv3d, Convolution, ConvTranspose3d
from .calls import BIAS, PIPELINE, TARGET, WEIGHT, attributes, register
from .formulas import Array, column, jax_function, padded

pipeline_p, conv_p = Primitive("convt3d_pipeline"), Primitive("convt3d_conv")
weight_p, bias_p = Primitive("convt3d_weight_gradient"), Primitive("convt3d_bias_gradient")
add_bias_p = Primitive("convt3d_add_bias")


def apply(pipeline: Pipeline, x: Array, operands: Sequence[Array]) -> Array:
    """The result of a pipeline for x (B, C, D, H, W) and operands of its type, further values with five axes."""
    if len(pipeline.stages) == 1 and len(operands) == 1 and _is_plain(pipeline.conv, operands[0]):
        return conv(pipeline.conv, x, *operands)  # linear, and JAX may ask for its transpose
    return pipeline_p.bind(*_varying(x, *operands), pipeline=pipeline)


def _is_plain(stage: Convolution, weight: Array) -> bool:
    """Whether as many zeros are around both sides of the array."""
    if not isinstance(stage, Conv3d):
        return True
    return stage.padding_mode == "zeros" and all(before == after for before, after in stage.paddings(weight.shape))


def conv(stage: Convolution, x: Array, weight: Array, bias: Array | None = None) -> Array:
    """A convolution, to be differentiated by our kernels."""
    if isinstance(stage, Conv3d):
        sides = stage.paddings(weight.shape)
        even = all(before == after for before, after in sides)
        padding = as_triple(before for before, _ in sides)
        if stage.padding_mode != "zeros" or not even:
            x, padding = padded(stage, x, sides), (0, 0, 0)
        stage = replace(stage, padding=padding, padding_mode="zeros")
    alone: Any = stage
    y = conv_p.bind(*_varying(x, weight), stage=replace(alone, bias=False))
    return y if bias is None else add_bias_p.bind(*_varying(y, bias.reshape(-1)))


def _varying(*arrays: Array) -> Sequence[Array]:
    """Within jax.shard_map what one device has may be its own or everyone's: all of it as its own, so that a gradient
    is summed over devices where it must be."""
    axes: list[frozenset[Any]] = [jax.typeof(each).manual_axis_type.varying for each in arrays]
    every: frozenset[Any] = frozenset().union(*axes)
    return [
        jax.lax.pcast(each, tuple(every - own), to="varying") if every - own else each
        for each, own in zip(arrays, axes, strict=True)
    ]


def _input_gradient(stage: Convolution, g: Array, weight: Array, shape: Shape) -> Array:
    """Of an input of `shape`: a transposed convolution passes a gradient on by the convolution with the same weight,
    and the other way round."""
    if isinstance(stage, ConvTranspose3d):
        stride, padding, _, dilation = stage.triples
        back: Convolution = Conv3d(stride=stride, padding=padding, groups=stage.groups, dilation=dilation)
    else:
        axes = stage.axes(shape, weight.shape)
        made = [(a.out - 1) * a.stride - 2 * a.padding + a.dilation * (a.kernel - 1) + 1 for a in axes]
        extra = as_triple(a.size - voxels for a, voxels in zip(axes, made, strict=True))
        stride, padding, dilation = map(as_triple, (stage.stride, stage.padding, stage.dilation))
        back = ConvTranspose3d(
            stride=stride, padding=padding, output_padding=extra, groups=stage.groups, dilation=dilation
        )
    found = conv_p.bind(g, weight, stage=back)
    return found[:, :, : shape[2], : shape[3], : shape[4]]  # long output_padding makes voxels that the input has not


def _of_shape(like: Any, shape: Sequence[int]) -> Any:
    """What JAX knows of a result whose axis 0, if it has the batch of `like`, lies where that of `like` lies."""
    if len(shape) == len(like.shape):
        return like.update(shape=tuple(shape), weak_type=False)
    spec = jax.sharding.PartitionSpec(*(None,) * len(shape))
    return like.update(shape=tuple(shape), weak_type=False, sharding=like.sharding.update(spec=spec))


def _define(
    primitive: Primitive,
    shape: Callable[..., Sequence[int]],
    formula: Callable[..., Array],
    batch: Callable[..., tuple[Array, int]],
    asked: Callable[..., tuple[str, Pipeline | None]] | None = None,
) -> None:
    """`shape` of the result by the shapes of the arrays; `formula` in JAX's own operations, for platforms that are not
    ours; `asked` says what our kernels are told, where they are."""

    def lower(context: Any, *operands: Any, **params: Any) -> Any:
        assert asked is not None
        register()
        told = attributes(*asked(**params), (*context.avals_in, *context.avals_out))
        return jax.ffi.ffi_lowering(TARGET)(context, *operands, **told)

    @lru_cache(maxsize=1024)
    def compiled(params: tuple[tuple[str, Any], ...]) -> Any:
        return jax.jit(partial(primitive.bind, **dict(params)))

    def run(*arrays: Array, **params: Any) -> Array:
        with jax.disable_jit(False):  # where it is disabled, the compiled call would ask for itself
            return compiled(tuple(sorted(params.items())))(*arrays)

    primitive.def_impl(run)
    primitive.def_abstract_eval(
        lambda *avals, **params: _of_shape(avals[0], shape(*(each.shape for each in avals), **params))
    )
    mlir.register_lowering(primitive, mlir.lower_fun(formula, multiple_results=False))
    if asked is not None:
        mlir.register_lowering(primitive, lower, platform="cpu")
    batching.primitive_batchers[primitive] = batch


# --- vmap -------------------------------------------------------------------------------------------------------------


def _one_by_one(primitive: Primitive) -> Callable[..., tuple[Array, int]]:
    def batch(arrays: Sequence[Array], dims: Sequence[int | None], **params: Any) -> tuple[Array, int]:
        mapped = [jnp.moveaxis(each, dim, 0) for each, dim in zip(arrays, dims, strict=True) if dim is not None]

        def one(parts: Sequence[Array]) -> Array:
            rest = iter(parts)
            given = [each if dim is None else next(rest) for each, dim in zip(arrays, dims, strict=True)]
            return primitive.bind(*given, **params)

        return jax.lax.map(one, mapped), 0

    return batch


def _batch_pipeline(arrays: Sequence[Array], dims: Sequence[int | None], *, pipeline: Pipeline) -> tuple[Array, int]:
    """Inputs and further values become a larger batch; weights that differ are taken one by one."""
    values = [True, *(slot.operand.kind == "tensor" for slot in pipeline.slots)]
    if any(dim is not None and not value for dim, value in zip(dims, values, strict=True)):
        return _one_by_one(pipeline_p)(arrays, dims, pipeline=pipeline)
    count = next(each.shape[dim] for each, dim in zip(arrays, dims, strict=True) if dim is not None)
    size = arrays[0].shape[0 if dims[0] is None else 1 if dims[0] == 0 else 0]
    given = []
    for at, (each, dim, value) in enumerate(zip(arrays, dims, values, strict=True)):
        same_for_all = dim is None and at > 0 and (not value or each.shape[0] == 1)
        given.append(each if same_for_all else _larger_batch(each, dim, count, size))
    y = pipeline_p.bind(*given, pipeline=pipeline)
    return y.reshape(count, size, *y.shape[1:]), 0


def _larger_batch(array: Array, dim: int | None, count: int, size: int) -> Array:
    """(count * size, ...) of an array with, or without, a mapped axis; its batch is `size`, or 1."""
    array = array[None] if dim is None else jnp.moveaxis(array, dim, 0)
    array = jnp.broadcast_to(array, (count, size, *array.shape[2:]))
    return array.reshape(count * size, *array.shape[2:])


def _batch_conv(arrays: Sequence[Array], dims: Sequence[Any], *, stage: Convolution) -> tuple[Array, int]:
    if dims[1] is not None:
        return _one_by_one(conv_p)(arrays, dims, stage=stage)
    x = jnp.moveaxis(arrays[0], dims[0], 0)
    y = conv_p.bind(x.reshape(-1, *x.shape[2:]), arrays[1], stage=stage)
    return y.reshape(*x.shape[:2], *y.shape[1:]), 0


def _batch_bias(arrays: Sequence[Array], dims: Sequence[Any]) -> tuple[Array, int]:
    """Mapped ones are more channels."""
    grad = jnp.moveaxis(arrays[0], dims[0], 1)
    b, count, channels, *space = grad.shape
    return bias_p.bind(grad.reshape(b, count * channels, *space)).reshape(count, channels), 0


def _batch_add_bias(arrays: Sequence[Array], dims: Sequence[int | None]) -> tuple[Array, int]:
    v, bias = arrays
    v = v[None] if dims[0] is None else jnp.moveaxis(v, dims[0], 0)
    bias = bias[None] if dims[1] is None else jnp.moveaxis(bias, dims[1], 0)
    return v + bias[:, None, :, None, None, None], 0


# --- shapes, formulas and derivatives ---------------------------------------------------------------------------------


def _result_shape(x: Sequence[int], *operands: Sequence[int], pipeline: Pipeline) -> Sequence[int]:
    return pipeline.result_shape(pipeline.trace(x, operands).output)


def _conv_shape(x: Sequence[int], weight: Sequence[int], *, stage: Convolution) -> Sequence[int]:
    return Pipeline(stage).trace(x, [weight]).output


def _weight_shape(g: Sequence[int], x: Sequence[int], *, stage: Convolution, kernel: Sequence[int]) -> Sequence[int]:
    outer, inner = (x[1], g[1]) if isinstance(stage, ConvTranspose3d) else (g[1], x[1])
    return outer, inner // stage.groups, *kernel


def _formula(x: Array, *operands: Array, pipeline: Pipeline) -> Array:
    return jax_function(pipeline)(x, operands)


def _conv_formula(x: Array, weight: Array, *, stage: Convolution) -> Array:
    return jax_function(Pipeline(stage))(x, [weight])


def _weight_formula(g: Array, x: Array, *, stage: Convolution, kernel: Sequence[int]) -> Array:
    like = jnp.zeros(_weight_shape(g.shape, x.shape, stage=stage, kernel=kernel), g.dtype)
    (found,) = jax.linear_transpose(partial(_conv_formula, x, stage=stage), like)(g)
    return found


def _bias_formula(g: Array) -> Array:
    return g.sum((0, 2, 3, 4))


def _pipeline_jvp(primals: Sequence[Array], tangents: Sequence[Any], *, pipeline: Pipeline) -> tuple[Array, Any]:
    """The result is that of one call. Its tangent keeps nothing but the operands: all values are computed again."""
    result = pipeline_p.bind(*primals, pipeline=pipeline)
    moving = [at for at, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]
    function = jax_function(pipeline, {type(pipeline.stages[at]): conv for at in pipeline.convolutions})

    def tangent_of(arrays: Sequence[Array], directions: Sequence[Array]) -> Array:
        def along(*active: Array) -> Array:
            x, *operands = (active[moving.index(at)] if at in moving else each for at, each in enumerate(arrays))
            return function(x, operands)

        return jax.jvp(along, [arrays[at] for at in moving], directions)[1]

    return result, jax.checkpoint(tangent_of)(list(primals), [tangents[at] for at in moving])


_define(pipeline_p, _result_shape, _formula, _batch_pipeline, lambda pipeline: (PIPELINE, pipeline))
_define(conv_p, _conv_shape, _conv_formula, _batch_conv, lambda stage: (PIPELINE, Pipeline(stage)))
_define(
    weight_p, _weight_shape, _weight_formula, _one_by_one(weight_p), lambda stage, kernel: (WEIGHT, Pipeline(stage))
)
_define(bias_p, lambda g: (g[1],), _bias_formula, _batch_bias, lambda: (BIAS, None))
_define(add_bias_p, lambda v, bias: v, lambda v, bias: v + column(bias), _batch_add_bias)

ad.primitive_jvps[pipeline_p] = _pipeline_jvp
ad.defbilinear(
    conv_p,
    lambda g, x, weight, stage: _input_gradient(stage, g, weight, x.aval.shape),
    lambda g, x, weight, stage: weight_p.bind(g, x, stage=stage, kernel=weight.aval.shape[2:]),
)
ad.defbilinear(
    weight_p,
    lambda w, g, x, stage, kernel: conv_p.bind(x, w, stage=stage),
    lambda w, g, x, stage, kernel: _input_gradient(stage, g, w, x.aval.shape),
)
ad.deflinear2(bias_p, lambda sums, g: [jnp.broadcast_to(column(sums), g.aval.shape)])
ad.deflinear2(
    add_bias_p,
    lambda g, v, bias: [
        g if ad.is_undefined_primal(v) else None,
        bias_p.bind(g) if ad.is_undefined_primal(bias) else None,
    ],
)
