"""The register tile of a matrix product: how many output channels and vectors of positions are summed together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class RegisterTile:
    """`rows` output channels x `columns` vectors; the last block of a group has `rest` rows (0: it is full too)."""

    rows: int
    rest: int
    columns: int

    def blocks(self, channels: int) -> list[int]:
        full = channels // self.rows
        return [self.rows] * full + ([self.rest] if self.rest else [])


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
        cost = sum(max(n * columns, n + 3 * columns) + 3 for n in tile.blocks(channels)) / columns
        if best is None or cost < best[0]:
            best = cost, tile
    assert best is not None
    return best[1]
