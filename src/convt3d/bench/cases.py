"""A case: one pipeline on arrays of given shapes, type and number of threads; and the random arrays it is run on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod, sqrt
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..cpu.plan.plan import Plan, make_plan
from ..errors import ShapeError
from ..front.pipeline import Pipeline
from ..spec.checks import as_triple
from ..spec.dtypes import DTYPES, DType
from ..spec.pipeline import Slot
from ..spec.stages import AvgPool3d, ConvTranspose3d
from ..spec.text import read_stages, write_pipeline

Storage: TypeAlias = npt.NDArray[Any]

SEED = 0
_SMALLEST_AXIS = 4


@dataclass(frozen=True, eq=False)
class Arrays:
    """The tensors of a case in storage form: x is 5-D, operands are in slot order."""

    x: Storage
    operands: tuple[Storage, ...]


@dataclass(frozen=True)
class Case:
    suite: str
    name: str
    pipeline: Pipeline
    x: tuple[int, ...]
    w: tuple[int, ...]
    dtype: DType = DTYPES["float32"]
    threads: int = 1
    model: str = ""  # the network it is a layer of
    series: str = ""  # the quantity a scaling curve is drawn along ...
    at: int = 0  # ... and its value here
    isa: str = ""  # an instruction set to force on convt3d, in a process of its own
    quick: bool = False
    peers_alone: bool = False  # whether the memory of peers is measured too, not only ours
    training: bool = False  # whether gradients are computed too

    @property
    def plan(self) -> Plan:
        return make_plan(self.pipeline, self.x, self.operand_shapes, self.dtype)

    @property
    def output(self) -> tuple[int, ...]:
        """The result's shape, found without a plan."""
        return self.pipeline.result_shape(self.pipeline.trace(self.x, self.operand_shapes).output)

    @property
    def operand_shapes(self) -> tuple[tuple[int, ...], ...]:
        return self.pipeline.operand_shapes(self.x, self.w)

    @property
    def result_bytes(self) -> int:
        """Of all that a call gives back: in training gradients as well, each of the size of its array."""
        gradients = (self.x, *self.operand_shapes) if self.training else ()
        return self.dtype.itemsize * sum(map(prod, (self.output, *gradients)))

    def document(self) -> dict[str, Any]:
        """For JSON; `read_case` is its inverse."""
        plain = {name: value for name, value in vars(self).items() if name not in ("pipeline", "dtype")}
        return {**plain, "pipeline": write_pipeline(self.pipeline), "dtype": self.dtype.name}

    def draw(self) -> Arrays:
        """Signed random tensors for which the convolution's result has the spread of a standard normal."""
        rng = np.random.default_rng(SEED)
        operands = [
            self._operand(slot, shape, rng)
            for slot, shape in zip(self.pipeline.slots, self.operand_shapes, strict=True)
        ]
        return Arrays(self._stored(_normal(rng, self.x)), tuple(map(self._stored, operands)))

    def tiny(self) -> Case:
        """The same pipeline on as small a volume as it can take: it loads and warms the same code."""
        case = replace(self, x=(1, *self.x[1:]))
        for axis in (2, 3, 4):
            while case.x[axis] > _SMALLEST_AXIS:
                smaller = replace(case, x=(*case.x[:axis], case.x[axis] // 2, *case.x[axis + 1 :]))
                try:
                    smaller.pipeline.operand_shapes(smaller.x, smaller.w)
                except ShapeError:
                    break
                case = smaller
        return case

    def _operand(self, slot: Slot, shape: tuple[int, ...], rng: np.random.Generator) -> Storage:
        if slot.operand.kind == "kernel":
            weights: Storage = _normal(rng, shape) * np.float32(1 / sqrt(self._terms()))
            return weights
        if slot.operand.role == "running_var":
            return rng.uniform(0.5, 1.5, shape)
        return _normal(rng, shape)

    def _terms(self) -> float:
        """How many products of standard normals an average voxel of the convolution sums; a pool before it shrinks."""
        conv = self.pipeline.conv
        channels, _, *kernel = conv.kernel(self.w)
        apart = as_triple(conv.stride) if isinstance(conv, ConvTranspose3d) else (1, 1, 1)
        taps = prod(max(1.0, k / s) for k, s in zip(kernel, apart, strict=True))
        pools = [stage for stage in self.pipeline.stages[: self.pipeline.conv_index] if isinstance(stage, AvgPool3d)]
        return channels / conv.groups * taps / prod(prod(pool.triples[0]) for pool in pools)

    def _stored(self, values: Storage) -> Storage:
        return self.dtype.narrow(values)


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Storage:
    return rng.standard_normal(shape, dtype=np.float32)


def read_case(document: Mapping[str, Any]) -> Case:
    fields = dict(document)
    fields["pipeline"] = Pipeline(*read_stages(fields["pipeline"]))
    fields["dtype"] = DTYPES[fields["dtype"]]
    return Case(**{**fields, "x": tuple(fields["x"]), "w": tuple(fields["w"])})
