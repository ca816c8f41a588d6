"""Tiles of GPU kernels: a small set for each generation, and which of them a kernel takes unless it is tuned."""

from __future__ import annotations

from dataclasses import dataclass

from ..spec.dtypes import DType

GENERATIONS = (80, 90, 100)  # Ampere, Hopper, Blackwell: A100, H100, B200
AMD = {"gfx90a": 9, "gfx942": 9, "gfx950": 9, "gfx1100": 11}  # CDNA (MI210, MI300, MI350) and RDNA 3 (RX 7900)
PROCESSORS = {9: 304, 11: 96, 80: 108, 90: 132, 100: 148}  # multiprocessors; enough programs keep them all busy
SHARED = {9: 64, 11: 64, 80: 163, 90: 227, 100: 227}  # KiB of a block
MOST_CONFIGURATIONS = 4
# How float32 is multiplied: product by product; rounded to TensorFloat32; as sums of three bfloat16 numbers, which
# reach all of its bits (docs/gpu.md). How many parts a factor has, and from how many input channels on dots are used.
PARTS = {"ieee": 1, "tf32": 1, "bf16x6": 3}
LEAST_INPUTS = {"ieee": 8, "tf32": 1, "bf16x6": 4}
# Channels a program may hold: of the convolution, with a pool, and of an array. A stage that mixes more of them is a
# kernel of its own, or left to stock PyTorch.
MOST_CHANNELS, MOST_POOLED, MOST_LOADED = 512, 256, 4096


@dataclass(frozen=True)
class Config:
    """A program computes `positions` x `channels` outputs, `inputs` input channels at a time."""

    positions: int
    channels: int
    inputs: int
    warps: int
    stages: int
    registers: int = 255  # at most, of a thread


def generation_of(capability: int | str) -> int:
    """The newest known generation that is not newer than a compute capability such as 86 or 120; or that of one of
    AMD's architectures."""
    if isinstance(capability, str):
        return AMD[capability]
    return max((each for each in GENERATIONS if each <= capability), default=GENERATIONS[0])


def power_of_two(number: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << max(number - 1, 0).bit_length()


@dataclass(frozen=True)
class Demand:
    """What the choice of a tile depends on."""

    kind: str  # "dot": by blocks, on tensor cores where they can; "plain": one input at a time; "depthwise"; "load"
    dtype: DType
    precision: str
    channels: int  # output channels of a group, or all of them
    inputs: int  # input channels of a group
    whole: bool  # whether a program must hold all channels
    double: bool  # whether a program holds a second tile: of a pool, or one that a stage reads or keeps
    reduced: bool  # whether it leaves statistics
    laden: bool  # whether it holds more beside: offsets of groups, or several vectors
    wide: bool  # whether offsets are of 64 bits
    positions: int  # of one residue and sample
    others: int  # programs beside those of the positions: residues, samples, groups

    @property
    def split(self) -> bool:
        """Whether factors are sums of bfloat16 numbers."""
        return self.kind == "dot" and self.dtype.name == "float32" and PARTS[self.precision] > 1


def configurations(generation: int, need: Demand) -> tuple[Config, ...]:
    """The tiles worth trying, largest first."""
    channels, found = _channels(need), []
    for positions in (128, 64, 32, 16, 8, 4, 2, 1):
        warps = _warps(generation, need, positions)
        if warps is not None and (need.kind != "dot" or positions >= 16):
            registers = _registers(generation, need, positions, warps)
            found.append(
                Config(
                    positions,
                    channels,
                    _inputs(generation, need),
                    warps,
                    _stages(generation, need, positions),
                    registers,
                )
            )
    least = _least_positions(generation, need)
    return tuple([config for config in found if config.positions >= least] or found)[:MOST_CONFIGURATIONS]


def _least_positions(generation: int, need: Demand) -> int:
    """The newer tensor cores take tiles of 64 positions and more; smaller ones run on the older kind, at half its speed
    or less."""
    tensor_cores = need.kind == "dot" and (need.dtype.itemsize == 2 or need.precision != "ieee")
    return 64 if tensor_cores and generation >= 90 else 1


def _warps(generation: int, need: Demand, positions: int) -> int | None:
    """A thread has some 32 numbers of an accumulator, fewer where other things need registers as well: more would spill
    (docs/gpu_report.md shows the registers of each). Of parts, the newer tensor cores make products of 64 positions for
    each four warps, and 64 numbers a thread: twice the work for the same instructions; where a kernel leaves statistics
    its tile stays as small as its twin without dot wants it. 64 or more are worth it, too, where few positions would
    leave them idle, and fit for 16-bit types and up to 256 channels. All tensor cores take 8 warps at most, and 16
    positions at least."""
    channels, most = _channels(need), 8 if need.kind == "dot" else 16
    warps = max(positions * channels * _weight(need) // (2048 if generation == 9 else 1024), 4)  # AMD's have 64 threads
    least = _least_positions(generation, need)
    if need.split and least == 64 <= positions and not (need.wide or need.laden or (need.reduced and warps > most)):
        warps = max(warps // 2, 4)
    if warps <= most:
        return warps
    worth = positions == least == 64 and need.dtype.itemsize == 2 and channels <= 256
    smallest = positions == (16 if need.kind == "dot" else 1)
    return most if smallest or (worth and not need.reduced) else None


def _weight(need: Demand) -> int:
    """Registers that an output takes, in accumulators: with a second tile as many again, in float64 two for each.
    Without a dot both factors are held beside the sum; each output of a depthwise convolution has an input of its own,
    and each of an array an address; addresses of 64 bits are two. Products of parts have
    a sum of their own, which fits where a second tile does. A dot kernel that leaves statistics has a twin
    without dot of the same tile; statistics of what mixes channels come on top of that."""
    factors = {"plain": 2, "depthwise": 4, "load": 2}.get(need.kind, 1)
    reduced = need.reduced and need.kind == "dot"
    doubled = (need.double or reduced or need.split, reduced and need.whole, need.dtype.itemsize > 4, need.wide)
    return factors << sum(doubled)


def choose(generation: int, need: Demand, choice: int | None = None) -> Config:
    """The largest tile of which there are at least two programs for each processor, else the one that gives most; of
    dots a larger one, where the busiest processor has as many warps for no more positions: each program reads all
    weights. `choice` asks for one by its number (the last if there are fewer)."""
    tiles, processors = configurations(generation, need), PROCESSORS[generation]
    if choice is not None:
        return tiles[min(choice, len(tiles) - 1)]
    columns = -(-need.channels // tiles[0].channels)
    programs = {config: -(-need.positions // config.positions) * columns * need.others for config in tiles}
    enough = next((config for config in tiles if programs[config] >= 2 * processors), tiles[-1])
    if need.kind != "dot":
        return enough
    busiest = {config: -(-number // processors) for config, number in programs.items()}
    positions, warps = busiest[enough] * enough.positions, busiest[enough] * enough.warps
    return next(
        config
        for config in tiles
        if busiest[config] * config.positions <= positions and busiest[config] * config.warps >= warps
    )


def _channels(need: Demand) -> int:
    least = 16 if need.kind == "dot" else 1
    most = power_of_two(need.channels)
    return max(least, most if need.whole else min(most, 64))


def _inputs(generation: int, need: Demand) -> int:
    """Input channels are filled up to a multiple of this: the largest that adds little."""
    if need.kind != "dot":
        return 1
    half, exact = need.dtype.itemsize == 2, need.precision == "ieee" or need.dtype.itemsize == 8
    sizes: tuple[int, ...] = (64, 32, 16) if half else (16,) if exact else (32, 16)
    if _channels(need) > 128:  # so that a few stages fit the shared memory
        sizes = sizes[1:] or sizes
    return next((size for size in sizes if -need.inputs % size <= need.inputs // 8), 16)


def _stages(generation: int, need: Demand, positions: int) -> int:
    """Loads under way, as many as fit the shared memory, but two."""
    if need.kind != "dot":
        return 2
    size = 2 * PARTS[need.precision] if need.split else need.dtype.itemsize
    tiles = (positions + _channels(need)) * _inputs(generation, need) * size
    return max(2, min({9: 2, 11: 2, 80: 3}.get(generation, 4), SHARED[generation] * 1024 // tiles))


def most_registers(warps: int) -> int:
    """Of a thread, so that a block of so many warps fits the 65536 there are."""
    return min(255, 2048 // warps)


def _registers(generation: int, need: Demand, positions: int, warps: int) -> int:
    """Left alone, ptxas spills a register or two to let one more block in; with a bound a little above that it finds a
    way without (docs/gpu_report.md shows the outcome). sm_80 has room for two blocks of 8 warps in 16-bit types; beside
    a second tile of float32 the newer ones find none below 200 registers."""
    crammed = positions * _channels(need) * _weight(need) > 1024 * warps
    crammed = crammed or (need.double and need.dtype.itemsize == 4 and generation >= 90)
    if need.kind != "dot" or crammed or need.precision != "ieee" or need.laden or need.wide:
        return most_registers(warps)
    half = need.dtype.itemsize == 2
    return {4: 168, 8: 152 if not half else 128 if generation == 80 else 176}.get(warps, 128)
