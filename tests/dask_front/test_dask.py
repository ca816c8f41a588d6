"""Pipelines and operators on dask arrays: lazy, the bits of the result in memory, within rounding for statistics."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from helpers.chunked import LOCAL, OVER_SPACE, SEVERAL, W, X, arrays_for, same_bits

import convt3d

da = pytest.importorskip("dask.array")
st = pytest.importorskip("hypothesis.strategies")
import dask  # noqa: E402 - where they are installed
from hypothesis import given, settings  # noqa: E402

import convt3d.dask  # noqa: E402
from convt3d.dask.memory import Kept  # noqa: E402
from convt3d.dask.tasks import Operands  # noqa: E402


def lengths(data: Any, size: int) -> tuple[int, ...]:
    borders = sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=2))})
    return tuple(high - low for low, high in pairwise(borders))


@pytest.mark.parametrize("name", LOCAL)
@settings(max_examples=2, deadline=None, derandomize=True)
@given(data=st.data())
def test_drawn_chunks_have_the_bits_of_the_whole(name: str, data: Any) -> None:
    pipeline, shape, weight = LOCAL[name]
    x, *operands = arrays_for(pipeline, shape, weight)
    lazy = da.from_array(x, chunks=tuple(lengths(data, size) for size in shape))
    with dask.config.set({"array.chunk-size": data.draw(st.sampled_from(["128MiB", "8KiB"]))}):
        result = pipeline(lazy, *operands)
    assert same_bits(result.compute(scheduler="sync"), pipeline(x, *operands))


@pytest.mark.parametrize("persist", [False, True])
@pytest.mark.parametrize("name", OVER_SPACE)
@settings(max_examples=1, deadline=None, derandomize=True)
@given(data=st.data())
def test_statistics_cross_drawn_chunks(name: str, persist: bool, data: Any) -> None:
    pipeline = OVER_SPACE[name]
    x, *operands = arrays_for(pipeline, X, W)
    lazy = da.from_array(x, chunks=tuple(lengths(data, size) for size in X))
    result = convt3d.dask.apply(pipeline, lazy, *operands, persist=persist).compute(scheduler="sync")
    expected = pipeline(x, *operands)
    meaning = pipeline(*(array.astype(np.float64) for array in (x, *operands)))
    scale = np.abs(meaning).max()
    np.testing.assert_allclose(result, meaning, atol=2e-5 * scale, rtol=0)
    np.testing.assert_allclose(result, expected, atol=2e-5 * scale, rtol=0)


@pytest.mark.parametrize("name", SEVERAL)
@settings(max_examples=2, deadline=None, derandomize=True)
@given(data=st.data())
def test_several_convolutions_have_the_bits_of_the_whole(name: str, data: Any) -> None:
    pipeline, weights = SEVERAL[name]
    x, *operands = arrays_for(pipeline, X, weights)
    lazy = da.from_array(x, chunks=tuple(lengths(data, size) for size in X))
    result = pipeline(lazy, *operands).compute(scheduler="sync")
    assert same_bits(result, pipeline(x, *operands))


def test_several_convolutions_with_statistics_between() -> None:
    pipeline = convt3d.Pipeline(
        convt3d.Conv3d(padding=1), convt3d.InstanceNorm(), convt3d.ReLU(), convt3d.ConvTranspose3d(stride=2)
    )
    x, *operands = arrays_for(pipeline, X, (W, W))
    lazy = da.from_array(x, chunks=(1, 5, 4, 5, 3))
    result = convt3d.dask.apply(pipeline, lazy, *operands, chunks=(1, 8, 7, 9, 9))
    assert result.chunks[2] == (7, 7, 5)
    expected = pipeline(x, *operands)
    np.testing.assert_allclose(result.compute(scheduler="sync"), expected, atol=2e-5 * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize("word", ["float16", "float64", "bfloat16"])
def test_other_types(word: str) -> None:
    dtype = np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if word == "bfloat16" else word)
    for pipeline in (LOCAL["convolution"][0], OVER_SPACE["instance norm"]):
        x, *operands = (array.astype(dtype) for array in arrays_for(pipeline, X, W))
        result = pipeline(da.from_array(x, chunks=(1, 4, 4, 5, 6)), *operands)
        assert result.dtype == dtype
        expected = pipeline(x, *operands).astype(np.float64)
        eps = {"float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-12}[word]
        got = result.compute(scheduler="sync").astype(np.float64)
        np.testing.assert_allclose(got, expected, atol=eps * np.abs(expected).max(), rtol=eps)


def test_nan_travels_as_it_does_in_memory() -> None:
    pipeline, shape, weight = LOCAL["overlapping windows"]
    x, *operands = arrays_for(pipeline, shape, weight)
    x[0, 3, 4, 5, 6], x[1, 0, 0, 0, 0] = np.nan, np.inf
    lazy = da.from_array(x, chunks=(1, 8, 4, 4, 4))
    result = convt3d.dask.apply(pipeline, lazy, *operands, algorithm="direct").compute(scheduler="sync")
    assert same_bits(result, pipeline(x, *operands, algorithm="direct"))


def test_every_operator_takes_dask_arrays() -> None:
    rng = np.random.default_rng(3)
    x, w, scale = rng.standard_normal((2, 4, 6, 7, 5)), rng.standard_normal((4, 6, 3, 3, 3)), rng.standard_normal(6)
    lazy = da.from_array(x, chunks=(1, 2, 3, 4, 5))
    calls = {
        "conv3d": (w.swapaxes(0, 1), None, 1, 1),
        "conv_transpose3d": (w, None, 2, 1),
        "conv_transpose3d_max_max_sum": (w,),
        "conv_transpose3d_sum_layernorm_avgpool_gelu": (w,),
        "conv_transpose3d_avgpool_clamp_softmax_multiply": (w, scale),
        "conv_transpose3d_layernorm_gelu_scaling": (w,),
    }
    for name, arguments in calls.items():
        function = getattr(convt3d, name)
        result = function(lazy, *arguments)
        assert isinstance(result, da.Array)
        np.testing.assert_allclose(result.compute(scheduler="sync"), function(x, *arguments), atol=1e-10)


@pytest.mark.parametrize("name", ["input", "weight", "bias"])
def test_unknown_sizes_are_refused_with_the_remedy(name: str) -> None:
    pipeline = LOCAL["convolution"][0]
    given = dict(zip(("input", "weight", "bias"), arrays_for(pipeline, X, W), strict=True))
    lazy = {key: da.from_array(array, chunks=4) for key, array in given.items()}
    lazy[name] = lazy[name][lazy[name].reshape(len(lazy[name]), -1)[:, 0] < np.inf]
    with pytest.raises(convt3d.ArgumentTypeError, match=rf"{name} = shape \(nan.* Use its compute_chunk_sizes"):
        pipeline(*lazy.values())
    lazy[name].compute_chunk_sizes()
    assert same_bits(pipeline(*lazy.values()).compute(scheduler="sync"), pipeline(*given.values()))


@pytest.mark.parametrize(
    "pipeline", [LOCAL["convolution"][0], OVER_SPACE["instance norm"], OVER_SPACE["one number"], SEVERAL["a block"][0]]
)
def test_a_batch_of_none_and_chunks_of_none(pipeline: convt3d.Pipeline) -> None:
    x, *operands = arrays_for(pipeline, X, (W, W) if len(pipeline.convolutions) > 1 else W)
    none = pipeline(da.from_array(x[:0], chunks=4), *operands)
    assert none.shape == pipeline(x[:0], *operands).shape == none.compute(scheduler="sync").shape
    expected = pipeline(x, *operands)
    for result in (
        pipeline(da.from_array(x, chunks=((1, 0, 1), (8, 0), (4, 0, 5), (0, 10), (11, 0))), *operands),
        convt3d.dask.apply(pipeline, da.from_array(x), *operands, chunks=((1, 0, 1), *map(_ends, expected.shape[1:]))),
    ):
        found = result.compute(scheduler="sync")
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max(), rtol=0)


def _ends(size: int) -> tuple[int, ...]:
    return 0, size, 0


def test_numbers_in_the_other_order_of_bytes() -> None:
    pipeline = LOCAL["convolution"][0]
    x, w, bias = arrays_for(pipeline, X, W)
    turned = [array.astype(array.dtype.newbyteorder()) for array in (x, w, bias)]
    result = pipeline(da.from_array(turned[0], chunks=5), turned[1], da.from_array(turned[2]))
    assert result.dtype == np.float32
    assert same_bits(result.compute(scheduler="sync"), pipeline(x, w, bias))


def test_weights_may_be_tensors_in_any_order() -> None:
    torch = pytest.importorskip("torch")
    dtype = pytest.importorskip("ml_dtypes").bfloat16
    pipeline = LOCAL["convolution"][0]
    x, w, bias = (array.astype(dtype) for array in arrays_for(pipeline, X, W))
    turned = torch.from_numpy(w.astype(np.float32).transpose()).bfloat16().permute(4, 3, 2, 1, 0)
    result = pipeline(da.from_array(x, chunks=(1, 3, 4, 5, 6)), turned, torch.from_numpy(bias.astype("f4")).bfloat16())
    assert same_bits(result.compute(scheduler="sync"), pipeline(x, w, bias))
    with pytest.raises(convt3d.ArgumentTypeError, match="requires grad"):
        pipeline(da.from_array(x), torch.nn.Parameter(turned), bias)


def test_chunks_that_are_asked_for() -> None:
    pipeline = convt3d.Pipeline(convt3d.Conv3d(), convt3d.Sum(keepdim=False))
    x, w = arrays_for(pipeline, X, W)
    result = convt3d.dask.apply(pipeline, da.from_array(x[0]), w, chunks=(3, 4, 5))  # of the axes that are left
    assert result.chunks == ((3, 3, 1), (4, 4), (5, 4))
    assert same_bits(result.compute(scheduler="sync"), pipeline(x[0], w))
    small = convt3d.dask.apply(
        convt3d.Pipeline(convt3d.Conv3d(), convt3d.Mean("spatial")), da.from_array(x), w, chunks=3
    )
    assert small.chunks == ((2,), (3, 3, 2), (1,), (1,), (1,))
    for chunks in (0, (3, 4), ((3,), (4, 4), (5, 4)), "few"):
        with pytest.raises(convt3d.ArgumentError, match=r"must be chunks of a result of shape \(7, 8, 9\)"):
            convt3d.dask.apply(pipeline, da.from_array(x[0]), w, chunks=chunks)


def test_nothing_is_computed_before_it_is_asked_for() -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("computed")

    x = da.map_blocks(never, chunks=((1,), (8,), (5, 4), (10,), (11,)), dtype=np.float32, meta=np.empty((0,) * 5, "f4"))
    for pipeline in (LOCAL["convolution"][0], OVER_SPACE["two norms"]):
        _, *operands = arrays_for(pipeline, (1, 8, 9, 10, 11), W)
        assert pipeline(x, *operands).shape == (1, 8, 9, 10, 11)


def test_unbatched_and_dropped_axes() -> None:
    pipeline = convt3d.Pipeline(convt3d.Conv3d(), convt3d.Sum(keepdim=False))
    x, *operands = arrays_for(pipeline, X, W)
    result = pipeline(da.from_array(x[0], chunks=(8, 4, 10, 11)), *operands)
    assert same_bits(result.compute(scheduler="sync"), pipeline(x[0], *operands))


def test_weights_may_be_dask_arrays_and_are_one_node() -> None:
    pipeline, shape, weight = LOCAL["convolution"]
    x, w, bias = arrays_for(pipeline, shape, weight)
    result = pipeline(da.from_array(x, chunks=(1, 8, 3, 5, 6)), da.from_array(w, chunks=3), bias)
    assert same_bits(result.compute(scheduler="sync"), pipeline(x, w, bias))
    nodes = [task for task in dict(result.dask).values() if getattr(task, "func", None) is Operands]
    assert len(nodes) == 1
    assert len(pickle.loads(pickle.dumps(Operands(w, bias))).arrays) == 2


def test_errors_come_at_once() -> None:
    pipeline = LOCAL["convolution"][0]
    x, w, bias = arrays_for(pipeline, X, W)
    lazy = da.from_array(x, chunks=4)
    with pytest.raises(convt3d.ShapeError, match="second axis"):
        pipeline(lazy, w[:, :3], bias)
    with pytest.raises(convt3d.DTypeError, match="same type as input, which is float32"):
        pipeline(lazy, w.astype(np.float64), bias)
    with pytest.raises(convt3d.DTypeError, match="must be float32, float64, float16, bfloat16"):
        pipeline(lazy.astype(int), w, bias)
    with pytest.raises(convt3d.OutputError, match="the result is computed later"):
        pipeline(lazy, w, bias, out=x)
    with pytest.raises(convt3d.ArgumentTypeError, match="must be a dask array"):
        convt3d.dask.apply(pipeline, x, w, bias)
    with pytest.raises(convt3d.ArgumentTypeError, match="must be a Pipeline"):
        convt3d.dask.apply(convt3d.ReLU(), lazy, w)  # type: ignore[arg-type]


def test_chunks_of_one_voxel_and_small_results() -> None:
    for name in ("convolution", "reflected", "around the edge", "stride", "overlapping windows"):
        pipeline, _, weight = LOCAL[name]
        x, *operands = arrays_for(pipeline, (2, 8, 5, 4, 3), weight)
        lazy = da.from_array(x, chunks=(1, 3, 1, (1, 2, 1), 1))
        expected = pipeline(x, *operands)
        result = convt3d.dask.apply(pipeline, lazy, *operands, chunks=(2, 5, 2, 1, expected.shape[4]))
        assert same_bits(result.compute(scheduler="sync"), expected)


def test_a_box_among_neighbours_takes_two_strips_along_each_axis() -> None:
    pipeline, _, weight = LOCAL["convolution"]
    x, *operands = arrays_for(pipeline, (1, 8, 12, 12, 12), weight)
    graph = dict(pipeline(da.from_array(x, chunks=(1, 8, 4, 4, 4)), *operands).dask)
    (middle,) = (task for key, task in graph.items() if key[1:] == (0, 0, 1, 1, 1) and key[0].startswith("convt3d"))
    assert len(middle.dependencies) == 1 + 6 + 1  # the chunk, strips, operands
    strips = [key for key in graph if isinstance(key, str) and key.startswith("convt3d-strip")]
    assert len(strips) == 3 * 2 * 2 * 9  # along each axis, both sides of two borders, for 9 chunks


def test_strips_come_first_and_keep_that_when_dask_fuses_tasks() -> None:
    pipeline, _, weight = LOCAL["convolution"]
    x, *operands = arrays_for(pipeline, (1, 8, 8, 8, 8), weight)
    result = pipeline(da.from_array(x, chunks=(1, 8, 4, 4, 4)), *operands).map_blocks(np.negative)
    graph, told = optimised(result)
    first = told["priority"]
    assert set(first.values()) == {1}
    assert set(first) == {key for key in graph if str(key).startswith("convt3d-strip-")}
    assert first
    assert not optimised(da.ones(4) + 1)[1]


def optimised(result: Any) -> tuple[dict[Any, Any], dict[str, dict[Any, Any]]]:
    """Its graph as dask optimises it, and what layers of that say of their keys."""
    graph, told = result.__dask_optimize__(result.dask, result.__dask_keys__()), {}
    for layer in getattr(graph, "layers", {}).values():
        for kind, value in (layer.annotations or {}).items():
            told.setdefault(kind, {}).update(dict.fromkeys(layer, value))
    return dict(graph), told


def test_a_box_and_what_follows_it_are_one_task() -> None:
    """Where dask fuses two it leaves a third under the name of the last, which costs a scheduler as much as a strip."""
    pipeline, _, weight = LOCAL["convolution"]
    x, *operands = arrays_for(pipeline, (1, 8, 8, 8, 8), weight)
    lazy = pipeline(da.from_array(x, chunks=(1, 8, 4, 4, 4)), *operands)
    for result in (lazy.map_blocks(np.negative), lazy):
        graph, _ = optimised(result)
        assert set(dask.core.flatten(result.__dask_keys__())) <= set(graph)
        assert not any(isinstance(task, dask._task_spec.Alias) for task in graph.values())
    both = dask.compute(lazy, lazy.map_blocks(np.negative), scheduler="sync")
    assert same_bits(both[0], -both[1])


def test_memory_is_kept_from_box_to_box_and_given_back_when_none_comes() -> None:
    from convt3d.cpu.runtime import memory
    from convt3d.cpu.runtime.arena import HUGE_PAGE

    before = set(memory._spares)
    kept = Kept(patience=0.3)
    for size in (1 << 20, 3 << 20, 2 << 20):
        kept.work_with(size)
        time.sleep(0.2)
    assert [memory._spares[each] for each in set(memory._spares) - before] == [(3 << 20) + HUGE_PAGE]
    assert kept.watch is not None
    end = time.monotonic() + 60
    while set(memory._spares) - before:
        assert time.monotonic() < end
        time.sleep(0.05)
    kept.work_with(1 << 20)
    assert len(set(memory._spares) - before) == 1


def test_results_that_are_no_larger_than_the_input_are_not_cut() -> None:
    x, *operands = arrays_for(LOCAL["convolution"][0], (1, 8, 8, 8, 8), W)
    lazy = da.from_array(x, chunks=(1, 8, 4, 4, 4))
    with dask.config.set({"array.chunk-size": "1KiB"}):
        assert LOCAL["convolution"][0](lazy, *operands).chunks == lazy.chunks
        assert convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2))(lazy, operands[0]).numblocks > lazy.numblocks


def test_only_parts_of_larger_chunks_are_sent() -> None:
    pipeline, _, weight = LOCAL["convolution"]
    x, *operands = arrays_for(pipeline, (1, 8, 8, 16, 16), weight)
    lazy = da.from_array(x, chunks=(1, 8, 8, 8, 16))
    result = convt3d.dask.apply(pipeline, lazy, *operands, chunks=(1, 8, 8, 4, 16))
    graph = dict(result.dask)
    for key, task in graph.items():
        if isinstance(key, tuple) and key[0] == result.name:
            assert not any(isinstance(each, tuple) and each[0] == lazy.name for each in task.dependencies)
    assert same_bits(result.compute(scheduler="sync"), pipeline(x, *operands))


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Of two processes with two threads each."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_weights_are_sent_to_each_worker_once_and_tasks_take_one_thread(client: Any) -> None:
    pipeline, shape, weight = LOCAL["convolution"]
    x, *operands = arrays_for(pipeline, shape, weight)
    result = pipeline(da.from_array(x, chunks=(1, 8, 3, 3, 6)), *operands)
    future = client.compute(result)
    assert same_bits(future.result(timeout=120), pipeline(x, *operands))
    received = client.run(_weights_received, result.name.removeprefix("convt3d-"))
    assert sorted(received.values()) == [0, 1]  # one worker holds them, the other has asked once
    assert set(client.run(_threads_of_a_task).values()) == {1}


@pytest.mark.parametrize("asked", ["scheduler", "client"])
def test_boxes_stay_with_chunks_that_lie_in_balance(client: Any, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else distributed, which sees no reason to keep them there, sends chunks away. Its scheduler optimises graphs,
    where no client may be; earlier versions do it in the process of the client, where no scheduler may be."""
    import distributed
    from distributed import wait

    if asked == "scheduler":
        monkeypatch.setattr(distributed, "default_client", lambda: (_ for _ in ()).throw(ValueError("no client")))
    else:
        monkeypatch.setattr(distributed.Scheduler, "_instances", ())
    pipeline, _, weight = LOCAL["convolution"]
    x, *operands = arrays_for(pipeline, (1, 8, 8, 8, 8), weight)
    one, other = sorted(client.scheduler_info()["workers"])

    def homes(held: Any) -> dict[Any, Any]:
        wait(held)
        result = pipeline(held, *operands).map_blocks(np.negative)
        told = optimised(result)[1].get("workers", {})
        client.compute(result).result(timeout=120)
        return told

    lazy = da.from_array(x, chunks=(1, 8, 4, 4, 4))
    with dask.annotate(workers=lambda key: [(one, other)[key[3]]] if isinstance(key, tuple) else [one]):
        placed = da.ones_like(lazy, dtype=np.float32, name="placed") * 1
    told = homes(client.persist(placed, optimize_graph=False))
    assert sorted(map(tuple, told.values())) == [(one,)] * 4 + [(other,)] * 4
    assert all(at == [(one, other)[key[3]]] for key, at in told.items())
    assert not homes(client.persist(lazy, workers=[one]))
    assert not homes(lazy)


def _weights_received(token: str, dask_worker: Any) -> int:
    key = f"convt3d-operands-{token}"
    return sum(key in each["keys"] for each in dask_worker.transfer_incoming_log)


def _threads_of_a_task(dask_worker: Any) -> int:
    from convt3d.cpu.plan.cores import get_num_threads
    from convt3d.dask.tasks import own_threads

    def inside() -> int:
        with own_threads():
            return get_num_threads()

    return dask_worker.executors["default"].submit(inside).result()


@pytest.mark.skipif(os.name == "nt", reason="processes cannot be killed by a signal")
def test_a_worker_that_is_lost_is_made_up_for(client: Any) -> None:
    pipeline, _, weight = LOCAL["convolution"]
    x, *operands = arrays_for(pipeline, (1, 8, 12, 12, 12), weight)
    result = pipeline(da.from_array(x, chunks=(1, 8, 4, 4, 4)).map_blocks(_slowly, dtype=x.dtype), *operands)
    client.wait_for_workers(2, timeout=60)
    processes, future = client.run(os.getpid), client.compute(result)
    key, holders = f"convt3d-operands-{result.name.removeprefix('convt3d-')}", ()
    while not holders:
        time.sleep(0.01)
        holders = client.who_has().get(key, ())
    os.kill(processes[holders[0]], signal.SIGKILL)
    assert same_bits(future.result(timeout=120), pipeline(x, *operands))


def _slowly(block: Any) -> Any:
    time.sleep(0.02)
    return block


def test_a_cluster_gives_the_same_bits() -> None:
    distributed = pytest.importorskip("distributed")
    pipeline, shape, weight = LOCAL["convolution"]
    x, *operands = arrays_for(pipeline, shape, weight)
    result = pipeline(da.from_array(x, chunks=(1, 8, 4, 5, 6)), *operands)
    with (
        distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        distributed.Client(cluster),
    ):
        assert same_bits(result.compute(), pipeline(x, *operands))
