"""Programs that JAX makes in other ways than jit: kept for another process, mapped over devices, only traced."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.command import python

jax = pytest.importorskip("jax", reason="jax is not installed")
import jax.numpy as jnp  # noqa: E402
from jax import export  # noqa: E402

import convt3d  # noqa: E402
import convt3d.jax as cj  # noqa: E402

STAGES = "ConvTranspose3d(stride=2) -> LayerNorm() -> GELU()"
LOADING = f"""
import sys
import jax, jax.numpy as jnp, numpy as np, convt3d, convt3d.jax
from jax import export
from convt3d.spec.text import read_stages
convt3d.jax.register()
kept = export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
x, w = (np.random.default_rng(0).standard_normal(s, np.float32) for s in ((2, 4, 3, 5, 6), (4, 6, 3, 2, 3)))
expected = convt3d.Pipeline(*read_stages({STAGES!r}))(x, w)
for _ in range(4):  # from the third one on without Python
    np.testing.assert_array_equal(kept.call(x, w), expected)
gradient = jax.grad(lambda x: kept.call(x, w).sum())(jnp.asarray(x))
own = jax.grad(lambda x: convt3d.jax.pipeline(x, [jnp.asarray(w)], {STAGES!r}).sum())(jnp.asarray(x))
np.testing.assert_allclose(gradient, own, rtol=1e-5, atol=1e-5)
print("same")
"""


def arrays() -> tuple[np.ndarray, ...]:  # type: ignore[type-arg]
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(shape, np.float32) for shape in ((2, 4, 3, 5, 6), (4, 6, 3, 2, 3)))


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    return cj.pipeline(x, [w], STAGES)


def test_exported_for_another_process(tmp_path: Path) -> None:
    allowed = [export.DisabledSafetyCheck.custom_call("convt3d")]
    kept = export.export(jax.jit(layer), disabled_checks=allowed)(*arrays())
    (tmp_path / "kept").write_bytes(kept.serialize(vjp_order=1))
    assert python("-c", LOADING, str(tmp_path / "kept")) == "same\n"


def test_exported_for_other_platforms() -> None:
    """Nothing of ours is in there."""
    kept = export.export(jax.jit(layer), platforms=["cuda", "tpu"])(*arrays())
    assert "@convt3d(" not in kept.mlir_module()
    assert kept.serialize()


def test_only_traced() -> None:
    x, w = (jax.ShapeDtypeStruct(each.shape, jnp.bfloat16) for each in arrays())
    found = jax.eval_shape(layer, x, w)
    assert (found.shape, found.dtype) == ((2, 6, 7, 10, 13), jnp.bfloat16)


def test_an_empty_batch() -> None:
    x, w = map(jnp.asarray, arrays())
    assert layer(x[:0], w).shape == (0, 6, 7, 10, 13)
    gradients = jax.jit(jax.grad(lambda x, w: layer(x, w).sum(), (0, 1)))(x[:0], w)
    assert gradients[0].shape == (0, *x.shape[1:])
    np.testing.assert_array_equal(gradients[1], np.zeros(w.shape))
    assert jax.vmap(layer, (0, None))(jnp.zeros((0, *x.shape), x.dtype), w).shape == (0, 2, 6, 7, 10, 13)


MAPPED = f"""
import jax, jax.numpy as jnp, numpy as np, convt3d.jax
x, w = (np.random.default_rng(0).standard_normal(s, np.float32) for s in ((2, 4, 3, 5, 6), (4, 6, 3, 2, 3)))
layer = lambda x, w: convt3d.jax.pipeline(x, [w], {STAGES!r})
both = jnp.stack([x, -x])
result = jax.pmap(layer, in_axes=(0, None))(both, w)
gradient = jax.pmap(jax.grad(lambda x, w: layer(x, w).sum(), 1), in_axes=(0, None))(both, w)
for at in range(2):
    np.testing.assert_array_equal(result[at], layer(both[at], jnp.asarray(w)))
    own = jax.grad(lambda w: layer(both[at], w).sum())(jnp.asarray(w))
    np.testing.assert_allclose(gradient[at], own, rtol=1e-5, atol=1e-5)
print("same")
"""


def test_pmap() -> None:
    assert python("-c", MAPPED, XLA_FLAGS="--xla_force_host_platform_device_count=2") == "same\n"


def test_numbers_that_are_not_known_are_refused() -> None:
    sizes = export.symbolic_shape("b, 4, 3, 5, 6")
    with pytest.raises(convt3d.Error, match="sizes must be numbers"):
        export.export(jax.jit(layer))(jax.ShapeDtypeStruct(sizes, jnp.float32), arrays()[1])
