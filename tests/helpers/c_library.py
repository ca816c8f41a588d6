"""Calls an exported library through ctypes, with arrays of any strides, and computes what Python makes of the same."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from convt3d.cpu.plan.choice import Options
from convt3d.cpu.plan.sequence import make_sequence
from convt3d.cpu.runtime.execute import execute
from convt3d.cpu.runtime.sequence import execute_sequence
from convt3d.export.forms import Subject
from convt3d.spec.dtypes import DType
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.problem_file import SIZE
from convt3d.spec.reference import evaluate
from convt3d.spec.rewrite import round_scalars

Array = npt.NDArray[Any]


class CArray(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("shape", ctypes.c_int64 * 5), ("strides", ctypes.c_int64 * 5))

    @classmethod
    def of(cls, array: Array) -> CArray:
        shape = [*array.shape, *[1] * (5 - array.ndim)]
        strides = [step // array.itemsize for step in array.strides] + [1] * (5 - array.ndim)
        return cls(array.ctypes.data, (ctypes.c_int64 * 5)(*shape), (ctypes.c_int64 * 5)(*strides))


class Loaded:
    """A library, loaded."""

    def __init__(self, path: str, subject: Subject, dtype: DType) -> None:
        self.subject, self.dtype, self.library = subject, dtype, ctypes.CDLL(path)
        numbers = [(name, ctypes.c_int64 if kind == SIZE else ctypes.c_double) for name, kind in subject.parameters]
        arrays = [(name, CArray) for name in ("input", *subject.operands, "output")]
        end = [("threads", ctypes.c_int), ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_size_t)]
        self.args = type("Args", (ctypes.Structure,), {"_fields_": [*arrays, *numbers, *end]})
        for name in ("message", "isa"):
            self.function(name).restype = ctypes.c_char_p

    def function(self, name: str) -> Any:
        return getattr(self.library, f"{self.subject.name}_{name}")

    @property
    def message(self) -> str:
        return str(self.function("message")().decode())

    def arguments(
        self, x: Array, operands: Sequence[Array], out: Array, values: Mapping[str, Any], threads: int = 0
    ) -> Any:
        args = self.args(threads=threads)
        for name, array in zip(("input", *self.subject.operands, "output"), (x, *operands, out), strict=True):
            setattr(args, name, CArray.of(array))
        for name, _ in self.subject.parameters:
            setattr(args, name, values[name])
        return args

    def run(
        self,
        x: Array,
        operands: Sequence[Array],
        out: Array,
        values: Mapping[str, Any],
        threads: int = 0,
        workspace: bool = False,
    ) -> int:
        """The code that it returns. `workspace`: memory as large as it asks for, and no byte more."""
        args = self.arguments(x, operands, out, values, threads)
        memory = None
        if workspace:
            size = ctypes.c_size_t()
            assert self.function("workspace")(ctypes.byref(args), ctypes.byref(size)) == 0, self.message
            memory = np.full(size.value + 64, 0xFF, np.uint8)
            memory[size.value :] = 0x5A
            args.workspace, args.workspace_bytes = memory.ctypes.data, size.value
        code = int(self.function("run")(ctypes.byref(args)))
        assert memory is None or (memory[-64:] == 0x5A).all()
        return code

    def output_shape(self, x: Array, operands: Sequence[Array], values: Mapping[str, Any]) -> tuple[int, ...]:
        args = self.arguments(x, operands, x, values)
        shape = (ctypes.c_int64 * 5)()
        assert self.function("output_shape")(ctypes.byref(args), shape) == 0, self.message
        return tuple(shape)


def by_python(
    pipeline: Pipeline, dtype: DType, x: Array, operands: Sequence[Array], out: Array, pairs: bool = True
) -> None:
    """What a library promises the bits of: Python's, by plans without longer strides along axes with one input
    (docs/c_library.md). `pairs` of bfloat16 numbers only this processor may multiply."""
    given, options = tuple(operands), Options(pairs=pairs, longer=False)
    if len(pipeline.convolutions) == 1:
        execute(pipeline, dtype, x, given, out, options)
    elif x.shape[0]:
        shapes = tuple(operand.shape for operand in given)
        execute_sequence(make_sequence(pipeline, x.shape, shapes, dtype, options), x, given, out)


def by_meaning(pipeline: Pipeline, dtype: DType, x: Array, operands: Sequence[Array]) -> npt.NDArray[np.float64]:
    wide = [dtype.widen(operand) for operand in operands]
    return evaluate(round_scalars(pipeline, dtype), dtype.widen(x), wide)
