"""The vocabulary: every stage a pipeline may hold, with PyTorch's names and meaning of parameters.

To add one: docs/adding_a_stage.md. Values are always (B, C, D, H, W): a reduction keeps its axis with size 1, and
`keepdim=False` drops it from the pipeline's result.
"""

from ..stage import CHANNELS as CHANNELS
from ..stage import OVER as OVER
from ..stage import SPATIAL as SPATIAL
from .arithmetic import Add, Binary, Divide, Keep, Multiply, Recall, Subtract
from .conv import Conv3d, Convolution, ConvTranspose3d
from .norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm
from .pointwise import (
    GELU,
    Clamp,
    Exp,
    HardSwish,
    HardTanh,
    LeakyReLU,
    Log,
    Mish,
    PReLU,
    ReLU,
    Sigmoid,
    SiLU,
    Softplus,
    Tanh,
)
from .pools import AvgPool3d, MaxPool3d
from .reductions import LogSumExp, Max, Mean, Softmax, Sum

__all__ = [
    "GELU",
    "Add",
    "AvgPool3d",
    "BatchNorm",
    "Binary",
    "Clamp",
    "Conv3d",
    "ConvTranspose3d",
    "Convolution",
    "Divide",
    "Exp",
    "GroupNorm",
    "HardSwish",
    "HardTanh",
    "InstanceNorm",
    "Keep",
    "LayerNorm",
    "LeakyReLU",
    "Log",
    "LogSumExp",
    "Max",
    "MaxPool3d",
    "Mean",
    "Mish",
    "Multiply",
    "PReLU",
    "ReLU",
    "Recall",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Subtract",
    "Sum",
    "Tanh",
]
