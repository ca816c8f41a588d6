"""What a step of a sweep is: all that anybody asks of one, whatever it does.

A step knows the ranges it reads for those it writes, its scratch memory, what its code depends on, its code, the words
it is given, and what `explain` says of it. Nothing outside asks which step it has. Steps hold no sizes: a step whose
`key` is equal has equal code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ...spec.lazy import lazy
from ...spec.pipeline import Pipeline, Trace
from ..plan.geometry import AxisStep
from ..plan.machine import Machine
from ..plan.pieces import Pieces
from ..plan.registers import RegisterTile, register_tile, tile_of_amx
from ..plan.rooms import Rooms
from ..plan.winograd import Method
from ..words import Room, Words

if TYPE_CHECKING:
    from ..code.tile import Tile
    from ..plan.plan import Plan, SweepPlan
    from ..plan.tiles import Tiling
    from ..runtime.bind import Binding
    from ..runtime.call import Call


@dataclass(frozen=True)
class Where:
    """What a step is planned for: the pipeline as it runs, its shapes, the machine and the convolution's method."""

    pipeline: Pipeline
    trace: Trace
    machine: Machine
    item: int  # bytes of a number
    method: Method
    pairs: bool = False  # input and kernel are bfloat16 as they are stored, and the machine multiplies pairs of these
    plain: bool = False  # as a library for C knows it: no sums straight into the output, no tiles of AMX
    masked: bool = False  # no product with what surrounds the array takes part
    deep: int = 0  # pairs of channels that a product of tiles (AMX) takes at once; 0: none does
    pieces: Pieces | None = None  # in which direct summation takes taps and input channels
    beside: int = 1  # samples that a tile convolves together

    @lazy
    def lanes(self) -> int:
        return self.machine.lanes(self.item)

    @lazy
    def kernel(self) -> tuple[int, ...]:
        """Of the convolution, whatever its weight's layout: (Cin, Cout / groups, Kd, Kh, Kw)."""
        return self.pipeline.conv.kernel(self.trace.operands[self.pipeline.conv_index][0])

    @property
    def together(self) -> int:
        """Input channels that the convolution multiplies at once: two in each lane, or one."""
        return 2 if self.pairs and self.method.direct else 1

    @lazy
    def in_group(self) -> int:
        """Input channels of a group, counted as they are multiplied."""
        return -(-self.kernel[0] // self.groups // self.together)

    @lazy
    def register_tile(self) -> RegisterTile:
        """Of the convolution."""
        if self.deep:
            return tile_of_amx(self.kernel[1])
        return register_tile(self.kernel[1], self.machine.vector_registers)

    @property
    def packed_out(self) -> int:
        """Output channels of a group in the packed weights: tiles have whole blocks of them."""
        tile, channels = self.register_tile, self.kernel[1]
        return tile.rows * len(tile.blocks(channels)) if self.deep else channels

    @property
    def in_channels(self) -> int:
        return self.trace.values[self.pipeline.conv_index][1]

    @property
    def out_channels(self) -> int:
        return self.trace.values[self.pipeline.conv_index + 1][1]

    @lazy
    def groups(self) -> int:
        return self.pipeline.conv.groups


@dataclass(frozen=True)
class Step:
    """The defaults are those of a step that works in place, voxel by voxel, and needs nothing."""

    words: ClassVar[tuple[type[Words], ...]] = ()  # sets of words that the plan fills
    call: ClassVar[tuple[type[Words], ...]] = ()  # sets that every call fills
    names: ClassVar[tuple[str, ...]] = ()  # that a kernel's name is made of
    convolves: ClassVar[bool] = False
    needs_whole_rows: ClassVar[bool] = False
    shares_channels: ClassVar[bool] = False  # of its output, that threads may take from each other
    in_order: ClassVar[bool] = (
        False  # it is all of a sweep, which goes through memory in its order: few channels a time
    )
    couples_channels: ClassVar[bool] = False  # it needs more than one of them at once
    reads_for_all_blocks: ClassVar[bool] = False  # of output channels: taken in parts, they would be read for anew
    statistics: ClassVar[int] = 0  # numbers that a tile leaves for each channel

    @property
    def key(self) -> str:
        """All that its code depends on: its fields, but for those that only name an array or a stage."""
        return repr(self)

    def along(self, where: Where, axis: int) -> AxisStep | None:
        """Its geometry along axis 0, 1, 2 = depth, height, width; None: what it reads is what it writes."""
        return None

    def scratch(self, where: Where, rooms: Rooms) -> tuple[Room, ...]:
        """The rooms it needs; tells `rooms` what the value is afterwards."""
        return ()

    def cost(self, where: Where, tiling: Tiling) -> tuple[float, float]:
        """Cycles of a tile, where they matter for the choice of one: products, and transforms around them."""
        return 0.0, 0.0

    def emit(self, tile: Tile, words: Any, call: Any) -> None:
        """Its code, given its sets of words."""
        raise NotImplementedError

    def bind(self, binding: Binding, rooms: tuple[Room, ...]) -> tuple[Words, ...]:
        """Its sets of words for a plan; `rooms` are those that `scratch` asked for."""
        return ()

    def bind_call(self, call: Call) -> tuple[Words, ...]:
        """Its sets of words for one call."""
        return ()

    def describe(self, plan: Plan, planned: SweepPlan) -> Iterator[str]:
        """What it does in this sweep of the plan, a line for each part."""
        return iter(())
