"""The shape rules are exact integers: each formula equals counting by hand, at any size."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convt3d.errors import ShapeError
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.shapes import PoolAxis, TransposedAxis, check_extent
from convt3d.spec.stages import ConvTranspose3d, MaxPool3d

conv_axes = st.builds(
    TransposedAxis,
    size=st.integers(1, 8),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 4),
    padding=st.integers(0, 4),
    output_padding=st.integers(0, 3),
    dilation=st.integers(1, 3),
).filter(lambda axis: axis.out >= 1)

pool_axes = st.builds(
    PoolAxis,
    size=st.integers(1, 11),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 6),
    padding=st.integers(0, 2),
    ceil_mode=st.booleans(),
).filter(lambda axis: 2 * axis.padding <= axis.kernel and axis.size + 2 * axis.padding >= axis.kernel)


def _part(data: st.DataObject, out: int) -> tuple[int, int]:
    low = data.draw(st.integers(0, out - 1))
    return low, data.draw(st.integers(low + 1, out))


@given(conv_axes)
def test_conv_out_is_the_cropped_span_of_all_taps(axis: TransposedAxis) -> None:
    uncropped = {i * axis.stride + k * axis.dilation for i in range(axis.size) for k in range(axis.kernel)}
    assert axis.out == max(uncropped) + 1 - 2 * axis.padding + axis.output_padding


@settings(max_examples=200)
@given(conv_axes, st.data())
def test_tap_range_is_the_set_of_inputs_that_land(axis: TransposedAxis, data: st.DataObject) -> None:
    low, high = _part(data, axis.out)
    for k in range(axis.kernel):
        landing = [i for i in range(axis.size) if low <= i * axis.stride - axis.padding + k * axis.dilation < high]
        first, last = axis.tap_range(k, low, high)
        assert list(range(first, last)) == landing
        assert first <= last  # also when empty, so that last - first counts


@settings(max_examples=200)
@given(conv_axes, st.data())
def test_conv_inputs_of_holds_every_input_that_lands(axis: TransposedAxis, data: st.DataObject) -> None:
    low, high = _part(data, axis.out)
    landing = [i for i in range(axis.size) if any(low <= axis.partner(i, k) < high for k in range(axis.kernel))]
    first, last = axis.inputs_of(low, high)
    assert 0 <= first < last <= axis.size
    assert set(landing) <= set(range(first, last))
    if axis.dilation == 1:  # taps lie side by side, so the range is tight (dilated taps may step over [low, high))
        assert (first, last) == (landing[0], landing[-1] + 1) if landing else last - first == 1


@settings(max_examples=200)
@given(conv_axes, st.data())
def test_multiplications_count_pairs(axis: TransposedAxis, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, axis.out), max_size=6)))
    wanted = list(zip(cuts[::2], cuts[1::2], strict=False))
    outputs = {o for low, high in wanted for o in range(low, high)}
    pairs = [(i, k) for i in range(axis.size) for k in range(axis.kernel) if axis.partner(i, k) in outputs]
    assert axis.multiplications(wanted) == len(pairs)


@settings(max_examples=200)
@given(pool_axes)
def test_pool_out_counts_windows(axis: PoolAxis) -> None:
    """Floor: windows wholly inside the padded axis. Ceil: also one more to cover the rest, if it starts in the data."""
    padded = axis.size + 2 * axis.padding
    starts = range(0, 100, axis.stride)
    inside = [start for start in starts if start + axis.kernel <= padded]
    covered = inside[-1] + axis.kernel
    if axis.ceil_mode and covered < padded and inside[-1] + axis.stride < axis.size + axis.padding:
        inside.append(inside[-1] + axis.stride)
    assert axis.out == len(inside)


@settings(max_examples=200)
@given(pool_axes, st.data())
def test_pool_windows_and_inputs(axis: PoolAxis, data: st.DataObject) -> None:
    low, high = _part(data, axis.out)
    read = set()
    for o in range(low, high):
        window = {o * axis.stride - axis.padding + j for j in range(axis.kernel)} & set(range(axis.size))
        assert set(range(*axis.window(o))) == window
        assert window  # never an empty window
        read |= window
    assert axis.inputs_of(low, high) == (min(read), max(read) + 1)


@pytest.mark.parametrize(
    ("axis", "out"),
    [
        pytest.param(PoolAxis(4, 5, 5, 0, False), 0, id="floor: window larger than the axis"),
        pytest.param(PoolAxis(2, 5, 2, 0, True), 0, id="ceil: even the cut window does not start"),
        pytest.param(PoolAxis(1, 3, 5, 0, True), 1, id="ceil: PyTorch keeps one cut window when the stride is large"),
        pytest.param(PoolAxis(5, 2, 3, 1, True), 2, id="ceil: a window that starts in the right padding is dropped"),
        pytest.param(PoolAxis(1, 1, 1, 0, True), 1, id="smallest"),
    ],
)
def test_pool_out_at_the_edges(axis: PoolAxis, out: int) -> None:
    assert max(axis.out, 0) == out


BIG = 2**40


def test_big_conv_axis_is_exact() -> None:
    """float64 has 53 bits: sizes around 2**61 would be off by hundreds if any step left the integers."""
    axis = TransposedAxis(size=BIG + 1, kernel=3, stride=2**20 + 3, padding=1, output_padding=7, dilation=5)
    assert axis.out == BIG * (2**20 + 3) - 2 + 10 + 7 + 1
    assert axis.tap_range(2, 0, axis.out) == (0, BIG + 1)
    assert axis.tap_range(0, 0, axis.out) == (1, BIG + 1)  # input 0 lands in the padding
    assert axis.tap_range(0, axis.partner(BIG - 2, 0), axis.partner(BIG, 0)) == (BIG - 2, BIG)
    assert axis.inputs_of(axis.partner(BIG, 0), axis.out) == (BIG, BIG + 1)
    assert axis.multiplications([(0, axis.out)]) == 3 * (BIG + 1) - 1


def test_big_pool_axis_is_exact() -> None:
    assert PoolAxis(3 * BIG + 2, 3, 3, 0, False).out == BIG
    assert PoolAxis(3 * BIG + 2, 3, 3, 0, True).out == BIG + 1
    assert PoolAxis(3 * BIG + 2, 3, 3, 0, True).window(BIG) == (3 * BIG, 3 * BIG + 2)
    assert PoolAxis(2**62 + 1, 2, 2, 1, False).out == 2**61 + 1
    assert PoolAxis(2**62 + 1, 2, 2, 1, False).inputs_of(0, 2**61 + 1) == (0, 2**62 + 1)


def test_extent_limit() -> None:
    """2**60 doubles are 2**63 bytes: one too many for a signed offset."""
    assert check_extent("Stage", (1, 1, 1, 1, 2**60 - 1)) == (1, 1, 1, 1, 2**60 - 1)
    for shape in ((2, 2**20, 2**20, 2**19, 1), (0, 2**40, 2**40, 1, 1)):  # an empty batch has strides all the same
        with pytest.raises(ShapeError, match="64-bit offsets"):
            check_extent("Stage", shape)


def test_an_output_beyond_2_31_elements_is_traced() -> None:
    trace = Pipeline(ConvTranspose3d(stride=2), MaxPool3d(2)).trace((1, 1, 2**11, 2**11, 2**11), [(1, 3, 2, 2, 2)])
    assert trace.values[1] == (1, 3, 2**12, 2**12, 2**12)
    assert trace.output == (1, 3, 2**11, 2**11, 2**11)


@pytest.mark.parametrize(
    ("stage", "x", "w"),
    [
        pytest.param(ConvTranspose3d(), (2**10, 2**20, 2**20, 2**10, 1), (2**20, 1, 1, 1, 1), id="the input"),
        pytest.param(ConvTranspose3d(stride=2**60), (1, 1, 2, 1, 9), (1, 1, 1, 1, 1), id="stride"),
        pytest.param(ConvTranspose3d(dilation=2**61), (1, 1, 1, 1, 1), (1, 1, 2, 1, 1), id="dilation"),
        pytest.param(ConvTranspose3d(), (2**20, 1, 2**10, 1, 1), (1, 2**40, 1, 1, 1), id="channels"),
    ],
)
def test_outputs_too_big_to_address_are_errors(stage: ConvTranspose3d, x: tuple[int, ...], w: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"64-bit offsets|at most 16,777,216 channels"):
        Pipeline(stage).trace(x, [w])
