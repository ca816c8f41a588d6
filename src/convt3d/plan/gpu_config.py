"""Tiles of GPU kernels: a small set for each generation, and which of them a kernel takes unless it is tuned."""

from __future__ import annotations

from dataclasses import dataclass

from ..spec.dtypes import DType

GENERATIONS = (80, 90, 100)  # Ampere, Hopper, Blackwell: A100, H100, B200
PROCESSORS = {80: 108, 90: 132, 100: 148}  # multiprocessors; enough programs keep them all busy
MOST_CONFIGURATIONS = 4
PRECISIONS = ("ieee", "tf32", "tf32x3")
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


def generation_of(capability: int) -> int:
    """The newest known generation that is not newer than a compute capability such as 86 or 120."""
    return max((each for each in GENERATIONS if each <= capability), default=GENERATIONS[0])


def power_of_two(number: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << max(number - 1, 0).bit_length()


@dataclass(frozen=True)
class Need:
    """What the choice of a tile depends on."""

    kind: str  # "dot": by blocks, on tensor cores where they can; "plain": one input at a time; "depthwise"; "load"
    dtype: DType
    precision: str
    channels: int  # output channels of a group, or all of them
    inputs: int  # input channels of a group
    whole: bool  # whether a program must hold all channels
    pooled: bool  # whether a program holds a second accumulator
    positions: int  # of one residue and sample
    others: int  # programs beside those of the positions: residues, samples, groups


def configurations(generation: int, need: Need) -> tuple[Config, ...]:
    """The tiles worth trying, largest first. A thread has some 32 numbers of an accumulator, fewer where other things
    need registers as well: more would spill (docs/gpu.md shows the registers of each)."""
    channels, most_warps = _channels(need), 8 if need.kind == "dot" else 16
    found = []
    for positions in (128, 64, 32, 16, 8, 4, 2, 1):
        warps = max(positions * channels * _weight(need) // 1024, 4)
        if warps <= most_warps and (need.kind != "dot" or positions >= 16):
            found.append(Config(positions, channels, _inputs(need), warps, _stages(generation, need)))
    return tuple(found[:MOST_CONFIGURATIONS])


def _weight(need: Need) -> int:
    """Registers that an output takes, in accumulators: a pool has a second one, float64 needs two for each, and without
    a dot both factors are held beside the sum; each output of a depthwise convolution has an input of its own."""
    factors = {"plain": 2, "depthwise": 4}.get(need.kind, 1)
    return (2 if need.pooled else 1) * (2 if need.dtype.itemsize > 4 else 1) * factors


def choose(generation: int, need: Need, choice: int | None = None) -> Config:
    """The largest tile of which there are at least two programs for each processor, else the one that gives most;
    `choice` asks for one by its number (the last if there are fewer)."""
    tiles = configurations(generation, need)
    if choice is not None:
        return tiles[min(choice, len(tiles) - 1)]
    columns = -(-need.channels // tiles[0].channels)
    for config in tiles:
        if -(-need.positions // config.positions) * columns * need.others >= 2 * PROCESSORS[generation]:
            return config
    return tiles[-1]


def _channels(need: Need) -> int:
    least = 16 if need.kind == "dot" else 1
    most = power_of_two(need.channels)
    return max(least, most if need.whole else min(most, 64))


def _inputs(need: Need) -> int:
    """Input channels are filled up to a multiple of this: the largest that adds little."""
    if need.kind != "dot":
        return 1
    half, exact = need.dtype.itemsize == 2, need.precision == "ieee"
    sizes: tuple[int, ...] = (64, 32, 16) if half else (16,) if exact else (32, 16)
    if _channels(need) > 128:  # so that a few stages fit the shared memory
        sizes = sizes[1:] or sizes
    return next((size for size in sizes if -need.inputs % size <= need.inputs // 8), 16)


def _stages(generation: int, need: Need) -> int:
    return {80: 3, 90: 4, 100: 4}[generation] if need.kind == "dot" else 2
