"""The functions on JAX arrays: the bits of our own front, in every type, jitted or not; errors when they are traced."""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np
import pytest
from helpers.compare import assert_same
from helpers.data import SPECIALS, signed, sprinkled

jax = pytest.importorskip("jax", reason="jax is not installed")
import jax.numpy as jnp  # noqa: E402

import convt3d  # noqa: E402
import convt3d.jax as cj  # noqa: E402
from convt3d.jax.formulas import jax_function  # noqa: E402
from convt3d.spec.dtypes import DTYPES  # noqa: E402
from convt3d.spec.operators import OPERATORS  # noqa: E402
from convt3d.spec.pipeline import Pipeline  # noqa: E402
from convt3d.spec.reference import evaluate  # noqa: E402

# arguments after input and weight; unequal along the axes
CASES = {
    "conv3d": ({"stride": (2, 1, 1), "padding": (1, 0, 2), "dilation": (1, 2, 1)}, ("bias",)),
    "conv_transpose3d": ({"stride": (2, 1, 3), "padding": (1, 0, 1), "output_padding": (1, 0, 2)}, ("bias",)),
    "conv_transpose3d_max_max_sum": ({"stride": (3, 2, 4), "padding": 1}, ("bias",)),
    "conv_transpose3d_sum_layernorm_avgpool_gelu": ({"sum_weight": -0.5}, ("bias", "norm_weight", "norm_bias")),
    "conv_transpose3d_avgpool_clamp_softmax_multiply": ({"clamp_min": -0.5, "clamp_max": None}, ("scale", "bias")),
    "conv_transpose3d_layernorm_gelu_scaling": ({"scaling_factor": 1.5, "approximate": "tanh"}, ("norm_bias",)),
}
TOLERANCE = {"float64": 1e-13, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def data(name: str, dtype: str = "float64", special: str = "", batch: tuple[int, ...] = (2,)) -> dict[str, Any]:
    """Arrays of a call by name: odd sizes, one axis of size 3, three input and five output channels."""
    rng = np.random.default_rng(3)
    weight = (5, 3, 3, 2, 3) if name == "conv3d" else (3, 5, 3, 2, 3)
    arrays = {"input": signed(rng, (*batch, 3, 5, 7, 3), 1.0), "weight": signed(rng, weight, 0.5)}
    arrays |= {each: signed(rng, (5,), 0.5) for each in CASES[name][1]}
    if special:
        arrays["input"] = sprinkled(rng, arrays["input"], SPECIALS[special])
    kind = jnp.dtype(dtype)
    return {each: array.astype(kind) for each, array in arrays.items()}


def meaning(name: str, arrays: dict[str, Any]) -> Any:
    given = {**{a.name: a.default for a in OPERATORS[name].arguments}, **CASES[name][0], **arrays}
    pipeline, operands = OPERATORS[name].lower([given[each] for each in OPERATORS[name].names])
    return evaluate(pipeline, arrays["input"].astype(np.float64), [each.astype(np.float64) for each in operands])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_meaning_and_bits(name: str, dtype: str) -> None:
    """Those of the same call on numpy arrays, jitted or not, again and again: the third call has a record."""
    arrays, rest = data(name, dtype), CASES[name][0]
    own = getattr(convt3d, name)(**arrays, **rest)
    jitted = jax.jit(lambda arrays: getattr(cj, name)(**arrays, **rest))
    results = [getattr(cj, name)(**arrays, **rest), *(jitted(arrays) for _ in range(4))]
    for result in results:
        assert isinstance(result, jax.Array)
        assert np.asarray(result).dtype == arrays["input"].dtype
        np.testing.assert_array_equal(np.asarray(result).view(np.uint8), own.view(np.uint8))
    assert_same(np.asarray(results[0]).astype(np.float64), meaning(name, arrays), TOLERANCE[dtype])


@pytest.mark.parametrize("special", SPECIALS)
@pytest.mark.parametrize("name", ["conv3d", "conv_transpose3d", "conv_transpose3d_layernorm_gelu_scaling"])
def test_nan_and_infinities(name: str, special: str) -> None:
    arrays = data(name, special=special)
    jitted = jax.jit(lambda arrays: getattr(cj, name)(**arrays, **CASES[name][0]))
    for _ in range(4):
        assert_same(jitted(arrays), meaning(name, arrays), 1e-13)


def test_against_jax_itself() -> None:
    """XLA's own convolutions, in float64."""
    for name in ("conv3d", "conv_transpose3d"):
        arrays = data(name)
        given = {**{a.name: a.default for a in OPERATORS[name].arguments}, **CASES[name][0], **arrays}
        pipeline, operands = OPERATORS[name].lower([given[each] for each in OPERATORS[name].names])
        theirs = jax_function(pipeline)(jnp.asarray(arrays["input"]), [jnp.asarray(each) for each in operands])
        assert_same(getattr(cj, name)(**arrays, **CASES[name][0]), theirs, 1e-13)


@pytest.mark.parametrize("name", CASES)
def test_unbatched_and_empty_batches(name: str) -> None:
    arrays, rest = data(name, batch=()), CASES[name][0]
    alone = getattr(cj, name)(**arrays, **rest)
    together = getattr(cj, name)(**{**arrays, "input": arrays["input"][None]}, **rest)
    np.testing.assert_array_equal(alone, together[0])
    none = getattr(cj, name)(**{**arrays, "input": np.zeros((0, *arrays["input"].shape))}, **rest)
    assert none.shape == (0, *alone.shape)


@pytest.mark.parametrize("name", CASES)
def test_signature_is_the_declaration(name: str) -> None:
    parameters = signature(getattr(cj, name)).parameters.values()
    declared = [(a.name, a.default, a.by_name) for a in OPERATORS[name].arguments if not a.required]
    assert [p.name for p in parameters] == list(OPERATORS[name].names)
    found = [(p.name, p.default, p.kind is p.KEYWORD_ONLY) for p in parameters if p.default is not p.empty]
    assert found == declared


def test_pipelines() -> None:
    rng = np.random.default_rng(0)
    x, w, skip = (jnp.asarray(signed(rng, shape)) for shape in ((2, 3, 4, 5, 3), (3, 2, 2, 2, 2), (2, 8, 10, 6)))
    pipe = convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2), convt3d.Add("tensor"), convt3d.ReLU())
    text = "ConvTranspose3d(stride=2) -> Add('tensor') -> ReLU()"
    expected = evaluate(pipe, np.asarray(x), [np.asarray(w), np.asarray(skip)])
    for stages in (pipe, text, Pipeline(*pipe.stages)):
        for _ in range(3):
            assert_same(cj.pipeline(x, [w, skip], stages), expected, 1e-13)
    kernel, slope = jnp.ones((4, 3, 2, 2, 2)), jnp.asarray(-0.25)  # a number that serves all channels
    reduced = cj.pipeline(x, [kernel, slope], "Conv3d() -> PReLU() -> Mean('width', keepdim=False)")
    values = np.asarray(cj.conv3d(x, kernel))
    assert_same(reduced, np.where(values > 0, values, -0.25 * values).mean(4), 1e-13)


X, W = jnp.ones((1, 2, 3, 3, 3)), jnp.ones((2, 4, 2, 2, 2))
WRONG = {
    "a list": (lambda: cj.conv_transpose3d([1.0], W), convt3d.ArgumentTypeError, "input = list: must be a JAX array"),
    "integers": (lambda: cj.conv_transpose3d(X.astype(int), W), convt3d.DTypeError, "must be float32, float64"),
    "two types": (
        lambda: cj.conv_transpose3d(X, W.astype(jnp.bfloat16)),
        convt3d.DTypeError,
        "weight = array of bfloat16: must have the same type as input",
    ),
    "channels": (lambda: cj.conv3d(X, W), convt3d.ShapeError, "conv3d: weight"),
    "axes": (lambda: cj.conv3d(X[0, 0], W), convt3d.ShapeError, "must be 5-D"),
    "stride": (lambda: cj.conv_transpose3d(X, W, stride=0), convt3d.ArgumentError, "stride = 0: must be >= 1"),
    "unknown": (lambda: cj.conv_transpose3d(X, W, strides=2), convt3d.ArgumentTypeError, "Write stride"),
    "renamed": (
        lambda: cj.conv_transpose3d_avgpool_clamp_softmax_multiply(X, W, W[0, :3, 0, 0, 0], padding=0),
        convt3d.ShapeError,
        "conv_transpose3d_avgpool_clamp_softmax_multiply: scale",
    ),
    "operands": (lambda: cj.pipeline(X, [], "ConvTranspose3d()"), convt3d.ArgumentTypeError, "0 tensors after input"),
    "one operand": (lambda: cj.pipeline(X, W, "ConvTranspose3d()"), convt3d.ArgumentTypeError, "must be a list"),
    "stages": (lambda: cj.pipeline(X, [W], 3), convt3d.ArgumentTypeError, "must be a Pipeline or its text"),
    "text": (lambda: cj.pipeline(X, [W], "ConvTranspos3d()"), convt3d.ArgumentError, "Did you mean ConvTranspose3d?"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
def test_errors_when_traced(case: str, jitted: bool) -> None:
    call, kind, words = WRONG[case]
    with pytest.raises(kind, match=words.replace("(", r"\(").replace("?", r"\?")):
        jax.make_jaxpr(call)() if jitted else call()


def test_sizes_that_are_symbols_are_refused() -> None:
    (b,) = jax.export.symbolic_shape("b")
    x = jax.ShapeDtypeStruct((b, 2, 3, 3, 3), jnp.float32)
    with pytest.raises(convt3d.ShapeError, match="sizes must be numbers"):
        jax.eval_shape(cj.conv_transpose3d, x, jax.ShapeDtypeStruct(W.shape, jnp.float32))
