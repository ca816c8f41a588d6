"""The four element types, and exact conversion between their storage and float64.

numpy has no bfloat16 of its own: its storage here is the 16 raw bits (uint16).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .lazy import lazy


@dataclass(frozen=True)
class DType:
    name: str
    storage: str  # numpy dtype that holds it
    accumulate: str  # type in which sums run, and to which scalars are rounded
    eps: float  # spacing of numbers at 1

    def __hash__(self) -> int:
        return hash(self.name)  # short, since every call looks up its plan

    @lazy
    def itemsize(self) -> int:
        return int(np.dtype(self.storage).itemsize)

    @lazy
    def number_bytes(self) -> int:
        """Of the numbers in which it is computed."""
        return int(np.dtype(self.accumulate).itemsize)

    @property
    def smallest(self) -> float:
        """The spacing of numbers around zero."""
        return 2.0**-133 if self.name == "bfloat16" else float(np.finfo(self.storage).smallest_subnormal)

    def widen(self, stored: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Storage to float64: exact."""
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            return self._widen(stored)

    def _widen(self, stored: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        if self.name == "bfloat16":
            wide: npt.NDArray[np.uint32] = stored.astype(np.uint32) << np.uint32(16)
            return wide.view(np.float32).astype(np.float64)
        return stored.astype(np.float64)

    def narrow(self, values: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        """float64 to storage, rounded once, to nearest even."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return _round_bfloat16(values) if self.name == "bfloat16" else values.astype(self.storage)

    def round_scalar(self, value: float) -> float:
        """A C double as the arithmetic of this type sees it: 1e300 is inf in float32, as in PyTorch."""
        with np.errstate(over="ignore", under="ignore"):
            return float(np.dtype(self.accumulate).type(value))


def _round_bfloat16(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint16]:
    """Through float32 rounded to odd, so that the second rounding sees on which side of a tie the value lies."""
    near = values.astype(np.float32)
    back = near.astype(np.float64)
    bits = near.view(np.uint32)
    inexact = (back != values) & ~np.isnan(values)
    truncated = bits - (np.abs(back) > np.abs(values)).astype(np.uint32)
    odd = np.where(inexact, truncated | np.uint32(1), bits)
    rounded = (odd + np.uint32(0x7FFF) + ((odd >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    result: npt.NDArray[np.uint16] = np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)
    return result


float32 = DType("float32", "float32", "float32", 2.0**-23)
float64 = DType("float64", "float64", "float64", 2.0**-52)
float16 = DType("float16", "float16", "float32", 2.0**-10)
bfloat16 = DType("bfloat16", "uint16", "float32", 2.0**-7)

DTYPES = {dtype.name: dtype for dtype in (float32, float64, float16, bfloat16)}
