"""JAX: functions on JAX arrays that jit, vmap, grad and jax.shard_map take, computed by our kernels on the CPU.

    import convt3d.jax
    y = jax.jit(convt3d.jax.conv_transpose3d, static_argnames=("stride", "padding"))(x, w, stride=2, padding=1)

Needs jax 0.10.2 or newer (`pip install '.[jax]'` in a checkout).
"""

try:
    import jax as _jax  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ImportError(
        "convt3d.jax needs JAX 0.10.2 or newer, which is not installed: pip install 'jax>=0.10.2'", name="jax"
    ) from None

from .calls import register
from .functions import (
    conv3d,
    conv_transpose3d,
    conv_transpose3d_avgpool_clamp_softmax_multiply,
    conv_transpose3d_layernorm_gelu_scaling,
    conv_transpose3d_max_max_sum,
    conv_transpose3d_sum_layernorm_avgpool_gelu,
    pipeline,
)

__all__ = [
    "conv3d",
    "conv_transpose3d",
    "conv_transpose3d_avgpool_clamp_softmax_multiply",
    "conv_transpose3d_layernorm_gelu_scaling",
    "conv_transpose3d_max_max_sum",
    "conv_transpose3d_sum_layernorm_avgpool_gelu",
    "pipeline",
    "register",
]
