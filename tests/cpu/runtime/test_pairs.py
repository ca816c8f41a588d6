"""bfloat16 by products of pairs: exact products, float32 sums, one rounding; NaN, Inf and tiny numbers; any threads.

Each output is held to a bound that is proven (docs/math.md, "Pairs of bfloat16 numbers"), not to a measured one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.tilings import drawn_tiles

import convt3d as ct
from convt3d.cpu.plan.choice import Options
from convt3d.cpu.plan.machine import machine
from convt3d.cpu.plan.plan import make_plan
from convt3d.spec.dtypes import bfloat16
from convt3d.spec.reference import evaluate
from convt3d.spec.text import read_stages

pytestmark = pytest.mark.skipif(
    not machine().multiplies_bfloat16, reason="this processor multiplies no pairs of bfloat16 numbers"
)

# Why each is there: no channel has a partner; some have; pairs do not cross groups; positions several inputs wide, by
# shuffles and by single numbers; phases without taps; copies around the input; one voxel; sums of several pieces
LAYERS = [
    ("ConvTranspose3d(bias=True)", (2, 1, 3, 4, 5), (1, 3, 2, 3, 2)),
    ("ConvTranspose3d(stride=2, padding=1)", (1, 7, 4, 5, 19), (7, 13, 4, 3, 5)),
    ("ConvTranspose3d(stride=(1, 2, 3), groups=3, bias=True)", (2, 9, 3, 5, 7), (9, 5, 3, 2, 4)),
    ("ConvTranspose3d(groups=4, dilation=(1, 2, 3))", (1, 8, 3, 5, 17), (8, 2, 3, 2, 3)),
    ("ConvTranspose3d(groups=5)", (1, 5, 3, 4, 33), (5, 1, 3, 3, 3)),
    ("ConvTranspose3d(stride=(3, 2, 4), output_padding=(2, 0, 1))", (1, 6, 3, 2, 5), (6, 4, 2, 1, 3)),
    ("Conv3d(padding=1, bias=True)", (2, 5, 5, 6, 17), (8, 5, 3, 3, 3)),
    ("Conv3d(stride=2, padding=1, groups=2)", (1, 6, 9, 5, 23), (4, 3, 3, 3, 3)),
    ("Conv3d(stride=(1, 3, 7), dilation=(1, 2, 1))", (1, 3, 4, 15, 37), (5, 3, 2, 3, 4)),
    ("Conv3d(padding=2, padding_mode='reflect')", (1, 3, 5, 6, 7), (4, 3, 5, 3, 3)),
    ("Conv3d()", (3, 11, 1, 1, 1), (6, 11, 1, 1, 1)),
    ("Conv3d(padding=(0, 1, 1))", (1, 131, 2, 3, 4), (3, 131, 1, 3, 3)),
]
LAYOUTS = ["plain", "channels last", "permuted"]


def drawn(text: str, x: tuple[int, ...], w: tuple[int, ...], seed: int = 0) -> tuple[ct.Pipeline, Any, list[Any]]:
    rng = np.random.default_rng(seed)
    pipe = ct.Pipeline(*read_stages(text))
    shapes = pipe.operand_shapes(x, w)
    magnitudes = [rng.standard_normal(shape) * 10.0 ** rng.uniform(-2, 2, shape) for shape in (x, *shapes)]
    stored, *operands = (bfloat16.narrow(one) for one in magnitudes)
    return pipe, stored, operands


def laid_out(x: Any, layout: str) -> Any:
    order = {"plain": (0, 1, 2, 3, 4), "channels last": (0, 2, 3, 4, 1), "permuted": (4, 1, 0, 3, 2)}[layout]
    return np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))


def run(pipe: ct.Pipeline, x: Any, operands: list[Any], algorithm: str = "direct") -> Any:
    given = [torch.from_numpy(one.view(np.int16)).view(torch.bfloat16) for one in (x, *operands)]
    return pipe(*given, algorithm=algorithm).view(torch.int16).numpy().view(np.uint16)


def kernels(pipe: ct.Pipeline, x: Any, operands: list[Any], algorithm: str = "direct") -> list[str]:
    plan = make_plan(pipe, x.shape, tuple(one.shape for one in operands), bfloat16, Options(algorithm))
    return [planned.structure.name for planned in plan.sweeps]


def bound(pipe: ct.Pipeline, x: Any, operands: list[Any]) -> tuple[Any, Any]:
    """The meaning, and how far a sum of exact products in float32, in any order, rounded once, may be off. Numbers
    below 2^-126 are lost: sums, and factors with all that they are multiplied with."""
    wide, *rest = (bfloat16.widen(one) for one in (x, *operands))
    meant, least = evaluate(pipe, wide, rest), 2.0**-126

    def products(one: Any, other: Any) -> Any:
        return evaluate(pipe, one, [other, *(np.zeros(bias.shape) for bias in rest[1:])])

    count = products(np.ones(wide.shape), np.ones(rest[0].shape))
    summed = (count + 2) * 2.0**-24 * evaluate(pipe, np.abs(wide), [np.abs(one) for one in rest])
    tiny_x, tiny_w = (np.where(np.abs(one) < least, np.abs(one), 0.0) for one in (wide, rest[0]))
    lost = products(tiny_x, np.abs(rest[0])) + products(np.abs(wide), tiny_w) + (2 * count + 2) * least
    return meant, 2.0**-8 * np.abs(meant) + (1 + 2.0**-8) * (summed + lost)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("text", "x", "w"), LAYERS)
def test_within_the_bound(text: str, x: tuple[int, ...], w: tuple[int, ...], layout: str) -> None:
    for seed in range(3):
        pipe, stored, operands = drawn(text, x, w, seed)
        assert "pairs" in kernels(pipe, stored, operands)[0]
        meant, most = bound(pipe, stored, operands)
        with drawn_tiles(seed) if seed else torch.no_grad():
            got = bfloat16.widen(run(pipe, laid_out(stored, layout), operands))
        assert (np.abs(got - meant) <= most).all(), np.max(np.abs(got - meant) / most)


@pytest.mark.parametrize(("text", "x", "w"), [layer for layer in LAYERS if "padding_mode" not in layer[0]])
def test_like_pytorch(text: str, x: tuple[int, ...], w: tuple[int, ...]) -> None:
    """In float32, of the same numbers."""
    pipe, stored, operands = drawn(text, x, w)
    conv = pipe.conv
    tensors = [torch.from_numpy(bfloat16.widen(one).astype(np.float32)) for one in (stored, *operands)]
    options = {"stride": conv.stride, "padding": conv.padding, "dilation": conv.dilation, "groups": conv.groups}
    if isinstance(conv, ct.ConvTranspose3d):
        options["output_padding"] = conv.output_padding
        truth = torch.nn.functional.conv_transpose3d(*tensors, **options)
    else:
        truth = torch.nn.functional.conv3d(*tensors, **options)
    _, most = bound(pipe, stored, operands)
    assert (np.abs(bfloat16.widen(run(pipe, stored, operands)) - truth.double().numpy()) <= 2 * most).all()


def test_the_same_bits_for_any_threads() -> None:
    for text, x, w in LAYERS:
        pipe, stored, operands = drawn(text, (3, *x[1:]), w, 7)
        with ct.num_threads(1):
            alone = run(pipe, stored, operands)
        with ct.num_threads(3):
            assert np.array_equal(alone, run(pipe, stored, operands))
        assert np.array_equal(alone[:1], run(pipe, stored[:1], operands))


@pytest.mark.parametrize(("text", "x", "w"), LAYERS[1:9])
def test_not_finite(text: str, x: tuple[int, ...], w: tuple[int, ...]) -> None:
    """NaN and infinities reach the outputs that they are defined to reach, in either channel of a pair."""
    pipe, stored, operands = drawn(text, x, w, 3)
    flat = stored.reshape(-1)
    flat[[5, flat.size // 2, flat.size - 3]] = bfloat16.narrow(np.array([np.nan, np.inf, -np.inf]))
    wide = [bfloat16.widen(one) for one in (stored, *operands)]
    with np.errstate(invalid="ignore"):
        meant = evaluate(pipe, wide[0], wide[1:])
    got = bfloat16.widen(run(pipe, stored, operands))
    for test in (np.isnan, np.isposinf, np.isneginf):
        assert np.array_equal(test(got), test(meant))


def test_tiny_numbers_count_as_zero() -> None:
    """Factors and sums below 2^-126: the bound knows how much that is."""
    pipe, stored, operands = drawn(*LAYERS[1], 5)
    tiny = 2.0**-130
    for factors in ((tiny, 1.0), (1.0, tiny), (2.0**-60, 2.0**-68), (tiny, 2.0**20)):
        x = bfloat16.narrow(bfloat16.widen(stored) * factors[0])
        w = bfloat16.narrow(bfloat16.widen(operands[0]) * factors[1])
        meant, most = bound(pipe, x, [w])
        got = bfloat16.widen(run(pipe, x, [w]))
        assert (np.abs(got - meant) <= most).all()


@pytest.mark.parametrize("text", ["ReLU() -> Conv3d()", "AvgPool3d(2) -> ConvTranspose3d()"])
def test_computed_numbers_keep_their_digits(text: str) -> None:
    """What a stage before the convolution makes is float32: no pairs."""
    pipe, stored, operands = drawn(text, (1, 4, 4, 5, 6), (4, 4, 2, 2, 2))
    assert not any("pairs" in name for name in kernels(pipe, stored, operands))


def test_a_batch_norm_leaves_the_kernel_alone() -> None:
    """Folded into it, the kernel would have more digits than bfloat16 holds."""
    pipe, stored, operands = drawn(
        "Conv3d(bias=True) -> BatchNorm(affine=True) -> ReLU()", (2, 5, 4, 5, 6), (7, 5, 2, 2, 2)
    )
    operands[3] = bfloat16.narrow(np.abs(bfloat16.widen(operands[3])) + 0.5)
    assert "pairs" in kernels(pipe, stored, operands)[0]
    wide = [bfloat16.widen(one) for one in (stored, *operands)]
    meant = evaluate(pipe, wide[0], wide[1:])
    got = bfloat16.widen(run(pipe, stored, operands))
    assert np.abs(got - meant).max() <= 2.0**-7 * np.abs(meant).max()


def test_a_bias_that_moves_leaves_the_kernel_alone() -> None:
    pipe, stored, operands = drawn("ConvTranspose3d(bias=True) -> MaxPool3d(2) -> Sum('channels')", *LAYERS[1][1:])
    assert "pairs" in kernels(pipe, stored, operands)[0]


def test_not_where_the_processor_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, stored, operands = drawn(*LAYERS[1])
    monkeypatch.setenv("CONVT3D_ISA", "avx2")
    assert not any("pairs" in name for name in kernels(pipe, stored, operands))
