"""Draws the task graph of a small pipeline on dask as docs/volumes_graph.svg: one box for each task, left to right."""

from __future__ import annotations

import sys
from pathlib import Path

import dask.array as da
import numpy as np

import convt3d
import convt3d.dask

TARGET = Path(__file__).resolve().parents[1] / "docs" / "volumes_graph.svg"
COLOURS = {"input": "#9ecae1", "assemble": "#a1d99b", "Operands": "#fdd0a2", "compute": "#fdae6b"}
WIDTH, HEIGHT, ROW, COLUMN = 104, 22, 34, 168


def picture() -> str:
    pipe = convt3d.Pipeline(convt3d.Conv3d(padding=1), convt3d.ReLU())
    x = da.zeros((1, 2, 12, 4, 4), chunks=(1, 2, 4, 4, 4), dtype=np.float32)
    y = pipe(x, np.zeros((2, 2, 3, 3, 3), np.float32))
    tasks = dict(y.dask)
    below = {key: [each for each in task.dependencies if each in tasks] for key, task in tasks.items()}
    levels: dict[object, int] = {}

    def level(key: object) -> int:
        if key not in levels:
            levels[key] = 1 + max((level(each) for each in below[key]), default=-1)  # type: ignore[index]
        return levels[key]

    columns: dict[int, list[object]] = {}
    for key in tasks:
        columns.setdefault(level(key), []).append(key)
    places = {key: (column, row) for column, keys in columns.items() for row, key in enumerate(keys)}
    high = max(map(len, columns.values())) * ROW + 20
    wide = len(columns) * COLUMN
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif">']
    lines.append(f'<rect width="{wide}" height="{high}" fill="white"/>')
    for key, (column, row) in places.items():
        for each in below[key]:  # type: ignore[index]
            from_column, from_row = places[each]
            start = f"{10 + from_column * COLUMN + WIDTH},{10 + from_row * ROW + HEIGHT // 2}"
            end = f"{10 + column * COLUMN},{10 + row * ROW + HEIGHT // 2}"
            lines.append(f'<polyline points="{start} {end}" stroke="#999" fill="none"/>')
    for key, (column, row) in places.items():
        name = getattr(getattr(tasks[key], "func", None), "__name__", "input")  # type: ignore[index]
        name = name if name in COLOURS else "input"
        left, top = 10 + column * COLUMN, 10 + row * ROW
        lines.append(f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" rx="4" fill="{COLOURS[name]}"/>')
        label = f"{name} {key[1:]}" if isinstance(key, tuple) else name
        lines.append(f'<text x="{left + 6}" y="{top + 15}" font-size="10">{label}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    TARGET.write_text(picture(), encoding="utf-8")
    sys.exit(0)
