"""An array that lies in several pieces: a large one, and strips around it. Kernels read it as it lies, or it is put
together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...spec.lazy import lazy
from ..words import PieceRow, StripsCall
from .memory import empty

Array = npt.NDArray[Any]


class Piece(NamedTuple):
    array: Array  # (B, C, D, H, W)
    low: tuple[int, ...]  # where its first voxel stands

    @property
    def high(self) -> tuple[int, ...]:
        return tuple(low + size for low, size in zip(self.low, self.array.shape[2:], strict=True))


class InPieces:
    """(B, C, D, H, W), where pieces have all samples and channels and fill it without overlap."""

    def __init__(self, shape: tuple[int, ...], pieces: Sequence[Piece]) -> None:
        self.shape = shape
        self.pieces = sorted(pieces, key=lambda piece: -piece.array.size)

    @lazy
    def whole(self) -> Array:
        made = empty(self.shape, self.pieces[0].array.dtype)  # of memory that has been used before
        for piece in self.pieces:
            d, h, w = (slice(low, high) for low, high in zip(piece.low, piece.high, strict=True))
            made[:, :, d, h, w] = piece.array
        return made

    @property
    def words(self) -> StripsCall:
        rows = [_row(piece).numbers(False) for piece in self.pieces]
        return StripsCall(len(rows), np.array(rows, dtype=np.int64))


def _row(piece: Piece) -> PieceRow:
    steps = [stride // piece.array.itemsize for stride in piece.array.strides]
    return PieceRow(piece.array.ctypes.data, *steps, *piece.low, *piece.high)
