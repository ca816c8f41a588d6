"""A pipeline with its weights, made ready once: small calls then cost little more than their kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..cpu.runtime.again import Again
from ..cpu.runtime.memory import HUGE_FROM
from ..cpu.runtime.ready import Owner
from ..errors import ArgumentTypeError, described, named
from ..spec import pipeline as spec
from ..spec.checks import answers, is_a
from ..spec.dtypes import DType
from .apply import allocated, compute, options_of, same_dtype, take_out
from .arrays import AnyArray, Array, Storage, mark_written, take
from .witness import Witness, witness

_NATIVE = {name: np.dtype(name) for name in ("float32", "float64", "float16")}
_LAYOUTS = 64  # of inputs that are remembered


class _Quick(NamedTuple):
    """What a call on arrays of a known layout does."""

    run: Again
    shape: tuple[int, ...]  # of the result
    large: bool  # whether its memory is ours, on huge pages


class Weights:
    """What was made from operands that are as they were."""

    def __init__(self, witnesses: Sequence[Witness], dtype: DType) -> None:
        self.witnesses, self.dtype = witnesses, dtype
        self.owner = Owner()
        self.quick: dict[Any, Any] = {}

    def remember(self, key: Any, quick: Any) -> None:
        if len(self.quick) >= _LAYOUTS:
            self.quick = {}
        self.quick[key] = quick

    @property
    def nbytes(self) -> int:
        return self.owner.nbytes + sum(each.nbytes for each in self.witnesses)


def _quickly(kept: Weights, x: Storage, out: Any) -> Storage | None:
    """The result for an array of a layout that is known, in a new array or in a plain one."""
    quick: _Quick | None = kept.quick.get((x.shape, x.strides))
    if quick is None or x.dtype is not _NATIVE.get(kept.dtype.name):
        return None
    result: Storage
    if out is None:
        result = allocated("Prepared", quick.shape, kept.dtype) if quick.large else np.empty(quick.shape, x.dtype)
    elif type(out) is np.ndarray and out.dtype is x.dtype and out.shape == quick.shape:
        result, flags = out, out.flags
        if not (flags.c_contiguous and flags.writeable) or np.may_share_memory(x, out):
            return None
    else:
        return None
    source, target = x.ctypes.data, result.ctypes.data
    if source % x.itemsize or target % x.itemsize:
        return None
    try:
        return result if quick.run(source, target) else None
    except MemoryError:  # for scratch and intermediate values: the usual way has words for it
        return None


class Prepared:
    """A pipeline with its weights: `layer = pipe.prepare(weight)`, then `layer(input)`.

    It owns its weights in the order that kernels read them. They are made at the first call, for each algorithm that
    calls use, and made again when a weight has changed since: of a torch tensor PyTorch counts the changes, a numpy
    array is compared, all of it, unless it is read-only (`array.flags.writeable = False`), which also saves the copy
    that is kept to compare with. Threads may share it; it can be pickled and copied.

    Parameters
    ----------
    pipeline : Pipeline
        What is computed.
    operands : sequence of array
        Its tensors but those of the value's shape, which each call takes after its input.
    algorithm, precision : str
        As in a call of the pipeline.

    Raises
    ------
    convt3d.ArgumentTypeError
        Something that is no array, or not as many as the pipeline takes.
    convt3d.DTypeError
        Arrays of different types.

    Examples
    --------
    >>> import numpy as np, convt3d
    >>> pipe = convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2), convt3d.Add("tensor"), convt3d.ReLU())
    >>> layer = pipe.prepare(np.ones((8, 4, 2, 2, 2)))
    >>> layer(np.ones((1, 8, 3, 4, 5)), np.ones((1, 4, 6, 8, 10))).shape
    (1, 4, 6, 8, 10)
    """

    __slots__ = ("__weakref__", "_at_call", "_kept", "_operands", "_options", "_own", "_pipeline")

    def __init__(
        self,
        pipeline: spec.Pipeline,
        operands: Sequence[AnyArray],
        algorithm: str = "auto",
        precision: str = "full",
    ) -> None:
        if not is_a(pipeline, spec.Pipeline):
            received = described(type(pipeline).__name__)
            raise ArgumentTypeError(
                "Prepared", "pipeline", received, "must be a Pipeline", "Write pipe.prepare(weight)"
            )
        with named("Pipeline.prepare"):
            self._options = options_of(algorithm, precision)
            self._pipeline = pipeline
            names = [(slot.name, slot.operand.kind == "tensor") for slot in pipeline.slots]
            self._own = tuple(name for name, at_call in names if not at_call)
            self._at_call = tuple(name for name, at_call in names if at_call)
            self._operands = spec.bind("Pipeline.prepare", (), self._own, tuple(operands), {})
            self._kept = self._taken()

    @property
    def pipeline(self) -> spec.Pipeline:
        """What is computed."""
        return self._pipeline

    @property
    def operands(self) -> tuple[Any, ...]:
        """The tensors it was prepared with, as given."""
        return self._operands

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps: folded and packed weights, and copies of arrays that are compared. It does not count the
        operands themselves, which are the caller's."""
        return self._kept.nbytes

    def __call__(
        self,
        input: Array,
        *tensors: AnyArray,
        out: Array | None = None,
        **named_tensors: AnyArray,
    ) -> Array:
        """The result of the stages.

        Parameters
        ----------
        input : array
            (B, C, D, H, W), or unbatched (C, D, H, W); any strides, of the type of the weights.
        *tensors : array
            The pipeline's tensors of the value's shape, in order.
        out : array, optional
            Takes the result in the place of a new array, and is returned.
        **named_tensors : array
            Those that are given by name.

        Returns
        -------
        array
            Of the kind and type of `input`; the bits are those of the pipeline's own call.

        Raises
        ------
        convt3d.Error
            ShapeError, DTypeError, ArgumentTypeError, OutputError, AllocationError: before anything is written.

        Examples
        --------
        >>> import numpy as np, convt3d
        >>> layer = convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2)).prepare(np.ones((8, 4, 2, 2, 2)))
        >>> layer(np.ones((1, 8, 3, 4, 5))).shape
        (1, 4, 6, 8, 10)
        """
        kept = self._kept
        for own, operand in zip(kept.witnesses, self._operands, strict=True):
            if not own.confirms(operand):
                with named("Pipeline.prepare"):
                    kept = self._kept = self._taken()
                break
        if type(input) is np.ndarray and not tensors and not named_tensors:
            result: Any = _quickly(kept, input, out)  # type: ignore[arg-type]  # it is numpy's
            if result is not None:
                return result  # type: ignore[no-any-return]
        return self._general(kept, input, tensors, named_tensors, out)  # type: ignore[no-any-return]

    def _taken(self) -> Weights:
        taken = [
            take("Pipeline.prepare", name, operand) for name, operand in zip(self._own, self._operands, strict=True)
        ]
        for name, each in zip(self._own, taken, strict=True):
            same_dtype("Pipeline.prepare", name, each.dtype, self._own[0], taken[0].dtype)
        rows = zip(self._own, self._operands, taken, strict=True)
        found = [witness("Pipeline.prepare", name, operand, each.storage) for name, operand, each in rows]
        return Weights(found, taken[0].dtype)

    def _general(
        self, kept: Weights, x: Any, tensors: Sequence[Any], named_tensors: Mapping[str, Any], out: Any
    ) -> Any:
        operator = "Prepared"
        with named(operator):
            source = take(operator, "input", x)
            same_dtype(operator, "input", source.dtype, self._own[0], kept.dtype)
            given = spec.bind(operator, ("input",), self._at_call, tensors, named_tensors)
            others = [take(operator, name, each) for name, each in zip(self._at_call, given, strict=True)]
            for name, each in zip(self._at_call, others, strict=True):
                same_dtype(operator, name, each.dtype, "input", source.dtype)
            own, rest = iter(kept.witnesses), iter(others)
            arrays = [
                next(rest).storage if slot.operand.kind == "tensor" else next(own).numbers
                for slot in self._pipeline.slots
            ]

            def allocate(shape: tuple[int, ...], inputs: Sequence[Storage]) -> Storage:
                if out is None:
                    return allocated(operator, shape, source.dtype)
                return take_out(operator, out, shape, source.dtype, inputs)

            target, again = compute(
                operator, self._pipeline, kept.dtype, source.storage, arrays, allocate, self._options, kept.owner
            )
            if again is not None and not others and target.flags.c_contiguous:
                quick = _Quick(again, target.shape, target.nbytes >= HUGE_FROM)
                kept.remember((source.storage.shape, source.storage.strides), quick)
            if out is None:
                return source.wrap(target)
            mark_written(out)
            return out

    def __repr__(self) -> str:
        return f"Prepared({self._pipeline!r}, {', '.join(self._own)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Prepared, (self._pipeline, self._operands, self._options.algorithm, self._options.precision)

    if not TYPE_CHECKING:  # tools see the signatures above
        __init__ = answers(__init__, "Prepared")
        __call__ = answers(__call__, "Prepared")
