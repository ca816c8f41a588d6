"""Fills the parameter table of a kernel: sizes and tables of the plan once, pointers of the arrays at every call."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ...plan.passes import STATISTICS, Chain, Pool, Reduce, RowNorm
from ...spec.lazy import lazy
from ...spec.stages import AvgPool3d, MaxPool3d
from ..plan.geometry import STEP_WORDS, AxisSpans, Span, Walk, reach
from ..plan.plan import PassPlan, Plan
from ..plan.structure import ConvCode, scalars
from ..plan.tiles import CHECKED_GAP, rows_together
from .build import Code
from .kernels import kernel
from .packing import WeightLayout
from .regions import region, regions_of
from .tables import direct_tables, minimal_tables

_SHARED_FROM = 1_000_000  # operations
_ALL = 1 << 31  # more groups, and more blocks, than there are

# Words before the table, among which the counter of tiles has a cache line of its own.
_BEFORE, _COUNTER = 16, 8

Words = npt.NDArray[np.int64]


@dataclass
class BoundPass:
    """A pass of a plan with its kernel and everything of the table that does not change from call to call."""

    plan: Plan
    one: PassPlan
    kept: list[Any] = field(default_factory=list)  # arrays the table points to

    @lazy
    def native(self) -> Code:
        return kernel(self.one.structure, self.plan.machine)

    @lazy
    def items(self) -> int:
        return prod(self.one.tiling.counts) * self.plan.trace.values[0][0]

    @lazy
    def worth_sharing(self) -> bool:
        """Whether the pass takes longer than it takes to wake another thread, some ten microseconds."""
        plan = self.plan
        return plan.work.needed + 32 * sum(map(prod, (plan.trace.values[0], plan.trace.output))) > _SHARED_FROM

    @property
    def number(self) -> str:
        return self.plan.dtype.accumulate

    def table(self, words: dict[str, int]) -> tuple[Words, int]:
        """The table of one call, an array to be kept alive, and its address; `words` are what the plan cannot know."""
        try:
            values = [words[name] for name in self._open]
        except KeyError as missing:  # a kernel must never see a pointer that nobody set
            raise RuntimeError(f"convt3d internal error: parameter {missing} was not set; please report this") from None
        table = self._template.copy()
        address = int(table.ctypes.data)
        table[self._open_places] = values
        table[self._counter_place] = address + 8 * _COUNTER
        if self.plan.machine.check_bounds:
            for name, value in region("counter", table[_COUNTER : _COUNTER + 1]).items():
                table[_BEFORE + self.native.parameters.index(name)] = value
        return table, address + 8 * _BEFORE

    @lazy
    def _template(self) -> Words:
        """The table with all that is known without arrays, and the counter of tiles before it."""
        return np.array([0] * _BEFORE + [self._known.get(name, 0) for name in self.native.parameters], dtype=np.int64)

    @lazy
    def _open(self) -> tuple[str, ...]:
        """The parameters that a call has to fill in."""
        ours = {"counter", "begin counter", "end counter"}
        return tuple(name for name in self.native.parameters if name not in self._known and name not in ours)

    @lazy
    def _open_places(self) -> Words:
        return np.array([_BEFORE + self.native.parameters.index(name) for name in self._open], dtype=np.int64)

    @lazy
    def _counter_place(self) -> int:
        return _BEFORE + self.native.parameters.index("counter")

    @lazy
    def _known(self) -> dict[str, int]:
        return self._sizes()

    @lazy
    def voxels(self) -> npt.NDArray[np.float64]:
        """Voxels of each tile, in the order of items."""
        axes = []
        for axis in self.one.tiling.axes:
            ranges = [axis.spans(number)[-1].write for number in range(axis.count)]
            axes.append(np.array([high - low for low, high in ranges], dtype=np.float64))
        return (axes[0][:, None, None] * axes[1][:, None] * axes[2]).reshape(-1)

    @lazy
    def partial_words(self) -> int:
        """Statistics for each channel of a tile; 0 when the pass makes none."""
        kinds = [op.kind for op in self.one.steps.ops if isinstance(op, Reduce)]
        return STATISTICS[kinds[0]] if kinds else 0

    @lazy
    def weights(self) -> WeightLayout | None:
        code = self.code
        if code is None:
            return None
        return WeightLayout.of(self.plan.rewritten.pipeline.conv.groups, self.plan.method, code.tile, self.number)

    @lazy
    def code(self) -> ConvCode | None:
        """Of the pass's convolution."""
        return next((extra for extra in self.one.structure.ops if isinstance(extra, ConvCode)), None)

    def put_way_out(self, dest: npt.NDArray[Any], words: dict[str, int]) -> None:
        """How the result goes to an array (B, C, D, H, W): rows that one store may run through, whether stores go past
        the caches, whether vectors may go there directly, as they come, and channels that are stored together."""
        item, width, whole_rows = dest.itemsize, dest.shape[4], self.one.tiling.axes[2].count == 1
        adjacent = words["dest adjacent"]
        dense = not adjacent and (width == 1 or dest.strides[4] == item)
        streamed, direct = False, dense
        if dense:
            words["dest w"] = 1  # also where rows have one element: stores run through them
        if self.one.streamed and (dense or adjacent):
            vector = self.plan.machine.lanes(np.dtype(self.number).itemsize) * item
            begins = 0 if whole_rows else self.one.tiling.tile[2] * item
            strides = [
                stride for stride, size in zip(dest.strides, dest.shape, strict=True) if size > 1 and stride != item
            ]
            aligned = all(place % vector == 0 for place in (words["dest"], *strides, 0 if adjacent else begins))
            streamed = words["dest"] % item == 0 and (dense or aligned)
            direct = dense and aligned
        follow = dense and whole_rows and dest.strides[3] == width * item
        words["dest rows"] = rows_together(width) if follow else 1
        words["dest streamed"] = int(streamed)
        words["dest direct"] = int(direct)
        words["dest channels"] = dest.shape[1] if adjacent else 1
        if adjacent:  # they are stored together
            words["part groups"] = words["part blocks"] = words["part channels"] = _ALL

    @lazy
    def usual(self) -> dict[str, int]:
        """What a call has to fill in, where no array has its channels side by side: the output channels that a tile
        takes together, and no code for squares."""
        groups, blocks, channels = self.one.tiling.part or (_ALL, _ALL, _ALL)
        parts = {"part groups": groups, "part blocks": blocks, "part channels": channels}
        return {**parts, "read square": 0, "write square": 0}

    def _keep(self, array: npt.NDArray[Any]) -> int:
        """Address of an array that lives as long as this object."""
        self.kept.append(array)
        return int(array.ctypes.data)

    def _sizes(self) -> dict[str, int]:
        tiling, steps = self.one.tiling, self.one.steps
        item = np.dtype(self.number).itemsize
        table: dict[str, int] = {
            "items": self.items,
            "scratch size": tiling.scratch // item,
            "channels": steps.shape[1],
            "row words": len(tiling.axes[0].spans(0)) * STEP_WORDS,
            "constants": self._keep(self._constants()),
        }
        for name, spans in zip("dhw", tiling.axes, strict=True):
            table[f"tiles {name}"] = spans.count
            table[f"table {name}"] = self._keep(_axis_table(spans))
        for name, offset, pitch in tiling.buffers:
            table[f"buffer {name}"] = offset
            table[f"pitch {name}"] = pitch
        for name, length in self._lengths.items():
            table[f"size {name}"] = length
        if self.weights is not None:
            table.update(self._conv_sizes())
        for index, op in enumerate(steps.ops):
            if isinstance(op, Pool):
                for axis, windows in zip("dhw", self._windows(op), strict=True):
                    table[f"windows op{index} {axis}"] = self._keep(windows)
        return table | (regions_of(table, self.kept) if self.plan.machine.check_bounds else {})

    @property
    def _lengths(self) -> dict[str, int]:
        """Of buffers, for code that checks its accesses."""
        if not self.plan.machine.check_bounds:
            return {}
        tiling = self.one.tiling
        starts = [offset for _, offset, _ in tiling.buffers]
        ends = [*starts[1:], tiling.scratch // np.dtype(self.number).itemsize]
        names = [name for name, _, _ in tiling.buffers]
        return {name: end - at - CHECKED_GAP for name, at, end in zip(names, starts, ends, strict=True)}

    def _constants(self) -> npt.NDArray[Any]:
        values = [
            value
            for op in self.one.steps.ops
            if isinstance(op, (Chain, RowNorm))
            for stage in ([link.stage for link in op.links] if isinstance(op, Chain) else [op.stage])
            for _, value in scalars(stage)
        ]
        with np.errstate(over="ignore"):
            return np.array([*values, 0.0], dtype=self.number)

    def _conv_sizes(self) -> dict[str, int]:
        pipeline, trace, slab = self.plan.rewritten.pipeline, self.plan.simplified, self.one.tiling.slab
        assert slab is not None
        cin, per_out = trace.operands[pipeline.conv_index][0][:2]
        groups, method = pipeline.conv.groups, self.plan.method
        sizes = {
            "in channels": cin,
            "out channels": per_out * groups,
            "in group": cin // groups,
            "out group": per_out,
            "groups": groups,
            "phases": prod(walk.kept for walk in method.walks),
            "paces": prod(walk.pace for walk in method.walks),
            "phase": slab.phase,
            "plane": slab.plane,
            "slab pitch": slab.pitch,
            "slab depth": slab.depth,
            "slab height": slab.height,
            "merged": int(slab.merged),
            "slab copies": slab.copies,
            "slab copy": slab.copy,
            "biased": int(pipeline.conv.bias),
        }
        if not pipeline.conv.bias:
            sizes["bias"] = self._keep(np.zeros(per_out * groups, self.number))
        for name, walk in zip("dhw", method.walks, strict=True):
            sizes |= {f"stride {name}": walk.axis.stride, f"period {name}": walk.period, f"pace {name}": walk.pace}
            for word, places in (("period", walk.places()), ("pace", np.arange(walk.pace))):
                sizes[f"{word} places {name}"] = self._keep(places)
            sizes |= {f"period kept {name}": walk.kept, f"pace kept {name}": walk.pace}
        if method.direct:
            found = direct_tables(method, self.one.tiling, cin // groups, per_out)
        else:
            found = minimal_tables(method, self.one.tiling, cin // groups, per_out, self.number)
        return sizes | {n: v if isinstance(v, int) else self._keep(v) for n, v in found.items()}

    def _windows(self, op: Pool) -> list[Words]:
        """For each output along each axis: first input, end, and the count an average divides by."""
        pipeline, trace = self.plan.rewritten.pipeline, self.plan.simplified
        pool = pipeline.stages[op.stage]
        assert isinstance(pool, (MaxPool3d, AvgPool3d))
        include, override = False, None
        if isinstance(pool, AvgPool3d):
            include, override = pool.count_include_pad, pool.divisor_override
        found = [axis.windows(include) for axis in pool.axes(trace.values[op.stage])]
        if override is not None:
            for table, divisor in zip(found, (override, 1, 1), strict=True):
                table[:, 2] = divisor
        return found


def _axis_table(axis: AxisSpans) -> Words:
    """A row for each tile, STEP_WORDS words for each step."""
    rows = []
    for number in range(axis.count):
        for at, span in enumerate(axis.spans(number)):
            words = [span.read[0], span.read[1] - span.read[0], span.write[0], span.write[1] - span.write[0]]
            step = axis.steps[at] if axis.steps else None
            rows.append(words + (_slab_words(step, span) if isinstance(step, Walk) else [0] * 5))
    return np.array(rows, dtype=np.int64)


def _slab_words(walk: Walk, span: Span) -> list[int]:
    """Positions, and where in the slab the valid inputs are put: place, from (in what was read), count."""
    low, high = span.positions
    origin = walk.pace * low + walk.shift_range[0]
    first, last = max(origin, 0), min(origin + reach(walk, high - low), walk.axis.size)
    valid = max(0, last - first)
    place = first - origin if valid else 0
    start = first - span.read[0] if valid else 0
    return [low, high - low, place, start, valid]
