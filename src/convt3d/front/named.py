"""The pipelines of the five operators, from their arguments as callers write them; remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..spec.checks import real
from ..spec.pipeline import Pipeline
from ..spec.stage import Stage
from ..spec.stages import (
    GELU,
    Add,
    AvgPool3d,
    Clamp,
    ConvTranspose3d,
    LayerNorm,
    MaxPool3d,
    Multiply,
    Softmax,
    Sum,
)


def plain(*conv: Any) -> Pipeline:
    return Pipeline(ConvTranspose3d(*conv))


def max_max_sum(*conv: Any) -> Pipeline:
    return Pipeline(ConvTranspose3d(*conv), MaxPool3d(2), MaxPool3d(3), Sum("channels"))


def sum_layernorm_avgpool_gelu(*arguments: Any) -> Pipeline:
    *conv, eps, weight, bias, sum_weight, approximate = arguments
    shift = Add(real("Add", "other", sum_weight, nan=True))
    return Pipeline(ConvTranspose3d(*conv), shift, *_layer_norm(eps, weight, bias), AvgPool3d(2), GELU(approximate))


def avgpool_clamp_softmax_multiply(*arguments: Any) -> Pipeline:
    *conv, pool_kernel, low, high = arguments
    after = Clamp(low, high), Softmax("spatial"), Multiply("channel")
    return Pipeline(AvgPool3d(pool_kernel), ConvTranspose3d(*conv), *after)


def layernorm_gelu_scaling(*arguments: Any) -> Pipeline:
    *conv, eps, weight, bias, factor, approximate = arguments
    scale = Multiply(real("Multiply", "other", factor, nan=True))
    return Pipeline(ConvTranspose3d(*conv), *_layer_norm(eps, weight, bias), GELU(approximate), scale)


def _layer_norm(eps: float, weight: bool, bias: bool) -> list[Stage]:
    """Either of weight and bias may be absent, so each is a stage of its own."""
    return [LayerNorm("channels", eps), *([Multiply("channel")] if weight else []), *([Add("channel")] if bias else [])]


_known: dict[Any, Pipeline] = {}
_shared: dict[Pipeline, Pipeline] = {}


def remembered(build: Callable[..., Pipeline], *arguments: Any) -> Pipeline:
    """build(*arguments), remembered: checking parameters and hashing stages would take longer than a small kernel."""
    try:
        key = (build, *map(_exactly, arguments))
        found = _known.get(key)
    except Exception:  # a list, say: fine as an argument, but not as a key; foreign objects may raise anything
        return shared(build(*arguments))
    if found is None:
        found = shared(build(*arguments))
        if len(_known) >= 1024:
            _known.clear()
        _known[key] = found
    return found


def shared(pipeline: Pipeline) -> Pipeline:
    """The one object for all equal pipelines: plans are looked up by it, and comparing stages takes time."""
    if len(_shared) >= 1024:
        _shared.clear()
    return _shared.setdefault(pipeline, pipeline)


def _exactly(argument: Any) -> Any:
    """A key that tells 1 from True and 1.0, and 0.0 from -0.0."""
    if isinstance(argument, tuple):
        return tuple(map(_exactly, argument))
    return (type(argument), argument.hex() if isinstance(argument, float) else argument)
