"""Sizes at the edge of what a tile, a vector or a stride can do; each is a case that once was, or could be, wrong."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.draws import AWKWARD_WIDTHS, Case, make, relaid

import convt3d as ct
from convt3d import ConvTranspose3d, Keep, LayerNorm, Pipeline, ReLU
from convt3d.cpu.plan.machine import machine

ISAS = ["avx512", "avx2", "baseline"] if machine().isa == "avx512" else [machine().isa]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_widths_around_whole_vectors(stride: int, dtype: str, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last vector of a row is cut; strides 1 and 2 have code of their own, and so has a last step of a row."""
    monkeypatch.setenv("CONVT3D_ISA", isa)
    for last in (ct.GELU(), ct.LayerNorm("width")):
        pipeline = Pipeline(ConvTranspose3d(stride=stride, bias=True), last)
        for width in AWKWARD_WIDTHS:
            make(pipeline, (1, 2, 2, 3, width), (2, 3, 2, 2, 3), dtype).check(note=f"width {width}: ")


CASES = [
    ("stride far above the kernel: most phases are the bias alone", (7, 7, 7), 0, 0, 1, (3, 4, 5), (2, 3, 2)),
    ("stride 16 along every axis: 4096 phases", (16, 16, 16), 0, 0, 1, (2, 2, 3), (3, 3, 3)),
    ("stride 16 along the width only", (1, 1, 16), 0, (0, 0, 15), 1, (2, 3, 9), (3, 3, 5)),
    ("a stride beyond any vector", (70, 1, 1), 0, (69, 0, 0), 1, (4, 3, 5), (2, 2, 2)),
    ("kernel 1 with stride 2: seven of eight outputs are bias", 2, 0, 1, 1, (3, 4, 5), (1, 1, 1)),
    ("kernel smaller than the stride, with padding", 3, 1, 2, 1, (3, 4, 5), (2, 2, 2)),
    ("padding that cuts whole inputs away", 1, 3, 0, 1, (9, 9, 9), (2, 2, 2)),
    ("padding beyond the reach of the first taps", 2, (3, 4, 5), 1, 1, (5, 6, 7), (3, 4, 3)),
    ("padding larger than the kernel", 1, 5, 0, 3, (9, 9, 9), (3, 3, 3)),
    ("one voxel", 1, 0, 0, 1, (1, 1, 1), (1, 1, 1)),
    ("one voxel, a large kernel", 2, 1, 1, 1, (1, 1, 1), (5, 4, 3)),
    ("one voxel along the depth", 2, 1, 1, 1, (1, 6, 17), (3, 3, 3)),
    ("one voxel along the width", (2, 2, 3), 0, 0, 1, (6, 7, 1), (3, 3, 2)),
    ("all outputs of a row from one input", (1, 1, 1), (0, 0, 2), 0, 1, (3, 3, 1), (2, 2, 5)),
    ("dilation with gaps wider than the input", 1, 0, 0, 7, (3, 3, 3), (3, 3, 3)),
    ("dilation that shares a factor with the stride: some phases are empty", 4, 0, 3, 2, (3, 4, 5), (3, 3, 3)),
    ("output padding from dilation, not stride", 1, 0, 3, 4, (3, 4, 5), (2, 2, 2)),
    ("long and thin", (1, 1, 2), (0, 0, 1), 0, 1, (1, 1, 1000), (1, 1, 4)),
    ("deep and thin", (2, 1, 1), (1, 0, 0), 0, 1, (700, 1, 1), (4, 1, 1)),
]


@pytest.mark.parametrize(
    ("stride", "padding", "extra", "dilation", "size", "kernel"), [pytest.param(*c[1:], id=c[0]) for c in CASES]
)
@pytest.mark.parametrize("before", [False, True], ids=["from x", "after a stage"])
def test_convolution(before: bool, stride: object, padding: object, extra: object, dilation: int, size, kernel) -> None:
    """Alone, and behind a stage: then the tile's input is a box in scratch, clipped at the ends of the volume."""
    conv = ConvTranspose3d(stride=stride, padding=padding, output_padding=extra, groups=1, dilation=dilation, bias=True)
    pipeline = Pipeline(*[ReLU()] * before, conv)
    make(pipeline, (2, 3, *size), (3, 4, *kernel)).check()


@pytest.mark.parametrize(
    ("x", "kernel", "dilation"),
    [((1, 16, 24, 16, 16), (16, 16, 5, 1, 1), 3), ((1, 16, 24, 8, 8), (16, 16, 7, 1, 1), 2)],
)
def test_reach_of_the_kernel_beyond_the_tile(x: tuple[int, ...], kernel: tuple[int, ...], dilation: int) -> None:
    """Inner tiles read more than those at the ends; the buffer before the convolution was once sized by the ends."""
    make(Pipeline(ReLU(), ConvTranspose3d(dilation=dilation)), x, kernel).check()


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("per_group", [1, 2, 5, 31])
def test_groups_and_blocks_of_channels(groups: int, per_group: int) -> None:
    """Register tiles hold several channels: the last block of each group is smaller."""
    make(
        Pipeline(ConvTranspose3d(stride=2, padding=1, output_padding=1, groups=groups, bias=True)),
        (1, 6, 3, 4, 5),
        (6, per_group, 3, 3, 3),
    ).check()


@pytest.mark.parametrize("channels", [1, 13, 64, 65, 200])
def test_many_channels(channels: int) -> None:
    """Channel-wise stages fold over all of them, and buffers avoid pitches of large powers of two."""
    stages = (ConvTranspose3d(stride=2), LayerNorm(affine=True), ct.Softmax())
    make(Pipeline(*stages), (1, channels, 2, 3, 4), (channels, channels, 2, 2, 2)).check()


@pytest.mark.parametrize(
    "after", [ct.MaxPool3d(2), ct.AvgPool3d(3, 1, 1), ConvTranspose3d(stride=2)], ids=lambda s: s.name
)
@pytest.mark.parametrize("affine", [False, True])
def test_a_norm_of_rows_before_a_window(after: object, affine: bool) -> None:
    """The norm needs whole rows, the window would load only what it reads: the value is stored between them."""
    norm = LayerNorm("width", affine=affine)
    if isinstance(after, ConvTranspose3d):
        make(Pipeline(norm, after), (2, 2, 5, 6, 37), (2, 3, 3, 3, 3)).check()
    else:
        make(Pipeline(ConvTranspose3d(stride=2), norm, after), (2, 2, 5, 6, 19), (2, 3, 3, 3, 3)).check()
        make(Pipeline(norm, after, ConvTranspose3d(stride=2)), (2, 2, 5, 6, 19), (2, 3, 3, 3, 3)).check()


@pytest.mark.parametrize("width", [1, 2, 15, 17, 64])
def test_a_norm_of_rows_of_any_width(width: int) -> None:
    """One number has no deviation; odd rows are no whole vectors, and their ends must not count."""
    stages = (ConvTranspose3d(), LayerNorm("width", affine=True), ct.GELU())
    make(Pipeline(*stages), (1, 2, 3, 3, width), (2, 3, 2, 2, 1)).check()


KEPT = [
    (ConvTranspose3d(stride=2), Keep("a"), Keep("b"), ct.Add("a"), ct.Softmax("spatial"), ct.Multiply("b")),
    (Keep("b"), ConvTranspose3d(stride=1, padding=1), Keep("a"), ct.Add("b"), ct.Multiply("a")),
    (ConvTranspose3d(stride=1, padding=1), Keep("a"), ct.Add("x"), ct.Multiply("a")),
    (ConvTranspose3d(stride=2), Keep("b"), ct.Mean("spatial"), Keep("a"), ct.Add("b"), ct.Multiply("a")),
    (ConvTranspose3d(stride=2), Keep("a"), ct.InstanceNorm(), Keep("b"), ct.GELU(), ct.Add("a"), ct.Multiply("b")),
    (ConvTranspose3d(stride=2), Keep("a"), ct.Tanh(), Keep("b"), ct.Recall("a"), ct.Sigmoid(), ct.Multiply("b")),
    (
        ConvTranspose3d(stride=1, padding=1),
        Keep("a"),
        ct.Recall("x"),
        ct.Softmax(),
        ct.Subtract("a", reverse=True),
        ct.Multiply("x"),
    ),
    (ConvTranspose3d(stride=2), Keep("a"), ct.MaxPool3d(1), Keep("b"), ct.Recall("a"), ct.InstanceNorm(), ct.Add("b")),
    (
        ConvTranspose3d(stride=2),
        Keep("a"),
        ct.Sum(),
        Keep("b"),
        ct.Recall("a"),
        ct.LayerNorm(),
        ct.Add("b"),
        ct.Multiply("a"),
    ),
    (
        ConvTranspose3d(stride=2),
        ct.InstanceNorm(),
        Keep("a"),
        ct.Recall("a"),
        ct.Max("spatial"),
        ct.Divide("a", reverse=True),
    ),
    (ConvTranspose3d(stride=2), Keep("a"), ct.Sum(), ct.Multiply("a"), ct.Max("spatial"), ct.Add("a")),
    (
        ConvTranspose3d(stride=2),
        ct.Softmax("spatial"),
        Keep("a"),
        ct.Softmax("spatial"),
        ct.Add("a"),
        ct.InstanceNorm(),
    ),
]


@pytest.mark.parametrize("stages", KEPT, ids=lambda stages: " ".join(f"{s.name}" for s in stages))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kept_values(stages: tuple[object, ...], dtype: str) -> None:
    """A value that is stored cuts the chains of those that are not; a small value is repeated over a larger one."""
    make(Pipeline(*stages), (2, 3, 4, 5, 6), (3, 3, 3, 3, 3), dtype).check()


@pytest.mark.parametrize("stages", [(ct.Softmax("spatial"),), (ct.InstanceNorm(), ct.GroupNorm(3), ct.ReLU())])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_statistics_with_the_output_as_storage(stages: tuple[object, ...], dtype: str) -> None:
    """The value waits in `out` for its statistics: also when `out` is transposed, reversed or has gaps."""
    case = make(Pipeline(ConvTranspose3d(stride=2), *stages), (2, 3, 4, 5, 9), (3, 3, 3, 3, 3), dtype)
    for seed in range(6):
        case.check(relaid(np.random.default_rng(seed), np.empty(case.output, dtype)))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("order", [(0, 2, 3, 4, 1), (4, 3, 2, 1, 0), (1, 0, 2, 4, 3)], ids=str)
def test_transposed_arrays(order: tuple[int, ...], dtype: str) -> None:
    """Channels last, all axes reversed, width and height swapped: for x, tensors and out."""
    case = make(Pipeline(ConvTranspose3d(stride=2), ct.Multiply("tensor")), (2, 3, 4, 5, 17), (3, 3, 3, 3, 3), dtype)

    def moved(array: object) -> object:
        return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))

    other = Case(case.pipeline, case.dtype, moved(case.x), (case.operands[0], moved(case.operands[1])))
    out = moved(np.empty(case.output, case.dtype.storage))
    other.check(out)
    assert out.tobytes() == case.run().tobytes()


def test_an_output_inside_a_larger_array_leaves_the_rest_alone() -> None:
    """Writing into a slice is how results are put together."""
    case = make(Pipeline(ConvTranspose3d(stride=2), ct.Softmax("spatial")), (2, 3, 4, 5, 9), (3, 3, 3, 3, 3))
    room = np.full([size + 2 for size in case.output], 7.0, np.float32)
    inner = (slice(1, -1),) * 5
    case.check(room[inner])
    room[inner] = 7.0
    assert (room == 7.0).all()
