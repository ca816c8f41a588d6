"""Tiles of GPU kernels: a small set for each generation, and which of them a kernel takes unless it is tuned."""

from __future__ import annotations

from dataclasses import dataclass

from ..spec.dtypes import DType

GENERATIONS = (80, 90, 100)  # Ampere, Hopper, Blackwell: A100, H100, B200
PROCESSORS = {80: 108, 90: 132, 100: 148}  # multiprocessors; enough programs keep them all busy
MOST_CONFIGURATIONS = 4
PRECISIONS = ("ieee", "tf32", "tf32x3")
MOST_CHANNELS = 512  # that a program of the convolution may hold; what mixes more is a kernel of its own


@dataclass(frozen=True)
class Config:
    """A program computes `positions` x `channels` outputs, `inputs` input channels at a time."""

    positions: int
    channels: int
    inputs: int
    warps: int
    stages: int

    @property
    def constants(self) -> dict[str, int]:
        return {"BLOCK_P": self.positions, "BLOCK_C": self.channels, "BLOCK_K": self.inputs}


def generation_of(capability: int) -> int:
    """The newest known generation that is not newer than a compute capability such as 86 or 120."""
    return max((each for each in GENERATIONS if each <= capability), default=GENERATIONS[0])


def power_of_two(number: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << max(number - 1, 0).bit_length()


@dataclass(frozen=True)
class Need:
    """What the choice of a tile depends on."""

    kind: str  # "dot": tensor cores or fused multiply-adds by blocks; "plain": one input channel at a time; "load"
    dtype: DType
    precision: str
    channels: int  # output channels of a group, or all of them
    inputs: int  # input channels of a group
    whole: bool  # whether a program must hold all channels
    pooled: bool  # whether a program holds a second accumulator
    positions: int  # of one residue and sample
    others: int  # programs beside those of the positions: residues, samples, groups


def configurations(generation: int, need: Need) -> tuple[Config, ...]:
    """The tiles worth trying, largest first. An accumulator has at most 32 numbers for each thread, 16 where a pool
    needs a second one: more would spill (docs/gpu.md shows the registers of each)."""
    channels = _channels(need)
    wide = need.dtype.itemsize > 4
    found = []
    for positions in (128, 64, 32, 16, 8, 4, 2, 1):
        numbers = positions * channels * (2 if need.pooled else 1) * (2 if wide else 1)
        warps = min(max(numbers // 1024, 4), 16)
        if numbers > 1024 * warps or (need.kind == "dot" and positions < 16):
            continue
        found.append(Config(positions, channels, _inputs(need), warps, _stages(generation, need)))
    return tuple(found[:MOST_CONFIGURATIONS])


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
    tensor_cores = need.dtype.itemsize == 2 or need.precision != "ieee"
    sizes = (64, 32, 16) if need.dtype.itemsize == 2 else (32, 16) if tensor_cores else (16,)
    return next((size for size in sizes if -need.inputs % size <= need.inputs // 8), 16)


def _stages(generation: int, need: Need) -> int:
    return {80: 3, 90: 4, 100: 4}[generation] if need.kind == "dot" else 2
