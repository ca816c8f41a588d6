"""Which voxels are wrong, as text and as a PNG file."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]

MOST_ROWS, MOST_COLUMNS, MOST_CHANNELS = 24, 100, 32
PIXELS = 4  # of one voxel
RIGHT, WRONG, BETWEEN = (214, 222, 214), (200, 40, 40), (255, 255, 255)


def as_text(wrong: Mask, index: tuple[int, ...]) -> str:
    """The depth slices of one channel of one sample, side by side, those around the given voxel first."""
    sample, channel, depth = index[:3]
    volume = wrong[sample, channel]
    slices, height, width = volume.shape
    rows, columns = min(height, MOST_ROWS), min(width, MOST_COLUMNS)
    across = max(1, min(slices, MOST_COLUMNS // (columns + 2)))
    low = max(0, min(depth - across // 2, slices - across))
    shown = range(low, low + across)
    pad = max(columns, len(f"d={slices}")) + 2
    lines = [
        f"sample {sample}, channel {channel}: # wrong, . right",
        "".join(f"d={d}".ljust(pad) for d in shown).rstrip(),
    ]
    for row in range(rows):
        cells = ("".join("#" if bad else "." for bad in volume[d, row, :columns]) for d in shown)
        lines.append("".join(cell.ljust(pad) for cell in cells).rstrip())
    if (rows, columns, across) != (height, width, slices):
        lines.append(f"({across} of {slices} depths, {rows} of {height} rows, {columns} of {width} columns)")
    return "\n".join(lines)


def as_png(wrong: Mask, index: tuple[int, ...]) -> bytes:
    """All depth slices (across) of the channels (down) of one sample."""
    volume = wrong[index[0], :MOST_CHANNELS]
    channels, slices, height, width = volume.shape
    image = np.empty((channels * (height + 1), slices * (width + 1), 3), np.uint8)
    image[...] = BETWEEN
    for channel in range(channels):
        for depth in range(slices):
            top, left = channel * (height + 1), depth * (width + 1)
            colours = np.where(volume[channel, depth, ..., None], WRONG, RIGHT)
            image[top : top + height, left : left + width] = colours
    return png(np.repeat(np.repeat(image, PIXELS, 0), PIXELS, 1))


def png(image: npt.NDArray[np.uint8]) -> bytes:
    """An (H, W, 3) image of bytes as a PNG file."""
    height, width, _ = image.shape
    rows = b"".join(b"\0" + row.tobytes() for row in image)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks: list[tuple[bytes, Any]] = [(b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
