"""The input of a run: a zarr array, alone or the first dataset of an OME-NGFF image, as (B, C, D, H, W)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ..cpu.runtime.memory import empty
from ..errors import ArgumentError, DTypeError, ShapeError, described
from ..front.boxes import Storage, Take
from ..spec.shapes import Range, Shape
from .ngff import SPATIAL, Image, multiscale, placed

AXES = ("t", "c", *SPATIAL)
TYPES = {"t": "time", "c": "channel"}
USUAL = {5: AXES, 4: AXES[1:], 3: SPATIAL}


def zarr_module() -> Any:
    try:
        import zarr
    except ImportError:
        rule = "is not installed"
        raise ArgumentError("volume", "zarr", None, rule, "Use pip install 'convt3d[volume]'") from None
    return zarr


@dataclass(frozen=True)
class Source:
    array: Any  # zarr's
    path: str
    axes: tuple[str, ...]  # names of the array's axes
    image: Image | None  # what OME-NGFF says of it

    @property
    def shape(self) -> Shape:
        return self._by_axis(self.array.shape)

    @property
    def item(self) -> int:
        """Bytes of a voxel as it is stored."""
        return int(self.array.dtype.itemsize)

    @property
    def chunk(self) -> Shape:
        """Sizes of what is decoded at once."""
        return self._by_axis(self.array.chunks)

    def _by_axis(self, given: Sequence[int]) -> Shape:
        """1 for axes that it has not."""
        sizes = dict(zip(self.axes, given, strict=True))
        b, c, d, h, w = (sizes.get(name, 1) for name in AXES)
        return b, c, d, h, w

    @property
    def state(self) -> str:
        """Of its files: names, lengths, and when they were changed."""
        digest, root = hashlib.sha256(), Path(self.path)
        for folder, inner, files in os.walk(root):
            inner.sort()
            for name in sorted(files):
                path = Path(folder, name)
                found = path.stat()
                told = path.relative_to(root).as_posix(), found.st_size, found.st_mtime_ns
                digest.update(repr(told).encode())
        return digest.hexdigest()

    def read(self, sample: int, takes: Sequence[Take], dtype: Any) -> Storage:
        """One sample, (1, C, D, H, W), of that type."""
        every = (Take(((sample, sample + 1),)), *takes)
        made = empty([take.size for take in every], dtype)
        try:
            for ranges in product(*(take.ranges for take in every)):
                places = (_place(take, part) for take, part in zip(every, ranges, strict=True))
                index = (slice(*part) for part, name in zip(ranges, AXES, strict=True) if name in self.axes)
                view = made[tuple(places)]
                view[...] = np.asarray(self.array[tuple(index)]).reshape(view.shape)
        except MemoryError:
            raise
        except Exception as problem:  # of the disk, and whatever zarr's codecs raise of a file that is not whole
            rule = f"cannot be read ({type(problem).__name__}: {problem})"
            raise ArgumentError("volume", "IN", self.path, rule, "Mend it, then run the same command again") from None
        return made


def _place(take: Take, part: Range) -> slice:
    """Where one of its ranges is, when they lie one after the other."""
    before = sum(high - low for low, high in take.ranges[: take.ranges.index(part)])
    return slice(before, before + part[1] - part[0])


def open_source(path: str) -> Source:
    """What is to be read, or an error that says why it cannot be."""
    zarr = zarr_module()
    if not Path(path).is_dir():
        rule = "must be a zarr array or group in a local directory"
        raise ArgumentError("volume", "IN", path, rule, "Check the path; copy a remote one first")
    try:
        found = zarr.open(path, mode="r")
    except Exception as error:  # zarr's own, and whatever its stores raise
        rule = f"cannot be opened by zarr ({type(error).__name__}: {error})"
        raise ArgumentError("volume", "IN", path, rule, "Give the folder that holds zarr.json, or .zarray") from None
    if hasattr(found, "shape"):
        named = tuple(getattr(found.metadata, "dimension_names", None) or ())
        names = named if named and set(named) <= set(AXES) else USUAL.get(found.ndim, ())
        return Source(found, path, _checked(found, path, names), None)
    try:
        return _of_image(found, path)
    except ValueError as problem:
        rule = f"has OME-NGFF metadata that cannot be understood: {problem}"
        raise ArgumentError("volume", "IN", path, rule, "Mend them, or give one of its arrays") from None


def _of_image(group: Any, path: str) -> Source:
    image = multiscale(dict(group.attrs))
    if image is None:
        rule = f"is a group without OME-NGFF multiscales; it holds {', '.join(sorted(group)) or 'nothing'}"
        raise ArgumentError("volume", "IN", path, rule, "Give one of its arrays")
    try:
        array = group[image.path]
    except KeyError:
        raise ValueError(f"there is no array {image.path!r}") from None
    if not hasattr(array, "shape"):
        raise ValueError(f"{image.path!r} is no array")
    if not image.axes:
        usual = tuple({"name": name, "type": TYPES.get(name, "space")} for name in USUAL.get(array.ndim, ()))
        image = replace(image, axes=usual)
    if len(image.axes) != array.ndim:
        raise ValueError(f"there are {len(image.axes)} axes, and the array has {array.ndim}")
    placed(image, array.ndim)
    return Source(array, path, _checked(array, path, image.names), image)


def _checked(array: Any, path: str, names: tuple[str, ...]) -> tuple[str, ...]:
    if names != tuple(name for name in AXES if name in names) or not set(SPATIAL) <= set(names):
        received = described(f"axes {names or array.ndim} of {path}")
        rule = "must be z, y, x, with c and t before them or not, in the order t, c, z, y, x"
        raise ShapeError("volume", "IN", received, rule, "Transpose it")
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise DTypeError("volume", "IN", described(str(array.dtype)), "must hold numbers", "Convert it")
    return names
