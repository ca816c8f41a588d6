"""Every error of the spec layer names operator, argument, value received, the rule and the remedy."""

from __future__ import annotations

import ast
import copy
import inspect
import math
import pickle
import re
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from convt3d.errors import ArgumentError, ArgumentTypeError, Error, ShapeError
from convt3d.spec import checks, pipeline, shapes, stage
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.stages import (
    GELU,
    Add,
    AvgPool3d,
    BatchNorm,
    Clamp,
    Conv3d,
    ConvTranspose3d,
    GroupNorm,
    HardTanh,
    Keep,
    LayerNorm,
    LeakyReLU,
    MaxPool3d,
    Mean,
    Multiply,
    PReLU,
    Recall,
    Softmax,
    Softplus,
    Subtract,
    Sum,
    Tanh,
    arithmetic,
    conv,
    norms,
    pointwise,
    pools,
    reductions,
)

nan = math.nan


class Foreign:
    """An object of a library we do not know."""

    def __repr__(self) -> str:
        return "Foreign()"

    def __index__(self) -> int:
        raise OSError


class Case(NamedTuple):
    why: str
    call: Callable[[], Any]
    error: type[Error]
    parts: tuple[str, str, str, str, str]  # operator and argument in full; regexes of received, rule and remedy


def _trace(*of: Any, x: tuple[int, ...] = (2, 6, 3, 4, 5), w: Any = (6, 2, 1, 1, 1), others: Any = ()) -> Any:
    """Traces ConvTranspose3d() and the given stages."""
    return lambda: Pipeline(ConvTranspose3d(), *of).trace(x, [w, *others])


def _conv(**parameters: Any) -> Callable[[], Any]:
    return lambda: ConvTranspose3d(**parameters)


CONV = "ConvTranspose3d"
INT = "must be an integer"
REAL = "must be a real number"
THREE = r"must be an int or three ints \(depth, height, width\)"
TYPE, VALUE = ArgumentTypeError, ArgumentError

CASES = [
    Case(
        "method that fails",
        _conv(stride=Foreign()),
        TYPE,
        (CONV, "stride", "Foreign", "cannot be read", "plain numbers"),
    ),
    Case(
        "too many taps",
        _trace(w=(6, 2, 1, 1, 2**17)),
        ShapeError,
        (CONV, "weight", "131072", "at most .* 65,536 taps", "smaller kernel"),
    ),
    # integers
    Case("float", _conv(stride=2.0), TYPE, (CONV, "stride", r"2\.0", INT, "int >= 1")),
    Case("boolean", _conv(groups=True), TYPE, (CONV, "groups", "True", INT, "int >= 1")),
    Case("numpy boolean", _conv(padding=np.True_), TYPE, (CONV, "padding", "True", INT, "int >= 0")),
    Case("torch boolean", _conv(groups=torch.tensor(True)), TYPE, (CONV, "groups", "True", INT, "int >= 1")),
    Case("None", _conv(stride=None), TYPE, (CONV, "stride", "None", INT, "int >= 1")),
    Case("several numbers", _conv(groups=np.array([1, 2])), TYPE, (CONV, "groups", r"\[1, 2\]", INT, "int")),
    Case("float in a triple", _conv(dilation=(1, 2.5, 1)), TYPE, (CONV, "dilation", r"2\.5", INT, "int >= 1")),
    Case("text in a triple", _conv(stride=(1, "2", 1)), TYPE, (CONV, "stride", "'2'", INT, "int >= 1")),
    Case("zero", _conv(stride=(1, 0, 1)), VALUE, (CONV, "stride", "0", "must be >= 1", "int >= 1")),
    Case("negative", _conv(padding=-1), VALUE, (CONV, "padding", "-1", "must be >= 0", "int >= 0")),
    Case("65 bits", _conv(dilation=2**63), VALUE, (CONV, "dilation", str(2**63), "signed 64-bit", "smaller")),
    Case("text", lambda: MaxPool3d("2"), TYPE, ("MaxPool3d", "kernel_size", "'2'", THREE, "numbers, not text")),
    Case("two values", lambda: AvgPool3d((2, 3)), VALUE, ("AvgPool3d", "kernel_size", r"\(2, 3\)", THREE, "each axis")),
    Case("no values", _conv(stride=[]), VALUE, (CONV, "stride", r"\(\)", "not 0 values", "each axis")),
    # numbers, flags, words
    Case("None", lambda: Add(None), TYPE, ("Add", "other", "None", REAL, "int or a float")),
    Case("complex", lambda: Multiply(1 + 2j), TYPE, ("Multiply", "other", "2j", REAL, "int or a float")),
    Case("numpy complex", lambda: Add(np.complex64(2j)), TYPE, ("Add", "other", "2j", REAL, "int or a float")),
    Case("text", lambda: Clamp(min="0"), TYPE, ("Clamp", "min", "'0'", REAL, "int or a float")),
    Case("an array", lambda: LeakyReLU(np.ones(2)), TYPE, ("LeakyReLU", "negative_slope", "array", REAL, "a float")),
    Case("too big", lambda: Add(10**400), VALUE, ("Add", "other", "1000", "must fit a C double", "smaller")),
    Case(
        "NaN bound", lambda: Clamp(nan, 1), VALUE, ("Clamp", "min", "nan", "must not be NaN", "infinities are allowed")
    ),
    Case(
        "NaN slope", lambda: LeakyReLU(nan), VALUE, ("LeakyReLU", "negative_slope", "nan", "must not be NaN", "number")
    ),
    Case("NaN eps", lambda: BatchNorm(eps=nan), VALUE, ("BatchNorm", "eps", "nan", "must not be NaN", "number")),
    Case("NaN shift", lambda: Softmax(shift=nan), VALUE, ("Softmax", "shift", "nan", "must not be NaN", "number")),
    Case("negative eps", lambda: LayerNorm(eps=-1e-9), VALUE, ("LayerNorm", "eps", "-1e-09", "must be >= 0", ">= 0")),
    Case("flag", _conv(bias=1), TYPE, (CONV, "bias", "1", "must be True or False", "True or False")),
    Case(
        "flag", lambda: MaxPool3d(2, ceil_mode=None), TYPE, ("MaxPool3d", "ceil_mode", "None", "True or False", "True")
    ),
    Case("word", lambda: GELU("erf"), VALUE, ("GELU", "approximate", "'erf'", "must be 'none' or 'tanh'", "'none' or")),
    Case("word", lambda: Softmax("width"), VALUE, ("Softmax", "over", "'width'", "'channels' or 'sp", "'channels'")),
    Case("word", lambda: LayerNorm("spatial"), VALUE, ("LayerNorm", "over", "'spatial'", "'width'", "'channels'")),
    Case("word", lambda: Mean(1), VALUE, ("Mean", "over", "1", "'channels' or 'spatial'", "'channels'")),
    # rules of single stages
    Case(
        "output_padding",
        _conv(stride=(1, 2, 1), output_padding=(0, 1, 1)),
        VALUE,
        (
            CONV,
            "output_padding",
            r"\(0, 1, 1\)",
            r"smaller than max\(stride, dilation\) = 1 along width",
            "raise the stride",
        ),
    ),
    Case(
        "pool padding",
        lambda: MaxPool3d((4, 3, 2), padding=(2, 2, 1)),
        VALUE,
        ("MaxPool3d", "padding", r"\(2, 2, 1\)", r"at most half of the kernel \(4, 3, 2\)", "Lower the padding"),
    ),
    Case("no bound", lambda: Clamp(), VALUE, ("Clamp", "min, max", "None", "at least one bound", "min= or max=")),
    Case("bounds", lambda: Clamp(2, 1), VALUE, ("Clamp", "min, max", r"\(2\.0, 1\.0\)", "not be greater", "Swap")),
    Case(
        "bounds",
        lambda: HardTanh(1, -1),
        VALUE,
        ("HardTanh", "min_val, max_val", r"\(1\.0, -1\.0\)", "greater", "Swap"),
    ),
    Case("beta", lambda: Softplus(0), VALUE, ("Softplus", "beta", r"0\.0", r"between 2\^-100 and 2\^100", "1.0")),
    Case(
        "beta", lambda: Softplus(-math.inf), VALUE, ("Softplus", "beta", "-inf", r"between 2\^-100 and 2\^100", "1.0")
    ),
    Case("no name", lambda: Keep("a b"), VALUE, ("Keep", "label", "'a b'", "must be a name", "identifier")),
    Case("no text", lambda: Keep(3), VALUE, ("Keep", "label", "3", "must be a name", "identifier")),
    Case("no name", lambda: Recall("a b"), VALUE, ("Recall", "label", "'a b'", "must be a name", "identifier")),
    Case(
        "recalled too early",
        lambda: Pipeline(Recall("y"), Keep("y"), ConvTranspose3d()),
        VALUE,
        ("Recall", "label", "'y'", "names no earlier value", r"Keep\(name\) earlier$"),
    ),
    Case(
        "nobody uses what Recall replaces",
        lambda: Pipeline(ConvTranspose3d(), Keep("y"), Tanh(), Recall("y")),
        VALUE,
        ("Recall", "label", "'y'", "throws away the value before it", r"Keep\(name\) before Recall"),
    ),
    Case(
        "it has a name that nobody uses",
        lambda: Pipeline(ConvTranspose3d(), Keep("y"), Recall("x")),
        VALUE,
        ("Recall", "label", "'x'", "throws away the value before it", "use that name later"),
    ),
    Case(
        "an axis is gone",
        lambda: Pipeline(ConvTranspose3d(), Sum("depth", keepdim=False), GELU(), MaxPool3d(2)),
        VALUE,
        (
            "Sum",
            "keepdim",
            "False",
            r"drops an axis before MaxPool3d\(.*only stages that work number by number",
            "later",
        ),
    ),
    Case(
        "the same axis twice",
        lambda: Pipeline(ConvTranspose3d(), Sum("depth", False), Mean("spatial", False)),
        VALUE,
        ("Sum", "keepdim", "False", "reductions over other axes", "keepdim=True"),
    ),
    Case(
        "a vector along an axis that is gone",
        lambda: Pipeline(ConvTranspose3d(), Sum("channels", False), Add("channel")),
        VALUE,
        ("Sum", "keepdim", "False", "without tensors", "keepdim=True"),
    ),
    Case("axis", lambda: Sum("time"), VALUE, ("Sum", "over", "'time'", "'channels' or 'spatial' or 'depth'", "Write")),
    Case(
        "divisor",
        lambda: AvgPool3d(2, divisor_override=0),
        VALUE,
        ("AvgPool3d", "divisor_override", "0", ">= 1", "int"),
    ),
    Case(
        "an array where a word belongs",
        lambda: Add(np.zeros((4, 1, 1, 1))),
        TYPE,
        ("Add", "other", r"array of shape \(4, 1, 1, 1\)", "a number or a word", "'channel' or 'tensor'"),
    ),
    Case("reverse", lambda: Subtract(1.0, reverse=1), TYPE, ("Subtract", "reverse", "1", "must be True", "True")),
    Case("reserved", lambda: Keep("x"), VALUE, ("Keep", "label", "'x'", "reserved", "another name")),
    Case("reserved", lambda: Keep("tensor"), VALUE, ("Keep", "label", "'tensor'", "reserved", "another name")),
    # pipelines
    Case(
        "no stage",
        lambda: Pipeline(ConvTranspose3d(), GELU),
        TYPE,
        ("Pipeline", "stage 1", "GELU", "must be a stage", "GELU"),
    ),
    Case(
        "no convolution",
        lambda: Pipeline(GELU()),
        VALUE,
        ("Pipeline", "stages", "GELU", "must hold a ConvTranspose3d", "ConvTranspose3d"),
    ),
    Case(
        "label twice",
        lambda: Pipeline(Keep("y"), Keep("y"), ConvTranspose3d()),
        VALUE,
        ("Keep", "label", "'y'", "in use", "another"),
    ),
    Case(
        "label used too early",
        lambda: Pipeline(Keep("a"), Add("y"), Keep("y"), ConvTranspose3d()),
        VALUE,
        ("Add", "other", "'y'", "names no earlier value; known here: 'x', 'a'", r"Keep\(name\) earlier"),
    ),
    Case(
        "empty label", lambda: Pipeline(Add(""), ConvTranspose3d()), VALUE, ("Add", "other", "''", "no earlier", "Keep")
    ),
    Case(
        "too many operands",
        lambda: Pipeline(ConvTranspose3d()).bind("op", (1, 2), {}),
        TYPE,
        ("op", "operands", "2 tensors after input", "takes input, weight", "by position or by name"),
    ),
    Case(
        "by position in PyTorch's order",
        lambda: ConvTranspose3d(4, 2, 2),
        TYPE,
        (
            CONV,
            "arguments by position",
            r"\(4, 2, 2\)",
            "takes nothing by position; stride, padding",
            "Sizes come from",
        ),
    ),
    Case(
        "unknown operand",
        lambda: Pipeline(ConvTranspose3d()).bind("op", (1,), {"v": 1.5}),
        TYPE,
        ("op", "v", "float", "is unknown; the pipeline takes input, weight", "Leave it out"),
    ),
    Case(
        "missing operand",
        lambda: Pipeline(ConvTranspose3d(bias=True)).bind("op", (), {"bias": 1}),
        TYPE,
        ("op", "weight", "None", "is missing; the pipeline takes input, weight, bias", "once"),
    ),
    # shapes
    Case(
        "2-D",
        _trace(x=(3, 4)),
        ShapeError,
        ("Pipeline", "input", r"array of shape \(3, 4\)", "must be 5-D .* not 2-D", "Reshape"),
    ),
    Case(
        "empty axis",
        _trace(x=(2, 6, 3, 0, 5)),
        ShapeError,
        ("Pipeline", "input", r"\(2, 6, 3, 0, 5\)", "one voxel", "Reshape"),
    ),
    Case(
        "no channel", _trace(x=(2, 0, 3, 1, 5)), ShapeError, ("Pipeline", "input", r"\(2, 0,", "one channel", "Reshape")
    ),
    Case(
        "4-D weight", _trace(w=(6, 2, 1, 1)), ShapeError, (CONV, "weight", r"\(6, 2, 1, 1\)", "must be 5-D", "Reshape")
    ),
    Case(
        "empty weight", _trace(w=(6, 0, 1, 1, 1)), ShapeError, (CONV, "weight", r"\(6, 0,", "no empty axis", "Reshape")
    ),
    Case(
        "weight of other channels",
        _trace(w=(5, 2, 1, 1, 1)),
        ShapeError,
        (
            CONV,
            "weight",
            r"\(5, 2, 1, 1, 1\)",
            r"first axis must equal the 6 channels of .* \(2, 6, 3, 4, 5\)",
            "layout",
        ),
    ),
    Case(
        "groups",
        lambda: Pipeline(ConvTranspose3d(groups=4)).trace((1, 6, 1, 1, 1), [(6, 1, 1, 1, 1)]),
        ShapeError,
        (CONV, "groups", "4", "must divide the 6 input channels", "divisor of Cin"),
    ),
    Case(
        "nothing left",
        lambda: Pipeline(ConvTranspose3d(padding=(0, 2, 0))).trace((1, 1, 9, 3, 9), [(1, 1, 1, 2, 1)]),
        ShapeError,
        (
            CONV,
            "padding",
            r"\(0, 2, 0\)",
            "output of size 0 along height for input size 3, kernel 2",
            "Lower the padding",
        ),
    ),
    Case(
        "window",
        _trace(MaxPool3d((3, 4, 6))),
        ShapeError,
        (
            "MaxPool3d",
            "kernel_size",
            r"\(3, 4, 6\)",
            "larger than its input of size 5 .* along width",
            "smaller window",
        ),
    ),
    Case(
        "norm",
        _trace(GroupNorm(5)),
        ShapeError,
        ("GroupNorm", "num_groups", "5", "must divide the 2 channels", "divisor"),
    ),
    Case(
        "label of other shape",
        _trace(Keep("y"), MaxPool3d((1, 2, 1)), Add("y")),
        ShapeError,
        ("Add", "other", "'y'", r"shape \(2, 2, 3, 4, 5\), .* current shape \(2, 2, 3, 2, 5\)", "or 1 on an axis"),
    ),
    Case("x of other shape", _trace(Add("x")), ShapeError, ("Add", "other", "'x'", "does not fit", "or 1 on an axis")),
    Case(
        "vector",
        _trace(Multiply("channel"), others=[(3,)]),
        ShapeError,
        ("Multiply", "multiply_other", r"array of shape \(3,\)", r"shape \(2,\) for 2 channels", "Reshape"),
    ),
    Case(
        "slope",
        _trace(PReLU(), others=[(3,)]),
        ShapeError,
        ("PReLU", "prelu_weight", r"\(3,\)", r"\(1,\) or \(2,\)", "Reshape"),
    ),
    Case(
        "array",
        _trace(Add("tensor"), others=[(2, 2, 3, 4, 6)]),
        ShapeError,
        ("Add", "add_other", r"\(2, 2, 3, 4, 6\)", r"value's shape \(2, 2, 3, 4, 5\), or 1", "Reshape"),
    ),
    Case(
        "row",
        _trace(LayerNorm("width", affine=True), others=[(5,), (2,)]),
        ShapeError,
        ("LayerNorm", "layernorm_bias", r"\(2,\)", r"shape \(5,\), one number for each position", "Reshape"),
    ),
    Case(
        "same for a stride",
        lambda: Conv3d(padding="same", stride=2),
        VALUE,
        ("Conv3d", "padding", "same", "for stride 1 only", "stride=1"),
    ),
    Case(
        "groups of outputs",
        lambda: Pipeline(Conv3d(groups=2)).trace((1, 4, 3, 3, 3), [(5, 2, 1, 1, 1)]),
        ShapeError,
        ("Conv3d", "groups", "2", "must divide the 5 output channels", "Cout, Cin/groups"),
    ),
    Case(
        "channels of a convolution",
        lambda: Pipeline(Conv3d(groups=2)).trace((1, 4, 3, 3, 3), [(4, 4, 1, 1, 1)]),
        ShapeError,
        (
            "Conv3d",
            "weight",
            r"\(4, 4, 1, 1, 1\)",
            "second axis, times groups = 2, must equal the 4 channels",
            "swapaxes",
        ),
    ),
    Case(
        "reflected too far",
        lambda: Pipeline(Conv3d(padding=3, padding_mode="reflect")).trace((1, 1, 3, 9, 9), [(1, 1, 3, 3, 3)]),
        ShapeError,
        ("Conv3d", "padding", "3", "at most 2 along depth of size 3 where padding_mode is 'reflect'", "Lower"),
    ),
    Case(
        "too big",
        _trace(x=(2**30, 6, 2**30, 1, 1)),
        ShapeError,
        ("Pipeline", "output shape", "1073741824", "64-bit", "smaller"),
    ),
]
PARAMS = [pytest.param(case, id=f"{case.parts[0]}.{case.parts[1]}: {case.why}") for case in CASES]


@pytest.mark.parametrize("case", PARAMS)
def test_the_five_parts(case: Case) -> None:
    with pytest.raises(Error) as caught:
        case.call()
    error = caught.value
    assert type(error) is case.error
    assert isinstance(error, TypeError if case.error is ArgumentTypeError else ValueError)
    operator, argument, received, rule, remedy = case.parts
    assert (error.operator, error.argument) == (operator, argument)
    assert re.search(received, str(error.received) if isinstance(error.received, str) else repr(error.received)) or (
        re.search(received, repr(error.received))
    )
    assert re.search(rule, error.rule), error.rule
    assert re.search(remedy, error.remedy), error.remedy
    text = str(error)
    assert text.startswith(f"{operator}: {argument} = ")
    assert text.endswith(f": {error.rule}. {error.remedy}.")
    assert re.search(received, text)


@pytest.mark.parametrize("case", PARAMS)
def test_errors_pickle_and_copy(case: Case) -> None:
    with pytest.raises(Error) as caught:
        case.call()
    for twin in (pickle.loads(pickle.dumps(caught.value)), copy.deepcopy(caught.value), copy.copy(caught.value)):
        assert type(twin) is type(caught.value)
        assert str(twin) == str(caught.value)


def test_every_raise_of_the_layer_is_in_the_table() -> None:
    """The table is complete: each `raise` statement of these modules is where some case ends."""
    modules = (checks, pipeline, shapes, stage, arithmetic, conv, norms, pointwise, pools, reductions)
    seen = set()
    for case in CASES:
        try:
            case.call()
        except Error as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            seen.add((last.filename, last.lineno))
    missing = []
    for module in modules:
        file = inspect.getsourcefile(module)
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if not isinstance(node, ast.Raise) or node.exc is None or "AttributeError" in ast.unparse(node):
                continue  # AttributeError: what a frozen object raises, see test_pipeline.py
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if not any((file, line) in seen for line in lines):
                missing.append(f"{file}:{node.lineno}: {ast.unparse(node)[:80]}")
    assert missing == []
