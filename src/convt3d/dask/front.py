"""What callers see: every operator and pipeline takes a dask array and gives one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import normalize_chunks

from ..cpu.plan.choice import AUTO, Options
from ..errors import ArgumentError, ArgumentTypeError, DTypeError, OutputError, described, named
from ..front.apply import LATER, options_of
from ..front.arrays import take
from ..spec import pipeline as spec
from ..spec.checks import answers, is_a
from ..spec.dtypes import DTYPES
from .chunks import Chunks
from .pipeline import lazily


@answers
def apply(
    pipeline: spec.Pipeline,
    input: da.Array,
    *operands: Any,
    chunks: Any = None,
    persist: bool = False,
    algorithm: str = "auto",
    precision: str = "full",
    **named_operands: Any,
) -> da.Array:
    """A pipeline on a dask array, as `pipeline(input, *operands)`, with a say in how it is cut.

    Parameters
    ----------
    pipeline : Pipeline
        What is computed.
    input : dask.array.Array
        (B, C, D, H, W), or unbatched (C, D, H, W), in any chunks.
    *operands : array or dask.array.Array
        The tensors of `pipeline.operand_names` in order; of the input's type.
    chunks : optional
        Of the result, as dask writes them. By default they lie where those of the input do, with all channels together,
        and are cut where they are larger than these and exceed dask's `array.chunk-size`.
    persist : bool, default False
        For stages with statistics over space: whether the value that enters one is kept, in the memory of the workers,
        until the statistics of all chunks are known; otherwise it is computed a second time.
    algorithm, precision : str
        As in a call of the pipeline.
    **named_operands : array or dask.array.Array
        Those that are given by name.

    Returns
    -------
    dask.array.Array
        Lazy. Where no statistic crosses chunks, its bits are those of the result in memory.

    Raises
    ------
    convt3d.Error
        ShapeError, DTypeError, ArgumentTypeError: what a call on arrays in memory would raise, at once.

    Examples
    --------
    >>> import numpy as np, dask.array as da, convt3d, convt3d.dask
    >>> pipe = convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2), convt3d.ReLU())
    >>> x, w = da.ones((1, 8, 6, 4, 5), chunks=(1, 8, 3, 4, 5)), np.ones((8, 4, 2, 2, 2))
    >>> y = convt3d.dask.apply(pipe, x, w, chunks=(1, 4, 4, 8, 10))
    >>> y.shape, y.numblocks
    ((1, 4, 12, 8, 10), (1, 1, 3, 1, 1))
    """
    if not is_a(pipeline, spec.Pipeline):
        received = described(type(pipeline).__name__)
        raise ArgumentTypeError("dask.apply", "pipeline", received, "must be a Pipeline", "Write Pipeline(...)")
    with named("dask.apply"):
        options = options_of(algorithm, precision)
        arrays = pipeline.bind("dask.apply", operands, named_operands)
        return _later("dask.apply", pipeline, input, arrays, None, options, chunks=chunks, persist=persist)


def _later(
    operator: str,
    pipeline: spec.Pipeline,
    x: Any,
    operands: Sequence[Any],
    out: Any,
    options: Options = AUTO,
    chunks: Any = None,
    persist: bool = False,
) -> da.Array:
    """Takes the place of front/apply.py where the input is a dask array."""
    if out is not None:
        rule = "must not be given: the result is computed later"
        raise OutputError(operator, "out", described(type(out).__name__), rule, "Use dask.array.store")
    if not isinstance(x, da.Array):
        rule = "must be a dask array"
        raise ArgumentTypeError(operator, "input", described(type(x).__name__), rule, "Use dask.array.from_array")
    if x.dtype.name not in DTYPES:
        raise DTypeError(
            operator, "input", described(f"array of {x.dtype.name}"), f"must be {', '.join(DTYPES)}", "Convert it"
        )
    source = _native(operator, "input", x)
    arrays = [_operand(operator, slot, operand, source) for slot, operand in zip(pipeline.slots, operands, strict=True)]
    source = source[None] if x.ndim == 4 else source
    output = pipeline.trace(source.shape, [array.shape for array in arrays]).output  # says what does not fit
    dropped = (0, *pipeline.dropped) if x.ndim == 4 else pipeline.dropped
    cut = None if chunks is None else _asked_chunks(operator, chunks, output, dropped, source)
    if not source.shape[0]:
        made = da.empty(output, dtype=source.dtype, chunks=-1)
    else:
        filled = source.rechunk(tuple(tuple(filter(None, lengths)) for lengths in source.chunks))
        made = lazily(spec.Pipeline(*pipeline.stages), filled, arrays, options, cut, persist)
    made = made if cut is None else made.rechunk(cut)  # small results come in one chunk
    return made[tuple(0 if axis in dropped else slice(None) for axis in range(5))] if dropped else made


def _native(operator: str, name: str, x: da.Array) -> da.Array:
    """An array of known sizes, in the machine's order of bytes."""
    if any(np.isnan(size) for size in x.shape):
        rule, remedy = "must have known sizes", "Use its compute_chunk_sizes()"
        raise ArgumentTypeError(operator, name, described(f"shape {x.shape}"), rule, remedy)
    return x.astype(x.dtype.newbyteorder("="))


def _operand(operator: str, slot: spec.Slot, operand: Any, x: da.Array) -> Any:
    given = operand if isinstance(operand, da.Array) else take(operator, slot.name, operand)
    if given.dtype.name != x.dtype.name:
        rule = f"must have the same type as input, which is {x.dtype.name}"
        raise DTypeError(operator, slot.name, described(f"array of {given.dtype.name}"), rule, "Convert one of them")
    array = _native(operator, slot.name, given) if isinstance(given, da.Array) else given.storage.view(x.dtype)
    if slot.operand.kind != "tensor":
        return array
    lazy = array if isinstance(array, da.Array) else da.from_array(array, chunks=-1)
    missing = 5 - lazy.ndim
    return lazy.reshape((1,) * missing + lazy.shape) if missing > 0 else lazy


def _asked_chunks(operator: str, chunks: Any, output: Sequence[int], dropped: Sequence[int], x: da.Array) -> Chunks:
    """Chunks along all axes, of those along the axes that the caller sees."""
    seen = [axis for axis in range(5) if axis not in dropped]
    previous = tuple(x.chunks[axis] for axis in seen)
    try:
        found = normalize_chunks(chunks, tuple(output[axis] for axis in seen), dtype=x.dtype, previous_chunks=previous)
    except (ValueError, TypeError, ArithmeticError, NotImplementedError) as problem:
        rule = f"must be chunks of a result of shape {tuple(output[axis] for axis in seen)} ({problem})"
        raise ArgumentError(operator, "chunks", chunks, rule, "Write them as dask does") from None
    along = dict(zip(seen, found, strict=True))
    return tuple(along.get(axis, (output[axis],)) for axis in range(5))


LATER["dask"] = _later
