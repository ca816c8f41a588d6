"""The caller's arrays, whatever library they come from, as storage the run layer understands; and results back.

numpy arrays (also ml_dtypes' bfloat16), torch CPU tensors and anything with `__dlpack__` are taken without a copy where
their memory is usable as it is; any strides are. No optional library is imported: a caller who has a tensor has it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import AllocationError, ArgumentTypeError, DTypeError, Error, OutputError, described
from ..spec.dtypes import DTYPES, DType

Storage: TypeAlias = npt.NDArray[Any]


class SupportsDLPack(Protocol):
    """An array of any library: numpy's, PyTorch's, JAX's, ..."""

    def __dlpack__(self) -> Any: ...


AnyArray: TypeAlias = SupportsDLPack | np.generic
Array = TypeVar("Array", bound=SupportsDLPack)  # the kind of the input, which is that of the result


@dataclass(frozen=True)
class TakenArray:
    """A caller's array: its storage (bfloat16 as uint16 bits), its type, and how to make a result of the same kind."""

    storage: Storage
    dtype: DType
    wrap: Callable[[Storage], Any]


def take(operator: str, name: str, array: Any, *, writable: bool = False) -> TakenArray:
    """The array as storage; with `writable` its own memory, never a copy."""
    try:
        return _take(operator, name, array, writable)
    except Error:
        raise
    except MemoryError:
        rule = "must be copied, and the copy does not fit in memory"
        raise AllocationError(operator, name, described(type(array).__name__), rule, "Pass an aligned array") from None
    except Exception as problem:  # a foreign object's methods may raise anything
        rule = f"cannot be read as an array ({type(problem).__name__})"
        remedy = "Convert it, for example with numpy.asarray(..., dtype=numpy.float32)"
        raise ArgumentTypeError(operator, name, described(type(array).__name__), rule, remedy) from problem


def _take(operator: str, name: str, array: Any, writable: bool) -> TakenArray:
    if isinstance(array, np.generic) and not writable:
        array = np.asarray(array)
    if isinstance(array, np.ndarray):
        return _take_numpy(operator, name, array, writable)
    if _is_tensor(array):
        return _take_torch(operator, name, array, writable, sys.modules["torch"])
    if hasattr(array, "__dlpack__"):
        return _take_dlpack(operator, name, array, writable)
    raise ArgumentTypeError(
        operator,
        name,
        described(type(array).__name__),
        "must be a numpy array, a torch CPU tensor, or an object with __dlpack__",
        "Convert it, for example with numpy.asarray(..., dtype=numpy.float32)",
    )


_NUMPY_TYPES = {np.dtype(name): DTYPES[name] for name in ("float32", "float64", "float16")}


_NUMPY_WORDS = {dtype.storage: np.dtype(dtype.storage).str for dtype in DTYPES.values()}


def _known_dtype(operator: str, name: str, word: str) -> DType:
    if word not in DTYPES:
        raise DTypeError(
            operator, name, described(f"array of {word}"), f"must be {', '.join(DTYPES)}", "Convert the array"
        )
    return DTYPES[word]


def _itself(result: Storage) -> Storage:
    return result


def _take_numpy(operator: str, name: str, array: Storage, writable: bool) -> TakenArray:
    native, flags = _NUMPY_TYPES.get(array.dtype), array.flags
    if native is not None and type(array) is np.ndarray and flags.aligned and (flags.writeable or not writable):
        return TakenArray(array, native, _itself)  # what nearly every array is, and small calls feel the rest
    if "numpy.ma" in sys.modules and isinstance(array, np.ma.MaskedArray):
        raise ArgumentTypeError(
            operator, name, described("masked array"), "must not be masked: masks have no meaning here", "Fill the mask"
        )
    dtype = _NUMPY_TYPES.get(array.dtype) or _known_dtype(operator, name, array.dtype.name)
    plain = np.asarray(array)
    bits = plain.dtype.newbyteorder("=") if dtype.name != "bfloat16" else plain.dtype
    usable = plain.dtype == bits and plain.flags.aligned
    if writable and not (usable and plain.flags.writeable):
        why = "must be writable" if usable else "must be aligned and in native byte order"
        raise OutputError(operator, name, described(f"array of shape {array.shape}"), why, "Give a fresh array")
    stored = plain if usable else plain.astype(bits)
    return TakenArray(stored.view(dtype.storage), dtype, lambda result: result.view(array.dtype.newbyteorder("=")))


def _take_torch(operator: str, name: str, tensor: Any, writable: bool, torch: Any) -> TakenArray:
    dtype = _known_dtype(operator, name, str(tensor.dtype).removeprefix("torch."))
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        where = f"{tensor.layout} tensor on {tensor.device}"
        remedy = "Use .cpu()" if tensor.layout == torch.strided else "Use .to_dense()"
        raise ArgumentTypeError(operator, name, described(where), "must be a strided CPU tensor", remedy)
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ArgumentTypeError(
            operator,
            name,
            described("tensor that requires grad"),
            "must not ask for gradients, which this function does not record",
            "Use convt3d.torch, which records them, or call it under torch.no_grad()",
        )
    if tensor.is_neg():  # a lazy negation has the wrong bits in memory
        if writable:
            raise OutputError(
                operator, name, described("lazily negated tensor"), "must own its bits", "Use a fresh one"
            )
        tensor = tensor.resolve_neg()
    try:
        stored = tensor_storage(tensor, dtype, torch, writable=writable)
    except RuntimeError as error:  # a fake or batched tensor has no memory to read
        rule = f"must be a tensor with memory of its own ({error})"
        raise ArgumentTypeError(operator, name, described(type(tensor).__name__), rule, "Pass a plain tensor") from None

    def wrap(result: Storage) -> Any:
        if dtype.name == "bfloat16":
            return torch.from_numpy(result.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(result)

    return TakenArray(stored, dtype, wrap)


def tensor_storage(tensor: Any, dtype: DType, torch: Any, *, writable: bool = False, holding: bool = True) -> Storage:
    """The memory of a strided CPU tensor of that type. Nothing about the tensor changes: after `.numpy()` it could not
    be resized any more, and one that is copied when written would be copied. Unless `holding`, the array does not keep
    the tensor alive."""
    address = tensor.data_ptr() if writable else address_of(tensor)
    if not address and tensor.numel():
        raise RuntimeError("it has no memory")
    if not address:  # nothing to share, and numpy 1.25 takes no array from the address 0
        return np.empty(tuple(tensor.shape), dtype.storage)
    item = dtype.itemsize
    strides = tuple([step * item for step in tensor.stride()])
    return np.asarray(
        _Memory(tensor if holding else None, address, _NUMPY_WORDS[dtype.storage], tuple(tensor.shape), strides)
    )


def storage_at(address: int, dtype: DType, shape: tuple[int, ...]) -> Storage:
    """Numbers in the order of rows that lie at an address; whoever owns them keeps them there meanwhile."""
    return np.asarray(_Memory(None, address, _NUMPY_WORDS[dtype.storage], shape, None))


class _Memory:
    """Where an array lies, as numpy asks for it; keeps the owner alive as long as numpy has the array."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(
        self, owner: Any, address: int, kind: str, shape: tuple[int, ...], strides: tuple[int, ...] | None
    ) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": kind,
            "shape": shape,
            "strides": strides,
            "data": (address, False),
        }


def address_of(tensor: Any) -> int:
    """Of the first element of a tensor, to read from."""
    try:
        return tensor.const_data_ptr()  # type: ignore[no-any-return]
    except AttributeError:  # torch 2.4 has no such method
        data = sys.modules["torch"]._C._data_address(tensor)
        return int(data + tensor.storage_offset() * tensor.element_size())


def _take_dlpack(operator: str, name: str, array: Any, writable: bool) -> TakenArray:
    try:
        stored = np.from_dlpack(array)
    except Exception as error:  # a foreign object's method may raise anything
        # numpy's DLPack has no bfloat16 and no devices; an array library's own export may know better.
        if writable or not hasattr(array, "__array__"):
            raise ArgumentTypeError(
                operator,
                name,
                described(type(array).__name__),
                f"could not be read through __dlpack__ ({error})",
                "Pass a CPU array of a type numpy knows",
            ) from None
        stored = np.asarray(array)
    taken = _take_numpy(operator, name, stored, writable)

    def wrap(result: Storage) -> Any:
        """Back through the array library's own from_dlpack; an object that names no library gets numpy."""
        native = taken.wrap(result)
        if not hasattr(array, "__array_namespace__"):
            return native
        library = array.__array_namespace__()
        return library.asarray(native) if taken.dtype.name == "bfloat16" else library.from_dlpack(native)

    return TakenArray(taken.storage, taken.dtype, wrap)


def mark_written(array: Any) -> None:
    """Tells autograd that a torch tensor has changed, so that a gradient that needs its old values is refused."""
    if _is_tensor(array) and not array.is_inference():
        sys.modules["torch"].autograd.graph.increment_version(array)


def _is_tensor(array: Any) -> bool:
    # torch is only looked up, never imported; while another thread imports it, it has no tensors yet.
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(array, kind)


def overlap_within(array: Storage) -> bool:
    """Whether two elements of the array may share memory (a broadcast or sliding-window view)."""
    if array.size == 0:  # numpy gives empty arrays strides of zero
        return False
    end = array.itemsize
    for stride, size in sorted((abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1):
        if stride < end:
            return True
        end = stride * (size - 1) + end
    return False


def overlap(a: Storage, b: Storage) -> bool:
    """Whether two arrays share an element; where that is hard to tell, yes."""
    try:
        return bool(np.shares_memory(a, b, max_work=10_000))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
