"""The steps of a GpuPlan, a kernel each. A step knows its text, its memory and what `explain` says of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from ..plan.base import by
from ..plan.names import OperandName
from ..plan.sweeps import Finish
from ..spec.shapes import Shape
from ..spec.stages import AvgPool3d, MaxPool3d
from .config import Config, Demand, choose, configurations, most_registers
from .geometry import GpuAxis
from .pieces import PartialsName, Piece, PreparedName
from .text.code import Constants
from .text.finish import finish_text
from .text.kernel import KernelText, kernel_text
from .text.pack import pack_text

if TYPE_CHECKING:
    from .plan import GpuPlan
    from .run import Execution


@dataclass(frozen=True)
class GpuStep:
    @property
    def label(self) -> str:
        """Its kind, in one word."""
        raise NotImplementedError

    @property
    def tile(self) -> Config | None:
        """The configuration that was chosen for it, if there are several."""
        return None

    @property
    def names(self) -> list[str]:
        """That its kernel's name is made of."""
        raise NotImplementedError

    def laid_out(self, memory: Memory, width: int, walled: bool, generation: int, choice: int | None) -> GpuStep:
        """The step, where the convolution's input lies so in memory and its weights have so many output channels."""
        return self

    def text(self, plan: GpuPlan, name: str, constants: Constants) -> KernelText:
        raise NotImplementedError

    def prepare(self, run: Execution, text: KernelText) -> bool:
        """Memory for what it writes; False if it has nothing to do."""
        raise NotImplementedError

    def release(self, run: Execution) -> None:
        """Memory that nobody reads after it."""

    def describe(self, plan: GpuPlan) -> tuple[str, list[tuple[str, str]]]:
        """What it does, and further facts by their names."""
        raise NotImplementedError


@dataclass(frozen=True)
class Memory:
    """The convolution's input, channels last: `groups` times `parts` times `filled` numbers of a voxel, and so many
    voxels of zeros before and after each axis."""

    inputs: int = 1  # channels of a group
    filled: int = 1  # and in memory, whole blocks of all kernels of the convolution
    groups: int = 1
    parts: int = 1  # whose sum a number is
    low: tuple[int, ...] = (0, 0, 0)
    high: tuple[int, ...] = (0, 0, 0)

    @property
    def row(self) -> int:
        return self.groups * self.parts * self.filled

    @property
    def halo(self) -> bool:
        return any(self.low) or any(self.high)

    def sizes(self, space: Sequence[int]) -> tuple[int, ...]:
        return tuple(low + size + high for low, size, high in zip(self.low, space, self.high, strict=True))


@dataclass(frozen=True)
class GpuKernel(GpuStep):
    """A piece with its numbers for given sizes."""

    piece: Piece
    kind: str  # "dot", "plain", "depthwise" (of the convolution) or "load"
    axes: tuple[GpuAxis, GpuAxis, GpuAxis]
    groups: int  # of channels, which have programs of their own
    channels: int  # output channels of a group
    inputs: int  # input channels of a group
    multiplier: int  # output channels of each input channel, where each has its own
    pool: AvgPool3d | MaxPool3d | None
    config: Config
    need: Demand
    memory: Memory = Memory()  # of the convolution's input, for what reads or writes it
    width: int = 0  # output channels of a group in packed weights, blocks of all kernels of the convolution
    walled: bool = False  # whether zeros lie in memory wherever an address of a dot may reach
    guarded: bool = False  # runs only if a weight is not finite, and then takes the place of the kernel before it

    @property
    def residues(self) -> int:
        return prod(axis.pace for axis in self.axes)

    @property
    def tiles(self) -> int:
        return -(-prod(axis.count for axis in self.axes) // self.config.positions)

    @property
    def columns(self) -> int:
        """Blocks of channels of a group; or of all that are written as a convolution's input."""
        return -(-self.need.channels // self.config.channels)

    @property
    def taps(self) -> int:
        return prod(axis.kernel for axis in self.axes)

    @property
    def programs(self) -> int:
        return self.piece.shape[0] * self.groups * self.columns * self.tiles * self.residues

    @property
    def parts(self) -> int:
        """Partial statistics for each sample and channel."""
        return self.tiles * self.residues

    @property
    def weight_strides(self) -> tuple[int, int]:
        """Of inputs and of outputs in packed weights. Newer tensor cores take TensorFloat32 only with inputs next to
        each other; all else is stored with outputs next to each other, which suits products without them too."""
        return (1, self.weight_rows) if self.need.precision == "tf32" else (self.width, 1)

    @property
    def weight_rows(self) -> int:
        """Inputs that a tap has weights of."""
        return 1 if self.kind == "depthwise" else self.memory.filled

    @property
    def weight_tap(self) -> int:
        """Numbers of a tap in packed weights: (parts, inputs, outputs)."""
        return self.memory.parts * self.weight_rows * self.width

    def furthest(self, strides: Sequence[int]) -> int:
        """The largest offset of the convolution's input, with these strides, that an address is made of."""
        batch, channels, *_ = self.piece.shape
        n, _, *space = strides
        far = (batch - 1) * n + max(channels, self.memory.row)
        return far + sum(axis.reach * stride for axis, stride in zip(self.axes, space, strict=True) if axis.size > 1)

    def guard(self, generation: int) -> GpuKernel:
        """A dot multiplies the zeros around the input with weights, and NaN or infinity would show; this does not."""
        need = replace(self.need, kind="plain")
        if self.piece.reduce is None:  # 255 registers are worth more to it than 16 warps
            config = next(tile for tile in configurations(generation, need) if tile.warps <= 8)
        else:  # as many statistics as the other kernel leaves
            outputs = self.config.positions * self.config.channels
            config = replace(self.config, warps=max(self.config.warps, outputs // 512))
        config = replace(config, stages=1, registers=most_registers(config.warps))
        return replace(self, kind="plain", need=need, config=config, guarded=True)

    @property
    def label(self) -> str:
        return "guard" if self.guarded else self.kind

    @property
    def tile(self) -> Config:
        return self.config

    @property
    def names(self) -> list[str]:
        first = [self.kind if self.piece.conv is None else "conv", *(["guard"] if self.guarded else [])]
        return first + [link.stage.name.lower() for link in self.piece.links]

    @property
    def copies(self) -> bool:
        """Whether it only brings the convolution's input into another order."""
        return isinstance(self.piece.dest, PreparedName) and self.piece.blank

    def laid_out(self, memory: Memory, width: int, walled: bool, generation: int, choice: int | None) -> GpuKernel:
        if self.piece.conv is not None:
            return replace(self, memory=memory, width=width, walled=walled)
        if not isinstance(self.piece.dest, PreparedName):
            return self
        d, h, w = (
            replace(axis, low=low, high=high)
            for axis, low, high in zip(self.axes, memory.low, memory.high, strict=True)
        )
        columns = max(self.channels, memory.groups * memory.filled)
        positions = prod(axis.count for axis in (d, h, w))
        need = replace(self.need, channels=columns, positions=positions)
        return replace(
            self, memory=memory, walled=walled, axes=(d, h, w), need=need, config=choose(generation, need, choice)
        )

    def text(self, plan: GpuPlan, name: str, constants: Constants) -> KernelText:
        return kernel_text(plan, self, name, constants)

    def prepare(self, run: Execution, text: KernelText) -> bool:
        return run.make_arrays(self)

    @property
    def _writes_halo(self) -> bool:
        return self.piece.conv is None and self.memory.halo

    def describe(self, plan: GpuPlan) -> tuple[str, list[tuple[str, str]]]:
        piece, config = self.piece, self.config
        stages = [repr(link.stage) for link in piece.before]
        stages += [repr(self.pool)] if self.pool else []
        stages += [repr(link.stage) for link in piece.after]
        rows = [
            ("reads", f"{plan.array_name(piece.source)}, {by(piece.shape)}"),
            *((("stages", ", ".join(stages)),) if stages else ()),
            ("tile", f"{config.positions} positions x {config.channels} channels, {config.inputs} inputs at a time"),
            *(
                (("halo", f"{by(self.memory.low)} and {by(self.memory.high)} voxels of zeros"),)
                if self._writes_halo
                else ()
            ),
            ("launch", f"{self.programs} programs of {config.warps} warps, {config.stages} stages of loads"),
        ]
        if piece.reduce is not None:
            rows.append(("leaves", f"{piece.reduce} of each tile"))
        if piece.dest is not None:
            rows.append(("writes", f"{plan.array_name(piece.dest)}, {by(piece.result)}"))
        if self.guarded:
            rows.append(("runs", "only if a weight is NaN or infinite, and then in place of the kernel before it"))
        return _KINDS[self.kind], rows


_KINDS = {
    "dot": "convolution by blocks of products",
    "plain": "convolution, one input channel at a time",
    "depthwise": "convolution, each channel by itself",
    "load": "no convolution",
}


@dataclass(frozen=True)
class GpuPack(GpuStep):
    """A kernel that brings weights into the order in which `reader`, and all kernels of the convolution, read them."""

    operand: OperandName
    reader: GpuKernel

    @property
    def label(self) -> str:
        return "pack"

    @property
    def size(self) -> int:
        """Numbers of the packed weights."""
        return self.reader.groups * self.reader.taps * self.reader.weight_tap

    @property
    def names(self) -> list[str]:
        return ["pack"]

    def text(self, plan: GpuPlan, name: str, constants: Constants) -> KernelText:
        return pack_text(plan, self, name)

    def prepare(self, run: Execution, text: KernelText) -> bool:
        return run.make_weights(self.size)

    def describe(self, plan: GpuPlan) -> tuple[str, list[tuple[str, str]]]:
        return f"packs {plan.array_name(self.operand)}", [("numbers", str(self.size))]


@dataclass(frozen=True)
class GpuFinish(GpuStep):
    """A kernel that combines partial statistics: one program for each sample and group of channels."""

    finish: Finish
    kind: str  # of the statistics
    partials: PartialsName
    shape: Shape  # of the value they are of
    groups: int  # of channels, whose statistics are combined
    parts: int

    @property
    def label(self) -> str:
        return "finish"

    @property
    def names(self) -> list[str]:
        return ["finish", self.finish.stage.name.lower()]

    def text(self, plan: GpuPlan, name: str, constants: Constants) -> KernelText:
        return finish_text(plan, self, name, constants)

    def prepare(self, run: Execution, text: KernelText) -> bool:
        made = [array for array in text.pointers.values() if array.made == self.finish.result]
        return run.make_statistics(made, self.shape)

    def release(self, run: Execution) -> None:
        run.release(self.partials)

    def describe(self, plan: GpuPlan) -> tuple[str, list[tuple[str, str]]]:
        combined, programs = f"{self.parts} parts a sample and channel", str(self.shape[0] * self.groups)
        return f"statistics of {self.finish.stage.name}", [("combines", combined), ("programs", programs)]


def kernels_of(steps: Iterable[GpuStep]) -> tuple[GpuKernel, ...]:
    """The pieces among the steps."""
    return tuple(step for step in steps if isinstance(step, GpuKernel))
