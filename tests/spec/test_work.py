"""What a pipeline needs: exact work of the five problems, and regions that hold what the output depends on, no more."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from helpers.chains import Chain, chains, operand_data, run
from helpers.compare import assert_same
from helpers.data import signed
from helpers.problems import PROBLEMS, Problem
from hypothesis import given, settings

from convt3d.spec import reference
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.reference import evaluate
from convt3d.spec.stages import (
    GELU,
    Add,
    AvgPool3d,
    BatchNorm,
    ConvTranspose3d,
    GroupNorm,
    InstanceNorm,
    Keep,
    LayerNorm,
    MaxPool3d,
    Mean,
    Multiply,
    Sigmoid,
    Softmax,
    Sum,
)
from convt3d.spec.work import Region, count, needed_regions, reach

# Input-tap pairs of each axis that land in the outputs read; see the comments for the taps that fall outside.
NEEDED = {
    "conv-transpose-3d-asym-input-sq-kernel": 2 * 8 * 24 * 48 * (96 * 3) ** 3,
    # Pools 2 and 3 read outputs 0..59 of 63. 160 pairs, 3 + 3 fall into the padding, 5 beyond the last output read.
    "conv-transpose3d-max-max-sum": 2 * 16 * 64 * 32 * 149**3,
    # Tap 0 of input 0 falls into the padding.
    "conv-transpose3d-sum-layernorm-avgpool-gelu": 2 * 32 * 64 * 32 * 47 * 95**2,
    "conv-transpose3d-avgpool-clamp-softmax-multiply": 2 * 32 * 64 * 32 * 47 * 95**2,
    # Tap 0 of the first and tap 3 of the last input fall into the padding.
    "conv-transpose3d-layernorm-gelu-scaling": 2 * 32 * 64 * 32 * 62 * 126**2,
}
NOMINAL = {
    "conv-transpose-3d-asym-input-sq-kernel": 2 * 8 * 24 * 96**3 * 48 * 27,
    "conv-transpose3d-max-max-sum": 2 * 16 * 64 * 32**3 * 32 * 125,
    "conv-transpose3d-sum-layernorm-avgpool-gelu": 2 * 32 * 64 * 16 * 32**2 * 32 * 27,
    "conv-transpose3d-avgpool-clamp-softmax-multiply": 2 * 32 * 64 * 16 * 32**2 * 32 * 27,
    "conv-transpose3d-layernorm-gelu-scaling": 2 * 32 * 64 * 16 * 32**2 * 32 * 64,
}
PRINTED = {  # nominal / needed GFLOP as the operators' table prints it, with its number of digits
    "conv-transpose-3d-asym-input-sq-kernel": ("440.3", "440.3"),
    "conv-transpose3d-max-max-sum": ("268.4", "217"),
    "conv-transpose3d-sum-layernorm-avgpool-gelu": ("58.0", "55.6"),
    "conv-transpose3d-avgpool-clamp-softmax-multiply": ("58.0", "55.6"),
    "conv-transpose3d-layernorm-gelu-scaling": ("137.4", "129"),
}


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.slug)
def test_work_of_the_five_problems(problem: Problem) -> None:
    shapes = problem.pipeline.operand_shapes(problem.x, problem.kernel)
    trace = problem.pipeline.trace(problem.x, shapes)
    assert trace.output == problem.output
    assert problem.pipeline.operand_names == problem.operands
    work = count(problem.pipeline, trace)
    assert work.needed == NEEDED[problem.slug]
    assert work.nominal == NOMINAL[problem.slug]
    for flops, printed in zip((work.nominal, work.needed), PRINTED[problem.slug], strict=True):
        digits = len(printed.partition(".")[2])
        assert abs(flops / 1e9 - float(printed)) <= 0.6 * 10**-digits


def test_groups_divide_the_needed_work_only() -> None:
    """Each output channel meets Cin / groups inputs; the nominal figure is the authors' formula as it stands."""
    trace = Pipeline(ConvTranspose3d(groups=3)).trace((2, 6, 1, 2, 3), [(6, 4, 2, 1, 3)])
    work = count(Pipeline(ConvTranspose3d(groups=3)), trace)
    assert work.needed == 2 * 2 * 12 * 2 * (1 * 2) * (2 * 1) * (3 * 3)
    assert work.nominal == 2 * 2 * 12 * (1 * 2 * 3) * 6 * (2 * 1 * 3)


def test_voxels_without_a_tap_cost_nothing() -> None:
    """kernel 1, stride 3: only every third output has a multiplication, and a pool of 1 in 3 may read none of them."""
    hit = Pipeline(ConvTranspose3d(stride=3), MaxPool3d(1, 3))
    miss = Pipeline(ConvTranspose3d(stride=3, padding=(0, 0, 1), output_padding=2), MaxPool3d(1, 3))
    x, w = (1, 1, 2, 3, 5), [(1, 1, 1, 1, 1)]
    assert count(hit, hit.trace(x, w)).needed == 2 * 2 * 3 * 5
    assert count(miss, miss.trace(x, w)).needed == 0


CASES = [
    pytest.param(
        Pipeline(ConvTranspose3d(stride=2, padding=1, bias=True), MaxPool3d(2), MaxPool3d(3), Sum()),
        (3, 2, 2, 3, 3),
        id="max-max-sum: the odd tail of both pools is not needed",
    ),
    pytest.param(
        Pipeline(ConvTranspose3d(stride=(1, 2, 3)), AvgPool3d((1, 2, 1), (2, 3, 4))),
        (2, 3, 3, 4, 3),
        id="gaps between windows (stride > kernel) are not needed",
    ),
    pytest.param(
        Pipeline(
            ConvTranspose3d(stride=2, padding=1, output_padding=1),
            MaxPool3d(3, 2, 1, ceil_mode=True),
            AvgPool3d((1, 2, 1), 2),
        ),
        (2, 2, 3, 3, 2),
        id="overlapping padded windows below a pool with gaps",
    ),
    pytest.param(
        Pipeline(
            AvgPool3d(2), ConvTranspose3d(stride=2, padding=1, output_padding=1), Softmax("spatial"), MaxPool3d(2, 3)
        ),
        (2, 3, 3, 2, 3),
        id="pool before the convolution; softmax needs every voxel",
    ),
    pytest.param(
        Pipeline(ConvTranspose3d(), Keep("y"), AvgPool3d(2), MaxPool3d((2, 1, 2)), Mean("spatial"), Multiply("y")),
        (2, 2, 2, 3, 2),
        id="kept value: whole although the pools drop their tail",
    ),
    pytest.param(
        Pipeline(ConvTranspose3d(), MaxPool3d(2, 3), Keep("y"), Sigmoid(), Add("y"), MaxPool3d((1, 1, 2))),
        (2, 2, 1, 2, 3),
        id="kept value: only what survives the second pool",
    ),
    pytest.param(
        Pipeline(
            MaxPool3d((1, 1, 2)), Keep("p"), Mean("spatial"), ConvTranspose3d(), MaxPool3d((1, 1, 1), 2), Add("p")
        ),
        (2, 2, 1, 1, 1),
        id="label across the convolution, repeated from size 1",
    ),
    pytest.param(
        Pipeline(ConvTranspose3d(padding=1), Add("x"), MaxPool3d((2, 1, 2))),
        (3, 3, 3, 3, 3),
        id="the label x: residual",
    ),
    pytest.param(
        Pipeline(ConvTranspose3d(padding=(0, 0, 1)), Mean("spatial"), Add("x")),
        (2, 2, 1, 1, 1),
        id="the label x: whole although the padding crops what the convolution takes of it",
    ),
    pytest.param(
        Pipeline(ConvTranspose3d(), Keep("y"), Sigmoid(), Multiply("y"), MaxPool3d(2), Mean("spatial"), Add("y")),
        (2, 2, 1, 2, 3),
        id="kept value used twice: the larger use counts, not the last one seen",
    ),
    pytest.param(
        Pipeline(ConvTranspose3d(), MaxPool3d((1, 1, 2)), MaxPool3d(1, (1, 1, 2)), Keep("y"), Sum("spatial"), Add("y")),
        (2, 2, 1, 1, 5),
        id="every second window",
    ),
    pytest.param(Pipeline(ConvTranspose3d(), LayerNorm("width"), MaxPool3d(2)), (2, 2, 2, 2, 2), id="rows are whole"),
    pytest.param(Pipeline(ConvTranspose3d(), LayerNorm(), MaxPool3d(2)), (2, 2, 2, 2, 2), id="voxels by themselves"),
    pytest.param(Pipeline(ConvTranspose3d(), GroupNorm(2), MaxPool3d(2)), (2, 4, 2, 2, 2), id="groups take everything"),
    pytest.param(Pipeline(ConvTranspose3d(), InstanceNorm(), AvgPool3d(2)), (2, 2, 2, 2, 2), id="channels take space"),
    pytest.param(Pipeline(ConvTranspose3d(), BatchNorm(), GELU(), MaxPool3d(2, 3)), (2, 2, 2, 2, 3), id="pointwise"),
]


def _mask(region: Region, shape: tuple[int, ...]) -> Any:
    """True inside the region."""
    inside = np.ones(shape, dtype=bool)
    for axis, ranges in enumerate(region, start=1):
        member = np.zeros(shape[axis], dtype=bool)
        assert all(one[1] < two[0] for one, two in pairwise(ranges)), "touching ranges are one"
        for low, high in ranges:
            assert 0 <= low < high <= shape[axis]
            member[low:high] = True
        inside &= member.reshape([-1 if i == axis else 1 for i in range(5)])
    return inside


def _poison(at: Any) -> Any:
    return lambda value: np.where(at, np.nan, value)


SIZES = {2: (1, 2, 3, 4, 5), 3: (2, 3, 5, 4, 7)}  # input by its channels


@pytest.mark.parametrize(("pipeline", "kernel"), CASES)
def test_regions_hold_what_the_output_depends_on_and_no_more(
    pipeline: Pipeline, kernel: tuple[int, ...], rng: np.random.Generator
) -> None:
    """NaN outside a region changes nothing; a single NaN inside always shows (kernels here are >= stride)."""
    shape = SIZES[kernel[0]]
    operands = operand_data(pipeline, shape, kernel, rng)
    trace = pipeline.trace(shape, [a.shape for a in operands])
    x = signed(rng, shape)
    expected = evaluate(pipeline, x, operands)
    assert np.isfinite(expected).all()
    assert_same(run(pipeline, x, operands), expected, 0.0)
    for index, (region, value_shape) in enumerate(zip(needed_regions(pipeline, trace), trace.values, strict=True)):
        inside = _mask(region, value_shape)
        got = run(pipeline, x, operands, {index: _poison(~inside)})
        assert_same(got, expected, 0.0)
        spots = np.argwhere(inside)
        for spot in rng.choice(spots, min(10, len(spots)), replace=False):
            at = np.zeros(value_shape, dtype=bool)
            at[tuple(spot)] = True
            assert np.isnan(run(pipeline, x, operands, {index: _poison(at)})).any(), (index, spot)


@settings(max_examples=100)
@given(chains(most=5))
def test_outside_the_regions_of_any_chain_nothing_matters(chain: Chain) -> None:
    trace = chain.pipeline.trace(chain.x.shape, [a.shape for a in chain.operands])
    expected = evaluate(chain.pipeline, chain.x, chain.operands)
    for index, (region, shape) in enumerate(zip(needed_regions(chain.pipeline, trace), trace.values, strict=True)):
        outside = ~_mask(region, shape)
        if outside.any():
            assert_same(run(chain.pipeline, chain.x, chain.operands, {index: _poison(outside)}), expected, 0.0)


@pytest.mark.parametrize(("pipeline", "kernel"), CASES)
def test_nothing_beyond_reach_is_read(
    pipeline: Pipeline, kernel: tuple[int, ...], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = SIZES[kernel[0]]
    operands = operand_data(pipeline, shape, kernel, rng)
    trace = pipeline.trace(shape, [a.shape for a in operands])
    d, h, w = reach(pipeline, trace)
    x = signed(rng, shape)
    expected = evaluate(pipeline, x, operands)
    true_meaning = reference.MEANINGS[ConvTranspose3d]

    def cut(*arguments: Any, least: tuple[int, int, int]) -> Any:
        y = true_meaning(*arguments)
        y[:, :, least[0] :], y[:, :, :, least[1] :], y[..., least[2] :] = np.nan, np.nan, np.nan
        return y

    def patched(least: tuple[int, int, int]) -> Any:
        monkeypatch.setitem(reference.MEANINGS.entries, ConvTranspose3d, lambda *a: cut(*a, least=least))
        return evaluate(pipeline, x, operands)

    assert_same(patched((d, h, w)), expected, 0.0)
    for shorter in ((d - 1, h, w), (d, h - 1, w), (d, h, w - 1)):
        assert np.isnan(patched(shorter)).any(), f"reach {(d, h, w)} is larger than needed: {shorter} would do"


def test_regions_of_big_shapes_are_found_at_once() -> None:
    """Windows that touch are one range, however many they are."""
    pipeline = Pipeline(ConvTranspose3d(stride=2), MaxPool3d((1, 1, 2)), AvgPool3d((1, 1, 3)))
    trace = pipeline.trace((1, 1, 1, 1, 2**40), [(1, 1, 1, 1, 2)])
    assert reach(pipeline, trace) == (1, 1, 2**41 // 6 * 6)
    assert count(pipeline, trace).needed == 2 * (2**41 // 6 * 6)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_a_convolution_reads_the_channels_of_its_groups(groups: int, rng: np.random.Generator) -> None:
    """No stage asks for part of the channels yet, so `reads` is asked here: exactly the channels whose NaN shows."""
    stage, shape, kernel = ConvTranspose3d(groups=groups), (1, 6, 1, 2, 1), (6, 2, 1, 2, 1)
    x, w = signed(rng, shape), signed(rng, kernel)
    outputs = 2 * groups
    for low in range(outputs):
        for high in range(low + 1, outputs + 1):
            (first, last), *_ = stage.reads(((low, high), (0, 1), (0, 3), (0, 1)), shape, [kernel])
            changed = []
            for channel in range(6):
                poisoned = x.copy()
                poisoned[:, channel] = np.nan
                changed.append(bool(np.isnan(evaluate(Pipeline(stage), poisoned, [w])[:, low:high]).any()))
            assert [first <= channel < last for channel in range(6)] == changed
