"""Whether a caller's array still holds the numbers that something was made from.

Of a tensor PyTorch counts the changes. Not those that go around it: through `.data`, through a numpy view of it, and by
a few of its own kernels (a BatchNorm's running statistics). So what is small is compared as well, all of it, and of
larger tensors a sample. Of a numpy array nobody counts changes: it is compared with a copy, unless it is read-only.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, Protocol

import numpy as np

from ..cpu.runtime.content_cache import same_numbers
from ..cpu.runtime.memory import empty
from .arrays import Storage, address_of, take

WHOLE = 16 << 10  # bytes of a tensor that are compared
_SAMPLES = 64  # numbers of a larger one


class Witness(Protocol):
    @property
    def numbers(self) -> Storage:
        """Of the array, to make something from."""
        ...

    @property
    def nbytes(self) -> int:
        """That are kept to compare with."""
        ...

    def confirms(self, array: Any) -> bool:
        """Whether `array` is the one that was, unchanged."""
        ...


def witness(operator: str, name: str, array: Any, numbers: Storage) -> Witness:
    """For an array whose storage is `numbers`."""
    if type(array) is np.ndarray and _read_only(array):
        return _ReadOnly(array, numbers)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor) and not array.is_inference():
        return Tracked(array, numbers)
    return _Copied(operator, name, numbers)


def _read_only(array: Storage) -> bool:
    """Whether nobody can write to an array's memory, by what numpy says of it and of all that it is a view of."""
    while type(array) is np.ndarray and not array.flags.writeable:
        if array.base is None or type(array.base) is bytes:
            return True
        array = array.base
    return False


class _ReadOnly:
    """A numpy array that says it is constant, as long as it does."""

    nbytes = 0

    def __init__(self, array: Storage, numbers: Storage) -> None:
        self.array, self.numbers = array, numbers

    def confirms(self, array: Any) -> bool:
        return array is self.array and _read_only(array)


class _Copied:
    """Any other array: all its bits are compared."""

    def __init__(self, operator: str, name: str, numbers: Storage) -> None:
        self.where = operator, name
        self.numbers = empty(numbers.shape, numbers.dtype)
        self.numbers[...] = numbers
        self.nbytes = numbers.nbytes

    def confirms(self, array: Any) -> bool:
        now, kept = take(*self.where, array).storage, self.numbers
        return now.shape == kept.shape and now.dtype == kept.dtype and same_numbers(kept, now)


class Tracked:
    """A tensor whose changes PyTorch counts. It is not kept alive, and `numbers` must not be used when it is gone. In
    the place of a small one, another view of its memory will do: all its numbers are compared."""

    __slots__ = (
        *("_address", "_dtype", "_kept", "_looked_at", "_memory", "_shape", "_stride", "_tensor", "_version"),
        "numbers",
    )

    def __init__(self, tensor: Any, numbers: Storage) -> None:
        self._tensor: Any = weakref.ref(tensor)
        self._memory: Any = self._tensor if tensor._base is None else weakref.ref(tensor._base)
        self._version, self._dtype = tensor._version, tensor.dtype
        self._address, self._shape, self._stride = address_of(tensor), tensor.shape, tensor.stride()
        self.numbers = numbers
        self._looked_at = numbers if numbers.nbytes <= WHOLE else _sample(numbers, _SAMPLES)
        self._kept = self._looked_at.tobytes()

    @property
    def nbytes(self) -> int:
        return len(self._kept)

    @property
    def gone(self) -> bool:
        """Whether nobody holds the tensor any more, or what it is a view of."""
        return self._memory() is None

    def confirms(self, tensor: Any) -> bool:
        return bool(
            tensor is not None  # as the reference to one that is gone
            and (self._tensor() is tensor or (self._looked_at is self.numbers and not tensor.is_inference()))
            and tensor._version == self._version
            and address_of(tensor) == self._address
            and tensor.stride() == self._stride
            and tensor.shape == self._shape
            and tensor.dtype is self._dtype
            and not tensor.is_neg()
            and self._looked_at.tobytes() == self._kept
        )


def _sample(numbers: Storage, count: int) -> Storage:
    """A view of some `count` numbers, far apart, whatever the strides."""
    order = sorted(range(numbers.ndim), key=lambda axis: -abs(numbers.strides[axis]))
    dense = numbers.transpose(order)
    if dense.flags.c_contiguous:
        spread: Storage = dense.reshape(-1)[:: numbers.size // count | 1]  # odd: at different taps of the kernel
        return spread
    return numbers[tuple(slice(None, None, max(1, size // 3)) for size in numbers.shape)]
