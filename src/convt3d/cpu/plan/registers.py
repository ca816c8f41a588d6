"""The register tile of a matrix product: how many output channels and vectors of positions are summed together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

ANY = -1  # rows of a last block: code for every number of them, chosen when it runs


@dataclass(frozen=True)
class RegisterTile:
    """`rows` output channels x `columns` vectors; the last block of a group has `rest` rows (0: it is full too)."""

    rows: int
    rest: int
    columns: int

    def blocks(self, channels: int) -> list[int]:
        full = channels // self.rows
        return [self.rows] * full + ([self.rest] if self.rest else [])


def tile_of_amx(channels: int) -> RegisterTile:
    """16 rows, of which the last block fills what it has, and four tiles of sums."""
    return RegisterTile(16, channels % 16, 4)


def any_tile(registers: int) -> RegisterTile:
    """One that serves every number of channels: the best on average for some usual numbers."""

    def cost(rows: int, columns: int) -> float:
        tiles = ((RegisterTile(rows, channels % rows, columns), channels) for channels in range(8, 72, 8))
        return sum(_cycles(tile, channels) / channels for tile, channels in tiles)

    shapes = [(rows, columns) for columns in range(1, 9) for rows in range(1, (registers - 1 - columns) // columns + 1)]
    rows, columns = min(shapes, key=lambda shape: cost(*shape))
    return RegisterTile(rows, ANY, columns)


def _cycles(tile: RegisterTile, channels: int) -> float:
    """Of a step, for each vector of positions."""
    return sum(max(n * tile.columns, n + 3 * tile.columns) + 3 for n in tile.blocks(channels)) / tile.columns


@lru_cache(maxsize=1024)
def register_tile(channels: int, registers: int) -> RegisterTile:
    """The tile that spends least on loads and loop overhead for `channels` outputs in a group."""
    best: tuple[float, RegisterTile] | None = None
    for columns in range(1, 9):
        most = (registers - 1 - columns) // columns  # accumulators, one vector a column, one broadcast
        if most < 1:
            break
        count = -(-channels // most)
        rows = -(-channels // count)
        tile = RegisterTile(rows, channels % rows, columns)
        cost = _cycles(tile, channels)
        if best is None or cost < best[0]:
            best = cost, tile
    assert best is not None
    return best[1]


def row_lengths(lanes: int, registers: int) -> tuple[int, int, int]:
    """Of rows that are summed together: how long they are at least, and how long where a plane has as many rows as the
    third number, whose sums, and the weights of some taps, are held in registers."""
    return lanes, max(min(lanes, _SMALLEST), lanes // 2), 8 if registers >= 32 else 4


_SMALLEST = 4  # lanes: rows of smaller vectors are not worth code of their own
