"""Draws the pictures of docs/gallery.md from results of the library: python tools/gallery.py"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import convt3d as ct

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "gallery"
STOPS = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]], float)  # dark to bright


def gyroid(size: int) -> Any:
    """A smooth surface in a cube, (1, 1, size, size, size)."""
    z, y, x = np.meshgrid(*[np.linspace(0, 4 * np.pi, size)] * 3, indexing="ij")
    return (np.sin(x) * np.cos(y) + np.sin(y) * np.cos(z) + np.sin(z) * np.cos(x)).astype(np.float32)[None, None]


def linear(scale: int, channels: int = 1) -> Any:
    """Weights that interpolate linearly along each axis, for stride `scale`, padding scale // 2 and even `scale`."""
    line = 1 - np.abs(np.arange(2 * scale) - scale + 0.5) / scale
    kernel = line[:, None, None] * line[:, None] * line
    return np.tile(kernel.astype(np.float32), (channels, 1, 1, 1, 1))


def coloured(plane: Any, side: int) -> Any:
    """(side, side, 3) bytes of a plane of numbers, from its least to its largest."""
    low, high = float(plane.min()), float(plane.max())
    at = (plane - low) / (high - low) if high > low else np.full(plane.shape, 0.5)
    rows, columns = (np.arange(side) * size // side for size in plane.shape)
    at = at[rows][:, columns] * (len(STOPS) - 1)
    below = np.minimum(at.astype(int), len(STOPS) - 2)
    return (STOPS[below] + (STOPS[below + 1] - STOPS[below]) * (at - below)[..., None]).astype(np.uint8)


def draw(name: str, planes: Sequence[Any], side: int = 192, gap: int = 12) -> None:
    """Planes beside each other, as a PNG without a background."""
    picture = np.zeros((side, len(planes) * (side + gap) - gap, 4), np.uint8)
    for number, plane in enumerate(planes):
        start = number * (side + gap)
        picture[:, start : start + side] = np.dstack([coloured(plane, side), np.full((side, side), 255, np.uint8)])
    rows = b"".join(b"\0" + row.tobytes() for row in picture)
    header = struct.pack(">IIBBBBB", picture.shape[1], side, 8, 6, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    data = b"".join(struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks)
    (FOLDER / f"{name}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + data)


def middle(volume: Any) -> Any:
    return volume[0, 0, volume.shape[2] // 2]


def upsampling() -> None:
    coarse = gyroid(12)
    twice = ct.conv_transpose3d(coarse, linear(2), stride=2, padding=1)
    draw(
        "upsampling",
        [middle(coarse), middle(twice), middle(ct.conv_transpose3d(coarse, linear(4), stride=4, padding=2))],
    )


def checkerboard() -> None:
    even = np.ones((1, 1, 8, 8, 8), np.float32)
    planes = [
        middle(ct.conv_transpose3d(even, np.ones((1, 1, k, k, k), np.float32), stride=2, padding=1)) for k in (3, 4, 5)
    ]
    draw("checkerboard", planes)


def stages() -> None:
    rng = np.random.default_rng(3)
    x, w = gyroid(16), 0.1 * rng.standard_normal((1, 8, 4, 4, 4), dtype=np.float32)
    w[:, 0] += linear(2)[0]
    chain = (ct.ConvTranspose3d(stride=2, padding=1), ct.LayerNorm(), ct.GELU(), ct.MaxPool3d(2))
    draw("stages", [middle(x), *(middle(ct.Pipeline(*chain[: n + 1])(x, w)) for n in range(len(chain)))])


def attention() -> None:
    x = gyroid(24)
    scale = np.ones(1, np.float32)
    function = ct.conv_transpose3d_avgpool_clamp_softmax_multiply
    planes = [
        middle(function(x, 4 * linear(2), scale, output_padding=0, clamp_min=None, clamp_max=top))
        for top in (2.0, 12.0)
    ]
    draw("attention", [middle(x), *planes])


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for picture in (upsampling, checkerboard, stages, attention):
        picture()
