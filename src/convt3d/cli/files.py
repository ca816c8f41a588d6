"""Arrays from an .npz file by parameter name, and a result into an .npy file that is there whole or not at all."""

from __future__ import annotations

import os
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArgumentError, DTypeError, ShapeError, described
from ..front.verify import Storage
from ..spec.dtypes import DTYPES, DType
from ..spec.problems import TENSOR_AXES, Problem
from .choose import nearest


def read_arrays(problem: Problem, path: str) -> dict[str, Storage]:
    """The problem's input tensors, by their names; pickled objects are refused."""
    names = ("input", *problem.operand_names)
    try:
        with open(path, "rb") as opened:
            file = np.load(opened, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it holds a single array")
            with file:
                arrays = {name: np.asarray(file[name]) for name in file.files}
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        rule = f"cannot be read as an .npz file of plain arrays ({error})"
        remedy = f"Write it with numpy.savez(path, {', '.join(f'{name}=...' for name in names)})"
        raise ArgumentError(problem.slug, "--input", path, rule, remedy) from None
    for name in arrays:
        if name not in names:
            rule = f"holds {name!r}, which is no input tensor of the problem"
            raise ArgumentError(problem.slug, "--input", path, rule, nearest(name, names))
    missing = [name for name in names if name not in arrays]
    if missing:
        rule = f"lacks {', '.join(missing)}"
        raise ArgumentError(problem.slug, "--input", path, rule, f"The file must hold {', '.join(names)}")
    return arrays


def stored(problem: Problem, arrays: Mapping[str, Storage], dtype: DType | None) -> tuple[DType, dict[str, Storage]]:
    """The arrays in the storage of `dtype`, by default the type they share."""
    for name, array in arrays.items():
        if array.dtype.name not in DTYPES:
            received = described(f"array of {array.dtype.name}")
            raise DTypeError(problem.slug, name, received, "must be float32, float64 or float16", "Convert it")
    kinds = {array.dtype.name for array in arrays.values()}
    if dtype is None:
        if len(kinds) > 1:
            received = described(", ".join(f"{name} {array.dtype.name}" for name, array in arrays.items()))
            raise DTypeError(problem.slug, "--input", received, "must be of one type", "Convert them, or give --dtype")
        dtype = DTYPES[kinds.pop()]
    return dtype, {name: dtype.narrow(array.astype(np.float64)) for name, array in arrays.items()}


def derived_values(
    problem: Problem, arrays: Mapping[str, Storage], named: Mapping[str, Any], chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """`named` values with the sizes of the arrays; a size that is also `chosen`, or shown twice, must agree."""
    values = {**named, **chosen}
    seen: dict[str, tuple[int, str]] = {name: (size, "--set") for name, size in chosen.items()}
    for name, array in arrays.items():
        axes = TENSOR_AXES[name]
        shape = tuple(array.shape)
        if name == "scale" and len(shape) == 5 and (shape[0], *shape[2:]) == (1, 1, 1, 1):
            shape = shape[1:2]
        if len(shape) != len(axes):
            received = described(f"array of shape {array.shape}")
            raise ShapeError(problem.slug, name, received, f"must have the layout ({', '.join(axes)})", "Reshape it")
        for axis, length in zip(axes, shape, strict=True):
            size = length * values.get("groups", 1) if (name, axis) == ("kernel", "out_channels") else length
            known, source = seen.setdefault(axis, (size, name))
            if known != size:
                rule = f"contradicts {source}, where it is {known}; {name} has shape {array.shape}"
                raise ShapeError(problem.slug, axis, size, rule, "Correct one of them")
            values[axis] = size
    return values


def check_writable(problem: Problem, path: str) -> None:
    """Before the work starts rather than after it."""
    folder = Path(path).parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or Path(path).is_dir():
        rule = "must be a file name in a directory that exists and can be written"
        raise ArgumentError(problem.slug, "--output", path, rule, "Create the directory, or choose another")


def write_array(problem: Problem, path: str, array: Storage) -> None:
    """Into a temporary file beside it, which then takes its name."""
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=".convt3d-", dir=Path(path).parent)
        with open(descriptor, "wb") as file:
            np.save(file, array, allow_pickle=False)
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp's files are for their owner alone
        os.replace(temporary, path)
    except BaseException as error:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
        if isinstance(error, OSError):
            rule = f"cannot be written ({error.strerror})"
            raise ArgumentError(problem.slug, "--output", path, rule, "Choose another file") from None
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
