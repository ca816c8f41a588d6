"""Two devices: each computes its own samples within jax.shard_map; under jit XLA gathers a sharded batch first."""

from __future__ import annotations

import pytest
from helpers.command import python

pytest.importorskip("jax", reason="jax is not installed")

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import convt3d, convt3d.jax as cj
jax.config.update("jax_enable_x64", True)
assert len(jax.devices()) == 2
rng = np.random.default_rng(0)
x, w, b, g = (jnp.asarray(rng.normal(size=s)) for s in ((4, 3, 4, 5, 3), (3, 4, 3, 2, 3), (4,), (4, 4, 9, 10, 7)))

def layer(x, w, b):
    stages = "ConvTranspose3d(stride=2, bias=True) -> LayerNorm() -> GELU()"
    return cj.pipeline(x, [w, b], stages)

def loss(x, w, b, g):
    return (layer(x, w, b) * g).sum()

expected, gradients = layer(x, w, b), jax.grad(loss, (0, 1, 2))(x, w, b, g)
own = convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2, bias=True), convt3d.LayerNorm(), convt3d.GELU())
np.testing.assert_array_equal(expected, own(*map(np.asarray, (x, w, b))))
specs = P("batch"), P(), P(), P("batch")

def same(found):
    for one, other in zip(found, gradients):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)

mesh = jax.make_mesh((2,), ("batch",), axis_types=(AxisType.Auto,))
for check in (True, False):
    sharded = jax.jit(jax.shard_map(layer, mesh=mesh, in_specs=specs[:3], out_specs=P("batch"), check_vma=check))
    for _ in range(4):
        np.testing.assert_array_equal(sharded(x, w, b), expected)
mapped = jax.shard_map(
    lambda *given: jax.lax.psum(loss(*given), "batch"), mesh=mesh, in_specs=specs, out_specs=P()
)
same(jax.jit(jax.grad(mapped, (0, 1, 2)))(x, w, b, g))
print("shard_map")

placed = [jax.device_put(each, NamedSharding(mesh, spec)) for each, spec in zip((x, w, b, g), specs)]
np.testing.assert_array_equal(jax.jit(layer)(*placed[:3]), expected)
same(jax.jit(jax.grad(loss, (0, 1, 2)))(*placed))
print("jit")

explicit = jax.make_mesh((2,), ("batch",), axis_types=(AxisType.Explicit,))
with jax.set_mesh(explicit):
    placed = [jax.device_put(each, NamedSharding(explicit, spec)) for each, spec in zip((x, w, b, g), specs)]
    np.testing.assert_array_equal(jax.jit(layer)(*placed[:3]), expected)
print("explicit")
"""


def test_two_devices() -> None:
    said = python("-c", PROGRAM, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    assert said.splitlines() == ["shard_map", "jit", "explicit"]
