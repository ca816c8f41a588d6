"""The kernel of one sweep: its steps in order, for every tile that a worker draws."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ..ir.frame import Kernel, Scratch
from ..ir.move import Destination, Source, load_box, store_box
from ..ir.values import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Number, Storage
from ..plan.geometry import READ, READ_COUNT, WRITE, WRITE_COUNT
from ..plan.machine import ARM, Machine, architecture
from ..plan.structure import Structure
from ..words import DestinationCall, SourceCall
from .interleave import Planar, interleave

STORAGE = {storage.name: storage for storage in (FLOAT32, FLOAT64, FLOAT16, BFLOAT16)}


def emit(structure: Structure, machine: Machine) -> str:
    """LLVM IR."""
    return str(emit_kernel(structure, machine).module)


def emit_kernel(structure: Structure, machine: Machine) -> Kernel:
    sets = [*structure.words, *structure.call_words]
    k = Kernel(structure.name, machine, STORAGE[structure.dtype], sets)
    words, call = iter(k.sets[1:]), iter(k.sets[len(structure.words) + 1 :])
    with k.b.drawn_from(k.call.counter, k.sweep.items) as item, ExitStack() as around:
        k.begin_tile(item)
        tile = Tile(k, around)
        for step in structure.steps:
            step.emit(tile, [next(words) for _ in step.words], [next(call) for _ in step.call])
    k.b.fence(x86=machine.isa not in ARM and architecture() == "x86_64")
    k.b.ret()
    return k


class Tile:
    """The value that steps hand on: in which buffer and layout it stands."""

    def __init__(self, k: Kernel, around: ExitStack) -> None:
        self.k = k
        self.around = around  # conditions and loops that all further steps run under
        self.value: Scratch
        self.step = 0  # geometric steps done
        self.planar: Planar | None = None  # the layout, where it is phase-planar
        self.channels: Number = k.sweep.channels  # in the buffers
        self.all_channels: Number = self.channels  # of the value

    def _storage(self, kind: str) -> Storage:
        """Intermediate values are stored as numbers, the caller's arrays in their own type."""
        number = FLOAT64 if self.k.wide else FLOAT32
        return number if kind == "value" else self.k.storage

    def array(self, words: SourceCall, kind: str) -> Source:
        return Source(self.k, words, self._storage(kind))

    def destination(self, words: DestinationCall, kind: str) -> Destination:
        return Destination(self.k, words, self._storage(kind))

    def take_channels(self, most: Number) -> None:
        """All further steps run for some channels after the others, at most so many."""
        k, b = self.k, self.k.b
        first = self.around.enter_context(b.loop(0, self.all_channels, most))
        k.first_channel, self.channels = first, b.min(most, b.sub(self.all_channels, first))

    def load(self, source: Source, box: Scratch) -> None:
        """The box that the first step reads: the value from now on."""
        self.load_box(source, box)
        self.value = box

    def load_box(self, source: Source, box: Scratch) -> None:
        """What an array holds at the value's place."""
        load_box(self.k, source, self.low, self.sizes, box, self.channels)

    def store(self, dest: Destination) -> None:
        store_box(self.k, self.value, dest, self.low, self.sizes, self.channels)

    def interleave(self, phases: int, rows: Scratch, dest: Destination | None) -> None:
        assert self.planar is not None
        interleave(self.k, self.planar, self.step - 1, phases, self.channels, rows, dest)
        self.value, self.planar = rows, None

    @property
    def low(self) -> tuple[Number, Number, Number]:
        """Where the box of the value begins."""
        return self.k.spans(self.step - 1, WRITE) if self.step else self.k.spans(0, READ)

    @property
    def sizes(self) -> tuple[Number, Number, Number]:
        return self.k.spans(self.step - 1, WRITE_COUNT) if self.step else self.k.spans(0, READ_COUNT)

    @property
    def length(self) -> Number:
        d, h, w = self.sizes
        return self.k.b.mul(self.k.b.mul(d, h), w)

    @contextmanager
    def runs(self) -> Iterator[tuple[Number, Number]]:
        """The contiguous positions of the value: one run, or one for each phase and depth of a phase-planar buffer."""
        k, b = self.k, self.k.b
        if self.planar is None:
            yield 0, self.length
            return
        depth, length = self.planar.extent(k)
        with b.loop(0, self.planar.count) as phase, b.loop(0, depth) as d:
            yield k.dot((phase, self.planar.conv.phase), (d, self.planar.conv.plane)), length
