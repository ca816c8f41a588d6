"""`tiled(model, x)`: a whole network over a volume that is larger than memory, tile by tile, as if all at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import nn

from ..errors import ArgumentError, ArgumentTypeError, OutputError, ShapeError, described
from ..spec.checks import answers, is_a
from .field import Field, fields, without_norms


@dataclass(frozen=True)
class _Tile:
    """Along one axis: inputs that are read, outputs that are kept, and where they begin in what the network makes."""

    read: tuple[int, int]
    kept: tuple[int, int]
    begin: int


@answers
def tiled(
    model: nn.Module, input: Any, out: Any = None, *, tile: int | Sequence[int] = 128, statistics: str | None = None
) -> Any:
    """A network over a volume, tile by tile, with the result it has on all of it.

    Tiles overlap by what an output depends on, which is found by trying: NaN spreads to all that depends on it. They
    begin where the network's strides do.

    Parameters
    ----------
    model : nn.Module
        Takes (B, C, D, H, W) and gives the same with other sizes; in eval mode.
    input : array
        (B, C, D, H, W) or (C, D, H, W): a zarr array, or anything that has a shape and gives arrays when it is sliced.
    out : array, optional
        Takes the result, by slices: a zarr array, for one. By default the result is a tensor in memory.
    tile : int or (int, int, int), default 128
        Voxels of the input that a tile is made of, without overlap.
    statistics : {"tile"}, optional
        What to do about norms with statistics over space. "tile": they take those of each tile, and the result is not
        that of the whole. By default such networks are refused.

    Returns
    -------
    torch.Tensor, or `out`
        The result.

    Raises
    ------
    convt3d.ArgumentError
        A network whose outputs depend on all of space.
    convt3d.ShapeError
        One that gives no volume.

    Examples
    --------
    >>> import torch, convt3d.torch
    >>> model = torch.nn.Sequential(torch.nn.Conv3d(1, 4, 3, padding=1), torch.nn.ReLU()).eval()
    >>> x = torch.randn(1, 1, 20, 20, 20)
    >>> torch.allclose(convt3d.torch.tiled(model, x, tile=8), model(x), atol=1e-5)
    True
    """
    if not is_a(model, nn.Module):
        received = described(type(model).__name__)
        raise ArgumentTypeError("tiled", "model", received, "must be an nn.Module", "Wrap the function in one")
    if statistics not in (None, "tile"):
        rule = "must be 'tile' or None"
        raise ArgumentError("tiled", "statistics", statistics, rule, "Write 'tile' for statistics of each tile")
    if model.training:
        rule = "must be in eval mode: in training, batches have statistics"
        raise ArgumentError("tiled", "model", described(type(model).__name__), rule, "Call model.eval()")
    shape = tuple(getattr(input, "shape", ()))
    if len(shape) not in (4, 5):
        rule = "must be (B, C, D, H, W) or (C, D, H, W)"
        raise ShapeError("tiled", "input", described(f"shape {shape}"), rule, "Reshape it")
    with torch.inference_mode():
        return _run(model, input, (1,) * (5 - len(shape)) + shape, out, _triple(tile), statistics)


def _run(model: nn.Module, x: Any, shape: tuple[int, ...], out: Any, tile: Sequence[int], statistics: Any) -> Any:
    parameter = next(model.parameters(), None)
    dtype = torch.float32 if parameter is None else parameter.dtype
    with without_norms(model) if statistics == "tile" else nullcontext():
        axes = fields(model, model, shape[1], dtype)
    batched, result = len(x.shape) == 5, out
    sizes: tuple[int, ...] | None = None
    cuts = [list(_tiles(field, size, length)) for field, size, length in zip(axes, shape[2:], tile, strict=True)]
    for sample, number in product(range(shape[0]), product(*(range(len(own)) for own in cuts))):
        parts = [own[at] for own, at in zip(cuts, number, strict=True)]
        if sizes is not None and any(part.kept[0] >= size for part, size in zip(parts, sizes, strict=True)):
            continue  # inputs at the end that make no output
        here = slice(None), *(slice(*part.read) for part in parts)
        block = x[(slice(sample, sample + 1),) + here] if batched else x[here][None]  # noqa: RUF005 - for Python 3.10
        try:
            y = model(torch.as_tensor(np.asarray(block)).to(dtype))
        except RuntimeError as problem:
            steps = " x ".join(str(field.step) for field in axes)
            rule = f"has sizes that the network does not take ({problem})"
            remedy = f"Pad it: sizes that are multiples of {steps} are sure to fit"
            raise ShapeError("tiled", "input", described(f"shape {tuple(x.shape)}"), rule, remedy) from None
        if sizes is None:
            rows = zip(axes, shape[2:], parts, y.shape[2:], strict=True)
            sizes = tuple(
                made + field.outputs(size - (part.read[1] - part.read[0])) for field, size, part, made in rows
            )
            full = (shape[0], y.shape[1], *sizes) if batched else (y.shape[1], *sizes)
            result = torch.empty(full, dtype=y.dtype) if out is None else _checked(out, full)
        kept = [(part.kept[0], min(part.kept[1], size)) for part, size in zip(parts, sizes, strict=True)]
        inside = [slice(low - p.begin, high - p.begin) for (low, high), p in zip(kept, parts, strict=True)]
        good = slice(None), slice(None), *inside
        values = y[good]
        values = values if batched else values[0]
        sides: Any = (slice(None), *(slice(low, high) for low, high in kept))
        place = (slice(sample, sample + 1), *sides) if batched else sides
        result[place] = values if out is None else _numbers(values)
    return result


def _tiles(field: Field, size: int, length: int) -> Iterator[_Tile]:
    """Cuts in step with the whole, whose good outputs, put side by side, are all of it."""
    step = field.step
    core = max(length // step * step, step)
    left = field.inputs(field.left)
    right = field.inputs(field.right) + step  # the last window may end anywhere within a step
    start = 0
    while start < size:
        end = start + core
        if size - end < step:
            end = size
        low = max(0, start - left)
        # As many whole steps are left out at the end as there can be.
        high = size - max(0, (size - end - right) // step) * step if end < size else size
        first = field.outputs(start)
        last = field.outputs(end) if end < size else 1 << 62
        yield _Tile((low, high), (first, last), field.outputs(low))
        start = end


def _numbers(values: torch.Tensor) -> Any:
    """As numpy has them; it has no bfloat16."""
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def _checked(out: Any, shape: tuple[int, ...]) -> Any:
    if tuple(getattr(out, "shape", ())) != shape:
        received = described(f"shape {tuple(getattr(out, 'shape', ()))}")
        raise OutputError("tiled", "out", received, f"must have the result's shape {shape}", "Create it so")
    return out


def _triple(tile: int | Sequence[int]) -> tuple[int, ...]:
    sizes = (tile,) * 3 if isinstance(tile, int) else tuple(tile)
    if len(sizes) != 3 or not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise ArgumentError("tiled", "tile", tile, "must be one or three positive integers", "Write tile=128")
    return sizes
