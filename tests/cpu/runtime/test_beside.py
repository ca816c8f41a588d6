"""Several samples convolved together: the bits of each alone, whatever follows, and only where it is meant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.draws import Case, make
from helpers.tilings import drawn_tiles

import convt3d as ct
from convt3d.cpu.plan.choice import Options
from convt3d.cpu.plan.machine import machine
from convt3d.cpu.plan.plan import make_plan
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.pipeline import Pipeline

ISAS = ["avx512", "avx2", "baseline"] if machine().isa == "avx512" else [machine().isa]
TAILS: list[list[Any]] = [
    [],
    [ct.ReLU()],
    [ct.InstanceNorm(), ct.LeakyReLU(0.1)],
    [ct.LayerNorm(), ct.GELU()],
    [ct.Softmax("spatial")],
    [ct.MaxPool3d((1, 1, 2), 1), ct.Sum("channels")],
    [ct.Add("tensor")],
]


def _draw(rng: np.random.Generator, batch: int) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    """A convolution of either kind over few positions and many channels, the shapes of its input and weight."""
    taps = tuple(int(rng.integers(1, 5)) for _ in range(3))
    size = tuple(int(rng.integers(max(1, tap - 1), tap + 3)) for tap in taps)
    groups = int(rng.choice([1, 1, 2]))
    channels, outputs = (groups * int(rng.integers(130, 300)) for _ in range(2))
    stride = tuple(int(rng.integers(1, 3)) for _ in range(3))
    padding = tuple((tap - 1) // 2 for tap in taps)
    chosen = {"stride": stride, "padding": padding, "groups": groups, "bias": bool(rng.integers(2))}
    if rng.integers(2):
        size = tuple(max(n, tap) for n, tap in zip(size, taps, strict=True))
        return ct.Conv3d(**chosen), (batch, channels, *size), (outputs, channels // groups, *taps)
    return ct.ConvTranspose3d(**chosen), (batch, channels, *size), (channels, outputs // groups, *taps)


def _beside(case: Case, options: Options) -> int:
    """Samples that its convolution takes together."""
    shapes = tuple(each.shape for each in case.operands)
    plan = make_plan(case.pipeline, case.x.shape, shapes, case.dtype, options)
    return max(planned.where.beside for planned in plan.sweeps)


def _sample(case: Case, sample: int) -> Case:
    """It alone."""
    own = slice(sample, sample + 1)
    operands = tuple(
        each[own] if slot.operand.kind == "tensor" else each
        for slot, each in zip(case.pipeline.slots, case.operands, strict=True)
    )
    return Case(case.pipeline, case.dtype, case.x[own], operands)


def _make(conv: Any, x: tuple[int, ...], w: tuple[int, ...], seed: int, dtype: str = "float32") -> Case:
    tail = TAILS[seed % len(TAILS)]
    try:
        return make(Pipeline(conv, *tail), x, w, dtype=dtype)
    except ct.Error:  # a tail that does not fit these sizes
        return make(Pipeline(conv), x, w, dtype=dtype)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("seed", range(7))
def test_each_sample_has_the_bits_that_it_has_alone(seed: int, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVT3D_ISA", isa)
    monkeypatch.setenv("CONVT3D_CHECK_BOUNDS", str(seed % 2))
    rng = np.random.default_rng(seed)
    batch = int(rng.integers(2, 8))
    case = _make(*_draw(rng, batch), seed)
    found = case.run()
    case.check()
    for sample in range(batch):
        assert _sample(case, sample).run().tobytes() == found[sample : sample + 1].tobytes(), case
    with drawn_tiles(seed):
        case.check()


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_types(dtype: str) -> None:
    for conv, x, w in (
        (ct.Conv3d(padding=1, bias=True), (5, 40, 2, 3, 2), (50, 40, 3, 3, 3)),
        (ct.ConvTranspose3d(stride=2, padding=1), (5, 40, 2, 3, 2), (40, 50, 4, 4, 4)),
    ):
        case = make(Pipeline(conv, ct.LeakyReLU()), x, w, dtype=dtype)
        assert _beside(case, Options()) > 1
        case.check()
        found = case.run()
        assert _sample(case, 4).run().tobytes() == found[4:].tobytes()


@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
def test_layouts_and_threads(algorithm: str, layout: str) -> None:
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((7, 37, 3, 5, 2)), rng.standard_normal((53, 37, 3, 3, 3))
    if layout == "channels last":
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 4, 1)).transpose(0, 4, 1, 2, 3)
    out = np.full((7, 3, 5, 2, 53), np.nan).transpose(0, 4, 1, 2, 3)
    found = []
    for threads in (1, 2, 5):
        with ct.num_threads(threads):
            ct.conv3d(x, w, padding=1, algorithm=algorithm, out=out)
            found.append(ct.conv3d(x, w, padding=1, algorithm=algorithm))
    assert {each.tobytes() for each in (*found, np.ascontiguousarray(out))} == {found[0].tobytes()}


@pytest.mark.parametrize("wild", [np.nan, np.inf, 1e30])
def test_a_wild_sample_beside_others(wild: float) -> None:
    """Winograd's method leaves it to direct summation; its neighbours, whose numbers stand next to its own, stay as
    they are."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((6, 40, 4, 4, 4)).astype(np.float32)
    w = rng.standard_normal((44, 40, 3, 3, 3)).astype(np.float32)
    pipeline = Pipeline(ct.Conv3d(padding=1))
    plan = make_plan(pipeline, x.shape, (w.shape,), DTYPES["float32"], Options("winograd"))
    assert plan.algorithm == "winograd"
    assert plan.sweeps[0].where.beside > 1
    calm = ct.conv3d(x, w, padding=1, algorithm="winograd")
    x[2, 3, 1, 2, 0] = wild
    found = ct.conv3d(x, w, padding=1, algorithm="winograd")
    others = [0, 1, 3, 4, 5]
    assert found[others].tobytes() == calm[others].tobytes()
    assert found[2].tobytes() == ct.conv3d(x, w, padding=1, algorithm="direct")[2].tobytes()


def test_only_where_positions_are_few() -> None:
    def beside(conv: Any, x: tuple[int, ...], w: tuple[int, ...]) -> int:
        return _beside(make(Pipeline(conv), x, w), Options())

    assert beside(ct.Conv3d(padding=1), (1, 64, 3, 3, 3), (64, 64, 3, 3, 3)) == 1
    assert beside(ct.Conv3d(padding=1), (8, 16, 24, 24, 24), (16, 16, 3, 3, 3)) == 1
    assert beside(ct.Conv3d(padding=1, groups=32), (8, 32, 3, 3, 3), (32, 1, 3, 3, 3)) == 1
    assert beside(ct.Conv3d(), (8, 8, 3, 3, 3), (8, 8, 1, 1, 1)) == 1
    assert beside(ct.Conv3d(padding=1), (8, 64, 3, 3, 3), (64, 64, 3, 3, 3)) > 1
