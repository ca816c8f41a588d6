"""Arrays of any kind, type and layout go in without a copy where possible, and the same kind and type comes out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from helpers.data import signed

import convt3d
from convt3d.front.arrays import overlap_within, take
from convt3d.spec.dtypes import DTYPES

X, W, Y = (2, 3, 4, 5, 6), (3, 2, 2, 3, 2), (2, 2, 8, 11, 12)  # stride 2: no output axis equals another
BFLOAT16 = ml_dtypes.bfloat16
NUMPY_TYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": BFLOAT16}


def conv(x: Any, w: Any, **keywords: Any) -> Any:
    return convt3d.conv_transpose3d(x, w, stride=2, **keywords)


def exact(x: Any, w: Any) -> Any:
    """The float64 meaning of stored values: PyTorch's, in double."""
    wide = (torch.from_numpy(np.asarray(a).astype(np.float64)) for a in (x, w))
    return torch.nn.functional.conv_transpose3d(*wide, stride=2).numpy()


def bits(array: Any) -> bytes:
    return bytes(array.view(torch.int16).numpy().tobytes() if torch.is_tensor(array) else array.tobytes())


def case(rng: np.random.Generator, dtype: Any = np.float32) -> tuple[Any, Any]:
    return signed(rng, X).astype(dtype), signed(rng, W).astype(dtype)


def integers(rng: np.random.Generator, dtype: Any = np.float32) -> tuple[Any, Any]:
    """Small integers: every order of summation gives the same bits, also in float16."""
    return rng.integers(-4, 5, X).astype(dtype), rng.integers(-4, 5, W).astype(dtype)


# --- element types ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NUMPY_TYPES)
def test_result_is_as_exact_as_the_type_allows(name: str, rng: Any) -> None:
    x, w = case(rng, NUMPY_TYPES[name])
    y = conv(x, w)
    assert type(y) is np.ndarray
    assert y.dtype == x.dtype
    assert y.flags.writeable
    truth = exact(x, w)
    # Sums are rounded at every step; for half types, which accumulate in float32, that moves the one rounding at ties.
    spacing = DTYPES[name].eps * np.abs(truth).max()
    np.testing.assert_allclose(
        y.astype(np.float64), truth, rtol=0, atol=spacing * (8 if name in ("float32", "float64") else 0.51)
    )
    if name not in ("float32", "float64"):
        assert np.mean(y == truth.astype(x.dtype)) > 0.999


@pytest.mark.parametrize("name", NUMPY_TYPES)
def test_numpy_and_torch_give_the_same_bits(name: str, rng: Any) -> None:
    x, w = case(rng, NUMPY_TYPES[name])
    dtype = getattr(torch, name)
    tx, tw = (torch.from_numpy(a.astype(np.float64)).to(dtype) for a in (x, w))  # float64 holds all of them exactly
    y = conv(tx, tw)
    assert type(y) is torch.Tensor
    assert y.dtype == dtype
    assert y.is_contiguous()
    y.add_(0)  # the result is the caller's to write
    assert bits(y) == bits(conv(x, w))


@pytest.mark.parametrize(
    ("name", "value", "rounded"),
    [
        pytest.param("float16", 2049.0, 2048.0, id="float16 tie to even, down"),
        pytest.param("float16", 2051.0, 2052.0, id="float16 tie to even, up"),
        pytest.param("float16", 65520.0, np.inf, id="float16 overflow"),
        pytest.param("bfloat16", 257.0, 256.0, id="bfloat16 tie to even, down"),
        pytest.param("bfloat16", 259.0, 260.0, id="bfloat16 tie to even, up"),
        pytest.param("float32", 2.0**24 + 1, 2.0**24, id="float32 tie to even"),
    ],
)
def test_rounding(name: str, value: float, rounded: float) -> None:
    """x . w adds up to `value` exactly, as high part + low part, which the type cannot hold in one number."""
    dtype = NUMPY_TYPES[name]
    high = float(np.float64(2.0 ** np.floor(np.log2(value))))
    middle = float(np.floor(value - high))
    parts = np.array([high / 2, high / 2, middle, value - high - middle]).astype(dtype)
    assert parts.astype(np.float64).sum() == value
    y = convt3d.conv_transpose3d(parts.reshape(1, 4, 1, 1, 1), np.ones((4, 1, 1, 1, 1), dtype))
    assert float(y[0, 0, 0, 0, 0]) == rounded


# --- memory layouts of inputs -----------------------------------------------------------------------------------------


def _unaligned(a: Any) -> Any:
    raw = np.zeros(a.nbytes + 1, np.uint8)
    view = raw[1:].view(a.dtype).reshape(a.shape)
    view[...] = a
    assert not view.flags.aligned
    return view


def _sliced(a: Any) -> Any:
    big = np.full([2 * n + 3 for n in a.shape], np.nan).astype(a.dtype)
    view = big[tuple(slice(1, 2 * n + 1, 2) for n in a.shape)]
    view[...] = a
    return view


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda a: np.ascontiguousarray(a.transpose(4, 2, 0, 3, 1)).transpose(2, 4, 1, 3, 0),
    "negative strides": lambda a: np.ascontiguousarray(a[::-1, ::-1, ::-1, ::-1, ::-1])[::-1, ::-1, ::-1, ::-1, ::-1],
    "every second element of a larger array": _sliced,
    "Fortran order": np.asfortranarray,
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "memmap subclass": lambda a: a.view(np.memmap),
}
COPIED: dict[str, Callable[[Any], Any]] = {
    "unaligned": _unaligned,
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
}


@pytest.mark.parametrize("layout", [*LAYOUTS.values(), *COPIED.values()], ids=[*LAYOUTS, *COPIED])
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["4 bytes", "2 bytes"])
def test_layouts_of_inputs(layout: Callable[[Any], Any], dtype: Any, rng: Any) -> None:
    x, w = case(rng, dtype)
    y = conv(layout(x), layout(w))
    assert type(y) is np.ndarray
    assert y.dtype == x.dtype, "native byte order comes out"
    np.testing.assert_array_equal(y, conv(x, w))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=["float32", "bfloat16"])
def test_usable_memory_is_not_copied(layout: Callable[[Any], Any], dtype: Any, rng: Any) -> None:
    x = layout(case(rng, dtype)[0])
    taken = take("test", "x", x)
    assert np.shares_memory(taken.storage, x)
    assert (taken.storage.shape, taken.storage.strides) == (x.shape, x.strides)


@pytest.mark.parametrize("layout", COPIED.values(), ids=COPIED)
def test_unusable_memory_is_copied_once_and_left_alone(layout: Callable[[Any], Any], rng: Any) -> None:
    x = layout(case(rng)[0])
    before = x.tobytes()
    taken = take("test", "x", x)
    assert not np.shares_memory(taken.storage, x)
    assert taken.storage.flags.aligned
    assert taken.storage.dtype.isnative
    assert x.tobytes() == before


def test_broadcast_inputs(rng: Any) -> None:
    """Stride 0 on every kind of axis, in x, w and bias."""
    x = np.broadcast_to(signed(rng, (1, 3, 1, 5, 1)), X)
    w = np.broadcast_to(signed(rng, (3, 1, 2, 1, 1)), W)
    bias = np.broadcast_to(np.float64(0.5), (2,))
    assert 0 in x.strides
    np.testing.assert_array_equal(conv(x, w, bias=bias), conv(x.copy(), w.copy(), bias=bias.copy()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(lambda t: t.to(memory_format=torch.channels_last_3d), id="channels_last_3d"),
        pytest.param(lambda t: t.transpose(2, 4).contiguous().transpose(2, 4), id="transposed"),
        pytest.param(lambda t: t.repeat_interleave(2, 3)[:, :, :, ::2], id="sliced"),
        pytest.param(torch.nn.Parameter, id="parameter"),
        pytest.param(lambda t: torch._neg_view(-t), id="lazily negated"),
        pytest.param(lambda t: torch.cat([t[:1], t])[1:], id="storage offset"),
    ],
)
def test_layouts_of_tensors(layout: Callable[[Any], Any], dtype: Any, rng: Any) -> None:
    x, w = (torch.from_numpy(a).to(dtype) for a in case(rng))
    with torch.no_grad():
        y = conv(layout(x), layout(w))
    assert y.dtype == dtype
    assert not y.requires_grad
    assert torch.equal(y, conv(x, w))


def test_usable_tensors_are_not_copied(rng: Any) -> None:
    for tensor in (torch.zeros(X), torch.zeros(X, dtype=torch.bfloat16), torch.zeros(X).transpose(1, 4)):
        taken = take("test", "x", tensor)
        assert taken.storage.ctypes.data == tensor.data_ptr()
        assert taken.storage.strides == tuple(s * tensor.element_size() for s in tensor.stride())


# --- out --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NUMPY_TYPES.values(), ids=NUMPY_TYPES)
@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda b: b[1:3, 2:4, 3:11, 4:15, 5:17], id="inside a larger array"),
        pytest.param(lambda b: b[3:1:-1, 3:1:-1, 10:2:-1, 14:3:-1, 16:4:-1], id="negative strides"),
        pytest.param(lambda b: b[::2, ::2, ::2, ::2, ::2][:2, :2, :8, :11, :12], id="every second element"),
        pytest.param(lambda b: b.transpose(1, 0, 2, 4, 3)[:2, 1:3, 2:10, 3:14, 4:16], id="transposed"),
    ],
)
def test_out_views_leave_the_rest_untouched(view: Callable[[Any], Any], dtype: Any, rng: Any) -> None:
    x, w = integers(rng, dtype)
    guard = dtype(-77.0)
    big = np.full((4, 5, 17, 23, 25), guard, dtype)
    out = view(big)
    assert out.shape == Y
    assert conv(x, w, out=out) is out
    np.testing.assert_array_equal(out.astype(np.float64), exact(x, w))
    out[...] = guard
    assert (big == guard).all(), "an element outside the view was written"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_out_tensor_in_channels_last(dtype: Any, rng: Any) -> None:
    x, w = (torch.from_numpy(a).to(dtype) for a in integers(rng))
    out = torch.full(Y, np.nan, dtype=dtype).to(memory_format=torch.channels_last_3d)
    assert conv(x, w, out=out) is out
    assert torch.equal(out, conv(x, w))


def test_out_of_another_kind_than_x(rng: Any) -> None:
    x, w = case(rng)
    expected = conv(x, w)
    tensor = torch.full(Y, np.nan)
    assert conv(x, w, out=tensor) is tensor
    np.testing.assert_array_equal(tensor.numpy(), expected)
    array = np.full(Y, np.nan, np.float32)
    assert conv(torch.from_numpy(x), w, out=array) is array
    np.testing.assert_array_equal(array, expected)


def test_interleaved_out_and_input_do_not_overlap(rng: Any) -> None:
    """x and out alternate in one buffer, without a common element: legal, and neither harms the other."""
    both = np.zeros((2, 3, 4, 5, 12))
    both[..., ::2] = signed(rng, X)
    x, w = both[..., ::2].copy(), np.ones((3, 3, 1, 1, 1))
    out = both[..., 1::2]
    assert convt3d.conv_transpose3d(both[..., ::2], w, out=out) is out
    np.testing.assert_array_equal(out, convt3d.conv_transpose3d(x, w))
    np.testing.assert_array_equal(both[..., ::2], x)


def test_while_another_thread_imports_torch(rng: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module stands in sys.modules before it has any attribute: a call with `out` raised AttributeError."""
    x, w = case(rng)
    expected, out = conv(x, w), np.empty_like(conv(x, w))
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    conv(x, w, out=out)
    assert bits(out) == bits(expected)
    with pytest.raises(convt3d.Error, match="must be a numpy array, a torch CPU tensor"):
        conv([1.0], w)


def test_overlap_within() -> None:
    base = np.zeros(24)
    strided = np.lib.stride_tricks.as_strided
    assert not overlap_within(base.reshape(4, 6)[::-1, ::2].T)
    assert not overlap_within(np.broadcast_to(base[:1], (1,)))
    assert overlap_within(np.broadcast_to(base[:1], (2,)))
    assert overlap_within(strided(base, (5, 3), (8, 8)))
    assert overlap_within(strided(base, (3, 5), (8 * 4, 8)))


# --- kinds ------------------------------------------------------------------------------------------------------------


class Exported:
    """An array of an unknown library: DLPack and nothing else."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class Named(Exported):
    """An array of a library that says how to make more."""

    def __array_namespace__(self) -> Any:
        return SimpleNamespace(from_dlpack=lambda a: Named(np.from_dlpack(a)))


class Failing(Exported):
    def __dlpack__(self, **keywords: Any) -> Any:
        raise self.array


@pytest.mark.parametrize("source", [np.asarray, torch.from_numpy], ids=["numpy inside", "torch inside"])
def test_dlpack(source: Callable[[Any], Any], rng: Any) -> None:
    x, w = case(rng)
    exported = Exported(source(x))
    y = conv(exported, Exported(source(w)))
    assert type(y) is np.ndarray, "an object that names no library gets numpy"
    np.testing.assert_array_equal(y, conv(x, w))
    assert np.shares_memory(take("test", "x", exported).storage, x)
    named = conv(Named(source(x)), w)
    assert type(named) is Named, "and one that does gets its own kind"
    np.testing.assert_array_equal(named.array, y)
    poisoned = np.full(Y, np.nan, np.float32)
    out = Exported(source(poisoned))
    assert conv(x, w, out=out) is out
    np.testing.assert_array_equal(poisoned, y)


@pytest.mark.parametrize("error", [BufferError, RuntimeError, TypeError, ValueError, AttributeError, OSError])
def test_dlpack_that_fails(error: type[Exception], rng: Any) -> None:
    x, _ = case(rng)
    with pytest.raises(convt3d.ArgumentTypeError, match=r"weight = Failing: .*__dlpack__.*on a far device"):
        conv(x, Failing(error("on a far device")))


def test_bfloat16_through_dlpack_is_refused_in_words(rng: Any) -> None:
    """numpy cannot read it; the caller hears so."""
    with pytest.raises(convt3d.Error, match=r"^conv_transpose3d: input = Exported: .*__dlpack__"):
        conv(Exported(torch.zeros(X, dtype=torch.bfloat16)), torch.zeros(W, dtype=torch.bfloat16))


def test_mixed_kinds(rng: Any) -> None:
    """The result is of x's kind, whatever the others are."""
    x, w = case(rng)
    bias = signed(rng, (2,)).astype(np.float32)
    expected = conv(x, w, bias=bias)
    mixed = conv(x, torch.from_numpy(w), bias=Exported(bias))
    assert type(mixed) is np.ndarray
    np.testing.assert_array_equal(mixed, expected)
    mixed = conv(torch.from_numpy(x), w, bias=bias)
    assert type(mixed) is torch.Tensor
    np.testing.assert_array_equal(mixed.numpy(), expected)
    low = conv(x.astype(BFLOAT16), torch.from_numpy(w).to(torch.bfloat16))  # two spellings of one type
    assert low.dtype == BFLOAT16


def test_gradients(rng: Any) -> None:
    x, w = (torch.from_numpy(a) for a in case(rng))
    with pytest.raises(
        convt3d.ArgumentTypeError, match=r"weight = tensor that requires grad: .*gradients.*convt3d.torch.*no_grad"
    ):
        conv(x, w.clone().requires_grad_())
    with torch.no_grad():
        y = conv(x.clone().requires_grad_(), w.clone().requires_grad_())
    assert torch.equal(y, conv(x, w))
    with torch.inference_mode():
        assert torch.equal(conv(x, w), y)


REFUSED = [
    pytest.param(np.ma.masked_array(np.zeros(X), True), TypeError, "masked", id="masked array"),
    pytest.param(np.zeros(X, int), convt3d.DTypeError, "array of int64", id="integers"),
    pytest.param(np.zeros(X, bool), convt3d.DTypeError, "array of bool", id="booleans"),
    pytest.param(np.zeros(X, complex), convt3d.DTypeError, "array of complex128", id="complex"),
    pytest.param(np.zeros(X, np.longdouble), convt3d.DTypeError, "array of (longdouble|float128)", id="longdouble"),
    pytest.param(np.zeros(X, object), convt3d.DTypeError, "array of object", id="objects"),
    pytest.param(np.zeros(X, "f4,f4"), convt3d.DTypeError, "array of void", id="records"),
    pytest.param(np.zeros(X, ml_dtypes.float8_e4m3fn), convt3d.DTypeError, "array of float8", id="float8"),
    pytest.param(torch.zeros(X, dtype=torch.int32), convt3d.DTypeError, "array of int32", id="integer tensor"),
    pytest.param(torch.zeros(X, dtype=torch.cfloat), convt3d.DTypeError, "array of complex64", id="complex tensor"),
    pytest.param(torch.zeros(X, device="meta"), convt3d.ArgumentTypeError, "on meta", id="tensor elsewhere"),
    pytest.param(torch.zeros(X).to_sparse(), convt3d.ArgumentTypeError, "sparse.*to_dense", id="sparse tensor"),
    pytest.param([[1.0]], convt3d.ArgumentTypeError, "list: must be a numpy array", id="list"),
    pytest.param(1.0, convt3d.ArgumentTypeError, "float: must be a numpy array", id="number"),
    pytest.param(np.int32(1), convt3d.DTypeError, "array of int32", id="numpy scalar"),
    pytest.param(None, convt3d.ArgumentTypeError, "NoneType: must be a numpy array", id="None"),
    pytest.param("x", convt3d.ArgumentTypeError, "str: must be a numpy array", id="text"),
    pytest.param(memoryview(b"1234"), convt3d.ArgumentTypeError, "memoryview: must be a numpy array", id="buffer"),
]


@pytest.mark.parametrize(("x", "error", "said"), REFUSED)
def test_refused(x: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=rf"^conv_transpose3d: input = .*{said}") as caught:
        conv(x, np.zeros(W))
    assert isinstance(caught.value, convt3d.Error)
    assert isinstance(caught.value, TypeError)


def test_tensor_without_memory(rng: Any) -> None:
    """Inside torch.func a tensor is a stand-in; that is said, not left to torch's RuntimeError."""
    x, w = (torch.from_numpy(a) for a in case(rng))
    with pytest.raises(
        convt3d.ArgumentTypeError, match=r"^conv_transpose3d: input = .*must be a tensor with memory of its"
    ):
        torch.func.vmap(lambda sample: conv(sample, w))(x)
