"""Triton kernels, run by Triton's interpreter, against the float64 meaning: parameters, borders, stages, types."""
# ruff: noqa: E501  a row of a table is one line

from __future__ import annotations

import linecache
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", "3.4")
from gpu_proof.compile import launches  # noqa: E402
from helpers.data import sprinkled  # noqa: E402
from helpers.draws import drawn, make  # noqa: E402
from helpers.gpu import CAPABILITY, DEVICE, INTERPRETED, GpuCase, gpu_case, on_gpu, stored, tensor  # noqa: E402

import convt3d as ct  # noqa: E402
from convt3d.errors import UnsupportedStageError  # noqa: E402
from convt3d.gpu import run as gpu_run  # noqa: E402
from convt3d.gpu.config import generation_of  # noqa: E402
from convt3d.gpu.module import load  # noqa: E402
from convt3d.gpu.pieces import FilledName, NotOnGpu, PartialsName, PreparedName, WeightsName  # noqa: E402
from convt3d.gpu.plan import gpu_plan  # noqa: E402
from convt3d.gpu.run import run  # noqa: E402
from convt3d.gpu.text.code import ELEMENTS  # noqa: E402
from convt3d.plan.names import CallerName, OperandName, StatisticName  # noqa: E402
from convt3d.recent import Recent  # noqa: E402
from convt3d.spec.dtypes import DTYPES as KINDS  # noqa: E402
from convt3d.spec.pipeline import Pipeline  # noqa: E402
from convt3d.spec.problems import PROBLEMS  # noqa: E402

CONV = ct.ConvTranspose3d
DTYPES = ("float32", "float16", "bfloat16", "float64")

# name -> stages, x, kernel, dtype
CONVOLUTIONS: dict[str, Any] = {
    "phases of unequal strides": ([CONV(stride=(1, 2, 3), padding=1)], (2, 9, 3, 4, 5), (9, 5, 3, 3, 4), "float32"),
    "taps a stride and a dilation share": (
        [CONV(stride=4, padding=3, output_padding=1, groups=1, dilation=6)],
        (1, 8, 3, 1, 2),
        (8, 5, 3, 2, 4),
        "float32",
    ),
    "dilation beyond the stride": (
        [CONV(stride=(2, 3, 1), padding=0, output_padding=0, groups=1, dilation=(3, 2, 4))],
        (1, 8, 2, 3, 2),
        (8, 3, 3, 2, 2),
        "float64",
    ),
    "outputs without taps": (
        [CONV(stride=(3, 2, 4), padding=0, output_padding=(2, 1, 3), bias=True)],
        (1, 8, 2, 3, 2),
        (8, 3, 1, 1, 2),
        "float32",
    ),
    "size-1 and prime axes": (
        [CONV(stride=(2, 1, 1), padding=1, output_padding=(1, 0, 0))],
        (1, 8, 1, 7, 1),
        (8, 3, 3, 3, 3),
        "bfloat16",
    ),
    "padding that cuts whole inputs off": (
        [CONV(stride=2, padding=(4, 3, 2))],
        (1, 8, 5, 4, 5),
        (8, 3, 4, 3, 3),
        "float16",
    ),
    "several blocks of outputs and inputs": (
        [CONV(stride=2, padding=1, bias=True)],
        (1, 40, 2, 2, 3),
        (40, 70, 3, 3, 3),
        "float16",
    ),
    "few input channels": ([CONV(stride=2, padding=1)], (1, 3, 2, 3, 4), (3, 5, 3, 3, 3), "float32"),
    "few input channels on tensor cores": ([CONV(stride=2, padding=1)], (1, 3, 2, 3, 4), (3, 5, 3, 3, 3), "bfloat16"),
    "groups": ([CONV(stride=(2, 1, 2), padding=1, bias=True, groups=3)], (2, 27, 2, 3, 4), (27, 5, 2, 3, 3), "float32"),
    "groups of float64": ([CONV(stride=2, padding=1, groups=2)], (1, 6, 2, 3, 2), (6, 5, 2, 3, 3), "float64"),
    "depthwise": (
        [CONV(stride=2, padding=1, output_padding=1, groups=6, bias=True)],
        (2, 6, 3, 4, 3),
        (6, 1, 3, 3, 3),
        "float32",
    ),
    "depthwise, several outputs each": (
        [CONV(stride=(3, 1, 2), padding=1, output_padding=0, groups=5)],
        (1, 5, 2, 3, 4),
        (5, 3, 3, 3, 3),
        "bfloat16",
    ),
    "one channel": ([CONV(stride=2)], (1, 1, 2, 3, 2), (1, 1, 2, 2, 2), "float16"),
}
MAXPOOL, AVGPOOL = ct.MaxPool3d, ct.AvgPool3d
CHAINS: dict[str, Any] = {
    "windows that overlap": ([CONV(stride=2, padding=1), MAXPOOL((3, 2, 3), (1, 2, 2))], (1, 8, 3, 3, 3), (8, 5, 3, 3, 3), "float32"),
    "padded windows, cut at the end": (
        [CONV(stride=(2, 3, 1), padding=1), MAXPOOL((2, 3, 3), (3, 2, 2), (1, 1, 1), ceil_mode=True)],
        (1, 8, 2, 2, 3), (8, 5, 3, 3, 3), "float16",
    ),
    "averages that count padding": (
        [CONV(stride=2, padding=1), ct.ReLU(), AVGPOOL(3, 2, 1, ceil_mode=True)], (1, 8, 2, 3, 2), (8, 5, 3, 3, 3), "float32",
    ),
    "averages that do not": (
        [CONV(stride=(3, 2, 2), padding=1), AVGPOOL((3, 2, 2), (2, 3, 1), (1, 1, 0), True, False)],
        (1, 2, 2, 2, 2), (2, 5, 3, 3, 3), "float64",
    ),
    "a pool after a channel sum": (
        [CONV(stride=2, padding=1), ct.Sum(), AVGPOOL(2), ct.Add("channel")], (1, 8, 2, 3, 3), (8, 5, 3, 3, 3), "float32",
    ),
    "two pools that do not merge": (
        [CONV(stride=2, padding=1), MAXPOOL(2), ct.Tanh(), AVGPOOL(2), ct.Mish()], (1, 8, 3, 3, 3), (8, 5, 3, 3, 3), "float32",
    ),
    "channel stages in a row": (
        [CONV(stride=2, bias=True), ct.LayerNorm(affine=True), ct.Softmax(), ct.Keep("y"), ct.SiLU(), ct.Multiply("y"),
         ct.LogSumExp()],
        (2, 9, 2, 2, 3), (9, 11, 2, 2, 2), "float32",
    ),
    "channel stage of groups": (
        [CONV(stride=2, groups=2), ct.LayerNorm(), ct.GELU("tanh")], (1, 18, 2, 2, 2), (18, 5, 2, 2, 2), "float16",
    ),
    "channel stage of a depthwise convolution": (
        [CONV(stride=2, groups=6), ct.LayerNorm(), ct.Max()], (1, 6, 2, 2, 2), (6, 1, 3, 3, 3), "bfloat16",
    ),
    "more channels than a program holds": (
        [CONV(), ct.LayerNorm(), MAXPOOL((1, 1, 2))], (1, 3, 1, 1, 2), (3, 300, 1, 1, 1), "float16",
    ),
    "a skip connection and a batch norm": (
        [CONV(stride=2), ct.BatchNorm(affine=True), ct.PReLU(), ct.Add("tensor"), ct.HardSwish()],
        (2, 8, 2, 2, 3), (8, 5, 2, 2, 2), "float32",
    ),
    "the input again": ([CONV(), ct.Add("x"), ct.Softplus(2.0, 3.0)], (1, 8, 2, 3, 3), (8, 8, 1, 1, 1), "float64"),
    "stages before the convolution": (
        [ct.Add("channel"), MAXPOOL(3, 2, 1), ct.LayerNorm(), CONV(stride=2, groups=3), ct.Sigmoid()],
        (1, 6, 5, 4, 3), (6, 2, 2, 2, 2), "float16",
    ),
    "a stored value enters the convolution": (
        [ct.ReLU(), ct.Keep("a"), CONV(stride=1, padding=1), ct.Add("a")], (1, 16, 2, 2, 2), (16, 16, 3, 3, 3), "float16",
    ),
    "a stored value enters a depthwise convolution": (
        [ct.Tanh(), ct.Keep("a"), CONV(stride=1, padding=1, groups=4), ct.Add("a")], (1, 4, 2, 2, 2), (4, 1, 3, 3, 3), "bfloat16",
    ),
    "a mean enters the convolution": (
        [ct.Mean("spatial"), CONV(stride=2)], (2, 16, 2, 2, 2), (16, 3, 2, 2, 2), "bfloat16",
    ),
    "a norm over space, computed again": (
        [CONV(stride=2, padding=1), ct.InstanceNorm(affine=True), ct.LeakyReLU(0.1), MAXPOOL(2)],
        (2, 8, 2, 3, 3), (8, 5, 3, 3, 3), "float32",
    ),
    "a norm over space, kept in the output": (
        [CONV(stride=2, padding=1), ct.GroupNorm(2, affine=True), ct.Softmax("spatial")], (2, 8, 2, 3, 3), (8, 6, 3, 3, 3), "float32",
    ),
    "a norm over space of 16 bits": (
        [CONV(stride=2, padding=1), ct.GroupNorm(3), ct.Softmax("spatial"), ct.Multiply(30.0)],
        (1, 8, 2, 3, 3), (8, 6, 3, 3, 3), "bfloat16",
    ),
    "reductions over space": (
        [CONV(stride=2, padding=1, groups=2), ct.LogSumExp("spatial"), ct.Softmax(), ct.Multiply(3.0)],
        (2, 16, 2, 3, 3), (16, 3, 3, 3, 3), "float32",
    ),
    "a maximum over space, used again": (
        [CONV(stride=2), ct.Keep("y"), ct.Max("spatial"), ct.Subtract("y"), ct.Exp()],
        (2, 8, 2, 2, 3), (8, 3, 2, 2, 2), "float32",
    ),
    "blocks of unequal width": (
        [CONV(), ct.InstanceNorm(), ct.LayerNorm(), MAXPOOL((1, 1, 2))], (1, 8, 1, 1, 4), (8, 130, 1, 1, 2), "float32",
    ),
    "blocks of unequal width, depthwise": (
        [CONV(groups=75), ct.InstanceNorm(), ct.LayerNorm()], (1, 75, 1, 1, 4), (75, 2, 1, 1, 2), "float16",
    ),
    "a value kept before a stage of all groups": (
        [CONV(stride=2, groups=2), ct.ReLU(), ct.Keep("y"), ct.Tanh(), ct.LayerNorm(), ct.Multiply("y"), ct.Softmax()],
        (1, 16, 1, 2, 2), (16, 4, 2, 2, 2), "float32",
    ),
    "a value kept after a pool, before many channels": (
        [CONV(), MAXPOOL((1, 1, 2)), ct.Keep("y"), ct.LayerNorm(), ct.Subtract("y")],
        (1, 3, 1, 1, 2), (3, 300, 1, 1, 1), "float16",
    ),
    "a value goes two ways": (
        [CONV(stride=2), ct.Keep("y"), ct.Tanh(), ct.Keep("t"), ct.Recall("y"), ct.Sigmoid(), ct.Multiply("t"),
         ct.Subtract("channel", reverse=True), ct.Divide(2.0, reverse=True)],
        (1, 8, 2, 2, 3), (8, 3, 2, 2, 2), "float64",
    ),
    "a stored value is recalled": (
        [CONV(stride=2), ct.Keep("y"), MAXPOOL(1), ct.Keep("t"), ct.Recall("y"), ct.InstanceNorm(),
         ct.Subtract("t", reverse=True)],
        (2, 8, 2, 2, 3), (8, 3, 2, 2, 2), "float32",
    ),
    "the only channel is summed and recalled": (
        [CONV(stride=2), ct.Keep("y"), ct.Sum(), ct.Keep("t"), ct.Recall("y"), ct.Tanh(), ct.Add("t"), ct.Sum(),
         ct.Multiply("y")],
        (1, 8, 2, 2, 3), (8, 1, 2, 2, 2), "float32",
    ),
    "one axis after the other": (
        [CONV(stride=2), ct.Sum("depth"), ct.LogSumExp("width"), ct.Max("height", keepdim=False), ct.Tanh()],
        (2, 8, 2, 2, 3), (8, 3, 2, 2, 2), "float64",
    ),
    "an axis before the convolution": (
        [ct.LogSumExp("height"), CONV(stride=2, bias=True), ct.Exp(), ct.Log(), AVGPOOL(2, divisor_override=3)],
        (1, 8, 2, 3, 3), (8, 3, 2, 2, 2), "float32",
    ),
    "a mean over space": ([CONV(stride=2), ct.Mean("spatial")], (1, 8, 2, 2, 3), (8, 3, 2, 2, 2), "float64"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*CONVOLUTIONS, *CHAINS])
def test_equals_the_meaning(name: str) -> None:
    stages, x, kernel, dtype = {**CONVOLUTIONS, **CHAINS}[name]
    gpu_case(Pipeline(*stages), x, kernel, dtype).check()


FORWARD = ct.Conv3d
FORWARDS: dict[str, Any] = {
    "stride, dilation and unequal padding": ([FORWARD(stride=(1, 2, 3), padding=(0, 1, 2), dilation=(2, 1, 3), bias=True)], (2, 9, 5, 6, 9), (5, 9, 3, 2, 3), "float32"),
    "same": ([FORWARD(padding="same", dilation=(1, 2, 1))], (1, 8, 3, 4, 5), (3, 8, 2, 4, 3), "float16"),
    "groups": ([FORWARD(stride=2, padding=1, groups=3)], (1, 12, 4, 5, 3), (6, 4, 3, 3, 3), "float32"),
    "depthwise": ([FORWARD(stride=(2, 1, 1), padding=1, groups=5)], (1, 5, 4, 3, 3), (10, 1, 3, 2, 3), "bfloat16"),
    "few inputs": ([FORWARD(stride=2, padding=3)], (1, 2, 5, 4, 3), (3, 2, 3, 4, 3), "float32"),
    "float64": ([FORWARD(padding=1)], (1, 9, 2, 3, 4), (4, 9, 3, 3, 3), "float64"),
    "reflected": ([FORWARD(padding=(1, 2, 1), padding_mode="reflect", stride=2)], (1, 8, 3, 4, 5), (3, 8, 3, 3, 2), "float32"),
    "replicated": ([ct.ReLU(), FORWARD(padding=(3, 0, 1), padding_mode="replicate")], (1, 8, 2, 3, 3), (3, 8, 3, 2, 2), "float16"),
    "circular": ([ct.MaxPool3d(2), FORWARD(padding=1, padding_mode="circular", groups=2), ct.GELU()], (1, 16, 4, 6, 4), (4, 8, 2, 3, 3), "float32"),
    "with a pool of padded windows": ([FORWARD(stride=(1, 2, 1), padding=1), MAXPOOL(3, 2, 1), ct.Tanh()], (1, 8, 5, 6, 4), (5, 8, 3, 3, 3), "float32"),
    "with a norm over space": ([FORWARD(padding=1, bias=True), ct.InstanceNorm(affine=True), ct.LeakyReLU(0.1)], (2, 8, 3, 4, 3), (5, 8, 3, 3, 3), "float32"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORWARDS)
def test_convolutions_that_are_not_transposed(name: str) -> None:
    stages, x, kernel, dtype = FORWARDS[name]
    gpu_case(Pipeline(*stages), x, kernel, dtype).check()


@pytest.mark.parametrize("seed", range(8))
def test_drawn_convolutions_that_are_not_transposed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    while True:
        taps, groups = rng.integers(1, 4, 3), int(rng.choice([1, 1, 2, 9]))
        mode = str(rng.choice(["zeros", "zeros", "reflect", "replicate", "circular"]))
        stage = FORWARD(
            stride=tuple(map(int, rng.integers(1, 4, 3))), padding=tuple(map(int, rng.integers(0, 3, 3))),
            dilation=tuple(map(int, rng.integers(1, 4, 3))), groups=groups, padding_mode=mode,
        )  # fmt: skip
        inputs, outputs = groups * int(rng.integers(1, 10)), groups * int(rng.integers(1, 4))
        x = (1, inputs, *map(int, rng.integers(1, 9, 3)))
        try:
            case = gpu_case(
                Pipeline(stage, ct.SiLU()), x, (outputs, inputs // groups, *map(int, taps)), DTYPES[seed % 4]
            )
            break
        except ct.Error:  # sizes that do not fit together
            continue
    case.check()


AGAIN: dict[str, Any] = {
    "parts and a halo": ([CONV(stride=2, padding=1, bias=True), ct.GELU()], "float32", False),
    "statistics, in the output": ([CONV(stride=2), ct.Softmax("spatial"), ct.Multiply("channel")], "float32", False),
    "the input as it is": ([CONV(stride=2, padding=1), ct.LayerNorm()], "float16", True),
}


@pytest.mark.parametrize("name", AGAIN)
def test_a_second_call_finds_other_numbers_in_other_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It launches what the first one noted; where that cannot be, as in the interpreter, it does all again. The third
    has an input that is not aligned, for which other code is compiled."""
    stages, dtype, last = AGAIN[name]
    monkeypatch.setattr(gpu_run, "_known", Recent(9))
    for number in range(3):
        case = gpu_case(Pipeline(*stages), (2, 16, 2, 3, 4), (16, 5, 3, 3, 3), dtype, number)
        x, operands = case.tensors()
        rows = x.permute(0, 2, 3, 4, 1).contiguous() if last else x
        if number == 2:
            room = torch.empty(rows.numel() + 1, dtype=rows.dtype, device=DEVICE)
            rows = room[1:].view(rows.shape).copy_(rows)
        case.tensors = lambda: (rows.permute(0, 4, 1, 2, 3) if last else rows, operands)  # noqa: B023
        case.check()
        known = [entry.value for entry in gpu_run._known._entries.values()]
        assert len(known) == (2 if number == 2 else 1)
        assert not CAPABILITY or all(again.steps for again in known)


IN_TURN: dict[str, Any] = {
    "one convolution": [
        CONV(stride=2, padding=1, bias=True),
        ct.Softmax("spatial"),
        ct.Add("tensor"),
        ct.InstanceNorm(),
    ],
    "what is before it": [ct.Multiply("tensor"), CONV(stride=2), ct.GroupNorm(2, affine=True), ct.SiLU()],
    "a guard": [CONV(stride=2), ct.InstanceNorm()],
}


@pytest.mark.parametrize("name", IN_TURN)
def test_samples_in_turn_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a value is read again: as many at once as a cache holds, unequal parts among them. Weights are packed once.
    An infinite number in one sample lets other kernels compute it: those after it, or all that run at once."""
    case = gpu_case(Pipeline(*IN_TURN[name]), (5, 16, 2, 3, 2), (16, 6, 3, 3, 2))
    if name == "a guard":
        case.x[1, 3, 1, 1, 1] = np.inf
    expected = case.run()
    shapes = case.x.shape, tuple(one.shape for one in case.operands)
    plan = gpu_plan(case.pipeline, *shapes, case.dtype, generation_of(CAPABILITY or 80), choice=0)
    packed: list[bool] = []

    def made(self: Any, size: int) -> bool:
        packed.append(make(self, size))
        return packed[-1]

    make = gpu_run.Execution.make_weights
    monkeypatch.setattr(gpu_run.Execution, "make_weights", made)
    monkeypatch.setattr("convt3d.gpu.plan.BUSY", 0)
    two = next(cache for cache in range(1 << 20) if plan.samples_in(cache) == 2)
    for cache, parts in ((two, [1, 2, 2]), (two - 1, [1] * 5)):
        monkeypatch.setattr(gpu_run, "_second_level", lambda x: cache)  # noqa: B023
        monkeypatch.setattr(gpu_run, "_known", Recent(99))
        monkeypatch.setattr(gpu_run, "_turns", lru_cache(gpu_run._turns.__wrapped__))
        assert [own.trace.values[0][0] for own, _ in gpu_run._turns(plan, cache)] == parts
        packed.clear()
        if name == "a guard":
            case.check()
        else:
            assert np.array_equal(case.run(), expected)
        assert packed[0]
        assert not any(packed[1:])  # fewer where a part is repeated from what another one noted


def test_samples_are_taken_in_turn_only_where_a_value_is_read_again() -> None:
    shape, kernel, wide = (32, 32, 16, 32, 32), (32, 64, 3, 3, 3), 50 << 20
    conv = CONV(stride=2, padding=1, output_padding=1)
    plans = [
        gpu_plan(Pipeline(conv, stage), shape, (kernel,), KINDS[kind], 90)
        for stage, kind in (
            (ct.Softmax("spatial"), "float32"),
            (ct.ReLU(), "float32"),
            (ct.Softmax("spatial"), "float16"),
        )
    ]
    assert [plan.samples_in(wide) for plan in plans] == [1, 32, 32]  # float16 computes it again
    assert plans[0].samples_in(40 << 20) == 32  # one is more than three quarters
    assert plans[0].samples_in(126 << 20) == 2
    small = gpu_plan(Pipeline(conv, ct.Softmax("spatial")), (64, 32, 2, 2, 2), (kernel,), KINDS["float32"], 90)
    assert small.samples_in(1 << 15) == 64  # one would leave the GPU idle


SMALL = {
    "conv-transpose-3d-asym-input-sq-kernel": ((1, 24, 2, 3, 5), (24, 7, 3, 3, 3)),
    "conv-transpose3d-max-max-sum": ((1, 9, 3, 3, 3), (9, 5, 2, 2, 2)),
    "conv-transpose3d-sum-layernorm-avgpool-gelu": ((2, 9, 2, 3, 4), (9, 12, 3, 3, 3)),
    "conv-transpose3d-avgpool-clamp-softmax-multiply": ((2, 9, 4, 5, 6), (9, 12, 3, 3, 3)),
    "conv-transpose3d-layernorm-gelu-scaling": ((1, 9, 2, 3, 4), (9, 12, 4, 4, 4)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("slug", SMALL)
def test_the_five_operators(slug: str, dtype: str) -> None:
    problem = PROBLEMS[slug]
    small = 0 if "max-max" in slug else 1  # more would leave too little of a small volume
    pipeline = problem.pipeline({**problem.sample, **{f"padding_{axis}": small for axis in "dhw"}})
    (batch, inputs, *space), (_, *kernel) = SMALL[slug]
    inputs = 2 if dtype == "float64" else inputs  # which its kernel takes one by one
    gpu_case(pipeline, (batch, inputs, *space), (inputs, *kernel), dtype).check()


@pytest.mark.parametrize("seed", range(16))
def test_drawn_pipelines(seed: int) -> None:
    """Any stages in any order; one in twenty has no kernels and says so."""
    rng, dtype = np.random.default_rng(1000 + seed), DTYPES[seed % 4]
    while True:
        case = drawn(rng, dtype, transposed=True)
        values = case.pipeline.trace(case.x.shape, [operand.shape for operand in case.operands]).values
        pools = sum(isinstance(stage, (MAXPOOL, AVGPOOL)) for stage in case.pipeline.stages)
        row_norm = any(getattr(stage, "over", "") == "width" for stage in case.pipeline.stages)
        if max(map(np.prod, values)) < (500 if pools else 3_000) and not row_norm:
            break
    on_gpu(case).check()


@pytest.mark.parametrize("seed", range(4))
def test_drawn_numbers_of_channels(seed: int) -> None:
    """Kernels of one convolution that hold all channels or blocks of them, more than a block of 64 or 128."""
    rng = np.random.default_rng(seed)
    inputs, channels = int(rng.integers(1, 20)), int(rng.integers(129, 260))
    stages = [(ct.InstanceNorm(), ct.LayerNorm()), (ct.LayerNorm(), ct.InstanceNorm(), ct.ReLU())][seed % 2]
    gpu_case(Pipeline(CONV(), *stages), (1, inputs, 1, 1, 3), (inputs, channels, 1, 1, 2), DTYPES[seed]).check()


def test_a_norm_along_the_width_has_no_kernel() -> None:
    with pytest.raises(NotOnGpu, match="along the width"):
        gpu_case(Pipeline(CONV(stride=2), ct.LayerNorm("width")), (1, 2, 2, 2, 2), (2, 2, 2, 2, 2)).run()


# --- numbers that are not finite --------------------------------------------------------------------------------------

BAD = {"input": 0, "weights": 1}


@pytest.mark.parametrize("where", BAD)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("groups", [1, 8], ids=["dense", "depthwise"])
def test_nan_and_infinity_stay_in_reach_of_their_taps(where: str, dtype: str, groups: int, rng: Any) -> None:
    """A dot multiplies the zeros around the input with an infinite weight; the answer must not show it."""
    channels = 2 if dtype == "float64" else 8  # which its kernel takes one by one
    conv = CONV(stride=(2, 1, 1), padding=(0, 1, 0), groups=min(groups, channels))  # taps leave the input on all sides
    case = gpu_case(Pipeline(conv, ct.ReLU()), (1, channels, 3, 3, 3), (channels, 2, 3, 3, 3), dtype)
    special = (np.nan, np.inf, -np.inf)
    arrays = [case.dtype.widen(case.x), case.dtype.widen(case.operands[0])]
    arrays[BAD[where]] = sprinkled(rng, arrays[BAD[where]], special)
    x, w = map(case.dtype.narrow, arrays)
    GpuCase(case.pipeline, case.dtype, x, (w,)).check()


@pytest.mark.parametrize("stages", [
    (CONV(stride=2, padding=1), ct.MaxPool3d(2), ct.Clamp(-1.0, 1.0)),
    (CONV(stride=2, padding=1), ct.Softmax("spatial")),
    (CONV(stride=2, padding=1), ct.Clamp(-1.0, 1.0), ct.Softmax("spatial")),
    (CONV(stride=2, padding=1), ct.LayerNorm(), ct.Max()),
    (CONV(stride=2, padding=1), ct.LogSumExp("spatial")),
], ids=lambda stages: "-".join(stage.name for stage in stages))  # fmt: skip
def test_nan_and_infinity_travel_through_stages(stages: Any, rng: Any) -> None:
    case = gpu_case(Pipeline(*stages), (2, 8, 3, 3, 3), (8, 2, 3, 3, 3))
    case.x[0, 0, 1, 1, 1], case.x[0, 3, 2, 0, 0] = np.nan, np.inf
    case.check()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("stage", [ct.Softmax, ct.LogSumExp], ids=lambda stage: stage.__name__)
@pytest.mark.parametrize("bias", [-1000.0, 1000.0])
def test_exponents_over_space_far_from_zero(bias: float, stage: Any, dtype: str) -> None:
    """Programs of the second residue of the depth have no positions, so their maximum is that of nothing."""
    case = gpu_case(Pipeline(CONV(stride=2, bias=True), stage("spatial")), (1, 2, 1, 2, 2), (2, 3, 1, 2, 2), dtype)
    case.operands[1][...] = bias
    case.check()


def test_a_negative_zero_is_not_taken_for_a_zero() -> None:
    case = gpu_case(Pipeline(CONV(), ct.Exp(), ct.Divide(0.0)), (1, 1, 1, 1, 2), (1, 1, 1, 1, 1))
    assert np.isposinf(case.run()).all()
    other = GpuCase(Pipeline(CONV(), ct.Exp(), ct.Divide(-0.0)), case.dtype, case.x, case.operands)
    assert np.isneginf(other.run()).all()


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_channels_last_and_strided_tensors(dtype: str) -> None:
    """Input and output in other memory: the same bits."""
    case = gpu_case(Pipeline(CONV(stride=2, padding=1), ct.GELU()), (2, 16, 2, 3, 4), (16, 5, 3, 3, 3), dtype)
    expected = case.run()
    x, operands = case.tensors()
    room = torch.full([2 * size for size in case.output], torch.nan, dtype=x.dtype, device=x.device)
    out = room[::2, 1::2, ::2, ::2, 1::2]
    got = run(case.pipeline, x.to(memory_format=torch.channels_last_3d), operands, out, choice=0)
    assert np.array_equal(stored(got.contiguous()), expected)
    assert int(room.isnan().sum()) == room.numel() - out.numel()  # nothing beside it is written


@pytest.mark.parametrize("channels", [16, 5])
@pytest.mark.parametrize("stages", [(ct.GELU(),), (ct.InstanceNorm(), ct.Add("tensor"))], ids=["one pass", "two"])
def test_results_in_channels_last_memory(stages: Any, channels: int) -> None:
    """Stored, and read again, along the channels instead of the positions: the same bits."""
    case = gpu_case(Pipeline(CONV(stride=2, padding=1), *stages), (2, 16, 2, 3, 2), (16, channels, 3, 3, 3))
    expected = case.run()
    x, operands = case.tensors()
    operands = [one.to(memory_format=torch.channels_last_3d) if one.dim() == 5 else one for one in operands]
    out = torch.empty_like(torch.from_numpy(expected), device=x.device, memory_format=torch.channels_last_3d)
    assert np.array_equal(stored(run(case.pipeline, x, operands, out, choice=0).contiguous()), expected)


@pytest.mark.parametrize("groups", [1, 2, 8], ids=["dense", "groups", "depthwise"])
def test_weights_with_strides(groups: int) -> None:
    """They are packed from wherever they lie."""
    case = gpu_case(Pipeline(CONV(stride=2, groups=groups)), (1, 8, 2, 2, 2), (8, 3, 2, 3, 2))
    x, (w,) = case.tensors()
    room = torch.full([2 * size for size in w.shape], torch.nan, device=w.device)
    for view in (room[1::2, ::2, 1::2, ::2, 1::2], torch.empty_like(w, memory_format=torch.channels_last_3d)):
        assert np.array_equal(stored(run(case.pipeline, x, [view.copy_(w)], choice=0)), case.run())


VECTORS: dict[str, Any] = {
    "in the convolution's kernel": (
        CONV(stride=2, bias=True), ct.Multiply("channel"), ct.PReLU(), ct.BatchNorm(affine=True), ct.LayerNorm(affine=True),
    ),
    "of statistics": (CONV(stride=2), ct.GroupNorm(3, affine=True), ct.Subtract("channel")),
}  # fmt: skip


@pytest.mark.parametrize("where", VECTORS)
@pytest.mark.parametrize("how", ["every second", "repeated"])
def test_vectors_with_strides(where: str, how: str) -> None:
    """A vector may be a part of a larger tensor, or one number that is seen everywhere."""
    case = gpu_case(Pipeline(*VECTORS[where]), (1, 8, 1, 2, 2), (8, 6, 2, 2, 2))
    x, operands = case.tensors()
    beside = torch.full((6,), torch.nan, device=x.device)
    for at, operand in enumerate(operands):
        if operand.dim() == 1:
            operands[at] = torch.stack([operand, beside], 1)[:, 0]
            if how == "repeated":
                operands[at] = operand[:1].clone().expand(operand.shape)
    got = run(case.pipeline, x, operands, choice=0)
    assert torch.equal(got, run(case.pipeline, x, [operand.clone() for operand in operands], choice=0))
    assert not got.isnan().any()


def test_other_configurations_give_the_same() -> None:
    pipeline = Pipeline(CONV(stride=2, padding=1, bias=True), ct.Softmax("spatial"), ct.Multiply("channel"))
    case = gpu_case(pipeline, (1, 20, 2, 2, 3), (20, 70, 1, 2, 1), "float16")
    expected = case.dtype.widen(case.run())
    got = case.dtype.widen(case.run(choice=None))
    np.testing.assert_allclose(got, expected, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["phases of unequal strides", "groups", "stages before the convolution"])
def test_64_bit_offsets_give_the_same_bits(name: str) -> None:
    stages, x, kernel, dtype = {**CONVOLUTIONS, **CHAINS}[name]
    case = gpu_case(Pipeline(*stages), x, kernel, dtype)
    assert np.array_equal(case.run(wide=True), case.run(wide=False))


def test_64_bit_offsets_with_infinite_weights() -> None:
    case = gpu_case(Pipeline(CONV(stride=2)), (1, 8, 1, 2, 2), (8, 3, 1, 3, 2))
    case.operands[0][3, 1, 0, 2, 1] = np.inf
    got = case.run(wide=True)
    np.testing.assert_array_equal(got, case.run(wide=False))
    assert np.isinf(got).any()
    assert not np.isnan(got).any()


def test_offsets_beyond_32_bits() -> None:
    """A sample of the input lies 2^31 numbers away from the other: decided by the strides of what is given."""
    case = gpu_case(Pipeline(CONV(stride=2)), (2, 8, 1, 2, 2), (8, 3, 1, 2, 2), "float16")
    x, operands = case.tensors()
    room = torch.empty(2**31 + 64, dtype=torch.float16, device=x.device)  # never touched but where x is
    far = room.as_strided(x.shape, (2**31, 1, 32, 16, 8))
    far.copy_(x)
    got = run(case.pipeline, far, operands, choice=0)
    assert np.array_equal(stored(got), case.run())


def test_addresses_beyond_32_bits_of_an_input_that_ends_before() -> None:
    """Positions beyond the input have a tap inside it, and are counted from their own place."""
    case = gpu_case(Pipeline(CONV(stride=1)), (2, 16, 1, 2, 2), (16, 3, 1, 2, 1), "float16")
    x, operands = case.tensors()
    room = torch.empty(2**31, dtype=torch.float16, device=x.device)  # never touched but where x is
    far = room.as_strided(x.shape, (2**31 - 112, 1, 64, 64, 16))
    far.copy_(x)
    assert np.array_equal(stored(run(case.pipeline, far, operands, choice=0)), case.run())


def test_a_pool_over_more_outputs_than_32_bits_count() -> None:
    x, w = torch.randn(1, 8, 1, 1, 60_000, device=DEVICE), torch.randn(8, 1, 1, 1, 1, device=DEVICE)
    pipeline = Pipeline(CONV(stride=(1, 1, 40_000)), MAXPOOL((1, 1, 1), (1, 1, 40_000 * 14_000)))
    got = run(pipeline, x, [w], choice=0)
    torch.testing.assert_close(got, (x[..., ::14_000] * w[None, :, 0]).sum(1, keepdim=True))


def test_an_empty_batch() -> None:
    got = run(Pipeline(CONV(stride=2)), torch.empty(0, 3, 2, 2, 2), [torch.empty(3, 4, 2, 2, 2)])
    assert got.shape == (0, 4, 4, 4, 4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_pointers_are_what_they_were_declared(dtype: str) -> None:
    """Compilation ahead of time goes by the declared types, a launch by those of the arrays."""
    rng, seen = np.random.default_rng(5), set()
    for _ in range(60):
        case = drawn(rng, dtype)
        try:
            plan = gpu_plan(case.pipeline, case.x.shape, tuple(one.shape for one in case.operands), case.dtype)
        except (NotOnGpu, UnsupportedStageError):
            continue
        for launch in launches(plan):
            for argument, value in zip(launch.text.arguments, launch.arguments, strict=True):
                if argument.type.startswith("*"):
                    assert argument.type == f"*{ELEMENTS.get(str(value.dtype).removeprefix('torch.'), 'i32')}"
                    seen.add(type(argument.array))
    assert {CallerName, FilledName, WeightsName, OperandName, PreparedName, PartialsName, StatisticName} <= seen


@pytest.mark.skipif(not INTERPRETED, reason="a GPU may add in another order")
def test_bfloat16_is_rounded_to_the_nearest() -> None:
    case = gpu_case(Pipeline(CONV(stride=2), ct.GELU()), (1, 9, 2, 2, 3), (9, 5, 2, 2, 2), "bfloat16")
    arrays = [case.dtype.widen(array).astype(np.float32) for array in (case.x, *case.operands)]
    wide = GpuCase(case.pipeline, KINDS["float32"], arrays[0], tuple(arrays[1:]))
    assert np.array_equal(case.run(), case.dtype.narrow(wide.run()))


def test_a_module_that_is_gone_leaves_no_source_behind() -> None:
    load.cache_clear()
    module = load("number = 1\n")
    name = module.__file__
    assert linecache.getline(name, 1) == "number = 1\n"
    load.cache_clear()
    del module
    assert name not in linecache.cache


def test_a_module_keeps_its_source_while_the_cache_forgets_it() -> None:
    first = load("number = 2\n")
    load.cache_clear()
    second = load("number = 2\n")
    name = first.__file__
    del first
    assert linecache.getline(name, 1) == "number = 2\n"
    assert second.number == 2


def test_tensors_share_memory_with_arrays() -> None:
    """What the cases rely on: a tensor of bfloat16 is the array's own bits."""
    array = np.array([0x3F80], np.uint16)
    assert tensor(array, "bfloat16").item() == 1.0


def test_several_convolutions_run_one_after_the_other() -> None:
    """With a value from one to another, one that is repeated, and a segment without a convolution."""
    stages = [CONV(stride=2, bias=True), ct.Keep("y"), ct.Mean("spatial"), CONV(), ct.Sigmoid(), ct.Multiply("y")]
    case = on_gpu(make(ct.Pipeline(*stages), (2, 3, 2, 3, 4), (3, 5, 3, 2, 2), "float32", 1, [(5, 5, 1, 1, 1)]))
    case.check()
