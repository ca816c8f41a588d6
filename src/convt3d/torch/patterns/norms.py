"""Normalisations."""

from __future__ import annotations

from typing import Any

from ...spec import stages as s
from ...spec.stage import Stage
from ..views import PLAIN, NoStageError, Value, View
from .arithmetic import operand_of
from .base import Given, Meaning, Part, inside, number, outer, rule


def _by_channel(value: Any) -> Value:
    """A value whose tensor has batch and channels in front, as norms read it."""
    if inside(value).view[:2] != PLAIN[:2]:
        raise NoStageError("has its channels on another axis")
    return value  # type: ignore[no-any-return]


def _affine(weight: Any, bias: Any) -> tuple[Given, ...]:
    """Stages have both weight and bias, or neither."""
    if (weight is None) != (bias is None):
        raise NoStageError("has a weight without a bias")
    return () if weight is None else (Given(outer(weight).node), Given(outer(bias).node))


def _normed(value: Value, stage: Stage, given: tuple[Given, ...]) -> Meaning:
    return Meaning(value, ((stage, given),), value.view, value.sizes)


@rule("batch_norm")
def _batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: Any = False,
    momentum: Any = 0.1,
    eps: Any = 1e-5,
    cudnn_enabled: Any = True,
) -> Meaning:
    if training or running_mean is None or running_var is None:
        raise NoStageError("uses the statistics of the batch")
    statistics = tuple(Given(outer(each).node) for each in (running_mean, running_var))
    affine = _affine(weight, bias)
    stage = s.BatchNorm(eps=number(eps), affine=bool(affine))
    return _normed(_by_channel(input), stage, (*statistics, *affine))


@rule("instance_norm")
def _instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: Any = True,
    momentum: Any = 0.1,
    eps: Any = 1e-5,
) -> Meaning:
    if running_mean is not None or running_var is not None or not use_input_stats:
        raise NoStageError("has running statistics")
    affine = _affine(weight, bias)
    return _normed(_by_channel(input), s.InstanceNorm(eps=number(eps), affine=bool(affine)), affine)


@rule("group_norm")
def _group_norm(
    input: Any, num_groups: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5, cudnn_enabled: Any = True
) -> Meaning:
    affine = _affine(weight, bias)
    return _normed(_by_channel(input), s.GroupNorm(num_groups, eps=number(eps), affine=bool(affine)), affine)


@rule("layer_norm")
def _layer_norm(
    input: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: Any = 1e-5,
    cudnn_enable: Any = True,
) -> Meaning:
    """Over channels or rows. Over all voxels it is an instance norm, and over channels and voxels a group norm of one
    group; their weights are tensors."""
    over = inside(input).view[len(input.view) - len(normalized_shape) :]
    words: dict[View, str] = {((1,),): "channels", ((4,),): "width"}
    word = words.get(over)
    if word is not None:
        affine = _affine(weight, bias)
        return _normed(input, s.LayerNorm(word, number(eps), bool(affine)), affine)
    axes = tuple(axis for group in over for axis in group)
    if set(axes) == {2, 3, 4}:
        norm: Stage = s.InstanceNorm(eps=number(eps))
    elif set(axes) == {1, 2, 3, 4}:
        norm = s.GroupNorm(1, eps=number(eps))
    else:
        raise NoStageError("normalises axes for which there is no norm")
    parts: list[Part] = [(norm, ())]
    for tensor, stage in ((weight, s.Multiply), (bias, s.Add)):
        if tensor is not None:
            word, given = operand_of(input, outer(tensor))
            parts.append((stage(word), (given,)))
    return Meaning(input, tuple(parts), input.view, input.sizes)
