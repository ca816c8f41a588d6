"""Every mistake a caller can make ends in one Error that names operator, argument, value, rule and remedy."""
# ruff: noqa: E501  a row of a table is one line

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import convt3d
from convt3d import Add, Clamp, ConvTranspose3d, Keep, Multiply, Pipeline, Sum
from convt3d.errors import (
    AllocationError,
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    Error,
    OutputError,
    ShapeError,
)
from convt3d.spec.checks import answers

BUILTIN = {
    ShapeError: ValueError,
    DTypeError: TypeError,
    ArgumentError: ValueError,
    ArgumentTypeError: TypeError,
    OutputError: ValueError,
    AllocationError: MemoryError,
}
NAN, INF = float("nan"), float("inf")
CONV = convt3d.conv_transpose3d
MAX_SUM = convt3d.conv_transpose3d_max_max_sum
SUM_NORM = convt3d.conv_transpose3d_sum_layernorm_avgpool_gelu
SOFTMAX = convt3d.conv_transpose3d_avgpool_clamp_softmax_multiply
SCALING = convt3d.conv_transpose3d_layernorm_gelu_scaling
FUNCTIONS = {f.__name__: f for f in (CONV, MAX_SUM, SUM_NORM, SOFTMAX, SCALING)}

X, W, V = (1, 2, 3, 4, 5), (2, 4, 3, 3, 3), (4,)  # CONV gives (1, 4, 5, 6, 7)
x, w, v = (np.random.default_rng(0).normal(size=shape) for shape in (X, W, V))
THREE = "three ints (depth, height, width)"
INT1 = "Write an int >= 1"

HUGE = np.broadcast_to(np.float64(1), (1, 1, 2**17, 2**17, 2**17))  # stride 0: no memory
TALL = np.broadcast_to(np.float64(1), (1, 1, 2, 1, 1))
ONE = np.ones((1, 1, 1, 1, 1))


class SymInt:
    """Not PyTorch's."""

    def __repr__(self) -> str:
        return "a stranger"


def row(
    call: Callable[..., Any], error: type[Error], argument: str, value: str, rule: str, remedy: str, why: str
) -> Any:
    """`value` is what the message shows after the "="."""
    return pytest.param(call, error, argument, value, rule, remedy, id=why)


SHAPES = [
    row(lambda: CONV(x[0, 0], w), ShapeError, "input", "array of shape (3, 4, 5)", "5-D (B, C, D, H, W) or 4-D (C, D, H, W), not 3-D", "Reshape", "rank 3"),
    row(lambda: CONV(x[None], w), ShapeError, "input", "array of shape (1, 1, 2, 3, 4, 5)", "not 6-D", "Reshape", "rank 6"),
    row(lambda: CONV(x[:, :, :0], w), ShapeError, "input", "array of shape (1, 2, 0, 4, 5)", "only the batch may be empty", "Reshape", "an empty volume"),
    row(lambda: CONV(x[:, :0], w), ShapeError, "input", "array of shape (1, 0, 3, 4, 5)", "at least one channel", "Reshape", "no channels"),
    row(lambda: CONV(x, w[0]), ShapeError, "weight", "array of shape (4, 3, 3, 3)", "5-D (Cin, Cout/groups, Kd, Kh, Kw)", "Reshape", "rank of w"),
    row(lambda: CONV(x, w[..., :0]), ShapeError, "weight", "array of shape (2, 4, 3, 3, 0)", "no empty axis", "Reshape", "an empty kernel"),
    row(lambda: CONV(x, w[:1]), ShapeError, "weight", "array of shape (1, 4, 3, 3, 3)", "first axis must equal the 2 channels of the input of shape (1, 2, 3, 4, 5)", "layout is (Cin, Cout/groups, Kd, Kh, Kw)", "channel mismatch"),
    row(lambda: CONV(x, w.swapaxes(0, 1)), ShapeError, "weight", "array of shape (4, 2, 3, 3, 3)", "first axis must equal the 2 channels", "looks like (Cout, Cin, ...), as a Conv3d has it: pass weight.swapaxes(0, 1)", "weight of a Conv3d"),
    row(lambda: CONV(x, w, v[:3]), ShapeError, "bias", "array of shape (3,)", "must have shape (4,) for 4 channels", "Reshape", "bias too short"),
    row(lambda: CONV(x, w, v[:2], groups=1), ShapeError, "bias", "array of shape (2,)", "for 4 channels", "Reshape", "bias of Cin"),
    row(lambda: CONV(x, w, v.reshape(2, 2)), ShapeError, "bias", "array of shape (2, 2)", "must have shape (4,)", "Reshape", "bias of rank 2"),
    row(lambda: CONV(x, w, np.array(1.0)), ShapeError, "bias", "array of shape ()", "must have shape (4,)", "Reshape", "bias of rank 0"),
    row(lambda: SUM_NORM(x, w, norm_weight=v[:1]), ShapeError, "norm_weight", "array of shape (1,)", "must have shape (4,)", "Reshape", "norm_weight by its name"),
    row(lambda: SCALING(x, w, norm_bias=v[:1]), ShapeError, "norm_bias", "array of shape (1,)", "must have shape (4,)", "Reshape", "norm_bias by its name"),
    row(lambda: SOFTMAX(x, w, v[:2]), ShapeError, "scale", "array of shape (2,)", "must have shape (4,)", "Reshape", "scale by its name"),
    row(lambda: CONV(x, w, groups=3), ShapeError, "groups", "3", "must divide the 2 input channels", "Choose a divisor of Cin", "groups that do not divide"),
    row(lambda: CONV(x, w, padding=(0, 0, 4)), ShapeError, "padding", "(0, 0, 4)", "leaves an output of size -1 along width for input size 5, kernel 3", "Lower the padding", "negative output size"),
    row(lambda: CONV(x[..., :1], w[..., :2], padding=(0, 0, 1)), ShapeError, "padding", "(0, 0, 1)", "output of size 0 along width", "Lower the padding", "empty output"),
    row(lambda: SOFTMAX(x, w, v, pool_kernel=(1, 2, 6)), ShapeError, "pool_kernel", "(1, 2, 6)", "larger than its input of size 5", "smaller window or a larger volume", "pool_kernel larger than x"),
    row(lambda: MAX_SUM(x[..., :2], w), ShapeError, "max-pool kernel", "(2, 2, 2)", "larger than its input of size 1", "larger volume", "first max-pool"),
    row(lambda: MAX_SUM(x, w), ShapeError, "max-pool kernel", "(3, 3, 3)", "larger than its input of size 1", "larger volume", "second max-pool"),
    row(lambda: SUM_NORM(x[..., :1], w[..., :1], padding=0, output_padding=0), ShapeError, "average-pool kernel", "(2, 2, 2)", "larger than its input of size 1", "larger volume", "average-pool"),
]  # fmt: skip

SIZES = [
    row(lambda: CONV(x, w, stride=2**40), ShapeError, "output shape", "(1, 4, ", "more elements than 64-bit offsets can address", "smaller sizes, strides or dilations", "huge stride"),
    row(lambda: CONV(x, w, dilation=2**62), ShapeError, "output shape", "(1, 4, ", "64-bit", "smaller", "huge dilation"),
    row(lambda: CONV(TALL, ONE, stride=2**61), ShapeError, "output shape", f"(1, 1, {2**61 + 1}, 1, 1)", "64-bit", "smaller", "one axis alone"),
    row(lambda: CONV(x[:0], w, stride=2**40), ShapeError, "output shape", "(0, 4, ", "64-bit", "smaller", "huge stride, empty batch"),
    row(lambda: MAX_SUM(x, w, stride=2**30), ShapeError, "output shape", "(1, 4, ", "64-bit", "smaller", "huge value before the pools"),
    row(lambda: CONV(x, w, padding=2**63), ArgumentError, "padding", str(2**63), "must fit a signed 64-bit integer", "smaller number", "padding beyond 64 bits"),
    row(lambda: CONV(x, w, stride=10**200), ArgumentError, "stride", "1000", "must fit a signed 64-bit integer", "smaller number", "stride of 200 digits"),
    row(lambda: CONV(HUGE, ONE), AllocationError, "output", f"shape (1, 1, {2**17}, {2**17}, {2**17}), 18,014,398,509,481,984 bytes", "does not fit in memory", "smaller batch or volume", "output of 18 PB"),
    row(lambda: CONV(HUGE[0], ONE), AllocationError, "output", f"shape (1, {2**17}, {2**17}, {2**17})", "memory", "smaller", "unbatched output of 18 PB"),
]  # fmt: skip

TYPES = [
    row(lambda: CONV(x, w.astype("f4")), DTypeError, "weight", "array of float32", "same type as input, which is float64", "Convert one", "two types"),
    row(lambda: CONV(x, torch.from_numpy(w).bfloat16()), DTypeError, "weight", "array of bfloat16", "which is float64", "Convert one", "two types, two libraries"),
    row(lambda: CONV(x, w, v.astype("f2")), DTypeError, "bias", "array of float16", "which is float64", "Convert one", "type of bias"),
    row(lambda: SCALING(x, w, norm_weight=v.astype(int)), DTypeError, "norm_weight", "array of int64", "must be float32, float64, float16, bfloat16", "Convert", "integers"),
    row(lambda: SOFTMAX(x, w, v.astype("f4")), DTypeError, "scale", "array of float32", "which is float64", "Convert one", "type of scale"),
    row(lambda: SOFTMAX(x, w, None), ArgumentTypeError, "scale", "NoneType", "must be a numpy array", "Convert it", "scale None"),
    row(lambda: CONV(x, None), ArgumentTypeError, "weight", "NoneType", "must be a numpy array", "Convert it", "w None"),
    row(lambda: CONV(x, w, 0.5), ArgumentTypeError, "bias", "float", "must be a numpy array", "Convert it", "bias a number"),
    row(lambda: CONV(x, w, 2), ArgumentTypeError, "bias", "int", "must be a numpy array", "Convert it", "a stride in the place of bias"),
    row(lambda: SUM_NORM(x, w, norm_bias=[0.5]), ArgumentTypeError, "norm_bias", "list", "must be a numpy array", "Convert it", "norm_bias a list"),
]  # fmt: skip

INTEGERS = [
    row(lambda: CONV(x, w, stride=0), ArgumentError, "stride", "0", "must be >= 1", INT1, "stride 0"),
    row(lambda: CONV(x, w, padding=-1), ArgumentError, "padding", "-1", "must be >= 0", "Write an int >= 0", "negative padding"),
    row(lambda: CONV(x, w, dilation=(1, 1, -2)), ArgumentError, "dilation", "-2", "must be >= 1", INT1, "negative dilation on one axis"),
    row(lambda: CONV(x, w, groups=0), ArgumentError, "groups", "0", "must be >= 1", INT1, "groups 0"),
    row(lambda: CONV(x, w, groups=(1, 1, 1)), ArgumentTypeError, "groups", "(1, 1, 1)", "must be an integer", INT1, "three groups"),
    row(lambda: CONV(x, w, stride=2.0), ArgumentTypeError, "stride", "2.0", "must be an integer", INT1, "a whole float"),
    row(lambda: CONV(x, w, stride=(1, NAN, 1)), ArgumentTypeError, "stride", "nan", "must be an integer", INT1, "NaN"),
    row(lambda: CONV(x, w, stride=True), ArgumentTypeError, "stride", "True", "must be an integer", INT1, "bool"),
    row(lambda: CONV(x, w, stride=SymInt()), ArgumentTypeError, "stride", "a stranger", "must be an integer", INT1, "a stranger named SymInt"),
    row(lambda: CONV(x, w, stride=np.True_), ArgumentTypeError, "stride", "np.True_", "must be an integer", INT1, "numpy bool"),
    row(lambda: CONV(x, w, stride=torch.tensor(True)), ArgumentTypeError, "stride", "tensor(True)", "must be an integer", INT1, "torch bool"),
    row(lambda: CONV(x, w, stride="2"), ArgumentTypeError, "stride", "'2'", THREE, "Write numbers, not text", "text"),
    row(lambda: CONV(x, w, padding=None), ArgumentTypeError, "padding", "None", "must be an integer", "Write an int >= 0", "None"),
    row(lambda: CONV(x, w, padding=(1, 2)), ArgumentError, "padding", "(1, 2)", f"{THREE}, not 2 values", "one number for each axis", "two values"),
    row(lambda: CONV(x, w, padding=()), ArgumentError, "padding", "()", "not 0 values", "one number for each axis", "no values"),
    row(lambda: CONV(x, w, stride=np.ones((3, 3), int)), ArgumentTypeError, "stride", "array([1, 1, 1])", "must be an integer", INT1, "a matrix"),
    row(lambda: SOFTMAX(x, w, v, pool_kernel=0), ArgumentError, "pool_kernel", "0", "must be >= 1", INT1, "pool_kernel 0"),
    row(lambda: SOFTMAX(x, w, v, pool_kernel=(2, 2)), ArgumentError, "pool_kernel", "(2, 2)", "not 2 values", "one number for each axis", "pool_kernel of two"),
    row(lambda: CONV(x, w, output_padding=1), ArgumentError, "output_padding", "(1, 1, 1)", "must be smaller than max(stride, dilation) = 1 along depth", "Lower output_padding", "output_padding = stride"),
    row(lambda: CONV(x, w, stride=(2, 3, 2), dilation=(1, 1, 3), output_padding=(1, 2, 3)), ArgumentError, "output_padding", "(1, 2, 3)", "= 3 along width", "raise the stride", "output_padding = dilation on the last axis"),
]  # fmt: skip

NUMBERS = [
    row(lambda: SOFTMAX(x, w, v, clamp_min=NAN), ArgumentError, "clamp_min", "nan", "must not be NaN", "infinities are allowed", "NaN lower bound"),
    row(lambda: SOFTMAX(x, w, v, clamp_max=NAN), ArgumentError, "clamp_max", "nan", "must not be NaN", "infinities are allowed", "NaN upper bound"),
    row(lambda: SOFTMAX(x, w, v, clamp_min=2, clamp_max=1), ArgumentError, "clamp_min, clamp_max", "(2.0, 1.0)", "must not be greater", "Swap the bounds", "bounds swapped"),
    row(lambda: SOFTMAX(x, w, v, clamp_min=INF, clamp_max=-INF), ArgumentError, "clamp_min, clamp_max", "(inf, -inf)", "must not be greater", "Swap the bounds", "infinite bounds swapped"),
    row(lambda: SOFTMAX(x, w, v, clamp_min=None, clamp_max=None), ArgumentError, "clamp_min, clamp_max", "None", "at least one bound", "Write", "no bound at all"),
    row(lambda: SOFTMAX(x, w, v, clamp_min="low"), ArgumentTypeError, "clamp_min", "'low'", "must be a real number", "Write an int or a float", "text as a bound"),
    row(lambda: SUM_NORM(x, w, eps=NAN), ArgumentError, "eps", "nan", "must not be NaN", "Write a number", "NaN eps"),
    row(lambda: SCALING(x, w, eps=-1e-5), ArgumentError, "eps", "-1e-05", "must be >= 0", "Write a number >= 0", "negative eps"),
    row(lambda: SCALING(x, w, eps=None), ArgumentTypeError, "eps", "None", "must be a real number", "Write an int or a float", "eps None"),
    row(lambda: SCALING(x, w, approximate="erf"), ArgumentError, "approximate", "'erf'", "must be 'none' or 'tanh'", "Write 'none' or 'tanh'", "unknown approximation"),
    row(lambda: SCALING(x, w, approximate=True), ArgumentError, "approximate", "True", "must be 'none' or 'tanh'", "Write 'none' or 'tanh'", "flag for approximate"),
    *(row(lambda bad=bad: SUM_NORM(x, w, bad), ArgumentTypeError, "sum_weight", repr(bad), "must be a real number", "Write an int or a float", f"sum_weight {type(bad).__name__} {bad}") for bad in ("1", "channel", "tensor", "x", None, 1j, np.complex128(2), [1.0], np.ones(2))),
    *(row(lambda bad=bad: SCALING(x, w, bad), ArgumentTypeError, "scaling_factor", repr(bad), "must be a real number", "Write an int or a float", f"scaling_factor {bad}") for bad in ("channel", "tensor", "x")),
    row(lambda: SCALING(x, w, 10**400), ArgumentError, "scaling_factor", "1000", "must fit a C double", "smaller number", "an int beyond double"),
]  # fmt: skip

plain = Pipeline(ConvTranspose3d(), Add("channel"), Multiply("tensor"))
TAKES = "takes input, weight, add_other, multiply_other"
ONCE = "Pass each of them once, by position or by name"

PIPELINES = [
    row(lambda: plain(x, w, v), ArgumentTypeError, "operands", "2 tensors after input", f"{TAKES}: 3 after input", ONCE, "operand missing"),
    row(lambda: plain(x, add_other=v, multiply_other=x), ArgumentTypeError, "weight", "None", "is missing", ONCE, "weight missing"),
    row(lambda: plain(x, w, v, x, x), ArgumentTypeError, "operands", "4 tensors after input", TAKES, ONCE, "operand too many"),
    row(lambda: plain(x, w, v, weight=w), ArgumentTypeError, "weight", "ndarray", f"is given twice; the pipeline {TAKES}", ONCE, "operand given twice"),
    row(lambda: plain(x, w, v, x, bias=v), ArgumentTypeError, "bias", "ndarray", f"is unknown; the pipeline {TAKES}", "Leave it out", "operand unknown"),
    row(lambda: plain(x, w, v, x), ShapeError, "multiply_other", "array of shape (1, 2, 3, 4, 5)", "must have the value's shape (1, 4, 5, 6, 7), or 1 on axes to repeat", "Reshape", "tensor of another shape"),
    row(lambda: plain(x, w, "v", x), ArgumentTypeError, "add_other", "str", "must be a numpy array", "Convert it", "text as an operand"),
    row(lambda: plain(x, w, v, x[0]), ShapeError, "multiply_other", "array of shape (2, 3, 4, 5)", "must have the value's shape", "Reshape", "4-D tensor with a batched x"),
    row(lambda: plain.explain(X, W[:4]), ShapeError, "weight", "array of shape (2, 4, 3, 3)", "must be 5-D", "Reshape", "explain: rank of w"),
    row(lambda: plain.explain((-1, *X[1:]), W), ArgumentError, "input", "-1", "must be >= 0", "Write an int >= 0", "explain: negative batch"),
    row(lambda: plain.explain((1.5, *X[1:]), W), ArgumentTypeError, "input", "1.5", "must be an integer", "Write an int", "explain: float size"),
    row(lambda: plain.explain(x, W), ArgumentTypeError, "input", "array([[[[[", "must be a shape", "Pass array.shape", "explain: the array itself"),
    row(lambda: plain.explain(X, 5), ArgumentTypeError, "weight", "5", "must be a shape", "Pass array.shape", "explain: a number"),
    row(lambda: plain.explain(X, W, "int8"), ArgumentError, "dtype", "'int8'", "must be 'float32'", "Write 'float32'", "explain: unknown type"),
    row(lambda: Pipeline(ConvTranspose3d(), Keep("a"), Sum(), Add("a"), Sum("spatial"), Multiply("x"))(x[:, :2], w), ShapeError, "other", "'x'", "names a value of shape (1, 2, 3, 4, 5), which does not fit the current shape (1, 4, 1, 1, 1)", "Sizes must be equal, or 1", "kept value that does not fit"),
]  # fmt: skip

PIPE = Pipeline(ConvTranspose3d())
CALLS = [
    row(lambda: CONV(x, w, strides=2), ArgumentTypeError, "strides", "int", "is unknown; conv_transpose3d takes input, weight, bias, stride", "Write stride", "a name that is nearly right"),
    row(lambda: CONV(x=x, w=w), ArgumentTypeError, "x", "ndarray", "is unknown", "Write input", "x for input"),
    row(lambda: CONV(x, w=w), ArgumentTypeError, "w", "ndarray", "is unknown", "Write weight", "w for weight"),
    row(lambda: CONV(x, w, kernel_size=3), ArgumentTypeError, "kernel_size", "int", "is unknown", "sizes come from the tensors", "a size"),
    row(lambda: CONV(x, w, weight=w), ArgumentTypeError, "weight", "ndarray", "is given twice", "Pass it once", "by position and by name"),
    row(lambda: CONV(x), ArgumentTypeError, "weight", "no value", "is missing; conv_transpose3d takes input, weight", "Pass it", "no weight"),
    row(lambda: CONV(), ArgumentTypeError, "input", "no value", "is missing", "Pass it", "nothing at all"),
    row(lambda: MAX_SUM(x, w, v, 2, 2, None, 0), ArgumentTypeError, "arguments by position", "7 values", "takes input, weight, bias, stride, padding, out by position; output_padding, groups", "output_padding=...", "too many by position"),
    row(lambda: SOFTMAX(x, w, scales=v), ArgumentTypeError, "scales", "ndarray", "is unknown", "Write scale", "a required one misspelt"),
    row(lambda: PIPE(x=x, w=w), ArgumentTypeError, "x", "ndarray", "is unknown", "Write input", "pipeline: x for input"),
    row(lambda: PIPE(x, w=w), ArgumentTypeError, "w", "ndarray", "is unknown; the pipeline takes input, weight", "Write weight", "pipeline: w for weight"),
    row(lambda: PIPE(x, wieght=w), ArgumentTypeError, "wieght", "ndarray", "is unknown", "Write weight", "pipeline: a name that is nearly right"),
    row(lambda: PIPE(), ArgumentTypeError, "input", "no value", "is missing", "Pass it", "pipeline: nothing at all"),
    row(lambda: Pipeline(ConvTranspose3d(), stages=[]), ArgumentTypeError, "stages", "list", "is unknown; Pipeline takes *stages", "Leave it out", "pipeline: stages by name"),
    row(lambda: PIPE.explain(X, W, dtyp="float32"), ArgumentTypeError, "dtyp", "str", "is unknown", "Write dtype", "explain: a name that is nearly right"),
]  # fmt: skip

CONSTRUCTION = [
    ("Add", lambda: Pipeline(ConvTranspose3d(), Add("skip"), Keep("skip")), ArgumentError, "other", "'skip'", "names no earlier value; known here: 'x'", "Put Keep(name) earlier", "label used before it is kept"),
    ("Multiply", lambda: Pipeline(ConvTranspose3d(), Keep("a"), Multiply("b")), ArgumentError, "other", "'b'", "known here: 'x', 'a'", "Put Keep(name) earlier", "unknown label"),
    ("Keep", lambda: Pipeline(Keep("a"), ConvTranspose3d(), Keep("a")), ArgumentError, "label", "'a'", "is already in use", "Choose another name", "label kept twice"),
    ("Keep", lambda: Keep("tensor"), ArgumentError, "label", "'tensor'", "is a reserved word", "Choose another name", "reserved label"),
    ("Pipeline", lambda: Pipeline(Add(1.0)), ArgumentError, "stages", "(Add(other=1.0),)", "must hold a ConvTranspose3d or a Conv3d", "Write Pipeline(ConvTranspose3d(...), ...)", "no convolution"),
    ("Pipeline.explain", lambda: Pipeline(ConvTranspose3d(), ConvTranspose3d()).explain((1, 1, 1, 1, 1), (1, 1, 1, 1, 1)), ArgumentTypeError, "weight", "(1, 1, 1, 1, 1)", "must be 2 shapes, one for each convolution", "Pass [w.shape, w2.shape]", "one shape for two convolutions"),
    ("Pipeline", lambda: Pipeline(ConvTranspose3d(), Add), ArgumentTypeError, "stage 1", "<class ", "must be a stage", "Write Add(...), with brackets", "a class for a stage"),
    ("Pipeline", lambda: Pipeline([ConvTranspose3d(), Add(1.0)]), ArgumentTypeError, "stage 0", "[ConvTranspose3d(), Add(other=1.0)]", "must be a stage", "Write Pipeline(*stages)", "a list of stages"),
    ("Pipeline", lambda: Pipeline(torch.nn.ConvTranspose3d(1, 1, 1), torch.nn.ReLU()), ArgumentTypeError, "stage 0", "ConvTranspose3d(1, 1", "must be a stage", "or use convt3d.torch.swap(model)", "modules of PyTorch"),
    ("Pipeline", lambda: Pipeline("ReLU()"), ArgumentTypeError, "stage 0", "'ReLU()'", "must be a stage", "Write stages such as", "a text for a stage"),
    ("ConvTranspose3d", lambda: ConvTranspose3d(4, 2, 2), ArgumentTypeError, "arguments by position", "(4, 2, 2)", "takes nothing by position; stride, padding", "Sizes come from the tensors; write ConvTranspose3d(stride=...)", "PyTorch's order: channels, channels, kernel"),
    ("ConvTranspose3d", lambda: ConvTranspose3d(2), ArgumentTypeError, "arguments by position", "(2,)", "takes nothing by position", "Sizes come from the tensors", "one number"),
    ("GroupNorm", lambda: convt3d.GroupNorm(4, 16), ArgumentTypeError, "arguments by position", "(4, 16)", "takes num_groups by position; eps, affine by name", "Sizes come from the tensors; write GroupNorm(..., eps=...)", "PyTorch's order: groups, channels"),
    ("BatchNorm", lambda: convt3d.BatchNorm(16), ArgumentTypeError, "arguments by position", "(16,)", "takes nothing by position; eps, affine by name", "Sizes come from the tensors", "BatchNorm of so many channels"),
    ("InstanceNorm", lambda: convt3d.InstanceNorm(16), ArgumentTypeError, "arguments by position", "(16,)", "takes nothing by position", "Sizes come from the tensors", "InstanceNorm of so many channels"),
    ("PReLU", lambda: convt3d.PReLU(16), ArgumentTypeError, "arguments by position", "(16,)", "takes nothing by position", "Sizes come from the tensors; write PReLU()", "PReLU of so many channels"),
    ("MaxPool3d", lambda: convt3d.MaxPool3d(2, 2, 0, True), ArgumentTypeError, "arguments by position", "(2, 2, 0, True)", "takes kernel_size, stride, padding by position; ceil_mode by name", "Write MaxPool3d(", "PyTorch has dilation in the fourth place"),
    ("Softmax", lambda: convt3d.Softmax(1), ArgumentError, "over", "1", "must be 'channels' or 'spatial'", "Write 'channels'", "PyTorch's number of an axis"),
    ("BatchNorm", lambda: convt3d.BatchNorm(num_features=3), ArgumentTypeError, "num_features", "int", "is unknown; BatchNorm takes eps, affine", "sizes come from the tensors", "a size by name"),
    ("LayerNorm", lambda: convt3d.LayerNorm(elementwise_affine=True), ArgumentTypeError, "elementwise_affine", "bool", "is unknown", "Write affine", "PyTorch's name"),
    ("ReLU", lambda: convt3d.ReLU(inplace=True), ArgumentTypeError, "inplace", "bool", "is unknown; ReLU takes no arguments", "Leave it out", "inplace"),
    ("Keep", lambda: Keep(), ArgumentTypeError, "label", "no value", "is missing; Keep takes label", "Pass it", "no label"),
    ("Clamp", lambda: Clamp(1.0, NAN), ArgumentError, "max", "nan", "must not be NaN", "Write a number", "NaN bound of a stage"),
]  # fmt: skip


def shown(error: Error) -> str:
    """The value as the message shows it: between the argument and the rule."""
    text = str(error)
    head, tail = f"{error.operator}: {error.argument} = ", f": {error.rule}. {error.remedy}."
    assert text.startswith(head)
    assert text.endswith(tail)
    return text[len(head) : -len(tail)]


def check(caught: Error, error: type[Error], operator: str, argument: str, value: str, rule: str, remedy: str) -> None:
    assert type(caught) is error
    assert isinstance(caught, BUILTIN[error])
    assert (caught.operator, caught.argument) == (operator, argument)
    assert shown(caught).startswith(value)
    assert rule in caught.rule
    assert remedy in caught.remedy
    assert len(str(caught)) < 600, "a message is read by a person"
    assert str(pickle.loads(pickle.dumps(caught))) == str(caught), "errors cross process boundaries"


def operator_of(call: Callable[..., Any]) -> str:
    """What a row's lambda calls, told from the names it uses."""
    names = call.__code__.co_names
    called = [f.__name__ for f in FUNCTIONS.values() if any(globals().get(name) is f for name in names)]
    return called[0] if called else "Pipeline.explain" if "explain" in names else "Pipeline"


COLUMNS = ("call", "error", "argument", "value", "rule", "remedy")


ROWS = [*SHAPES, *SIZES, *TYPES, *INTEGERS, *NUMBERS, *PIPELINES]


@pytest.mark.parametrize(COLUMNS, ROWS)
def test_message(call: Any, error: type[Error], argument: str, value: str, rule: str, remedy: str) -> None:
    before = [a.tobytes() for a in (x, w, v)]
    with pytest.raises(Error) as caught:
        call()
    check(caught.value, error, operator_of(call), argument, value, rule, remedy)
    assert [a.tobytes() for a in (x, w, v)] == before


@pytest.mark.parametrize(COLUMNS, [r for r in ROWS if operator_of(r.values[0]) in FUNCTIONS])
def test_out_is_untouched(
    call: Any, error: Any, argument: str, value: str, rule: str, remedy: str, monkeypatch: Any
) -> None:
    """Each failing call again, with an `out` that a correct call would fill."""
    out = np.full((1, 4, 5, 6, 7), NAN)
    function = FUNCTIONS[operator_of(call)]
    name = next(name for name, value in globals().items() if value is function)
    monkeypatch.setitem(call.__globals__, name, partial(function, out=out))
    with pytest.raises(Error) as caught:
        call()
    if error is not AllocationError:  # with `out` there is nothing to allocate; its shape is wrong then
        check(caught.value, error, function.__name__, argument, value, rule, remedy)
    assert np.isnan(out).all()


@pytest.mark.parametrize(("operator", *COLUMNS), [pytest.param(*r[:-1], id=r[-1]) for r in CONSTRUCTION])
def test_construction(
    operator: str, call: Any, error: type[Error], argument: str, value: str, rule: str, remedy: str
) -> None:
    with pytest.raises(Error) as caught:
        call()
    check(caught.value, error, operator, argument, value, rule, remedy)


@pytest.mark.parametrize(COLUMNS, CALLS)
def test_arguments_of_a_call(call: Any, error: type[Error], argument: str, value: str, rule: str, remedy: str) -> None:
    with pytest.raises(Error) as caught:
        call()
    check(caught.value, error, operator_of(call), argument, value, rule, remedy)
    assert caught.value.__suppress_context__ or not caught.value.__context__, "one message, not two"


@pytest.mark.parametrize("function", [convt3d.set_num_threads, convt3d.num_threads], ids=lambda f: f.__name__)
def test_arguments_of_threads(function: Callable[..., Any]) -> None:
    with pytest.raises(ArgumentTypeError, match=r"counts = int: is unknown; \w+ takes count\. Write count\."):
        function(counts=2)


def test_an_error_of_another_is_not_taken_for_a_wrong_call() -> None:
    """A TypeError that comes from inside of a right call stays what it is."""

    def inner(value: int) -> None:
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        answers(inner)(1)


# --- out --------------------------------------------------------------------------------------------------------------

Y = (1, 4, 5, 6, 7)


def poison(shape: tuple[int, ...] = Y, dtype: Any = np.float64) -> Any:
    return np.full(shape, NAN, dtype)


def frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array


OUT = [
    ("misshaped", poison((1, 4, 5, 6, 6)), OutputError, "array of shape (1, 4, 5, 6, 6), float64", "must have the result's shape (1, 4, 5, 6, 7)", "Allocate that shape"),
    ("right size, wrong rank", poison(Y[1:]), OutputError, "array of shape (4, 5, 6, 7), float64", "must have the result's shape (1, 4, 5, 6, 7)", "Allocate that shape"),
    ("another type", poison(dtype=np.float32), DTypeError, "array of shape (1, 4, 5, 6, 7), float32", "must be float64, the type of input", "Give an array of that type"),
    ("integers", np.zeros(Y, int), DTypeError, "array of int64", "must be float32", "Convert"),
    ("read-only", frozen(poison()), OutputError, "array of shape (1, 4, 5, 6, 7)", "must be writable", "fresh array"),
    ("big-endian: a copy would be written", poison(dtype=">f8"), OutputError, "array of shape (1, 4, 5, 6, 7)", "native byte order", "fresh array"),
    ("overlaps itself: broadcast", np.lib.stride_tricks.as_strided(poison(), Y, (0, 0, 0, 0, 8)), OutputError, "array of shape (1, 4, 5, 6, 7)", "must not overlap itself", "not a broadcast view"),
    ("overlaps itself: sliding window", np.lib.stride_tricks.as_strided(poison(), Y, (8, 64, 32, 16, 8)), OutputError, "array of shape (1, 4, 5, 6, 7)", "must not overlap itself", "fresh array"),
    ("a list", [NAN], ArgumentTypeError, "list", "must be a numpy array", "Convert it"),
    ("masked", np.ma.masked_array(poison(), True), ArgumentTypeError, "masked array", "must not be masked", "Fill the mask"),
    ("lazily negated tensor", torch._neg_view(torch.full(Y, NAN, dtype=torch.float64)), OutputError, "lazily negated", "must own its bits", "fresh"),
    ("expanded tensor", torch.full((1, 4, 5, 6, 1), NAN, dtype=torch.float64).expand(Y), OutputError, "array of shape (1, 4, 5, 6, 7)", "must not overlap itself", "fresh array"),
    ("leaf that requires grad", torch.full(Y, NAN, dtype=torch.float64, requires_grad=True), ArgumentTypeError, "tensor that requires grad", "must not ask for gradients", "no_grad"),
]  # fmt: skip


@pytest.mark.parametrize(("out", *COLUMNS[1:2], *COLUMNS[3:]), [pytest.param(*r[1:], id=r[0]) for r in OUT])
@pytest.mark.parametrize("front", ["function", "pipeline"])
def test_out(front: str, out: Any, error: type[Error], value: str, rule: str, remedy: str) -> None:
    call, operator = (CONV, "conv_transpose3d") if front == "function" else (Pipeline(ConvTranspose3d()), "Pipeline")
    before = repr(out)
    with pytest.raises(Error) as caught:
        call(x, w, out=out)
    check(caught.value, error, operator, "out", value, rule, remedy)
    assert repr(out) == before


SHARED = {
    "x itself": lambda a, k: (a, k, None, a),
    "x shifted by one sample": lambda a, k: ((both := np.concatenate([a, a]))[:2], k, None, both[1:3]),
    "x reversed": lambda a, k: (a, k, None, a[::-1, ::-1, ::-1, ::-1, ::-1]),
    "w": lambda a, k: (a, (both := np.concatenate([k.ravel(), a.ravel()]))[: k.size].reshape(k.shape), None, both[1 : a.size + 1].reshape(a.shape)),
    "bias": lambda a, k: (a, k, (both := a.copy())[0, :2, 0, 0, 0], both),
    "a tensor over x's memory": lambda a, k: (a, k, None, torch.from_numpy(a)),
}  # fmt: skip


@pytest.mark.parametrize("make", SHARED.values(), ids=SHARED)
def test_out_that_shares_memory_with_an_input(make: Callable[..., Any], rng: Any) -> None:
    a, k, bias, out = make(rng.normal(size=(2, 2, 3, 3, 3)), rng.normal(size=(2, 2, 1, 1, 1)))
    before = [array.tolist() for array in (a, k, out)]
    with pytest.raises(OutputError) as caught:
        CONV(a, k, bias, out=out)
    check(caught.value, OutputError, "conv_transpose3d", "out", "array of shape (2, 2, 3, 3, 3), float64", "must not share memory with an input", "fresh array")  # fmt: skip
    assert [array.tolist() for array in (a, k, out)] == before


def test_scratch_failure_in_the_middle(rng: Any, monkeypatch: Any) -> None:
    """Memory that runs out inside the computation is an AllocationError too."""

    def exhausted(*_: Any) -> None:
        raise MemoryError("no")

    monkeypatch.setattr("convt3d.front.apply.execute_plan", exhausted)
    with pytest.raises(AllocationError) as caught:
        CONV(x, w)
    check(caught.value, AllocationError, "conv_transpose3d", "scratch", "out of memory", "must fit in memory", "smaller batch")  # fmt: skip


def test_long_values_are_cut() -> None:
    with pytest.raises(ArgumentError) as caught:
        CONV(x, w, stride=tuple(range(1, 1000)))
    assert shown(caught.value).endswith("...")
    assert len(shown(caught.value)) == 120
    assert caught.value.received == tuple(range(1, 1000)), "the attribute keeps the whole value"
