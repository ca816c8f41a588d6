"""Results computed box by box through several convolutions and statistics: the bits of those in memory, each box from
what it depends on alone."""

from __future__ import annotations

from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np
import pytest
from helpers.chunked import LOCAL, OVER_SPACE, SEVERAL, W, X, arrays_for, same_bits

import convt3d
from convt3d.cpu.plan.choice import Options
from convt3d.front.chain import Chain, Known, Link, Small, Value, chain_of, walked
from convt3d.front.partial import combine, kind_of, statistics
from convt3d.spec.stage import Stage

C = convt3d


def computed(pipeline: C.Pipeline, x: Any, operands: list[Any], cuts: Any, options: Options = Options()) -> Any:  # noqa: B008
    """The result from boxes between the cuts; what a box does not read is NaN."""
    arrays = [
        array.reshape((1,) * (5 - array.ndim) + array.shape) if slot.operand.kind == "tensor" else array
        for slot, array in zip(pipeline.slots, operands, strict=True)
    ]
    source = Value(x.shape, x.dtype)
    result = chain_of(C.Pipeline(*pipeline.stages), source, arrays, options)

    def boxes(chain: Chain, known: Known) -> Any:
        for value in chain.smalls:
            known.array(value)
        axes = [list(pairwise(sorted({0, size, *(n for n in cuts if n < size)}))) for size in chain.output[2:]]
        for sample, spans in product(range(x.shape[0]), product(*axes)):
            part = chain.part(((0, chain.output[1]), *spans))
            ranges = [take.ranges for take in chain.reads(part)]
            read = np.full((1, *(sum(high - low for low, high in each) for each in ranges)), np.nan, x.dtype)
            numbers = [np.concatenate([np.arange(low, high) for low, high in each]) for each in ranges]
            read[0] = x[sample][np.ix_(*numbers)]
            assert chain.held(part) > 0
            yield sample, spans, chain.compute(part, read, sample, known)

    def walk(stage: Stage, value: Link) -> Any:
        found: list[list[Any]] = [[] for _ in x]
        for sample, _, made in boxes(chains[value], known):
            found[sample].append(statistics(kind_of(stage), made))
        return np.concatenate([combine(kind_of(stage), own) for own in found])

    chains = {value: Chain(value, source) for value in walked(result)}
    known = Known(walk)
    if isinstance(result, Small):
        return known.array(result)
    assert isinstance(result, Link)
    out = np.full(result.shape, np.nan, x.dtype)
    for sample, (d, h, w), made in boxes(Chain(result, source), known):
        assert made.dtype == x.dtype
        out[sample, :, slice(*d), slice(*h), slice(*w)] = made[0]
    return out


SEVERAL_MORE: dict[str, tuple[C.Pipeline, tuple[tuple[int, ...], ...]]] = {
    "both ends of the value between": (
        C.Pipeline(C.Conv3d(padding=1), C.ReLU(), C.Conv3d(padding=2, padding_mode="circular"), C.Add("x")),
        (W, (8, 8, 5, 5, 5)),
    ),
    "three kernels that read the input anew": (
        C.Pipeline(C.Conv3d(padding=1), C.Keep("a"), C.Recall("x"), C.Conv3d(padding=1), C.Multiply("a"), C.Conv3d()),
        (W, W, W),
    ),
    "strides, dilation and pools": (
        C.Pipeline(
            C.AvgPool3d(3, 1, 1),
            C.Conv3d(padding=2, dilation=2, stride=(1, 2, 1)),
            C.MaxPool3d(2, 1, 1),
            C.ConvTranspose3d(stride=(1, 2, 3), padding=1),
            C.GELU(),
            C.Conv3d(padding=(3, 0, 1), stride=(2, 1, 1)),
        ),
        (W, W, W),
    ),
    "voxels that depend on nothing": (
        C.Pipeline(C.Conv3d(padding=5), C.ConvTranspose3d(stride=3, output_padding=2), C.Conv3d(stride=5, bias=True)),
        ((8, 8, 1, 1, 1), (8, 8, 1, 1, 1), (8, 8, 1, 2, 1)),
    ),
}


@pytest.mark.parametrize("name", [*SEVERAL, *SEVERAL_MORE])
@pytest.mark.parametrize(("algorithm", "cuts"), [("auto", (4, 8)), ("direct", (1, 5, 7))])
def test_several_convolutions_have_the_bits_of_the_whole(name: str, algorithm: str, cuts: tuple[int, ...]) -> None:
    pipeline, weights = {**SEVERAL, **SEVERAL_MORE}[name]
    x, *operands = arrays_for(pipeline, X, weights)
    operands = [o[:1, :, :1, :1, :1] if o.ndim == 5 and o.shape not in weights else o for o in operands]
    expected = pipeline(x, *operands, algorithm=algorithm)
    assert same_bits(computed(pipeline, x, operands, cuts, Options(algorithm)), expected)


@pytest.mark.parametrize("name", LOCAL)
def test_one_convolution_has_the_bits_of_the_whole(name: str) -> None:
    pipeline, shape, weight = LOCAL[name]
    x, *operands = arrays_for(pipeline, shape, weight)
    if any(operand.shape == x.shape for operand in operands):
        return  # a tensor of the value's shape: for dask
    assert same_bits(computed(pipeline, x, operands, (5, 13)), pipeline(x, *operands))


STATISTICS_OF_SEVERAL: dict[str, tuple[C.Pipeline, tuple[tuple[int, ...], ...]]] = {
    "norms behind both": (
        C.Pipeline(
            C.Conv3d(padding=1),
            C.InstanceNorm(affine=True),
            C.LeakyReLU(),
            C.Conv3d(padding=1),
            C.GroupNorm(2),
            C.Add("x"),
            C.ReLU(),
        ),
        (W, W),
    ),
    "squeeze and excite by a convolution": (
        C.Pipeline(
            C.Conv3d(padding=1), C.Keep("y"), C.Mean("spatial"), C.Conv3d(bias=True), C.Sigmoid(), C.Multiply("y")
        ),
        (W, (8, 8, 1, 1, 1)),
    ),
    "the input's own statistics": (
        C.Pipeline(C.InstanceNorm(), C.Conv3d(padding=1), C.ReLU(), C.ConvTranspose3d(stride=2), C.Softmax("spatial")),
        (W, W),
    ),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", [*OVER_SPACE, *STATISTICS_OF_SEVERAL])
def test_statistics_of_boxes_are_those_of_the_whole(name: str, dtype: Any) -> None:
    pipeline, weights = STATISTICS_OF_SEVERAL[name] if name in STATISTICS_OF_SEVERAL else (OVER_SPACE[name], (W,))
    x, *operands = arrays_for(pipeline, X, weights if len(weights) > 1 else W, dtype)
    expected = pipeline(x, *operands)
    found = computed(pipeline, x, operands, (4, 9))
    assert found.dtype == dtype
    scale = np.abs(expected[np.isfinite(expected)].astype(np.float64)).max()
    atol = {np.float32: 2e-5, np.float16: 4e-3}[dtype] * scale
    np.testing.assert_allclose(found.reshape(expected.shape).astype("f8"), expected.astype("f8"), atol=atol, rtol=0)


def test_a_box_reads_what_it_depends_on_and_no_more() -> None:
    pipeline = C.Pipeline(C.Conv3d(padding=1), C.ReLU(), C.Conv3d(padding=1), C.Conv3d(padding=1))
    operands = [np.ones((2, 2, 3, 3, 3), np.float32)] * 3
    source = Value((1, 2, 40, 40, 40), np.dtype(np.float32))
    chain = Chain(chain_of(pipeline, source, operands, Options("direct")), source)  # type: ignore[arg-type]
    part = chain.part(((0, 2), (10, 20), (0, 10), (30, 40)))
    assert [take.ranges for take in chain.reads(part)[1:]] == [((7, 23),), ((0, 13),), ((27, 40),)]
    between = [prod(h - l for l, h in piece.part.computed[1:]) for _, (piece,) in part.steps]  # noqa: E741
    assert between == [14 * 12 * 12, 12 * 11 * 11, 10 * 10 * 10]
