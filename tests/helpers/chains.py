"""Random pipelines from the table of stages, with their data and the same chain of PyTorch functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from helpers.data import operand, signed
from hypothesis import strategies as st
from spec.stage_rows import ROWS, SHAPES, Row

from convt3d.errors import Error
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.reference import MEANINGS
from convt3d.spec.stage import Stage
from convt3d.spec.stages import Binary, Convolution, ConvTranspose3d, Divide, Keep, Multiply, Recall, Sigmoid, Tanh

CONVOLUTIONS = [row for row in ROWS if isinstance(row.stage, Convolution)]
OTHERS = [row for row in ROWS if row.chains and not isinstance(row.stage, Convolution)]
# tanh(y) * sigmoid(y): a value goes two ways, and both meet.
GATE = tuple(
    Row(stage, function, "gate")
    for stage, function in (
        (Keep("gated"), lambda x: x),
        (Tanh(), torch.tanh),
        (Keep("gate"), lambda x: x),
        (Recall("gated"), lambda x, o: o),
        (Sigmoid(), torch.sigmoid),
        (Multiply("gate"), lambda x, o: x * o),
    )
)


@dataclass(frozen=True, repr=False)
class Chain:
    pipeline: Pipeline
    rows: tuple[Row, ...]
    x: Any
    operands: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"Chain({self.pipeline!r}, x of shape {self.x.shape})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Hypothesis prints the fields of dataclasses: all numbers, in a warning that hides the failure."""
        printer.text(repr(self))

    def torch(self, x: Any) -> Any:
        """The same chain by PyTorch."""
        value = torch.from_numpy(x)
        kept = {"x": value}
        for index, row in enumerate(self.rows):
            own = [
                torch.from_numpy(a) for a, s in zip(self.operands, self.pipeline.slots, strict=True) if s.stage == index
            ]
            if isinstance(row.stage, Keep):
                kept[row.stage.label] = value
            if row.stage.uses:
                own = [kept[row.stage.uses]]
            value = row.torch(value, *own)
        return value.numpy()


def operand_data(
    pipeline: Pipeline, x: Sequence[int], kernel: Sequence[int], rng: np.random.Generator
) -> tuple[Any, ...]:
    """Data for all operands of a pipeline."""
    shapes = pipeline.operand_shapes(x, kernel)
    return tuple(
        operand(rng, slot.operand, shape, divisor=isinstance(pipeline.stages[slot.stage], Divide))
        for slot, shape in zip(pipeline.slots, shapes, strict=True)
    )


@st.composite
def chains(draw: st.DrawFn, most: int = 7) -> Chain:
    """A convolution with up to two stages before and `most` after it; stages that do not fit are left out."""
    shape = draw(st.sampled_from(SHAPES))
    some = st.sampled_from([*((row,) for row in OTHERS), GATE, GATE])
    before = draw(st.lists(some, max_size=2))
    conv = draw(st.sampled_from(CONVOLUTIONS))
    after = draw(st.lists(some, min_size=1, max_size=most))
    assert conv.kernel is not None
    rows: list[Row] = []
    for more in (*before, (conv,), *after):
        if more != (conv,) and _trace([*rows, *more], shape, conv) is None:
            continue
        rows += more
    if _trace(rows, shape, conv) is None:  # what came before left too few channels or voxels for it
        rows = [CONVOLUTIONS[0]]
        conv = rows[0]
        assert conv.kernel is not None
    pipeline = Pipeline(*(row.stage for row in rows))
    cin = _channels(rows, shape)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return Chain(pipeline, tuple(rows), signed(rng, shape, 1.5), operand_data(pipeline, shape, conv.weight(cin), rng))


def _channels(rows: Sequence[Row], shape: Sequence[int]) -> int:
    """Channels that reach the convolution."""
    channels = shape[1]
    for row in rows:
        if isinstance(row.stage, Convolution):
            break
        channels = row.stage.out_shape((shape[0], channels, *shape[2:]), [])[1] if _keeps_space(row) else channels
    return channels


def _keeps_space(row: Row) -> bool:
    return getattr(row.stage, "over", None) == "channels"


def _trace(rows: Sequence[Row], shape: Sequence[int], conv: Row) -> Any:
    assert conv.kernel is not None
    stages, channels = [row.stage for row in rows], _channels(rows, shape)
    weight = conv.weight(channels)
    if not any(isinstance(stage, Convolution) for stage in stages):
        weight = (channels, *conv.kernel)
        stages.append(ConvTranspose3d())  # judge the stages so far with a convolution that takes anything
    try:
        pipeline = Pipeline(*stages)
        return pipeline.operand_shapes(shape, weight)
    except Error:
        return None


def run(
    pipeline: Pipeline, x: Any, operands: Sequence[Any], tamper: Mapping[int, Callable[[Any], Any]] | None = None
) -> Any:
    """As `evaluate`, but `tamper[i]` changes the value that enters stage i."""
    tamper = tamper or {}
    value = tamper.get(0, np.asarray)(x)
    kept = {"x": value}
    with np.errstate(all="ignore"):
        for index, stage in enumerate(pipeline.stages):
            if index:
                value = tamper.get(index, np.asarray)(value)
            own: list[Any] = [a for a, slot in zip(operands, pipeline.slots, strict=True) if slot.stage == index]
            value = _step(stage, value, own, kept)
    return tamper.get(len(pipeline.stages), np.asarray)(value)


def _step(stage: Stage, value: Any, own: list[Any], kept: dict[str, Any]) -> Any:
    if isinstance(stage, Keep):
        kept[stage.label] = value
        return value
    if stage.uses:
        own = [kept[stage.uses]]
    elif isinstance(stage, Binary) and not own:
        own = [stage.other]
    return MEANINGS[type(stage)](stage, value, *own)
