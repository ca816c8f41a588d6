"""What Python does for a call of XLA: reads what is asked from a text, computes it where XLA has put the arrays.

The text says all, and nothing in it belongs to this process: XLA may keep what it compiled for another one.
"""

from __future__ import annotations

import ctypes
from _thread import interrupt_main
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from ..cpu.gradient.bias import bias_gradient
from ..cpu.gradient.run import weight_gradient
from ..cpu.plan.cores import changes
from ..cpu.runtime.content_cache import sample
from ..cpu.runtime.memory import empty
from ..cpu.runtime.ready import Owner
from ..front.apply import compute
from ..front.arrays import Storage
from ..spec.checks import as_triple
from ..spec.operators import shared
from ..spec.pipeline import Pipeline
from ..spec.stages import ConvTranspose3d
from ..spec.text import read_stages, write_pipeline
from .frame import Array, Frame, arrays, error, text_of
from .records import RESULT, Key, Records

TARGET = "convt3d"
PIPELINE, WEIGHT, BIAS = "pipeline", "weight gradient", "bias gradient"
_SEEN = 1024  # calls whose operands are remembered
_MOST_COMPARED = 4 << 20  # bytes of operands: more are compared by all threads, in Python's way


def attributes(kind: str, pipeline: Pipeline | None, shapes: Sequence[Any]) -> dict[str, Any]:
    """Of a call: its text, and two numbers that stand for text and shapes."""
    import hashlib

    text = f"{kind}: {write_pipeline(pipeline) if pipeline else ''}"
    digest = hashlib.sha256(repr((text, *map(str, shapes))).encode()).digest()
    high, low = np.frombuffer(digest[:16], np.int64)
    return {"high": high, "low": low, "text": text}


@cache
def register() -> None:
    """Tell XLA of the function that its programs call: for a process that runs kept programs and makes none.

    Functions of `convt3d.jax` do it themselves. Calls beyond the first do nothing.

    Examples
    --------
    >>> import convt3d.jax
    >>> convt3d.jax.register()
    """
    capsule = jax.ffi.pycapsule(ctypes.c_void_p(records().code.addresses["execute"]))
    jax.ffi.register_ffi_target(TARGET, capsule, platform="cpu")


@cache
def records() -> Records:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))  # XLA may call it until the process ends
    return Records(ctypes.cast(_callback, ctypes.c_void_p).value or 0)


def _call(address: int) -> int | None:
    frame = Frame.from_address(address)
    try:
        text, key = text_of(frame, "text"), (_number(frame, 0), _number(frame, 1))
        run(text, key, arrays(frame.arguments), arrays(frame.results)[0].storage)
    except BaseException as problem:  # nothing may pass through XLA
        if isinstance(problem, KeyboardInterrupt):
            interrupt_main()  # Ctrl-C is for the program
        return error(frame, f"{type(problem).__name__}: {problem}")
    return None


_callback = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(_call)


def _number(frame: Frame, at: int) -> int:
    """An attribute; they are in the order of their names."""
    value = ctypes.c_void_p.from_address(frame.attributes.items[at] + 8).value
    return ctypes.c_int64.from_address(value or 0).value


def run(text: str, key: Key, given: Sequence[Array], out: Storage) -> None:
    """One call, into `out`."""
    kind, _, stages = text.partition(": ")
    if kind == BIAS:
        bias_gradient(given[0].storage, given[0].dtype, out)
    elif kind == WEIGHT:
        _weight_gradient(_read(stages), given, out)
    else:
        _pipeline(_read(stages), key, given, out)


@lru_cache(maxsize=1024)
def _read(stages: str) -> Pipeline:
    return shared(Pipeline(*read_stages(stages)))


def _weight_gradient(pipeline: Pipeline, given: Sequence[Array], out: Storage) -> None:
    stage, (grad, x) = pipeline.conv, given
    transposed = isinstance(stage, ConvTranspose3d)
    small, large = (x, grad) if transposed else (grad, x)
    d, h, w = out.shape[2:]
    sizes = (d, h, w), as_triple(stage.stride), as_triple(stage.padding), as_triple(stage.dilation), stage.groups
    weight_gradient(small.storage, large.storage, *sizes, x.dtype, out, transposed=transposed)


class _Last(NamedTuple):
    """What is known of the last call of a key."""

    looked_at: Any  # some numbers of its operands
    tried: bool = False  # whether it was to be recorded


_last: dict[Key, _Last] = {}


def _pipeline(pipeline: Pipeline, key: Key, given: Sequence[Array], out: Storage) -> None:
    (x, dtype), *rest = given
    operands = [each.storage for each in rest]
    own = {at: array for at, (slot, array) in enumerate(zip(pipeline.slots, operands, strict=True), 1) if _kept(slot)}
    looked_at = [changes.value, *(sample(array) for array in own.values())]
    last, large = _last.get(key), sum(array.nbytes for array in own.values()) > _MOST_COMPARED
    # What changes with every call is worth no record.
    if large or last is None or last.tried or last.looked_at != looked_at:
        if last is None or last.looked_at != looked_at:
            _remember(key, _Last(looked_at))
        compute(TARGET, pipeline, dtype, x, operands, lambda *_: out)
        return
    _remember(key, _Last(looked_at, tried=True))
    copies = {at: _copied(array) for at, array in own.items()}
    owner, arguments = Owner(), [copies.get(at, array) for at, array in enumerate(operands, 1)]
    _, again = compute(TARGET, pipeline, dtype, x, arguments, lambda *_: out, keeper=owner)
    if again is not None:
        changing = [0, RESULT, *(at for at in range(1, len(given)) if at not in own)]
        records().keep(key, again, owner.nbytes, copies, changing)


def _remember(key: Key, last: _Last) -> None:
    if len(_last) >= _SEEN:
        _last.clear()
    _last[key] = last


def _kept(slot: Any) -> bool:
    """Whether an operand is one of those that stay as they are: weights, not further values."""
    return bool(slot.operand.kind != "tensor")


def _copied(array: Storage) -> Storage:
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy
