"""Operands made ready for a plan, folded and packed: kept for everyone, by their numbers, or for one owner."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ...spec.dtypes import DType, float64
from ..plan.plan import Plan
from ..plan.tail_plan import TailPlan
from .bind import Binding
from .content_cache import ImmutableArray, memory_of
from .folded import all_hold, fold, folded, remaining, with_tensors, without_tensors
from .packing import WeightLayout
from .weights import Packed, pack_now, packed

Array = npt.NDArray[Any]


NOTHING = Packed(np.empty(0), 0, True, True)


class Ready(NamedTuple):
    plan: Plan  # without the rewrites that rely on tame operands, where one is not
    operands: tuple[Array, ...]  # as the plan's pipeline takes them; an owner leaves out the convolution's kernel
    stored_as: DType
    weights: Packed


class Keeper(Protocol):
    lasting: bool  # whether there is an owner whose next call finds what this one made

    def ready(self, plan: Plan, operands: tuple[Array, ...]) -> Ready: ...

    def part(self, number: int) -> Keeper:
        """Of one segment of a pipeline."""


class Everyone:
    """Kept for all callers, up to so many bytes: found by the numbers of the operands."""

    lasting = False

    def ready(self, plan: Plan, operands: tuple[Array, ...]) -> Ready:
        made, stored_as = operands, plan.dtype
        if plan.rewritten.needs_tame:
            prepared = folded(plan.rewritten, plan.asked, plan.dtype, operands)
            if prepared is None:
                return self.ready(plan.as_asked, operands)
            made, stored_as = prepared
        layout = _layout(plan)
        weights = NOTHING if layout is None else packed(_kernel(plan, made, stored_as), layout)
        return Ready(plan, made, stored_as, weights)

    def part(self, number: int) -> Everyone:
        return self


class _Made(NamedTuple):
    operands: tuple[Array, ...] | None  # folded ones, an empty array in the place of the kernel
    weights: Packed


class Owner:
    """Kept for one owner as long as it lives, and made from operands that never change: whoever owns it takes a new
    one when they do. Threads may share it; at worst two of them make the same. One that is not `lasting` is of a
    single call."""

    def __init__(self, lasting: bool = True) -> None:
        self.lasting = lasting
        self._made: dict[Hashable, _Made | None] = {}
        self._parts: dict[int, Owner] = {}

    def passing(self) -> Owner:
        """The same with what is kept, for a call after which operands change: nothing is made to repeat it."""
        found = Owner(lasting=False)
        found._made, found._parts = self._made, self._parts
        return found

    def part(self, number: int) -> Owner:
        return self._parts.setdefault(number, Owner(self.lasting))

    def ready(self, plan: Plan, operands: tuple[Array, ...]) -> Ready:
        key = plan.asked, plan.folded_for, plan.dtype.name, _layout(plan)
        if key not in self._made:
            self._made[key] = _make(plan, operands)
        made = self._made[key]
        if made is None:
            return self.ready(plan.as_asked, operands)
        if made.operands is None:
            return Ready(plan, remaining(plan.rewritten, operands), plan.dtype, made.weights)
        return Ready(plan, with_tensors(plan.rewritten, made.operands, operands), float64, made.weights)

    @property
    def nbytes(self) -> int:
        """Memory of all that is kept."""
        made = [each for each in tuple(self._made.values()) if each is not None]
        own = memory_of([array for each in made for array in (each.weights.weights, *(each.operands or ()))])
        return own + sum(part.nbytes for part in tuple(self._parts.values()))


def _make(plan: Plan, operands: Sequence[Array]) -> _Made | None:
    """None where an operand is not tame."""
    rewritten, dtype = plan.rewritten, plan.dtype
    if rewritten.left_out is not None:
        if not all_hold(rewritten, dtype, operands):
            return None
        return _Made(None, _packed_now(plan, remaining(rewritten, operands), dtype))
    made = fold(rewritten, plan.asked, dtype, without_tensors(plan.asked, operands))
    if made is None:
        return None
    weights = _packed_now(plan, made, float64)
    at = plan.conv_operands[0]
    return _Made((*made[:at], np.empty(0), *made[at + 1 :]), weights)


def _kernel(plan: Plan, operands: Sequence[Array], stored_as: DType) -> Array:
    kernel = operands[plan.conv_operands[0]]
    if stored_as.name == "bfloat16":
        kernel = stored_as.widen(kernel)
    return kernel if isinstance(kernel, ImmutableArray) else np.ascontiguousarray(kernel)


def _packed_now(plan: Plan, operands: Sequence[Array], stored_as: DType) -> Packed:
    layout = _layout(plan)
    return NOTHING if layout is None else pack_now(_kernel(plan, operands, stored_as), layout)


def _layout(plan: Plan) -> WeightLayout | None:
    """None where the convolution's value is thrown away."""
    return next((binding.weights for binding in bindings(plan) if binding.weights is not None), None)


@lru_cache(maxsize=256)
def bindings(plan: Plan | TailPlan) -> tuple[Binding, ...]:
    return tuple(Binding(plan, planned) for planned in plan.sweeps)
