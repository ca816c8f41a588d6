"""Fused 3-D transposed-convolution operators, exact in meaning.

    y = convt3d.conv_transpose3d(x, w, bias, stride=2, padding=1)
    pipe = convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2, padding=1), convt3d.LayerNorm(), convt3d.GELU())
    y = pipe(x, w)

`convt3d.problems` holds the five named operators with the positional signature of their problem texts.
"""

from . import interpreter  # noqa: F401 - first: it says where the package cannot run
from .errors import (
    AllocationError,
    ArgumentError,
    ArgumentTypeError,
    BoundsError,
    BuildError,
    DTypeError,
    Error,
    OutputError,
    ProblemFileError,
    ShapeError,
    UnknownProblemError,
)
from .front.functions import (
    conv_transpose3d,
    conv_transpose3d_avgpool_clamp_softmax_multiply,
    conv_transpose3d_layernorm_gelu_scaling,
    conv_transpose3d_max_max_sum,
    conv_transpose3d_sum_layernorm_avgpool_gelu,
)
from .front.pipeline import Pipeline
from .front.solutions import problems
from .plan.cores import get_num_threads, num_threads, set_num_threads
from .spec.stages import (
    GELU,
    Add,
    AvgPool3d,
    BatchNorm,
    Clamp,
    ConvTranspose3d,
    Divide,
    Exp,
    GroupNorm,
    HardSwish,
    HardTanh,
    InstanceNorm,
    Keep,
    LayerNorm,
    LeakyReLU,
    LogSumExp,
    Max,
    MaxPool3d,
    Mean,
    Mish,
    Multiply,
    PReLU,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Subtract,
    Sum,
    Tanh,
)

__version__ = "0.1.0"

__all__ = [
    "GELU",
    "Add",
    "AllocationError",
    "ArgumentError",
    "ArgumentTypeError",
    "AvgPool3d",
    "BatchNorm",
    "BoundsError",
    "BuildError",
    "Clamp",
    "ConvTranspose3d",
    "DTypeError",
    "Divide",
    "Error",
    "Exp",
    "GroupNorm",
    "HardSwish",
    "HardTanh",
    "InstanceNorm",
    "Keep",
    "LayerNorm",
    "LeakyReLU",
    "LogSumExp",
    "Max",
    "MaxPool3d",
    "Mean",
    "Mish",
    "Multiply",
    "OutputError",
    "PReLU",
    "Pipeline",
    "ProblemFileError",
    "ReLU",
    "ShapeError",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Subtract",
    "Sum",
    "Tanh",
    "UnknownProblemError",
    "conv_transpose3d",
    "conv_transpose3d_avgpool_clamp_softmax_multiply",
    "conv_transpose3d_layernorm_gelu_scaling",
    "conv_transpose3d_max_max_sum",
    "conv_transpose3d_sum_layernorm_avgpool_gelu",
    "get_num_threads",
    "num_threads",
    "problems",
    "set_num_threads",
]
