"""Winograd's method: as exact as direct summation, the same for any threads and batch, safe from NaN and Inf.

That it computes the right thing for any pipeline, tile and method is in test_pipelines.py (test_any_tiles) and
test_guard_pages.py; the algebra is in tests/cpu/plan/test_schemes.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.compare import assert_same
from helpers.tilings import forced_outputs

import convt3d as ct
from convt3d.cpu.plan.choice import Options
from convt3d.cpu.plan.plan import make_plan
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.reference import evaluate

Draw = Callable[[np.random.Generator, tuple[int, ...]], Any]

KINDS: dict[str, Draw] = {
    "signed": lambda rng, shape: rng.uniform(-1, 1, shape),
    "positive": lambda rng, shape: rng.uniform(0, 1, shape),
    "large mean": lambda rng, shape: 100 + rng.standard_normal(shape),
    "wide range": lambda rng, shape: rng.standard_normal(shape) * 10.0 ** rng.uniform(-2, 2, shape),
}

# kernel, stride, padding, dilation, Cin, Cout, volume, whether it is a Conv3d: each phase length, with and without a
# remainder of the tile
LAYERS = [
    (3, 1, 1, 1, 32, 16, (8, 9, 18)),
    (2, 1, 0, 1, 16, 24, (7, 8, 17)),
    (4, 2, 1, 1, 32, 16, (5, 6, 12)),
    (5, 2, 2, 1, 16, 16, (6, 6, 11)),
    (3, 2, 1, 1, 32, 24, (6, 7, 13)),
    (6, 1, 2, 1, 8, 8, (9, 9, 12)),
    ((3, 2, 4), (1, 2, 3), 0, 1, 16, 8, (6, 7, 9)),
    (3, 1, 2, 2, 16, 16, (8, 8, 16)),
    (5, 1, 2, 1, 16, 16, (9, 9, 13)),  # pieces of different lengths
    (7, 1, 3, 1, 8, 8, (9, 9, 13)),  # three of them along each axis
    ((3, 5, 7), 1, (1, 2, 3), 1, 16, 8, (6, 9, 13)),
    (3, 1, 1, 1, 32, 16, (8, 9, 18), True),
    (3, 2, 1, 1, 32, 24, (11, 12, 23), True),
    (4, 2, 1, 1, 16, 16, (11, 12, 23), True),
    (5, 2, 2, 1, 16, 16, (12, 13, 21), True),
    ((1, 9, 7), (1, 1, 2), (0, 4, 3), 1, 16, 16, (5, 11, 23), True),
    ((3, 5, 2), (2, 1, 1), (1, 0, 2), (1, 1, 3), 16, 16, (9, 11, 15), True),
]


def pipeline(layer: Any, *tail: Any) -> ct.Pipeline:
    _, stride, padding, dilation, *_ = layer
    conv = ct.Conv3d if len(layer) > 7 else ct.ConvTranspose3d
    return ct.Pipeline(conv(stride=stride, padding=padding, dilation=dilation), *tail)


def arrays(layer: Any, dtype: str, seed: int, kind: str = "signed", batch: int = 1) -> tuple[Any, Any]:
    kernel, _, _, _, cin, cout, volume, *forward = layer
    sizes = (kernel,) * 3 if isinstance(kernel, int) else kernel
    rng = np.random.default_rng(seed)
    x = KINDS[kind](rng, (batch, cin, *volume)).astype(dtype)
    channels = (cout, cin) if forward else (cin, cout)
    return x, rng.uniform(-1, 1, (*channels, *sizes)).astype(dtype)


def algorithm(layer: Any, name: str, dtype: str = "float32", precision: str = "full") -> str:
    x, w = arrays(layer, dtype, 0)
    return make_plan(pipeline(layer), x.shape, (w.shape,), DTYPES[dtype], Options(name, precision)).algorithm


# Outputs made together along the axes of these layers.
SCHEMES = [
    *((layer, (2, 2, 2)) for layer in LAYERS),
    (LAYERS[0], (2, 1, 2)),
    (LAYERS[2], (1, 2, 1)),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("layer", "outputs"), SCHEMES, ids=str)
def test_as_exact_as_direct_summation(layer: Any, outputs: tuple[int, int, int], kind: str, dtype: str) -> None:
    """Root mean square and maximum error over three draws, against the meaning (beyond float64 for float64)."""
    pipe = pipeline(layer)
    squares, worst = dict.fromkeys(("direct", "auto"), 0.0), dict.fromkeys(("direct", "auto"), 0.0)
    with forced_outputs(outputs):
        assert algorithm(layer, "auto", dtype) == "winograd"
        for seed in range(3):
            x, w = arrays(layer, dtype, seed, kind)
            truth = _exactly(pipe, x, w)
            scale = np.sqrt((truth**2).mean())
            for name in squares:
                error = (pipe(x, w, algorithm=name) - truth) / scale
                squares[name] += float((error**2).mean())
                worst[name] = max(worst[name], float(np.abs(error).max()))
    assert np.sqrt(squares["auto"]) <= 1.5 * np.sqrt(squares["direct"])
    assert worst["auto"] <= 1.5 * worst["direct"]


@pytest.mark.parametrize("size", [1e3, 1e6, 1e12])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_large_input_leaves_others_alone(layer: Any, size: float) -> None:
    """Outputs without a tap on it keep their accuracy, however large it is."""
    pipe = pipeline(layer)
    x, w = arrays(layer, "float32", 5)
    far, errors = np.zeros_like(x), {}
    x[0, 1, 3, 3, 3], far[0, 1, 3, 3, 3] = size, 1
    apart = evaluate(pipe, far.astype(np.float64), [np.ones(w.shape)]) == 0
    truth = evaluate(pipe, x.astype(np.float64), [w.astype(np.float64)])
    with forced_outputs((2, 2, 2)):
        for name in ("direct", "auto"):
            errors[name] = np.abs(pipe(x, w, algorithm=name) - truth)[apart].max()
    assert errors["auto"] <= 1.5 * errors["direct"]


def _exactly(pipe: ct.Pipeline, x: Any, w: Any) -> Any:
    """The meaning, of float64 data from parts whose products are exact."""
    if x.dtype == np.float32:
        return evaluate(pipe, x.astype(np.float64), [w.astype(np.float64)])
    total: Any = 0.0
    for one, other in ((a, b) for a in _parts(x) for b in _parts(w)):
        total = total + evaluate(pipe, one, [other]).astype(np.longdouble)
    return total


def _parts(values: Any) -> list[Any]:
    """Three numbers of 18 bits or so that add up to each value: their products and sums of hundreds are exact."""
    scale = 2.0 ** np.ceil(np.log2(np.abs(values).max()))
    high = np.round(values / scale * 2**17) / 2**17 * scale
    middle = np.round((values - high) / scale * 2**34) / 2**34 * scale
    return [high, middle, values - high - middle]


@pytest.mark.parametrize("outputs", [(2, 2, 1), (1, 2, 1), (2, 1, 1), (1, 1, 2), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("width", [7, 12, 14, 15, 30])
@pytest.mark.parametrize("one_tile", [False, True])
def test_nothing_unwritten_is_read(one_tile: bool, width: int, outputs: tuple[int, int, int]) -> None:
    """Plain axes beside others, in scratch full of NaN: where a row fills its vectors, the zeros right of the very last
    one were once forgotten."""
    layer = (4, 2, 1, 1, 8, 8, (6, 7, width))
    pipe = pipeline(layer)
    x, w = arrays(layer, "float32", 4)
    with forced_outputs(outputs, one_tile):
        got = pipe(x, w)
    assert_same(got, evaluate(pipe, x.astype(np.float64), [w.astype(np.float64)]).astype(np.float32), 1e-5)


@pytest.mark.parametrize("layer", LAYERS[:5], ids=str)
def test_fast_precision_states_its_error(layer: Any) -> None:
    """Within 40 times that of direct summation for these layers, the largest error; docs/math.md shows larger ones."""
    pipe = pipeline(layer)
    x, w = arrays(layer, "float32", 0)
    truth = evaluate(pipe, x.astype(np.float64), [w.astype(np.float64)])
    direct = np.abs(pipe(x, w, algorithm="direct") - truth).max()
    got = pipe(x, w, algorithm="winograd", precision="fast")
    assert np.abs(got - truth).max() <= 40 * direct


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_wild_inputs_stay_where_they_are(layer: Any, special: float) -> None:
    """A sample that holds one gives the bits of direct summation, the others what they would give alone."""
    pipe = pipeline(layer, ct.LeakyReLU(0.1))
    x, w = arrays(layer, "float32", 1, batch=3)
    good = pipe(x, w, algorithm="winograd")
    x[1, 2, 3, 4, 5] = special
    got = pipe(x, w, algorithm="winograd")
    assert got[1].tobytes() == pipe(x, w, algorithm="direct")[1].tobytes()
    assert got[[0, 2]].tobytes() == good[[0, 2]].tobytes()
    assert np.isfinite(got[1]).any()


def test_wild_inputs_in_pipelines_of_several_passes() -> None:
    layer = LAYERS[0]
    pipe = pipeline(layer, ct.InstanceNorm(), ct.Softmax("spatial"), ct.Multiply("tensor"))
    x, w = arrays(layer, "float32", 1, batch=3)
    tensor = np.random.default_rng(2).standard_normal(pipe(x, w, np.ones((1, 1, 1, 1, 1), "f")).shape).astype("f")
    good = pipe(x, w, tensor, algorithm="winograd")
    x[2, 0, 0, 0, 0] = np.inf
    got = pipe(x, w, tensor, algorithm="winograd")
    assert got[:2].tobytes() == good[:2].tobytes()
    assert_same(got[2:], pipe(x[2:], w, tensor[2:], algorithm="direct"), 0.0)


@pytest.mark.parametrize("size", [1e20, np.inf, np.nan, 0.0])
def test_wild_weights_are_summed_directly(size: float) -> None:
    """Huge ones, and such as are all so small that halves of them would be rounded."""
    layer = LAYERS[0]
    x, w = arrays(layer, "float32", 1)
    if size:
        w[1, 2, 0, 1, 2] = size
    else:
        w *= np.float32(1e-40)
    got, direct = (pipeline(layer)(x, w, algorithm=name) for name in ("winograd", "direct"))
    assert_same(got, direct, 0.0)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_the_same_bits_for_any_threads_batch_and_place(layer: Any) -> None:
    pipe = pipeline(layer, ct.LayerNorm(), ct.GELU())
    x, w = arrays(layer, "float32", 3, batch=3)
    with ct.num_threads(1):
        one = pipe(x, w, algorithm="winograd")
    for threads in (2, 3):
        with ct.num_threads(threads):
            assert pipe(x, w, algorithm="winograd").tobytes() == one.tobytes()
    assert pipe(x[1:2], w, algorithm="winograd").tobytes() == one[1:2].tobytes()


def test_changed_weights_are_transformed_anew() -> None:
    x, w = arrays(LAYERS[0], "float32", 0)
    first = ct.conv_transpose3d(x, w, padding=1, algorithm="winograd")
    w[3, 3, 1, 1, 1] += 1
    second = ct.conv_transpose3d(x, w, padding=1, algorithm="winograd")
    assert not np.array_equal(first, second)
    assert_same(second, ct.conv_transpose3d(x, w, padding=1, algorithm="direct"), 1e-5)


@pytest.mark.parametrize(
    ("case", "x", "w", "groups", "stride", "padding", "expected"),
    [
        ("k3 s1", (1, 48, 48, 48, 48), (48, 24, 3, 3, 3), 1, 1, 0, "winograd"),
        ("k4 s2", (1, 64, 16, 32, 32), (64, 32, 4, 4, 4), 1, 2, 1, "winograd"),
        ("k3 s2", (1, 64, 24, 32, 64), (64, 32, 3, 3, 3), 1, 2, 1, "winograd"),
        ("k3 s2, too few channels", (1, 16, 24, 32, 64), (16, 16, 3, 3, 3), 1, 2, 1, "direct"),
        ("k3 s2, too few inputs", (1, 16, 24, 32, 64), (16, 32, 3, 3, 3), 1, 2, 1, "direct"),
        ("k = s", (1, 320, 8, 10, 12), (320, 320, 2, 2, 2), 1, 2, 0, "direct"),
        ("depthwise", (1, 64, 32, 32, 32), (64, 1, 3, 3, 3), 64, 2, 1, "direct"),
        ("depthwise, stride 1", (1, 512, 16, 16, 16), (512, 1, 3, 3, 3), 512, 1, 1, "direct"),
        ("depthwise, many", (1, 4096, 8, 8, 8), (4096, 1, 4, 4, 4), 4096, 2, 1, "direct"),
        ("few channels", (1, 3, 16, 32, 32), (3, 4, 3, 3, 3), 1, 2, 1, "direct"),
        ("one voxel", (1, 64, 1, 1, 1), (64, 64, 3, 3, 3), 1, 1, 0, "direct"),
    ],
)
def test_the_choice_is_sensible(
    case: str, x: Any, w: Any, groups: int, stride: int, padding: int, expected: str
) -> None:
    pipe = ct.Pipeline(ct.ConvTranspose3d(stride=stride, padding=padding, groups=groups))
    assert make_plan(pipe, x, (w,), DTYPES["float32"]).algorithm == expected


def test_direct_can_be_forced_and_unknown_words_are_refused() -> None:
    layer = LAYERS[0]
    assert algorithm(layer, "direct") == "direct"
    x, w = arrays(layer, "float32", 0)
    with pytest.raises(ct.ArgumentError, match="conv_transpose3d: algorithm = 'strassen': must be 'auto' or 'direct'"):
        ct.conv_transpose3d(x, w, algorithm="strassen")
    with pytest.raises(ct.ArgumentError, match="algorithm = "):
        ct.conv_transpose3d(x, w, algorithm=np.array(["auto", "direct"]))
    with pytest.raises(ct.ArgumentError, match="Pipeline: precision = 'half': must be 'full' or 'fast'"):
        pipeline(layer)(x, w, precision="half")


def test_explain_tells_schemes_savings_and_rate() -> None:
    text = pipeline(LAYERS[2]).explain((1, 64, 16, 32, 32), (64, 32, 4, 4, 4))
    assert "F(" in text
    assert "products for" in text
    assert "times fewer products; transforms take" in text
    assert "GFLOP/s of direct summation" in text
