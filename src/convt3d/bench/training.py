"""Forward and backward of a case, as training does them: the step, and the float64 step that it is compared with.

BatchNorm takes the statistics of the batch. Between two steps one number of the weights grows by a rounding, so nobody
finds again what it has made from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn import functional

from ..front.verify import Check
from ..spec.stages import BatchNorm
from ..spec.text import write_pipeline
from ..torch import stock
from ..torch.functions import pipeline as fused
from .cases import SEED, Arrays, Case
from .contenders.base import Ready
from .contenders.eager import from_tensor, to_tensor

Function: TypeAlias = Callable[[Any, Sequence[Any]], Any]
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_NOTHING = 1e-9  # rounding of float64, summed
_STATISTICS = ("running_mean", "running_var")  # operands that are not learnt


def prepare_step(case: Case, arrays: Arrays, function: Function, channels_last: bool = False, note: str = "") -> Ready:
    """One step of `function`, which is given x and operands; it gives the result and all gradients."""
    tensors = [to_tensor(case, array, channels_last).clone() for array in (arrays.x, *arrays.operands)]
    grad = to_tensor(case, _upstream(case), channels_last)
    weight = stock.weights_of(case.pipeline, tensors[1:])[0].detach()
    bits = weight[0, 0, 0, 0, 0].view(_BITS[weight.itemsize])

    def run() -> Any:
        found = _step(case, function, tensors, grad)
        bits.add_(1)
        return found

    return Ready(run, lambda found: [from_tensor(each) for each in found], allocates=True, note=note)


def ours(case: Case) -> Function:
    text, training = write_pipeline(case.pipeline), _normalises(case)
    return lambda x, operands: fused(x, operands, text, training=training)


def eager(case: Case) -> Function:
    """As a user of PyTorch writes it."""
    pipeline, last = case.pipeline, len(case.pipeline.stages)

    def batch_norm(stage: Any, v: Any, mean: Any, var: Any, weight: Any = None, bias: Any = None) -> Any:
        return functional.batch_norm(v, mean, var, weight, bias, training=True, eps=stage.eps)

    others: stock.Others = {BatchNorm: batch_norm}
    return lambda x, operands: stock.as_result(pipeline, stock.values(pipeline, x, operands, {last}, others)[last])


def _normalises(case: Case) -> bool:
    """Whether samples meet in the statistics of a batch."""
    return any(isinstance(stage, BatchNorm) for stage in case.pipeline.stages)


def _upstream(case: Case) -> Any:
    """The gradient of the result."""
    values = np.random.default_rng(SEED + 1).standard_normal(case.output)
    return case.dtype.narrow(values)


def _step(case: Case, function: Function, tensors: Sequence[Any], grad: Any) -> list[Any]:
    roles = ["input", *(slot.operand.role for slot in case.pipeline.slots)]
    learnt = [tensor for tensor, role in zip(tensors, roles, strict=True) if role not in _STATISTICS]
    for tensor in learnt:
        tensor.requires_grad_()
    result = function(tensors[0], tensors[1:])
    return [result.detach(), *torch.autograd.grad(result, learnt, grad)]


# --- what is right ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Gradients:
    """Result and gradients by PyTorch in float64. Of what each sample has of its own, the first and the last are kept.

    An error is the norm of the difference over the norm of what is expected, in the worst of these arrays. Single
    numbers tell nothing: where two values of a pool differ by less than a rounding, or one lies as near to the corner
    of a ReLU, rounding turns a decision, and a gradient goes another way. Such turns, one in a million, change the norm
    by less than the root of the type's rounding; a wrong plane of a volume changes it more. What is nothing but
    rounding, the gradient of a bias before a BatchNorm, is compared with the gradient of the result.
    """

    case: Case
    expected: tuple[Any, ...]
    per_sample: tuple[bool, ...]
    upstream: float  # the norm of the gradient of the result

    def check(self, found: Sequence[Any]) -> Check:
        errors, voxels = [], 0
        for array, expected, split in zip(found, self.expected, self.per_sample, strict=True):
            actual = self.case.dtype.widen(_ends(array) if split else array)
            norm = float(np.linalg.norm(expected.ravel()))
            error = float(np.linalg.norm((actual - expected).ravel()))
            errors.append(error / (norm if norm > _NOTHING * self.upstream else self.upstream))
            voxels += expected.size
        worst = max(np.inf if np.isnan(error) else error for error in errors)
        tolerance = 2 * sqrt(self.case.dtype.eps)
        return Check(voxels, worst, tolerance, worst <= tolerance, scale=1.0)


def expected_step(case: Case, arrays: Arrays) -> Gradients:
    """Sample by sample, unless they meet in a norm: float64 takes much memory."""
    wide = [torch.from_numpy(case.dtype.widen(array)) for array in (arrays.x, *arrays.operands)]
    grad = torch.from_numpy(case.dtype.widen(_upstream(case)))
    batch, function = case.x[0], eager(case)
    alone = [True, *(slot.operand.kind == "tensor" for slot in case.pipeline.slots)]
    learnt = [slot.operand.role not in _STATISTICS for slot in case.pipeline.slots]
    split = [True, True, *(own for own, wanted in zip(alone[1:], learnt, strict=True) if wanted)]
    parts = [slice(None)] if _normalises(case) else [slice(at, at + 1) for at in range(batch)]
    totals: list[Any] = [None] * len(split)
    for number, part in enumerate(parts):
        own = [tensor[part].clone() if each else tensor.clone() for tensor, each in zip(wide, alone, strict=True)]
        for at, found in enumerate(_step(case, function, own, grad[part])):
            if not split[at]:
                totals[at] = found if totals[at] is None else totals[at] + found
            elif number in (0, len(parts) - 1):
                totals[at] = found if totals[at] is None else torch.cat([totals[at], found])
    kept = (_ends(total.numpy()) if own else total.numpy() for total, own in zip(totals, split, strict=True))
    return Gradients(case, tuple(kept), tuple(split), float(grad.norm()))


def _ends(array: Any) -> Any:
    """The first and the last sample."""
    return array[[0, len(array) - 1]]
