"""PyTorch: operators, functions and modules that PyTorch can trace, differentiate and autocast, and `swap(model)`.

    import convt3d.torch
    report = convt3d.torch.swap(model)      # every nn.Conv3d and nn.ConvTranspose3d; report.undo() restores

Needs torch 2.4 or newer (`pip install '.[torch]'` in a checkout).
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "convt3d.torch needs PyTorch 2.4 or newer, which is not installed: pip install 'torch>=2.4'", name="torch"
    ) from None

from ..gpu.tune import autotune
from .backend import Optimized, optimize
from .backend import register as _register
from .explain import explain
from .functions import (
    conv3d,
    conv_transpose3d,
    conv_transpose3d_avgpool_clamp_softmax_multiply,
    conv_transpose3d_layernorm_gelu_scaling,
    conv_transpose3d_max_max_sum,
    conv_transpose3d_sum_layernorm_avgpool_gelu,
    pipeline,
)
from .modules import (
    Conv3d,
    ConvTranspose3d,
    ConvTranspose3dAvgPoolClampSoftmaxMultiply,
    ConvTranspose3dLayerNormGELUScaling,
    ConvTranspose3dMaxMaxSum,
    ConvTranspose3dSumLayerNormAvgPoolGELU,
    LazyConv3d,
    LazyConvTranspose3d,
)
from .prepared import forget, prepared_bytes
from .swap import FusedSequential, Report, swap
from .threads import share_threads as _share_threads
from .tiled import tiled

__all__ = [
    "Conv3d",
    "ConvTranspose3d",
    "ConvTranspose3dAvgPoolClampSoftmaxMultiply",
    "ConvTranspose3dLayerNormGELUScaling",
    "ConvTranspose3dMaxMaxSum",
    "ConvTranspose3dSumLayerNormAvgPoolGELU",
    "FusedSequential",
    "LazyConv3d",
    "LazyConvTranspose3d",
    "Optimized",
    "Report",
    "autotune",
    "conv3d",
    "conv_transpose3d",
    "conv_transpose3d_avgpool_clamp_softmax_multiply",
    "conv_transpose3d_layernorm_gelu_scaling",
    "conv_transpose3d_max_max_sum",
    "conv_transpose3d_sum_layernorm_avgpool_gelu",
    "explain",
    "forget",
    "optimize",
    "pipeline",
    "prepared_bytes",
    "swap",
    "tiled",
]

_register()
_share_threads()
