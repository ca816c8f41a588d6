"""The machine: threads of several blocks in step, one array of bits for each register; branches, barriers, memory.

Threads that went different ways are groups at different instructions. The group that is furthest behind runs, and joins
those it meets. A barrier holds threads until all of their block that have not ended are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .arithmetic import MEANINGS as ARITHMETIC
from .arithmetic import Meaning
from .groups import MEANINGS as GROUPS
from .memory import Fault, GlobalMemory, Region, SharedMemory
from .moves import MEANINGS as MOVES
from .moves import Flights
from .numbers import WIDTHS, Array, bits_of_type, from_bits, immediate, is_float, to_bits
from .text import Address, Instruction, Kernel, Operand, Unknown
from .warps import MEANINGS as WARPS
from .warps import WARP

MEANINGS: Mapping[str, Meaning] = {**ARITHMETIC, **MOVES, **WARPS, **GROUPS}
MOST_LANES = 8192  # threads that run in step; more are dealt out block by block
_NUMBER = "0123456789-"
_SPECIAL = ("%tid", "%ntid", "%ctaid", "%nctaid", "%laneid", "%warpid", "%clusterid", "%nclusterid", "%cluster_ctarank")


def launch(
    kernel: Kernel, arguments: Mapping[str, Array], grid: tuple[int, int, int], shared: int, regions: Sequence[Region]
) -> None:
    """Runs all blocks of a grid. Raises `Fault` for what a kernel must not do, `Unknown` for what is not known here."""
    count = grid[0] * grid[1] * grid[2]
    together = max(1, MOST_LANES // kernel.threads)
    memory = GlobalMemory(regions)
    for first in range(0, count, together):
        blocks = np.arange(first, min(count, first + together))
        Machine(kernel, arguments, grid, shared, memory, blocks).run()


class Machine:
    """Some blocks of a launch."""

    def __init__(
        self,
        kernel: Kernel,
        arguments: Mapping[str, Array],
        grid: tuple[int, int, int],
        shared: int,
        memory: GlobalMemory,
        numbers: Array,
    ) -> None:
        self.kernel, self.arguments, self.grid, self.memory = kernel, arguments, grid, memory
        self.lanes = len(numbers) * kernel.threads
        self.thread = np.tile(np.arange(kernel.threads), len(numbers))
        self.own = np.repeat(np.arange(len(numbers)), kernel.threads)  # block of each thread, among those that run
        self.block = np.repeat(numbers, kernel.threads)  # and in the grid
        self.warp = self.thread // WARP
        self.shared = SharedMemory(len(numbers), shared)
        self.registers: dict[str, Array] = {}
        self.groups: dict[int, Array] = {0: np.ones(self.lanes, bool)}  # instruction -> threads that wait to run it
        self.held = np.full(self.lanes, -1)  # behind a barrier: where the thread goes on
        self.alive = np.ones(self.lanes, bool)
        self.active: Array = self.groups[0]
        self.everyone = True
        self.at = 0
        self.copies, self.products = Flights(self.lanes), Flights(self.lanes)

    # --- running -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        with np.errstate(all="ignore"):
            while self.groups:
                self.at = min(self.groups)
                self._take(self.groups.pop(self.at))
                self._go()
                if not self.groups and self.alive.any():
                    raise Fault("barrier", "threads wait at a barrier for others of their block that never come")

    def _take(self, threads: Array) -> None:
        self.active, self.everyone = threads, bool(threads.all())

    def _go(self) -> None:
        """Until the group ends, waits, or meets another that must run first."""
        instructions = self.kernel.instructions
        while True:
            if self.at in self.groups:
                self._take(self.active | self.groups.pop(self.at))
            elif self.groups and self.at > min(self.groups):
                self.groups[self.at] = self.active
                return
            instruction = instructions[self.at]
            self.at += 1
            try:
                if self._step(instruction):
                    return
            except Fault as fault:
                where = f"line {instruction.line}" if instruction.line else "an unknown line"
                raise Fault(
                    fault.word, f"{where} of `{self.kernel.name}` ({instruction.words}): {fault.detail}"
                ) from None

    def _step(self, i: Instruction) -> bool:
        """Whether the group is gone."""
        if i.name == "bra":
            return self._branch(i)
        if i.name in ("ret", "exit"):
            self._leave(self.chosen(i))
            return not self._rest(i)
        if i.name in ("bar", "barrier") and i.parts[0] in ("sync", "cta"):
            self._wait()
            return True
        meaning = MEANINGS.get(i.name)
        if meaning is None:
            raise Unknown(f"this machine has no `{i.words}`")
        if i.guard is None:
            meaning(self, i)
            return False
        chosen = self.chosen(i)
        if chosen.any():
            whole = self.active, self.everyone
            self._take(chosen)
            meaning(self, i)
            self.active, self.everyone = whole
        return False

    def chosen(self, i: Instruction) -> Array:
        """Threads that run it: those of the group whose guard holds."""
        if i.guard is None:
            return self.active
        name, wanted = i.guard
        return self.active & (self.value(name, "pred") == wanted)

    def _branch(self, i: Instruction) -> bool:
        taken = self.chosen(i)
        target = self.kernel.labels[str(i.operands[0])]
        if not taken.any():
            return False
        rest = self.active & ~taken
        if rest.any():
            self._join(target, taken)
            self._join(self.at, rest)
            return True
        self.at = target
        return False

    def _join(self, at: int, threads: Array) -> None:
        self.groups[at] = self.groups[at] | threads if at in self.groups else threads

    def _leave(self, threads: Array) -> None:
        self.alive = self.alive & ~threads
        self._release()

    def _rest(self, i: Instruction) -> bool:
        """After a return that only some take."""
        if i.guard is None:
            return False
        self._take(self.active & self.alive)
        return bool(self.active.any())

    def _wait(self) -> None:
        self.held[self.active] = self.at
        self._release()

    def _release(self) -> None:
        """Blocks all of whose threads wait, or have ended, go on."""
        waiting = self.held >= 0
        ready = (waiting | ~self.alive).reshape(-1, self.kernel.threads).all(1)
        ready &= waiting.reshape(-1, self.kernel.threads).any(1)
        if not ready.any():
            return
        self.shared.epochs[ready] += 1
        going = waiting & np.repeat(ready, self.kernel.threads)
        for at in np.unique(self.held[going]):
            self._join(int(at), going & (self.held == at))
        self.held = np.where(going, -1, self.held)

    # --- registers ---------------------------------------------------------------------------------------------------

    def value(self, operand: Operand, kind: str) -> Array:
        """Numbers of this type: of a register one for each thread, of a number in the text a single one."""
        if not isinstance(operand, str):
            raise Unknown(f"an operand {operand} where a number is expected")
        if operand in self.registers:
            return from_bits(self.registers[operand], kind)
        if operand[0] in _NUMBER:
            return immediate(operand, kind)
        if operand.startswith(_SPECIAL):
            return from_bits(np.ascontiguousarray(self._special(operand), np.uint32), kind)
        if operand in self.kernel.shared:
            return from_bits(np.zeros(self.lanes, WIDTHS[bits_of_type(kind)]), kind)
        bits = bits_of_type(kind)  # nobody has written it
        if bits == 1:
            return np.zeros(self.lanes, bool)
        return from_bits(np.full(self.lanes, (1 << bits) - 1, WIDTHS[bits]), kind)

    def _special(self, name: str) -> Array:
        base, _, axis = name.partition(".")
        sizes = {"%ntid": (self.kernel.threads, 1, 1), "%nctaid": self.grid, "%nclusterid": self.grid}
        if base in sizes:
            return np.full(self.lanes, sizes[base]["xyz".index(axis)])
        if base in ("%ctaid", "%clusterid"):
            x, y, _ = self.grid
            return {"x": self.block % x, "y": self.block // x % y, "z": self.block // (x * y)}[axis]
        if base == "%tid":
            return self.thread if axis == "x" else np.zeros(self.lanes)
        if base == "%laneid":
            return self.thread % WARP
        return self.warp if base == "%warpid" else np.zeros(self.lanes)

    def put(self, name: Operand, numbers: Array, kind: str) -> None:
        """Into a register of the threads that run."""
        if not isinstance(name, str):
            raise Unknown(f"a result in {name}")
        declared = self._declared(name)
        if not is_float(kind) and kind != "pred" and bits_of_type(declared) > bits_of_type(kind):
            numbers = from_bits(to_bits(numbers, kind), kind).astype(np.int64)  # with its sign, if it has one
            kind = f"b{bits_of_type(declared)}"
        bits = to_bits(numbers, kind)
        if bits.shape != (self.lanes,):
            bits = np.broadcast_to(bits, self.lanes)
        if not self.everyone:
            old = self.registers.get(name)
            bits = np.where(self.active, bits, np.zeros(self.lanes, bits.dtype) if old is None else old)
        self.registers[name] = np.ascontiguousarray(bits)

    def _declared(self, name: str) -> str:
        found = self.kernel.registers.get(name) or self.kernel.registers.get(name.rstrip("0123456789"))
        if found is None:
            raise Unknown(f"`{name}` is no register")
        return found

    # --- memory ------------------------------------------------------------------------------------------------------

    def address(self, operand: Operand) -> Array:
        """Of each thread."""
        if not isinstance(operand, Address):
            raise Unknown(f"an operand {operand} where an address is expected")
        if operand.base in self.kernel.shared:
            return np.full(self.lanes, operand.offset, np.uint64)
        bits = bits_of_type(self._declared(operand.base))
        return self.value(operand.base, f"u{bits}").astype(np.uint64) + np.uint64(operand.offset % 2**64)
