"""Derivatives: of every stage against PyTorch's, of whole operators against JAX's own, in every mode, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.chains import operand_data
from helpers.compare import assert_same
from helpers.data import signed

jax = pytest.importorskip("jax", reason="jax is not installed")
torch = pytest.importorskip("torch")
import jax.numpy as jnp  # noqa: E402
from spec.stage_rows import ROWS, Row  # noqa: E402

import convt3d.jax as cj  # noqa: E402
from convt3d.jax.formulas import jax_function  # noqa: E402
from convt3d.spec.pipeline import Pipeline  # noqa: E402
from convt3d.spec.reference import evaluate  # noqa: E402
from convt3d.spec.stages import Conv3d, Convolution, ConvTranspose3d, Keep, Log, Recall  # noqa: E402
from convt3d.spec.text import read_stages  # noqa: E402
from convt3d.torch import stock  # noqa: E402

SHAPE = (2, 6, 3, 5, 4)


def around(row: Row) -> Pipeline:
    """A convolution, and the stage after it."""
    stage, conv = row.stage, ConvTranspose3d(stride=(2, 1, 1), bias=True)
    if isinstance(stage, Convolution):
        return Pipeline(stage)
    if isinstance(stage, Recall) or (stage.uses and stage.uses != "x"):
        return Pipeline(conv, Keep(stage.uses), *read_stages("Tanh() -> Keep('t')"), stage, *read_stages("Add('t')"))
    if stage.uses:
        return Pipeline(stage, conv)
    if isinstance(stage, Log):  # of negative numbers it is NaN
        return Pipeline(conv, *read_stages("Multiply(0.1) -> Exp()"), stage)
    return Pipeline(conv, stage)


@pytest.mark.parametrize("row", [row for row in ROWS if row.chains], ids=lambda row: row.id)
def test_every_stage_against_pytorch(row: Row) -> None:
    pipeline, rng = around(row), np.random.default_rng(5)
    weight = row.weight(SHAPE[1]) or (6, 6, 2, 1, 2)
    x, operands = signed(rng, SHAPE, 1.5), operand_data(pipeline, SHAPE, weight, rng)

    def ours(x: Any, operands: Any) -> Any:
        return cj.pipeline(x, operands, pipeline)

    arrays = jnp.asarray(x), [jnp.asarray(each) for each in operands]
    names = "input", *pipeline.operand_names
    learnt = ["running" not in name for name in names]  # of statistics PyTorch has no gradient
    tensors = [
        torch.from_numpy(each).requires_grad_(wanted) for each, wanted in zip((x, *operands), learnt, strict=True)
    ]
    y = stock.function_of(pipeline)(tensors[0], tensors[1:])
    grad = signed(rng, y.shape, 1.0)
    y.backward(torch.from_numpy(grad))

    def both(arrays: Any) -> Any:
        result, back = jax.vjp(ours, *arrays)
        return result, jax_function(pipeline)(*arrays), back(jnp.asarray(grad))

    result, formula, (of_x, of_operands) = jax.jit(both)(arrays)
    expected = evaluate(pipeline, x, operands)
    assert_same(result, expected, 1e-12)
    assert_same(formula, expected, 1e-12)
    for found, tensor in zip((of_x, *of_operands), tensors, strict=True):
        if tensor.requires_grad:
            assert_same(found, tensor.grad.numpy(), 1e-11, floor=1e-3)


TEXTS = {
    "all its parameters": "ConvTranspose3d(stride=(2, 1, 3), padding=1, output_padding=(1, 0, 2), groups=2, bias=True)",
    "cut and dilated": "Conv3d(stride=(2, 3, 1), padding=(1, 0, 2), dilation=(1, 2, 1), groups=2, bias=True)",
    "uneven zeros": "Conv3d(padding='same', bias=True) -> ReLU()",
    "copies around": "Conv3d(padding=1, padding_mode='reflect') -> SiLU()",
    "a norm": "ConvTranspose3d(stride=2, padding=1, bias=True) -> LayerNorm(affine=True) -> GELU() -> Multiply(0.5)",
    "before and after": "AvgPool3d(2) -> ConvTranspose3d(stride=2) -> Clamp(0.0, 1.0) -> Softmax('spatial')",
    "names and values": "ConvTranspose3d() -> Keep('y') -> Tanh() -> Multiply('y') -> Add('tensor') -> MaxPool3d(2)",
    "an axis dropped": "Conv3d(bias=True) -> Sum('channels', keepdim=False)",
}


class Case:
    def __init__(self, text: str, x: tuple[int, ...] = (2, 4, 5, 7, 4)) -> None:
        rng = np.random.default_rng(1)
        self.pipeline = Pipeline(*read_stages(text))
        conv = self.pipeline.conv
        kernel = (6, 4 // conv.groups, 3, 2, 3) if isinstance(conv, Conv3d) else (4, 3, 3, 2, 3)
        self.x = jnp.asarray(signed(rng, x, 1.0))
        shapes = self.pipeline.operand_shapes(x, kernel)
        self.operands = [jnp.asarray(signed(rng, shape, 0.5)) for shape in shapes]
        self.directions = jax.tree.map(lambda each: jnp.asarray(signed(rng, each.shape, 1.0)), (self.x, self.operands))
        self.grad = jnp.asarray(signed(rng, self.ours(self.x, self.operands).shape, 1.0))

    def ours(self, x: Any, operands: Any) -> Any:
        return cj.pipeline(x, operands, self.pipeline)

    def theirs(self, x: Any, operands: Any) -> Any:
        return jax_function(self.pipeline)(x, operands)


def same(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert_same(one, other, tolerance, floor=1e-6)


@pytest.fixture(params=TEXTS)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(TEXTS[request.param])


def test_gradients_jitted_and_eager(case: Case) -> None:
    def gradients(function: Any) -> Any:
        return jax.grad(lambda x, operands: (function(x, operands) * case.grad).sum(), (0, 1))

    expected = jax.jit(gradients(case.theirs))(case.x, case.operands)
    same(jax.jit(gradients(case.ours))(case.x, case.operands), expected)
    same(gradients(case.ours)(case.x, case.operands), expected)


def test_forward_mode(case: Case) -> None:
    given = (case.x, case.operands), case.directions
    same(
        jax.jit(lambda *two: jax.jvp(case.ours, *two))(*given), jax.jit(lambda *two: jax.jvp(case.theirs, *two))(*given)
    )


def test_gradients_of_gradients(case: Case) -> None:
    """Reverse over reverse, and forward over reverse."""

    def once(function: Any) -> Any:
        return jax.grad(lambda x, operands: (jnp.sin(function(x, operands)) * case.grad).sum(), (0, 1))

    def twice(function: Any) -> Any:
        squares = jax.grad(lambda *given: sum((each**2).sum() for each in jax.tree.leaves(once(function)(*given))), 1)
        return jax.jit(
            lambda x, operands: (squares(x, operands), jax.jvp(once(function), (x, operands), case.directions)[1])
        )

    same(twice(case.ours)(case.x, case.operands), twice(case.theirs)(case.x, case.operands), 1e-11)


def test_only_what_is_asked(case: Case) -> None:
    """Of the weight alone: the convolution with respect to the input is not computed."""
    weight = next(at for at, slot in enumerate(case.pipeline.slots) if slot.operand.kind == "kernel")

    def loss(function: Any) -> Any:
        def of(kernel: Any) -> Any:
            operands = [kernel if at == weight else each for at, each in enumerate(case.operands)]
            return (function(case.x, operands) * case.grad).sum()

        return jax.jit(jax.grad(of))

    same(loss(case.ours)(case.operands[weight]), loss(case.theirs)(case.operands[weight]))


MAPPED = {"inputs": (0, None), "all": (0, 0), "operands": (None, 0), "inputs at the end": (-1, None)}


@pytest.mark.parametrize("which", MAPPED)
def test_vmap(case: Case, which: str) -> None:
    """Of the result and of its gradients, which then are of each mapped one."""
    of_x, of_operands = MAPPED[which]
    rng = np.random.default_rng(2)

    def several(array: Any, axis: int | None) -> Any:
        shape = list(array.shape)
        if axis is not None:
            shape.insert(axis if axis >= 0 else len(shape), 3)
        return jnp.asarray(signed(rng, shape, 0.5))

    x, operands = several(case.x, of_x), [several(each, of_operands) for each in case.operands]

    def both(function: Any) -> Any:
        def one(x: Any, operands: Any) -> Any:
            result, back = jax.vjp(function, x, operands)
            return result, back(case.grad)

        return jax.jit(jax.vmap(one, (of_x, of_operands)))(x, operands)

    same(both(case.ours), both(case.theirs))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gradients_of_narrow_types(dtype: str) -> None:
    """As near to those of float64 as eager PyTorch's: a few roundings of the scale."""
    case = Case(TEXTS["a norm"])

    def gradients(x: Any, operands: Any) -> Any:
        return jax.grad(
            lambda *given: (case.ours(*given) * case.grad.astype(x.dtype)).astype(jnp.float64).sum(), (0, 1)
        )(x, operands)

    narrow = jax.tree.map(lambda each: each.astype(dtype), (case.x, case.operands))
    found = jax.jit(gradients)(*narrow)
    exact = jax.jit(gradients)(*jax.tree.map(lambda each: each.astype(jnp.float64), narrow))
    tolerance = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 6e-2}[dtype]
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
        assert one.dtype == dtype
        assert_same(np.asarray(one).astype(np.float64), np.asarray(other), tolerance)


@pytest.mark.parametrize("text", ["Conv3d(padding=1, stride=(1, 2, 1))", "ConvTranspose3d(stride=2, output_padding=1)"])
def test_the_transpose_of_what_is_linear(text: str) -> None:
    case = Case(text)
    (weight,) = case.operands
    (by_x,) = jax.linear_transpose(lambda x: case.ours(x, [weight]), case.x)(case.grad)
    (by_weight,) = jax.linear_transpose(lambda w: case.ours(case.x, [w]), weight)(case.grad)
    same((by_x, [by_weight]), jax.vjp(case.theirs, case.x, case.operands)[1](case.grad))


def test_several_convolutions() -> None:
    """One call, and gradients of all weights."""
    pipeline = Pipeline(*read_stages("Conv3d(padding=1) -> Tanh() -> ConvTranspose3d(padding=1) -> Add('x')"))
    rng, formula = np.random.default_rng(0), jax_function(pipeline, {})
    arrays = [jnp.asarray(rng.standard_normal(shape)) for shape in (SHAPE, (6, 6, 3, 3, 3), (6, 6, 3, 3, 3))]
    x, *weights = (np.asarray(array, np.float64) for array in arrays)
    assert_same(np.asarray(cj.pipeline(arrays[0], arrays[1:], pipeline)), evaluate(pipeline, x, weights), 1e-4)
    places = (0, 1, 2)
    own = jax.grad(lambda x, *rest: cj.pipeline(x, list(rest), pipeline).sum(), places)(*arrays)
    theirs = jax.grad(lambda x, *rest: formula(x, list(rest)).sum(), places)(*arrays)
    for one, other in zip(own, theirs, strict=True):
        assert_same(np.asarray(one), np.asarray(other), 1e-4)
