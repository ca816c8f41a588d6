"""The kernel of one pass: its steps in order, for every tile this worker draws."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ...plan.passes import Chain, Conv, Pass, PhasePool, Pool, Reduce, RowNorm, Unphase, channels_apart
from ..ir.frame import Kernel
from ..ir.move import ArrayRows, load_box, store_box
from ..ir.values import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Number
from ..plan.geometry import READ, READ_COUNT, WRITE, WRITE_COUNT
from ..plan.machine import Machine, architecture
from ..plan.structure import ConvCode, Structure
from .chain import emit_chain
from .conv import all_channels, convolve, part_by_part
from .minimal import convolve_minimally, only_tame, part_behind, unless_wild
from .phases import Planar, unphase
from .pool import emit_phase_pool, emit_pool
from .reduce import emit_reduce, emit_row_norm
from .slab import fill_paced_slab, fill_slab

STORAGE = {storage.name: storage for storage in (FLOAT32, FLOAT64, FLOAT16, BFLOAT16)}


def emit(structure: Structure, machine: Machine) -> tuple[str, tuple[str, ...]]:
    """LLVM IR and the names of the parameters it reads, in the order of the table."""
    k = Kernel(structure.name, machine, STORAGE[structure.dtype])
    one = structure.one
    with k.b.drawn_from(k.pointer("counter"), k.param("items")) as item:
        k.begin_tile(item)
        _Tile(k, structure).emit(one)
    k.b.fence(x86=machine.isa != "neon" and architecture() == "x86_64")
    k.b.ret()
    return str(k.module), tuple(k.names)


class _Tile:
    """Writes the steps of one tile; knows in which buffer and layout the value stands."""

    def __init__(self, k: Kernel, structure: Structure) -> None:
        self.k, self.structure = k, structure
        self.buffer = "source"
        self.step = 0  # geometric steps done
        self.planar: Planar | None = None  # the layout, where it is phase-planar
        self.channels: Number = k.param("channels")  # in the buffers
        self.all_channels: Number = self.channels  # of the value

    def array(self, name: str, which: str) -> ArrayRows:
        """Intermediate values are stored as numbers, the caller's arrays in their own type."""
        number = FLOAT64 if self.k.wide else FLOAT32
        return ArrayRows(self.k, name, number if which.startswith("value") else self.k.storage)

    def emit(self, one: Pass) -> None:
        with ExitStack() as around:
            self._steps(one, around)

    def _steps(self, one: Pass, around: ExitStack) -> None:
        k = self.k
        source = self.array("source", one.source)
        if not (one.ops and isinstance(one.ops[0], Conv)):
            load_box(k, source, k.spans(0, READ), k.spans(0, READ_COUNT), "source", self.channels)
        stored = False
        for index, (op, extra) in enumerate(zip(one.ops, self.structure.ops, strict=True)):
            name, last = f"op{index}", index + 1 == len(one.ops)
            if isinstance(op, Conv):
                in_parts = channels_apart(one.ops[index + 1 :])
                self._conv(source if index == 0 else self.buffer, extra, in_parts, around)
            elif isinstance(op, Unphase):
                assert self.planar is not None
                stored = last
                target = self.array("dest", one.dest or "") if last else name
                unphase(k, self.planar, self.step - 1, extra, self.channels, target)
                self.buffer, self.planar = name, None
            elif isinstance(op, Pool):
                emit_pool(k, name, self.step, self.buffer, self.channels, *extra)
                self.buffer, self.step = name, self.step + 1
            elif isinstance(op, PhasePool):
                assert self.planar is not None
                self.planar = emit_phase_pool(k, name, self.planar, self.channels, extra)
                self.buffer, self.step = name, self.step + 1
            elif isinstance(op, Chain):
                self._chain(name, op)
            elif isinstance(op, RowNorm):
                emit_row_norm(k, name, op.stage, self.buffer, self._sizes(), self.channels)
            elif isinstance(op, Reduce):
                emit_reduce(k, op.kind, self.buffer, self._length(), self.channels, self.all_channels)
        if one.dest is not None and not stored:
            store_box(k, self.buffer, self.array("dest", one.dest), self._low(), self._sizes(), self.channels)

    def _conv(self, source: ArrayRows | str, code: ConvCode, in_parts: bool, around: ExitStack) -> None:
        """All that follows runs under conditions, or for a part of the channels, that are entered `around` it."""
        k = self.k
        self.all_channels = self.channels = k.param("out channels")
        if code.kinds:
            around.enter_context(unless_wild(k))
            tame = fill_paced_slab(k, self.step, source, code.pace)
            around.enter_context(only_tame(k, tame))
            convolve_minimally(k, self.step, code)
            if in_parts:
                k.first_channel, self.channels = around.enter_context(part_behind(k))
                k.begin_buffer("phased", k.dot((k.first_channel, k.param("pitch phased"))))
        else:
            fill_slab(k, self.step, source)
            part = all_channels(k, code.tile, code.blocks)
            if in_parts:
                part = around.enter_context(part_by_part(k, code.tile, code.blocks))
                k.first_channel, self.channels = part.channel, part.channels
            convolve(k, self.step, code.tile, code.blocks, part)
        self.planar = Planar("phased", self.step, "period", "phases")
        self.buffer, self.step = "phased", self.step + 1

    def _chain(self, name: str, op: Chain) -> None:
        k = self.k
        for at, link in enumerate(op.links):
            if link.takes_tensor:
                tensor = self.array(f"tensor {name}.{at}", link.arrays[0])
                low = self._low()
                load_box(k, tensor, low, self._sizes(), f"{name}.{at}", self.channels)
        left = emit_chain(k, name, op.links, self.buffer, self._runs, self.channels)
        if left is not self.channels:  # they were all there, and one is left
            self.all_channels = self.channels = left

    def _low(self) -> tuple[Number, Number, Number]:
        """Where the box of the current value begins."""
        return self.k.spans(self.step - 1, WRITE) if self.step else self.k.spans(0, READ)

    def _sizes(self) -> tuple[Number, Number, Number]:
        return self.k.spans(self.step - 1, WRITE_COUNT) if self.step else self.k.spans(0, READ_COUNT)

    def _length(self) -> Number:
        d, h, w = self._sizes()
        return self.k.b.mul(self.k.b.mul(d, h), w)

    @contextmanager
    def _runs(self) -> Iterator[tuple[Number, Number]]:
        """The contiguous positions of the value: one run, or one for each phase and depth of a phase-planar buffer."""
        k, b = self.k, self.k.b
        if self.planar is None:
            yield 0, self._length()
            return
        depth, length = self.planar.extent(k)
        with b.loop(0, k.param(self.planar.count)) as phase, b.loop(0, depth) as d:
            yield k.dot((phase, k.param("phase")), (d, k.param("plane"))), length
