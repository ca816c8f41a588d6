"""A prepared pipeline gives the bits of the pipeline's own call, sees every change of its weights, and keeps no more
than it says."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from helpers.draws import make

import convt3d as ct
from convt3d.cpu.plan import plan
from convt3d.cpu.runtime import folded, weights
from convt3d.spec.dtypes import DTYPES

CONV = ct.ConvTranspose3d(stride=2, padding=1, bias=True)
PIPELINES = {
    "convolution": ct.Pipeline(CONV),
    "folded": ct.Pipeline(CONV, ct.BatchNorm(affine=True), ct.ReLU()),
    "one sweep with vectors": ct.Pipeline(CONV, ct.LayerNorm(affine=True), ct.PReLU()),
    "statistics": ct.Pipeline(CONV, ct.InstanceNorm(affine=True), ct.LeakyReLU(0.1)),
    "average in the weights": ct.Pipeline(CONV, ct.AvgPool3d(2)),
    "axes dropped": ct.Pipeline(CONV, ct.Mean("spatial", keepdim=False)),
    "stride 1, by Winograd's method": ct.Pipeline(ct.ConvTranspose3d(padding=1, bias=True), ct.GELU()),
    "groups": ct.Pipeline(ct.ConvTranspose3d(stride=2, groups=2, bias=True)),
    "a convolution that is not transposed": ct.Pipeline(ct.Conv3d(padding=1, bias=True), ct.ReLU()),
}


def _case(name: str, dtype: str = "float32", size: int = 5) -> tuple[ct.Pipeline, Any, list[Any]]:
    pipe = PIPELINES[name]
    case = make(pipe, (2, 4, size, 4, 6), (4, 4 // pipe.conv.groups, 3, 3, 3), dtype)
    return pipe, case.x, list(case.operands)


@pytest.mark.parametrize("name", PIPELINES)
def test_same_bits_as_the_pipeline(name: str) -> None:
    """Call after call: the first finds out what to do, the others only fill in addresses."""
    pipe, x, operands = _case(name)
    layer = pipe.prepare(*operands)
    for given in (x, x.copy(), x[::-1], x.transpose(0, 1, 4, 3, 2), np.asfortranarray(x), x[0], x[:1]):
        expected = pipe(given, *operands).tobytes()
        for _ in range(3):
            assert layer(given).tobytes() == expected
        whole = np.full((2, *pipe(given, *operands).shape), np.nan, x.dtype)
        for out in (whole[0], whole[0], whole[0].T.copy().T, np.stack([whole[0], whole[0]], -1)[..., 0]):
            out[...] = np.nan
            assert layer(given, out=out) is out
            assert out.tobytes() == expected
        assert np.isnan(whole[1]).all(), "nothing else was written"


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", ["convolution", "folded"])
def test_types(name: str, dtype: str) -> None:
    pipe, x, operands = _case(name, dtype)
    layer = pipe.prepare(*operands)
    for _ in range(3):
        assert layer(x).tobytes() == pipe(x, *operands).tobytes()
        assert layer(x).dtype == x.dtype


def test_bfloat16() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x, w = np.ones((1, 3, 2, 2, 2), bfloat16), np.full((3, 2, 2, 2, 2), 0.5, bfloat16)
    pipe = ct.Pipeline(ct.ConvTranspose3d(stride=2))
    layer = pipe.prepare(w)
    for value in (0.5, 0.25):
        w[...] = value
        assert layer(x).dtype == bfloat16
        assert layer(x).tobytes() == pipe(x, w).tobytes()


@pytest.mark.parametrize("algorithm", ["auto", "direct", "winograd"])
def test_options(algorithm: str) -> None:
    pipe, x, operands = _case("stride 1, by Winograd's method")
    layer = pipe.prepare(*operands, algorithm=algorithm, precision="fast")
    for _ in range(2):
        assert layer(x).tobytes() == pipe(x, *operands, algorithm=algorithm, precision="fast").tobytes()


def test_tensors_of_the_call() -> None:
    """A residual is another one at each call; the weights are not."""
    pipe = ct.Pipeline(ct.ConvTranspose3d(stride=2), ct.Add("tensor"), ct.ReLU())
    case = make(pipe, (2, 3, 3, 4, 5), (3, 4, 2, 2, 2))
    w, residual = case.operands
    layer = pipe.prepare(w)
    for other in (residual, residual + 1, residual[:1], residual[0]):
        assert layer(case.x, other).tobytes() == pipe(case.x, w, other).tobytes()
        assert layer(case.x, add_other=other).tobytes() == pipe(case.x, w, other).tobytes()


@pytest.mark.parametrize("name", PIPELINES)
def test_changes_in_place_are_seen(name: str) -> None:
    """One bit of every operand, in its first, middle and last number."""
    pipe, x, operands = _case(name)
    layer = pipe.prepare(*operands)
    layer(x)
    for operand in operands:
        bits = operand.reshape(-1).view("u4")
        for at in (0, bits.size // 2, bits.size - 1):
            bits[at] ^= 1 << 20
            for _ in range(2):
                assert layer(x).tobytes() == pipe(x, *operands).tobytes()
            bits[at] ^= 1 << 20


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38, 1e-30], ids=["nan", "inf", "huge", "tiny"])
@pytest.mark.parametrize("name", PIPELINES)
def test_unusual_numbers(name: str, value: float) -> None:
    """In a weight, and in the input: what a plan cannot take is computed in another way, here too."""
    pipe, x, operands = _case(name)
    layer = pipe.prepare(*operands)
    for array in (x, operands[0], operands[-1]):
        before = layer(x).tobytes()
        flat = array.reshape(-1)
        kept, flat[flat.size // 2] = flat[flat.size // 2], value
        for _ in range(2):
            with np.errstate(all="ignore"):
                assert layer(x).tobytes() == pipe(x, *operands).tobytes()
        flat[flat.size // 2] = kept
        assert layer(x).tobytes() == before


def test_read_only_weights_are_not_copied() -> None:
    pipe, x, (w, b) = _case("convolution")
    copied = pipe.prepare(w, b)
    expected = copied(x).tobytes()
    w.flags.writeable = b.flags.writeable = False
    layer = pipe.prepare(w, b)
    for _ in range(2):
        assert layer(x).tobytes() == expected
    assert copied.nbytes - layer.nbytes == w.nbytes + b.nbytes
    w.flags.writeable = True  # it is constant no longer
    w *= 2
    for _ in range(2):
        assert layer(x).tobytes() == pipe(x, w, b).tobytes()


def test_a_read_only_view_of_weights_that_are_written() -> None:
    pipe, x, (w, b) = _case("convolution")
    for view in (np.broadcast_to(w, w.shape), np.lib.stride_tricks.as_strided(w, writeable=False)):
        layer = pipe.prepare(view, b)
        layer(x)
        w *= 2
        for _ in range(2):
            assert layer(x).tobytes() == pipe(x, w, b).tobytes()
    constant = np.frombuffer(w.tobytes(), np.float32).reshape(w.shape)
    assert pipe.prepare(constant, b).nbytes == b.nbytes


def test_weights_are_packed_once_and_never_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the caches for everyone hold: they are not asked."""
    packs: list[int] = []
    pack = weights.pack
    monkeypatch.setattr(weights, "pack", lambda *given: packs.append(1) or pack(*given))
    for kept in (weights._kept.entries, folded._kept.entries):
        monkeypatch.setattr(kept, "most", 0)
    pipe, x, operands = _case("folded")
    before = len(weights._kept.entries), len(folded._kept.entries)
    layer = pipe.prepare(*operands)
    for size in (5, 6, 7):
        layer(_case("folded", size=size)[1])
        layer(x)
    assert len(packs) == 1
    assert (len(weights._kept.entries), len(folded._kept.entries)) == before
    operands[0][0] += 1
    layer(x)
    assert len(packs) == 2


def test_bytes() -> None:
    """Packed weights, folded vectors, and the copies to compare with; the folded kernel is gone."""
    pipe, x, operands = _case("folded")
    layer = pipe.prepare(*operands)
    copies = sum(each.nbytes for each in operands)
    assert layer.nbytes == copies, "nothing is packed yet"
    layer(x)
    packed = layer.nbytes - copies
    assert operands[0].nbytes <= packed <= operands[0].nbytes + 1024


def test_nothing_is_kept_alive() -> None:
    pipe, x, operands = _case("convolution")
    layer = pipe.prepare(*operands)
    result = layer(x)
    result = layer(x)
    gone = [weakref.ref(each) for each in (x, result, operands[0], layer)]
    del x, result, operands, layer
    gc.collect()
    assert [each() for each in gone] == [None] * 4


def test_pickle_and_copy() -> None:
    pipe, x, operands = _case("folded")
    layer = pipe.prepare(*operands, algorithm="direct")
    expected = layer(x).tobytes()
    for other in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), copy.copy(layer)):
        assert other(x).tobytes() == expected
        assert (other.pipeline, repr(other)) == (pipe, repr(layer))
    other = copy.deepcopy(layer)
    operands[0][...] = 0
    assert other(x).tobytes() == expected
    assert layer(x).tobytes() == pipe(x, *operands, algorithm="direct").tobytes()


def test_threads() -> None:
    """Each call in flight has a table of its own; and weights that change meanwhile give one result or the other."""
    pipe, x, operands = _case("convolution")
    layer = pipe.prepare(*operands)
    inputs = [x * number for number in range(1, 5)]
    wanted = [pipe(each, *operands).tobytes() for each in inputs]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(300):
            if layer(inputs[number]).tobytes() != wanted[number]:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork() -> None:
    pipe, x, operands = _case("convolution")
    layer = pipe.prepare(*operands)
    expected = layer(x).tobytes()
    child = os.fork()
    if child == 0:
        good = layer(x).tobytes() == expected
        operands[0][...] *= 2
        good = good and layer(x).tobytes() == pipe(x, *operands).tobytes()
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert layer(x).tobytes() == expected


def test_an_empty_batch_and_many_layouts() -> None:
    pipe, x, operands = _case("convolution")
    layer = pipe.prepare(*operands)
    assert layer(x[:0]).shape[0] == 0
    for size in range(1, 80):
        case = make(pipe, (1, 4, 1, 1, size), (4, 4, 3, 3, 3))
        assert layer(case.x).tobytes() == pipe(case.x, *operands).tobytes()


def test_torch_tensors() -> None:
    """PyTorch counts changes; those that it does not count are seen as well, in a weight of this size."""
    torch = pytest.importorskip("torch")
    pipe, x, operands = _case("folded")
    x, operands = torch.from_numpy(x), [torch.from_numpy(each) for each in operands]
    layer = pipe.prepare(*operands)
    for change in (
        lambda: operands[0].mul_(2),
        lambda: operands[1].data.add_(1),
        lambda: operands[0].numpy().__setitem__((0, 1, 2, 1, 1), 9.0),
        lambda: setattr(operands[0], "data", torch.ones_like(operands[0])),
        lambda: setattr(operands[0], "data", operands[0].data.transpose(0, 1)),
        lambda: operands[4].neg_(),
    ):
        change()
        for _ in range(2):
            assert torch.equal(layer(x), pipe(x, *operands))
    assert isinstance(layer(x), torch.Tensor)


def test_tensors_of_inference_mode_are_compared() -> None:
    torch = pytest.importorskip("torch")
    with torch.inference_mode():
        w, x = torch.ones(3, 2, 2, 2, 2), torch.ones(1, 3, 2, 2, 2)
        layer = ct.Pipeline(ct.ConvTranspose3d(stride=2)).prepare(w)
        assert layer(x)[0, 0, 0, 0, 0] == 3
        w[0] = 2
        assert layer(x)[0, 0, 0, 0, 0] == 4


# --- errors -----------------------------------------------------------------------------------------------------------


def test_errors() -> None:
    pipe = ct.Pipeline(CONV, ct.Add("tensor"))
    case = make(pipe, (2, 4, 3, 4, 5), (4, 4, 3, 3, 3))
    w, b, other = case.operands
    with pytest.raises(ct.ArgumentTypeError, match=r"Pipeline.prepare: operands = 1 tensors: takes weight, bias: 2"):
        pipe.prepare(w)
    with pytest.raises(ct.ArgumentTypeError, match=r"Pipeline.prepare: add_other .* is unknown; .* takes weight, bias"):
        pipe.prepare(w, b, add_other=other)
    with pytest.raises(ct.ArgumentTypeError, match="weight = str: must be a numpy array"):
        pipe.prepare("w", b)
    with pytest.raises(ct.DTypeError, match="bias = array of float64: must have the same type as weight"):
        pipe.prepare(w, b.astype("f8"))
    with pytest.raises(ct.ArgumentError, match="algorithm"):
        pipe.prepare(w, b, algorithm="quick")
    with pytest.raises(ct.ArgumentTypeError, match="Prepared: pipeline = list: must be a Pipeline"):
        ct.Prepared([], [w])  # type: ignore[arg-type]
    layer = pipe.prepare(weight=w, bias=b)
    with pytest.raises(ct.ArgumentTypeError, match=r"Prepared: operands = 0 tensors after input: takes input"):
        layer(case.x)
    with pytest.raises(ct.DTypeError, match="Prepared: input = array of float64: must have the same type as weight"):
        layer(case.x.astype("f8"), other)
    with pytest.raises(ct.DTypeError, match=r"Prepared: add_other = array of float64: must .* input"):
        layer(case.x, other.astype("f8"))
    with pytest.raises(ct.ShapeError, match="add_other"):
        layer(case.x, other[:, :2])
    with pytest.raises(ct.OutputError, match="Prepared: out"):
        layer(case.x, other, out=case.x)
    alone = ct.Pipeline(ct.ConvTranspose3d(padding=1)).prepare(w)
    both = np.zeros((3, *case.x.shape[1:]), np.float32)
    for _ in range(3):
        alone(both[:2].copy())
        with pytest.raises(ct.OutputError, match="must not share memory"):
            alone(both[:2], out=both[1:])
    both.flags.writeable = False
    with pytest.raises(ct.OutputError, match="must be writable"):
        alone(case.x, out=both[:2])
    assert layer(case.x, other).tobytes() == pipe(case.x, w, b, other).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_of_any_strides(dtype: str) -> None:
    case = make(PIPELINES["convolution"], (1, 3, 3, 4, 5), (3, 3, 3, 3, 3), dtype)
    if dtype == "bfloat16":
        pytest.skip("numpy has no such type")
    w, b = case.operands
    for other in (w[::-1, :, ::-1], w.transpose(1, 0, 4, 3, 2), np.broadcast_to(w[:1, :1], w.shape)):
        layer = PIPELINES["convolution"].prepare(other, b)
        for _ in range(2):
            assert layer(case.x).tobytes() == PIPELINES["convolution"](case.x, other, b).tobytes()


@pytest.mark.parametrize("shape", [(1, 3, 5, 6, 16), (1, 3, 5, 6, 7)], ids=["whole vectors", "odd rows"])
def test_results_past_the_caches(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    """How they are stored depends on where they lie in a cache line, which a second call must look at."""
    monkeypatch.setattr("convt3d.cpu.plan.plan.cached_bytes", lambda host: 1)
    plan._make_plan.cache_clear()
    rng = np.random.default_rng(5)
    pipe, weight = ct.Pipeline(ct.Conv3d(padding=1), ct.InstanceNorm(), ct.ReLU()), rng.normal(size=(3, 3, 3, 3, 3))
    layer = pipe.prepare(weight := weight.astype(np.float32))
    for offset in (0, 0, 4, 64, 20, 20, 0):
        x = rng.normal(size=shape).astype(np.float32)
        memory = np.full(x.size + 64, np.nan, np.float32)
        start = (-memory.ctypes.data % 64 + offset) // 4
        out = memory[start : start + x.size].reshape(shape)
        layer(x, out=out)
        np.testing.assert_array_equal(out, pipe(x, weight))
        assert np.isnan(memory[:start]).all()
        assert np.isnan(memory[start + x.size :]).all()
    assert len(layer._kept.quick) == 1
    plan._make_plan.cache_clear()


def test_memory_that_runs_out_in_a_repeated_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the words of a first call."""

    def exhausted(*_: object) -> None:
        raise MemoryError("no")

    case = make(PIPELINES["convolution"], (1, 3, 3, 4, 5), (3, 3, 3, 3, 3), "float32")
    layer = PIPELINES["convolution"].prepare(*case.operands)
    layer(case.x)
    monkeypatch.setattr("convt3d.cpu.runtime.again.launch", exhausted)
    assert layer(case.x).tobytes() == PIPELINES["convolution"](case.x, *case.operands).tobytes()
    monkeypatch.setattr("convt3d.cpu.runtime.call.launch", exhausted)
    with pytest.raises(ct.AllocationError, match="Prepared: scratch"):
        layer(case.x)
