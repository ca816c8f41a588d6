"""A pipeline as an ONNX model, in ONNX's own text form, with the weights as constants. Two peers read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

from ...spec import stages as s
from ...spec.backends import StageTable
from ...spec.checks import as_triple
from ...spec.pipeline import Trace
from ...spec.stage import Stage
from ..cases import Arrays, Case, Storage
from .base import UnsupportedError

OPSET, IR_VERSION = 20, 9
TYPES = {"float32": "float", "float64": "double", "float16": "float16"}


@dataclass(frozen=True)
class OnnxModel:
    """The serialised model, and the arrays of its inputs by name: x, and skips."""

    content: bytes
    inputs: dict[str, Storage]


def onnx_model(case: Case, arrays: Arrays) -> OnnxModel:
    if case.dtype.name not in TYPES:
        raise UnsupportedError(f"no {case.dtype.name} array passes from numpy into this runtime")
    kind, trace = TYPES[case.dtype.name], case.plan.trace
    writer = _Writer(case, trace)
    inputs = {"x": arrays.x}
    value = "x"
    for index, stage in enumerate(case.pipeline.stages):
        given = []
        for slot, array in zip(case.pipeline.slots, arrays.operands, strict=True):
            if slot.stage == index and slot.operand.kind == "tensor":
                inputs[slot.name] = array
                given.append(slot.name)
            elif slot.stage == index:
                given.append(writer.constant(array))
        writer.index = index
        value = ONNX[type(stage)](writer, stage, value, given)
    declared = ", ".join(f"{kind}{list(array.shape)} {name}" for name, array in inputs.items())
    if case.pipeline.dropped:
        value = writer.op("Squeeze", value, writer.whole(*case.pipeline.dropped))
    body = "\n".join([*writer.lines, f"y = Identity({value})"])
    head = f'<ir_version: {IR_VERSION}, opset_import: ["": {OPSET}]>'
    model = parser.parse_model(
        f"{head}\ng ({declared}) => ({kind}{list(case.pipeline.result_shape(trace.output))} y) {{\n{body}\n}}"
    )
    model.graph.initializer.extend(writer.constants)
    onnx.checker.check_model(model)
    return OnnxModel(model.SerializeToString(), inputs)


@dataclass
class _Writer:
    """Lines of the model so far, and its constants."""

    case: Case
    trace: Trace
    index: int = 0  # of the stage that is written
    lines: list[str] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    labelled: dict[str, str] = field(default_factory=lambda: {"x": "x"})

    def op(self, name: str, *inputs: str, **attributes: Any) -> str:
        result = f"v{len(self.lines)}"
        shown = ", ".join(f"{key} = {_attribute(value)}" for key, value in attributes.items())
        self.lines.append(f"{result} = {name} {f'<{shown}>' if shown else ''}({', '.join(inputs)})")
        return result

    def constant(self, array: Storage) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def number(self, value: float) -> str:
        return self.constant(np.array(value, self.case.dtype.storage))

    def whole(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def column(self, name: str) -> str:
        return self.op("Reshape", name, self.whole(1, -1, 1, 1, 1))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the value that enters the stage."""
        return self.trace.values[self.index]

    def full(self, value: float, size: int) -> str:
        return self.constant(np.full(size, value, self.case.dtype.storage))


def _attribute(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float):
        return f"{value:.9g}" if "." in f"{value:.9g}" or "e" in f"{value:.9g}" else f"{value:.1f}"
    return str(list(value)) if isinstance(value, (tuple, list)) else str(int(value))


def _conv(m: _Writer, stage: s.ConvTranspose3d, x: str, given: Sequence[str]) -> str:
    stride, padding, extra, dilation = stage.triples
    return m.op(
        "ConvTranspose",
        x,
        *given,
        strides=stride,
        pads=padding * 2,
        output_padding=extra,
        dilations=dilation,
        group=stage.groups,
    )


def _conv_forward(m: _Writer, stage: s.Conv3d, x: str, given: Sequence[str]) -> str:
    if stage.padding_mode != "zeros":
        raise UnsupportedError("padding modes are operators of their own")
    before, after = zip(*stage.paddings(m.trace.operands[m.index][0]), strict=True)
    return m.op(
        "Conv",
        x,
        *given,
        strides=as_triple(stage.stride),
        pads=(*before, *after),
        dilations=as_triple(stage.dilation),
        group=stage.groups,
    )


def _max_pool(m: _Writer, stage: s.MaxPool3d, x: str, given: Sequence[str]) -> str:
    return _pool(m, "MaxPool", stage, x)


def _avg_pool(m: _Writer, stage: s.AvgPool3d, x: str, given: Sequence[str]) -> str:
    if stage.divisor_override is not None:
        raise UnsupportedError("ONNX has no divisor of one's own")
    return _pool(m, "AveragePool", stage, x, count_include_pad=stage.count_include_pad)


def _pool(m: _Writer, name: str, stage: s.MaxPool3d | s.AvgPool3d, x: str, **more: Any) -> str:
    if stage.ceil_mode:
        raise UnsupportedError("runtimes of ONNX disagree with PyTorch on ceil_mode")
    kernel, stride, padding = stage.triples
    return m.op(name, x, kernel_shape=kernel, strides=stride, pads=padding * 2, **more)


def _reduction(name: str) -> Callable[..., str]:
    def step(m: _Writer, stage: Any, x: str, given: Sequence[str]) -> str:
        return m.op(name, x, m.whole(*s.OVER[stage.over]), keepdims=1)

    return step


def _softmax(m: _Writer, stage: s.Softmax, x: str, given: Sequence[str]) -> str:
    if stage.over == "channels":
        y = m.op("Softmax", x, axis=1)
    else:
        flat = m.op("Reshape", x, m.whole(0, 0, -1))
        y = m.op("Reshape", m.op("Softmax", flat, axis=2), m.whole(*m.shape))
    if stage.scale is None:
        return y
    return m.op("Mul", y, m.column(given[0]) if stage.scale == "channel" else m.number(float(stage.scale)))


def _layer_norm(m: _Writer, stage: s.LayerNorm, x: str, given: Sequence[str]) -> str:
    channels = stage.over == "channels"
    scale = list(given) or [m.full(1.0, m.shape[1 if channels else 4])]
    inner = m.op("Transpose", x, perm=(0, 2, 3, 4, 1)) if channels else x
    y = m.op("LayerNormalization", inner, *scale, axis=-1, epsilon=stage.eps)
    return m.op("Transpose", y, perm=(0, 4, 1, 2, 3)) if channels else y


def _group_norm(m: _Writer, stage: s.GroupNorm, x: str, given: Sequence[str]) -> str:
    """As exporters write it: each group as one channel of an InstanceNormalization."""
    groups = stage.num_groups
    rows = m.op("Reshape", x, m.whole(0, groups, -1))
    y = m.op("InstanceNormalization", rows, m.full(1.0, groups), m.full(0.0, groups), epsilon=stage.eps)
    y = m.op("Reshape", y, m.whole(*m.shape))
    return m.op("Add", m.op("Mul", y, m.column(given[0])), m.column(given[1])) if given else y


def _instance_norm(m: _Writer, stage: s.InstanceNorm, x: str, given: Sequence[str]) -> str:
    affine = given or (m.full(1.0, m.shape[1]), m.full(0.0, m.shape[1]))
    return m.op("InstanceNormalization", x, *affine, epsilon=stage.eps)


def _batch_norm(m: _Writer, stage: s.BatchNorm, x: str, given: Sequence[str]) -> str:
    mean, variance, *affine = given
    scale, bias = affine or (m.full(1.0, m.shape[1]), m.full(0.0, m.shape[1]))
    return m.op("BatchNormalization", x, scale, bias, mean, variance, epsilon=stage.eps)


def _keep(m: _Writer, stage: s.Keep, x: str, given: Sequence[str]) -> str:
    m.labelled[stage.label] = x
    return x


def _binary(name: str) -> Callable[..., str]:
    def step(m: _Writer, stage: s.Binary, x: str, given: Sequence[str]) -> str:
        if stage.label:
            other = m.labelled[stage.label]
        elif stage.other == "channel":
            other = m.column(given[0])
        else:
            other = given[0] if given else m.number(float(stage.other))
        return m.op(name, *stage.sides(x, other))

    return step


def _clip(m: _Writer, x: str, low: float | None, high: float | None) -> str:
    bounds = ["" if bound is None else m.number(bound) for bound in (low, high)]
    return m.op("Clip", x, *bounds)


def _softplus(m: _Writer, stage: s.Softplus, x: str, given: Sequence[str]) -> str:
    scaled = m.op("Mul", x, m.number(stage.beta))
    soft = m.op("Div", m.op("Softplus", scaled), m.number(stage.beta))
    return m.op("Where", m.op("Greater", scaled, m.number(stage.threshold)), x, soft)


def _prelu(m: _Writer, stage: s.PReLU, x: str, given: Sequence[str]) -> str:
    return m.op("PRelu", x, m.op("Reshape", given[0], m.whole(-1, 1, 1, 1)))


def _plain(name: str) -> Callable[..., str]:
    return lambda m, stage, x, given: m.op(name, x)


_ENTRIES: dict[type[Stage], Callable[..., str]] = {
    s.ConvTranspose3d: _conv,
    s.Conv3d: _conv_forward,
    s.MaxPool3d: _max_pool,
    s.AvgPool3d: _avg_pool,
    s.Sum: _reduction("ReduceSum"),
    s.Mean: _reduction("ReduceMean"),
    s.Max: _reduction("ReduceMax"),
    s.LogSumExp: _reduction("ReduceLogSumExp"),
    s.Softmax: _softmax,
    s.LayerNorm: _layer_norm,
    s.GroupNorm: _group_norm,
    s.InstanceNorm: _instance_norm,
    s.BatchNorm: _batch_norm,
    s.Keep: _keep,
    s.Recall: lambda m, stage, x, given: m.labelled[stage.label],
    s.Add: _binary("Add"),
    s.Subtract: _binary("Sub"),
    s.Multiply: _binary("Mul"),
    s.Divide: _binary("Div"),
    s.Clamp: lambda m, stage, x, given: _clip(m, x, stage.min, stage.max),
    s.GELU: lambda m, stage, x, given: m.op("Gelu", x, approximate=stage.approximate),
    s.ReLU: _plain("Relu"),
    s.LeakyReLU: lambda m, stage, x, given: m.op("LeakyRelu", x, alpha=stage.negative_slope),
    s.PReLU: _prelu,
    s.Sigmoid: _plain("Sigmoid"),
    s.Tanh: _plain("Tanh"),
    s.SiLU: lambda m, stage, x, given: m.op("Mul", x, m.op("Sigmoid", x)),
    s.HardSwish: _plain("HardSwish"),
    s.HardTanh: lambda m, stage, x, given: _clip(m, x, stage.min_val, stage.max_val),
    s.Mish: _plain("Mish"),
    s.Softplus: _softplus,
    s.Exp: _plain("Exp"),
    s.Log: _plain("Log"),
}
ONNX: StageTable[Callable[..., str]] = StageTable("ONNX", __name__, _ENTRIES)
