"""What XLA hands to a foreign function: its call frame, read by ctypes as `xla/ffi/api/c_api.h` lays it out.

Of that layout XLA promises that its major version changes where old code could not read it; the version we know is
what the handler answers when XLA asks for it.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

from ..front.arrays import Storage, storage_at
from ..spec.dtypes import DType, bfloat16, float16, float32, float64

MAJOR = 0  # of the interface
METADATA = 1  # kind of the extension by which XLA asks for the version
INTERNAL = 13  # the code of an error
DTYPES_OF: dict[int, DType] = {10: float16, 11: float32, 12: float64, 16: bfloat16}

_word, _pointer, _int = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int


class _Head(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("extension", _pointer)]


class _Buffer(_Head):
    _fields_ = [("dtype", _int), ("data", _pointer), ("rank", _word), ("dims", ctypes.POINTER(_word))]


class _Several(_Head):
    _fields_ = [("size", _word), ("types", _pointer), ("items", ctypes.POINTER(_pointer))]


class _Span(ctypes.Structure):
    _fields_ = [("start", _pointer), ("length", ctypes.c_size_t)]


class _Attributes(_Head):
    _fields_ = [
        ("size", _word),
        ("types", _pointer),
        ("names", ctypes.POINTER(ctypes.POINTER(_Span))),
        ("items", ctypes.POINTER(_pointer)),
    ]


class Frame(_Head):
    """XLA_FFI_CallFrame."""

    _fields_ = [
        ("api", _pointer),
        ("context", _pointer),
        ("stage", _int),
        ("arguments", _Several),
        ("results", _Several),
        ("attributes", _Attributes),
    ]


class _Api(_Head):
    _fields_ = [
        ("version", ctypes.c_byte * 24),
        ("internal", _pointer),
        ("create_error", _pointer),
    ]


class _ErrorArguments(_Head):
    _fields_ = [("message", ctypes.c_char_p), ("code", _int)]


class Array(NamedTuple):
    """A buffer of a call, as storage."""

    storage: Storage
    dtype: DType


def arrays(several: Any) -> list[Array]:
    """The arguments, or the results, of a frame; in the order of rows, without a copy."""
    found = []
    for at in range(several.size):
        buffer = _Buffer.from_address(several.items[at])
        dtype, shape = DTYPES_OF[buffer.dtype], tuple(buffer.dims[: buffer.rank])
        empty = not buffer.data or 0 in shape
        found.append(
            Array(np.empty(shape, dtype.storage) if empty else storage_at(buffer.data, dtype, shape), dtype),
        )
    return found


def text_of(frame: Frame, name: str) -> str:
    """An attribute that is a text."""
    attributes = frame.attributes
    for at in range(attributes.size):
        span = attributes.names[at].contents
        if ctypes.string_at(span.start, span.length) == name.encode():
            value = _Span.from_address(attributes.items[at])
            return ctypes.string_at(value.start, value.length).decode()
    raise KeyError(name)


def error(frame: Frame, message: str) -> int | None:
    """The address of an XLA_FFI_Error, which XLA owns."""
    create = ctypes.CFUNCTYPE(_pointer, ctypes.POINTER(_ErrorArguments))(_Api.from_address(frame.api).create_error)
    given = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message.encode(), INTERNAL)
    made: int | None = create(ctypes.byref(given))
    return made
