"""JAX: a layer that learns to interpolate, jitted; then the gradient of each sample, by vmap of grad."""

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    jax = None


def layer(x, w):
    """x (B, 2, D, H, W), w (2, 1, 2, 2, 2) -> (B, 1, 2 D, 2 H, 2 W), fused with its tail."""
    import convt3d.jax

    return convt3d.jax.pipeline(x, [w], "ConvTranspose3d(stride=2) -> Tanh()")


def loss(w, x, wanted):
    return jnp.mean((layer(x, w) - wanted) ** 2)


def main() -> None:
    if jax is None:
        print("skipped: this example needs jax (pip install jax)")
        return
    keys = jax.random.split(jax.random.key(0), 3)
    x, true = jax.random.normal(keys[0], (4, 2, 6, 7, 8)), 0.5 * jax.random.normal(keys[1], (2, 1, 2, 2, 2))
    wanted, w = layer(x, true), 0.1 * jax.random.normal(keys[2], true.shape)

    @jax.jit
    def step(w):
        value, slope = jax.value_and_grad(loss)(w, x, wanted)
        return value, w - 2.0 * slope

    for turn in range(61):
        value, w = step(w)
        if turn % 20 == 0:
            print(f"step {turn}: loss {float(value):.2e}")
    print(f"learnt to {float(jnp.abs(w - true).max()):.1e}")

    each = jax.jit(jax.vmap(jax.grad(loss), (None, 0, 0)))(w, x[:, None], wanted[:, None])
    print(f"each sample's own gradient {each.shape}")


if __name__ == "__main__":
    main()
