"""What a GpuPlan decides from sizes and types alone: kernels, memory, offsets, configurations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import gcd, prod
from typing import Any

import pytest

import convt3d as ct
from convt3d.gpu import plan as gpu_plans
from convt3d.gpu.config import GENERATIONS, MOST_CHANNELS, MOST_LOADED, MOST_POOLED, Demand, choose, configurations
from convt3d.gpu.explain import explain
from convt3d.gpu.geometry import GpuAxis
from convt3d.gpu.pieces import PreparedName
from convt3d.gpu.plan import gpu_plan
from convt3d.gpu.steps import GpuFinish, GpuKernel, GpuStep
from convt3d.gpu.text.module import module
from convt3d.plan.names import INPUT, OUTPUT
from convt3d.plan.sweeps import Op
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.problems import PROBLEMS

CONV = ct.ConvTranspose3d
SLUGS = list(PROBLEMS)


def plan(
    pipeline: Pipeline, x: tuple[int, ...], kernel: tuple[int, ...], dtype: str = "float32", **options: Any
) -> Any:
    return gpu_plan(pipeline, x, pipeline.operand_shapes(x, kernel), DTYPES[dtype], **options)


plan_of = plan


def of_problem(slug: str, dtype: str, **options: Any) -> Any:
    problem = PROBLEMS[slug]
    shapes = problem.shapes(problem.benchmark)
    return plan(problem.pipeline(problem.benchmark), shapes["input"], shapes["kernel"], dtype, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("slug", SLUGS)
def test_the_operators_keep_nothing_of_full_size(slug: str, dtype: str) -> None:
    made = of_problem(slug, dtype)
    assert made.stored == ()
    assert not made.wide
    convolutions = [kernel for kernel in made.kernels if kernel.piece.conv is not None and not kernel.guarded]
    softmax_again = "softmax" in slug and dtype in ("float16", "bfloat16")  # the output could not hold the sums' type
    assert len(convolutions) == (2 if softmax_again else 1)
    partials = sum(step.shape[0] * step.shape[1] * step.parts for step in made.steps if isinstance(step, GpuFinish))
    assert partials <= prod(made.trace.output) / 32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_text_does_not_depend_on_sizes_or_numbers(dtype: str) -> None:
    """One compilation serves all strides, windows and scalars of a structure."""
    texts = set()
    for stride, pad, size, scale in ((1, 0, 9, 0.5), (2, 1, 40, 1.0), (3, 2, 33, -2.0)):
        pipe = Pipeline(CONV(stride=stride, padding=pad), ct.MaxPool3d(stride + 1), ct.Multiply(scale))
        texts.add(module(plan(pipe, (2, 16, size, size, size), (16, 20, 3, 3, stride + 1), dtype)).text)
    assert len(texts) == 1


def test_offsets_are_64_bit_when_an_array_needs_it_and_only_then() -> None:
    """The convolution's own output may be as large as it likes: it is never stored."""
    plan = partial(plan_of, precision="ieee")  # others have more numbers in memory
    pooled = Pipeline(CONV(stride=2), ct.MaxPool3d(8))
    assert not plan(pooled, (1, 8, 128, 512, 512), (8, 64, 2, 2, 2)).wide
    assert plan(Pipeline(CONV(stride=2)), (1, 8, 128, 512, 512), (8, 8, 2, 2, 2)).wide  # 2^31 outputs
    assert not plan(Pipeline(CONV(stride=2)), (1, 8, 128, 512, 512), (8, 7, 2, 2, 2)).wide
    assert plan(Pipeline(CONV(stride=1)), (2, 1, 1024, 1024, 1024), (1, 1, 1, 1, 1)).wide
    assert plan(
        Pipeline(CONV(stride=2**17)), (1, 8, 1, 1, 1), (8, 8, 2, 2, 1)
    ).wide  # square of the stride, for the taps
    assert not plan(
        Pipeline(CONV(stride=2, groups=10_000)), (1, 10_000, 2, 2, 2), (10_000, 1, 3, 3, 3)
    ).wide  # 270 000 weights
    for taps, wide in ((1, False), (17, True)):  # positions beside an input that just fits
        assert plan(Pipeline(CONV(stride=1)), (1, 16, 2, 8192, 8191), (16, 1, 1, taps, 1)).wide is wide
    pooled = Pipeline(CONV(stride=(1, 1, 1000)), ct.MaxPool3d((1, 1, 1), (1, 1, 1000)))
    assert plan(pooled, (1, 8, 1, 1, 2_200_000), (8, 1, 1, 1, 1)).wide  # 2.2e9 outputs of the convolution
    counted = Pipeline(CONV(stride=1), ct.Mean("spatial"))
    assert plan(counted, (1, 1, 1, 1, 2**30), (1, 1, 2, 1, 1)).wide  # 2^31 positions of which nothing is stored
    assert not plan(counted, (1, 1, 1, 1, 2**29), (1, 1, 3, 1, 1)).wide
    text = module(plan(Pipeline(CONV(stride=2)), (1, 8, 8, 8, 8), (8, 8, 2, 2, 2))).text
    assert "int64" not in text


def test_the_value_before_a_statistic_is_kept_in_the_output_or_computed_again() -> None:
    in_output = plan(Pipeline(CONV(stride=2), ct.InstanceNorm(), ct.ReLU()), (1, 8, 4, 4, 4), (8, 8, 2, 2, 2))
    assert [kernel.piece.source for kernel in in_output.kernels if not kernel.guarded] == [
        INPUT,
        PreparedName(0),
        OUTPUT,
    ]
    again = plan(Pipeline(CONV(stride=2), ct.InstanceNorm(), ct.MaxPool3d(2)), (1, 8, 4, 4, 4), (8, 8, 2, 2, 2))
    assert [kernel.piece.dest for kernel in again.kernels if not kernel.guarded] == [PreparedName(0), None, OUTPUT]
    assert again.stored == in_output.stored == ()


@pytest.mark.parametrize("precision", ["ieee", "tf32", "bf16x6"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_kernels_of_one_convolution_agree_on_its_memory(dtype: str, precision: str) -> None:
    """One kernel holds all channels, the other blocks of them; 416 inputs are whole blocks of 32, but not of 64."""
    pipe = Pipeline(CONV(stride=1), ct.InstanceNorm(), ct.LayerNorm(), ct.MaxPool3d(2))
    for channels in (1, 17, 64, 65, 130, 200, 256):
        for inputs in (1, 8, 40, 416):
            made = plan(pipe, (1, inputs, 4, 4, 4), (inputs, channels, 2, 2, 2), dtype, precision=precision)
            kernels = [kernel for kernel in made.kernels if kernel.piece.conv is not None]
            assert len({kernel.piece.source for kernel in kernels if not kernel.guarded}) == 1
            assert len({(kernel.memory, kernel.width, kernel.weight_strides) for kernel in kernels}) == 1
            for kernel in kernels:
                assert kernel.width >= kernel.columns * kernel.config.channels
                assert kernel.memory.filled % kernel.config.inputs == 0


def test_what_needs_memory_says_so() -> None:
    made = plan(Pipeline(CONV(stride=2, groups=2), ct.LayerNorm()), (1, 16, 4, 4, 4), (16, 8, 2, 2, 2))
    assert [shape for _, shape in made.stored] == [(1, 16, 8, 8, 8)]


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["dot", "plain", "depthwise", "load"])
def test_there_is_a_tile_for_every_need(generation: int, dtype: str, kind: str) -> None:
    """Enough threads for the registers, at most 1024 of them, and stages that fit the shared memory (in bytes)."""
    shared = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}[generation]
    for pooled in (False, True):
        most = MOST_LOADED if kind == "load" else MOST_POOLED if pooled else MOST_CHANNELS
        for channels in (1, 3, 16, 17, 64, 100, most):
            for precision in ("ieee", "tf32", "bf16x6"):
                for inputs in (1, 3, 16, 40, 48, 320):
                    reduced, wide = channels % 3 == 0, inputs % 3 == 0
                    need = Demand(
                        kind, DTYPES[dtype], precision, channels, inputs, True, pooled, reduced, False, wide, 1000, 8
                    )
                    tiles = configurations(generation, need)
                    assert tiles
                    assert len(tiles) == len(set(tiles))
                    for tile in tiles:
                        assert tile.channels >= channels
                        assert 4 <= tile.warps <= 16
                        assert tile.warps & (tile.warps - 1) == 0
                        size = 6 if precision == "bf16x6" and dtype == "float32" else DTYPES[dtype].itemsize
                        bytes_ = (tile.positions + tile.channels) * tile.inputs * size
                        assert kind != "dot" or bytes_ * tile.stages <= shared


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_tiles_are_large_enough_for_the_newest_tensor_cores(generation: int, dtype: str) -> None:
    """wgmma and tcgen05 take 64 positions, and mma 16; more than 256 channels leave room for 16 only."""
    for channels in (1, 16, 64, 128, 200, 256, 257, MOST_CHANNELS):
        for pooled in (False, True) if channels <= MOST_POOLED else (False,):
            need = Demand("dot", DTYPES[dtype], "ieee", channels, 64, True, pooled, False, False, False, 1, 1)
            least = 64 if generation >= 90 and channels <= 256 else 16
            assert all(tile.positions >= least and tile.warps in (4, 8) for tile in configurations(generation, need))


def test_small_problems_get_more_programs_and_large_ones_larger_tiles() -> None:
    pipe = Pipeline(CONV(stride=2))
    small, large = (plan(pipe, (1, 32, n, n, n), (32, 64, 3, 3, 3)).kernels[0] for n in (8, 64))
    assert small.config.positions < large.config.positions
    assert small == plan(pipe, (1, 32, 8, 8, 8), (32, 64, 3, 3, 3)).kernels[0]


def test_a_larger_tile_that_costs_no_time_is_taken() -> None:
    """On 132 processors. With 256 programs of 64 positions the busiest has two; with 128 of twice as many it has one,
    as many warps, and half as many weights to read. Kernels without dot keep two programs for each."""

    def taken(positions: int, kind: str = "dot") -> tuple[int, int]:
        need = Demand(kind, DTYPES["float32"], "bf16x6", 64, 32, True, True, False, False, False, positions, 1)
        config = choose(90, need)
        return config.positions, config.warps

    assert taken(64 * 256) == taken(64 * 133) == (128, 8)
    assert taken(64 * 132) == (64, 4)  # one for each: larger ones would leave half of the processors idle
    assert taken(64 * 300) == (64, 4)  # three of them are less than two of the larger
    assert taken(128 * 264) == (128, 8)
    assert taken(64 * 256, "plain") == (32, 8)


@pytest.mark.parametrize("jump", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("dilation", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("stride", [1, 2, 3, 4, 6])
def test_taps_of_an_axis(stride: int, dilation: int, jump: int) -> None:
    """The progression a kernel walks is what the definition says: o + padding = i * stride + k * dilation."""
    axis = GpuAxis(20, 60, 30, 5, stride, 2, dilation, 3, jump, 1)
    for p in range(axis.ends):
        q, a = divmod(p, axis.pace)
        for j in range(axis.window):
            o = jump * p + j - axis.pad
            wanted = {(k, (o + 2 - k * dilation) // stride) for k in range(5) if (o + 2 - k * dilation) % stride == 0}
            at = a * jump + j + axis.number("shift")
            rest, common = at % stride, gcd(stride, dilation)
            first = rest // common * axis.inverse % axis.hop
            met = rest % common == 0
            taps = range(first, 5, axis.hop) if met else ()
            start = (at - first * dilation) // stride
            assert {(k, axis.step * q + start - n * axis.back) for n, k in enumerate(taps)} == wanted


def test_modules_list_their_arguments() -> None:
    made = of_problem("conv-transpose3d-avgpool-clamp-softmax-multiply", "float32")
    code = module(made)
    compile(code.text, "kernels.py", "exec")
    assert len(code.kernels) == len(made.steps)
    for step, kernel in zip(made.steps, code.kernels, strict=True):
        head = kernel.text.partition('"""')[0]
        assert all(argument.name in head for argument in kernel.arguments)
        assert not isinstance(step, GpuKernel) or kernel.grid <= step.programs
    assert set(code.constants) == {0.0, 1.0}


@dataclass(frozen=True)
class Unknown(Op):
    """A step that nobody has heard of."""


def test_an_unknown_step_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a sweep, and of a plan: none is passed over in silence."""
    pipeline, shapes = Pipeline(CONV(stride=2)), ((1, 8, 4, 4, 4), (8, 8, 2, 2, 2))
    made = plan(pipeline, *shapes)
    odd = replace(made, steps=(*made.steps, GpuStep()))
    for use in (module, explain):
        with pytest.raises(NotImplementedError):
            use(odd)
    cut = gpu_plans.cut
    monkeypatch.setattr(gpu_plans, "cut", lambda *given: [replace(cut(*given)[0], ops=(Unknown(),))])
    with pytest.raises(NotImplementedError, match="the GPU has no piece for Unknown"):
        gpu_plan.__wrapped__(pipeline, shapes[0], (shapes[1],), DTYPES["float32"])
