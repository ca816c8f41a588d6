"""A public Pipeline is called by position or by name, on any batch, from any thread or process, and explains itself."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from helpers.compare import assert_same
from helpers.data import signed

import convt3d
from convt3d import (
    GELU,
    Add,
    AvgPool3d,
    BatchNorm,
    Clamp,
    ConvTranspose3d,
    Divide,
    HardSwish,
    Keep,
    LayerNorm,
    LogSumExp,
    Max,
    MaxPool3d,
    Mean,
    Multiply,
    OutputError,
    Pipeline,
    PReLU,
    ReLU,
    ShapeError,
    Sigmoid,
    Softmax,
    Subtract,
    Sum,
)
from convt3d.spec.text import read_stages

X, W, Y = (2, 3, 4, 3, 5), (3, 4, 2, 3, 2), (2, 4, 8, 7, 10)  # by stride 2
EVERY = {
    "weight": W,
    "bias": (4,),
    "layernorm_weight": (4,),
    "layernorm_bias": (4,),
    "add_other": Y,
    "prelu_weight": (4,),
}
every = Pipeline(ConvTranspose3d(stride=2, bias=True), LayerNorm(affine=True), Add("tensor"), PReLU())


def conv(x: Any, w: Any, bias: Any = None) -> Any:
    return F.conv_transpose3d(torch.from_numpy(x), torch.from_numpy(w), bias, stride=2)


@pytest.fixture
def tensors(rng: np.random.Generator) -> dict[str, Any]:
    return {"input": signed(rng, X), **{name: signed(rng, shape, 1.0) for name, shape in EVERY.items()}}


# --- how it is called -------------------------------------------------------------------------------------------------


def test_by_position_and_by_name(tensors: dict[str, Any]) -> None:
    t = {name: torch.from_numpy(array) for name, array in tensors.items()}
    y = conv(tensors["input"], tensors["weight"], t["bias"]).movedim(1, -1)
    y = F.layer_norm(y, (4,), t["layernorm_weight"], t["layernorm_bias"]).movedim(-1, 1)
    expected = F.prelu(y + t["add_other"], t["prelu_weight"]).numpy()
    assert every.operand_names == tuple(EVERY)
    x, *operands = tensors.values()
    got = every(x, *operands)
    assert_same(got, expected, 1e-10)
    assert every(**tensors).tobytes() == got.tobytes()
    backwards = dict(reversed([(name, tensors[name]) for name in every.operand_names[2:]]))
    assert every(x, *operands[:2], **backwards).tobytes() == got.tobytes()


def test_two_stages_of_one_kind_have_two_names(rng: Any) -> None:
    pipe = Pipeline(ConvTranspose3d(stride=2), Add("channel"), Multiply("channel"), Add("channel"), Add("channel"))
    assert pipe.operand_names == ("weight", "add_other", "multiply_other", "add_other_2", "add_other_3")
    x, w = signed(rng, X), signed(rng, W)
    one, two, three, factor = (signed(rng, (4,)) for _ in range(4))
    got = pipe(x, w, add_other_3=three, add_other_2=two, multiply_other=factor, add_other=one)
    one, two, three, factor = (torch.from_numpy(v).reshape(-1, 1, 1, 1) for v in (one, two, three, factor))
    assert_same(got, ((conv(x, w) + one) * factor + two + three).numpy(), 1e-12)


def test_vectors_may_carry_size_1_axes(tensors: dict[str, Any]) -> None:
    expected = every(**tensors)
    shaped = {n: a.reshape(1, 4, 1, 1, 1) if a.ndim == 1 else a for n, a in tensors.items()}
    assert every(**shaped).tobytes() == expected.tobytes()
    shaped = {n: a.reshape(4, 1, 1, 1) if a.ndim == 1 else a for n, a in tensors.items()}
    assert every(**shaped).tobytes() == expected.tobytes()


# --- second values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(Y, id="whole"),
        pytest.param((1, *Y[1:]), id="batch of 1 serves every sample"),
        pytest.param((2, 1, 8, 7, 10), id="one channel repeats"),
        pytest.param((2, 4, 1, 1, 1), id="one voxel repeats"),
        pytest.param((1, 1, 1, 7, 1), id="one axis left"),
        pytest.param((1, 1, 1, 1, 1), id="one number"),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_skip_connection(shape: tuple[int, ...], dtype: str, rng: Any) -> None:
    x, w, skip = (a.astype(dtype) for a in (signed(rng, X), signed(rng, W), signed(rng, shape)))
    got = Pipeline(ConvTranspose3d(stride=2), Subtract("tensor"), ReLU())(x, w, skip)
    expected = torch.relu(conv(x, w) - torch.from_numpy(skip)).numpy()
    assert_same(got, expected, 1e-12 if dtype == "float64" else 1e-5)


NUMBERS = {
    "Add('channel')": lambda y, o: y + o,
    "Subtract('channel', reverse=True)": lambda y, o: o - y,
    "Multiply('tensor')": lambda y, o: y * o,
    "Divide('tensor', True)": lambda y, o: o / y,
    "PReLU()": lambda y, o: torch.where(y > 0, y, y * o),
    "Softmax('channels', scale='channel')": lambda y, o: torch.softmax(y, 1) * o,
    "Add('channel') -> Sum('channels')": lambda y, o: (y + o).sum(1, keepdim=True),
}


@pytest.mark.parametrize("stages", NUMBERS)
@pytest.mark.parametrize("kind", ["array", "scalar", "tensor"])
def test_one_number_serves_all_channels(stages: str, kind: str, rng: Any) -> None:
    """An array without axes is taken where a vector or a tensor is expected; rewrites see one for each channel."""
    x, w = signed(rng, X), signed(rng, W)
    half = torch.tensor(-0.75, dtype=torch.float64)
    number: Any = {"array": np.array(-0.75), "scalar": np.float64(-0.75), "tensor": half}[kind]
    pipe = Pipeline(*read_stages(f"ConvTranspose3d(stride=2) -> {stages}"))
    expected = NUMBERS[stages](conv(x, w), half).numpy()
    assert_same(pipe(x, w, number), expected, 1e-10)
    assert_same(pipe(x[0], w, number), expected[0], 1e-10)


@pytest.mark.parametrize("shape", [(4,), (4, 1, 1, 1), (1, 4, 1, 1, 1)])
@pytest.mark.parametrize("other", ["channel", "tensor"])
def test_a_vector_may_have_axes_around_it(shape: tuple[int, ...], other: str, rng: Any) -> None:
    x, w, vector = signed(rng, X), signed(rng, W), signed(rng, (4,))
    pipe = Pipeline(ConvTranspose3d(stride=2), Multiply(other), Sigmoid())
    if other == "tensor" and shape == (4,):
        with pytest.raises(ShapeError, match="value's shape"):
            pipe(x, w, vector)
        return
    expected = torch.sigmoid(conv(x, w) * torch.from_numpy(vector).reshape(4, 1, 1, 1)).numpy()
    assert_same(pipe(x, w, vector.reshape(shape)), expected, 1e-12)


DROPS = {
    "Sum('channels', keepdim=False)": lambda y: y.sum(1),
    "Mean('spatial', False) -> Sigmoid()": lambda y: y.mean((2, 3, 4)).sigmoid(),
    "Max('depth', False) -> Add(1.0) -> LogSumExp('width', False)": lambda y: (y.amax(2) + 1.0).logsumexp(-1),
    "LogSumExp('height', False) -> Mean('channels')": lambda y: y.logsumexp(3).mean(1, keepdim=True),
}


@pytest.mark.parametrize("stages", DROPS)
def test_dropped_axes(stages: str, rng: Any) -> None:
    """Batched and not, into an array of the caller's too; an `out` that has the axis still is refused."""
    x, w = signed(rng, X), signed(rng, W)
    pipe = Pipeline(*read_stages(f"ConvTranspose3d(stride=2) -> {stages}"))
    expected = DROPS[stages](conv(x, w)).numpy()
    assert_same(pipe(x, w), expected, 1e-12)
    assert_same(pipe(x[0], w), expected[0], 1e-12)
    out = np.empty(expected.shape[::-1]).T
    assert pipe(x, w, out=out) is out
    assert_same(out, expected, 1e-12)
    with pytest.raises(OutputError, match="result's shape"):
        pipe(x, w, out=np.empty((*expected.shape, 1)))


@pytest.mark.parametrize("width", [1, 2, 15, 17, 70])
@pytest.mark.parametrize("over", ["depth", "height", "width"])
def test_reductions_of_one_axis_of_any_length(over: str, width: int, rng: Any) -> None:
    """Odd rows are no whole vectors, and their ends must not count; NaN and infinities travel as in PyTorch."""
    sizes = {"depth": (width, 2, 3), "height": (2, width, 3), "width": (2, 3, width)}[over]
    x, w = signed(rng, (2, 3, *sizes)), signed(rng, W)
    axis = {"depth": 2, "height": 3, "width": 4}[over]
    for special in (0.0, np.nan, np.inf, -np.inf):
        x[0, 1, 0, 0, 0] = special
        y = torch.from_numpy(x)
        for stage, function in (
            (Sum(over), lambda v: v.sum(axis, keepdim=True)),
            (Mean(over), lambda v: v.mean(axis, keepdim=True)),
            (Max(over), lambda v: v.amax(axis, keepdim=True)),
            (LogSumExp(over), lambda v: v.logsumexp(axis, keepdim=True)),
        ):
            expected = F.conv_transpose3d(function(y), torch.from_numpy(w)).numpy()
            assert_same(Pipeline(stage, ConvTranspose3d())(x, w), expected, 1e-11)


def test_kept_value_is_used_again(rng: Any) -> None:
    x, w = signed(rng, X), signed(rng, W)
    pipe = Pipeline(
        ConvTranspose3d(stride=2), Keep("y"), HardSwish(), Multiply("y"), Keep("z"), Sigmoid(), Add("z"), Divide("y")
    )
    y = conv(x, w)
    z = F.hardswish(y) * y
    assert_same(pipe(x, w), ((torch.sigmoid(z) + z) / y).numpy(), 1e-10)


def test_kept_value_meets_its_own_reduction(rng: Any) -> None:
    """A value of one channel against one of four, both ways round; and the input itself by the label "x"."""
    x, w = signed(rng, X), signed(rng, W)
    y = conv(x, w)
    got = Pipeline(ConvTranspose3d(stride=2), Keep("y"), Sum(), Subtract("y"))(x, w)
    assert_same(got, (y.sum(1, keepdim=True) - y).numpy(), 1e-12)
    got = Pipeline(ConvTranspose3d(stride=2), Sum(), Keep("s"), Softmax("spatial"), Multiply("s"))(x, w)
    total = y.sum(1, keepdim=True)
    assert_same(got, (torch.softmax(total.flatten(2), 2).reshape(total.shape) * total).numpy(), 1e-12)
    kernel = signed(rng, (3, 3, 1, 1, 1))
    got = Pipeline(ConvTranspose3d(), GELU(), Add("x"))(x, kernel)
    expected = F.gelu(F.conv_transpose3d(torch.from_numpy(x), torch.from_numpy(kernel))) + torch.from_numpy(x)
    assert_same(got, expected.numpy(), 1e-12)


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [4, 5], ids=["4-D tensor operand", "5-D tensor operand of batch 1"])
def test_unbatched(rank: int, tensors: dict[str, Any]) -> None:
    one = {**tensors, "input": tensors["input"][:1], "add_other": tensors["add_other"][:1]}
    expected = every(**one)
    got = every(
        **{**one, "input": one["input"][0], "add_other": one["add_other"][0] if rank == 4 else one["add_other"]}
    )
    assert got.shape == Y[1:]
    assert got.tobytes() == expected.tobytes()
    out = np.full(Y[1:], np.nan)
    assert every(**{**one, "input": one["input"][0]}, out=out) is out
    assert out.tobytes() == expected.tobytes()


def test_samples_do_not_depend_on_each_other(tensors: dict[str, Any]) -> None:
    whole = every(**tensors)
    for b in range(2):
        alone = every(**{**tensors, "input": tensors["input"][b : b + 1], "add_other": tensors["add_other"][b : b + 1]})
        assert alone.tobytes() == whole[b : b + 1].tobytes()


@pytest.mark.parametrize(
    ("stages", "shape"),
    [
        pytest.param([ConvTranspose3d(stride=2)], (0, 4, 8, 7, 10), id="convolution"),
        pytest.param([ConvTranspose3d(stride=2), MaxPool3d(2), MaxPool3d(3), Sum()], (0, 1, 1, 1, 1), id="max-max-sum"),
        pytest.param([ConvTranspose3d(stride=2), Softmax("spatial"), Sum("spatial")], (0, 4, 1, 1, 1), id="reductions"),
        pytest.param([AvgPool3d((1, 1, 2)), ConvTranspose3d(stride=2), LayerNorm()], (0, 4, 8, 7, 4), id="pool first"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_empty_batch(stages: Any, shape: tuple[int, ...], dtype: Any) -> None:
    y = Pipeline(*stages)(torch.zeros((0, *X[1:]), dtype=dtype), torch.zeros(W, dtype=dtype))
    assert (tuple(y.shape), y.dtype) == (shape, dtype)
    out = np.empty(shape, np.float32)
    assert Pipeline(*stages)(np.zeros((0, *X[1:]), np.float32), np.zeros(W, np.float32), out=out) is out


def test_empty_batch_with_tensor_operands() -> None:
    pipe = Pipeline(ConvTranspose3d(stride=2), Add("tensor"))
    for batch in (0, 1):
        y = pipe(np.zeros((0, *X[1:])), np.zeros(W), np.zeros((batch, *Y[1:])))
        assert y.shape == (0, *Y[1:])


# --- what it says -----------------------------------------------------------------------------------------------------


def test_explain_says_what_runs_and_what_it_costs() -> None:
    pipe = Pipeline(ConvTranspose3d(stride=2, padding=2, bias=True), MaxPool3d(2), MaxPool3d(3), Sum())
    text = pipe.explain((16, 32, 32, 32, 32), (32, 64, 5, 5, 5))
    for piece in (
        "float32",
        "16x64x63x63x63",  # the convolution
        "16x1x10x10x10",  # the result
        "rewrite max_pool_of_max_pool",
        "rewrite bias_through_max_pool",
        "rewrite channel_constant_through_sum",
        "rewrite unread_outputs: 63x63x63 -> 60x60x60",
        "nominal 268.4 GFLOP",  # the figures of the operators' table
        "needed  216.8 GFLOP",
        "scratch ",
    ):
        assert piece in text, piece


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_explain_counts_bytes_of_the_type(dtype: str) -> None:
    text = Pipeline(ConvTranspose3d()).explain((1, 1, 100, 100, 100), (1, 1, 1, 1, 1), dtype)
    size = {"float32": 4, "float64": 8}.get(dtype, 2)
    assert f"input + weights + output {2 * size * 1e6 / 2**20:.1f} MiB" in text
    assert dtype in text


def test_explain_unbatched_is_a_batch_of_one() -> None:
    assert every.explain(X[1:], W) == every.explain((1, *X[1:]), W)
    assert every.explain(list(X), torch.zeros(W).shape) == every.explain(X, W)


# --- frozen, shared, sent elsewhere -----------------------------------------------------------------------------------


def test_pickle_gives_a_pipeline_that_can_be_called(tensors: dict[str, Any]) -> None:
    pipe = Pipeline(*every.stages)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        copy = pickle.loads(pickle.dumps(pipe, protocol))
        assert type(copy) is Pipeline
        assert copy == pipe
        assert hash(copy) == hash(pipe)
        assert copy(**tensors).tobytes() == pipe(**tensors).tobytes()


def test_frozen() -> None:
    for name in ("stages", "convolutions", "anything"):
        with pytest.raises(AttributeError, match="frozen"):
            setattr(every, name, ())


def _job(seed: int) -> bytes:
    """One of several different calls; the same seed gives the same bytes anywhere."""
    rng = np.random.default_rng(seed)
    shape = (1 + seed % 2, 3, 3 + seed % 3, 4, 5)
    x, w, v = signed(rng, shape), signed(rng, W), signed(rng, (4,))
    norm = Pipeline(ConvTranspose3d(stride=2), BatchNorm(), Clamp(-1.0, 1.0), Softmax("spatial"), Multiply("channel"))
    pools = Pipeline(ConvTranspose3d(stride=2, bias=True), MaxPool3d(2), MaxPool3d(2), Sum())
    return bytes(norm(x, w, v, v**2, v).tobytes() + pools(x, w, v).tobytes())


def test_threads() -> None:
    """8 threads, shapes mixed, plans shared: every result is the one a single thread computes."""
    seeds = [seed % 12 for seed in range(96)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(_job, seeds))
    alone = [_job(seed) for seed in range(12)]
    assert results == [alone[seed] for seed in seeds]


def test_threads_share_one_pipeline_and_its_inputs(tensors: dict[str, Any]) -> None:
    expected = every(**tensors).tobytes()
    outs = [np.full(Y, np.nan) for _ in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda out: every(**tensors, out=out), outs))
    assert {out.tobytes() for out in outs} == {expected}


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")  # that is what is tested
def test_fork(tensors: dict[str, Any]) -> None:
    """A child forked after the library was used computes the same, and the parent goes on."""
    expected = [_job(seed) for seed in range(4)]
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        assert pool.map_async(_job, range(4)).get(timeout=600) == expected
    assert _job(0) == expected[0]


def test_a_function_is_its_pipeline(rng: Any) -> None:
    """The functions are named pipelines: same stages, same bits, also in a type with rounding."""
    x, w = signed(rng, X).astype(np.float16), signed(rng, W).astype(np.float16)
    pipe = Pipeline(ConvTranspose3d(stride=2, padding=1), LayerNorm(), GELU(), Multiply(0.5))
    assert convt3d.conv_transpose3d_layernorm_gelu_scaling(x, w, 0.5).tobytes() == pipe(x, w).tobytes()
