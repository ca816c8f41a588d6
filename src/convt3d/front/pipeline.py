"""A pipeline that callers can call and ask what it will do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..cpu.plan.explain import explain
from ..cpu.plan.plan import make_plan
from ..errors import ArgumentTypeError, named
from ..spec import pipeline as spec
from ..spec.checks import integer, is_a, one_of
from ..spec.dtypes import DTYPES
from .apply import apply, how


class Pipeline(spec.Pipeline):
    """Stages around one ConvTranspose3d: `pipe(x, w)` computes, `pipe.explain(x.shape, w.shape)` says how.

    Tensors after x are taken in the order of `pipe.operand_names`, by position or by name.
    """

    __slots__ = ()

    def __call__(
        self,
        x: Any,
        *operands: Any,
        out: Any = None,
        algorithm: str = "auto",
        precision: str = "full",
        **named_operands: Any,
    ) -> Any:
        with named("Pipeline"):
            options = how(algorithm, precision)
        return apply("Pipeline", self, x, self.bind("Pipeline", operands, named_operands), out, options)

    def explain(
        self,
        x: Sequence[int],
        w: Sequence[int],
        dtype: str = "float32",
        *,
        algorithm: str = "auto",
        precision: str = "full",
    ) -> str:
        """What a call on an input of shape `x` and a weight of shape `w` does and costs."""
        with named("Pipeline.explain"):
            chosen = DTYPES[one_of("Pipeline", "dtype", dtype, tuple(DTYPES))]
            shape, kernel = _sizes("x", x), _sizes("w", w)
            batched = (1, *shape) if len(shape) == 4 else shape
            options = how(algorithm, precision)
            return explain(make_plan(self, batched, self.operand_shapes(batched, kernel), chosen, options))


def _sizes(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    if is_a(shape, str) or not is_a(shape, Sequence):
        raise ArgumentTypeError("Pipeline.explain", name, shape, "must be a shape", "Pass array.shape")
    return tuple(integer("Pipeline.explain", name, size, 0) for size in shape)
