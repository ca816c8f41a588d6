"""Exported to ONNX: standard operators only, and ONNX Runtime computes from them what we compute."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
from torch import nn  # noqa: E402

import convt3d.torch as ct  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Called(nn.Module):  # type: ignore[misc]
    """A function of the input and of parameters."""

    def __init__(self, function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.own = nn.ParameterList([nn.Parameter(0.3 * torch.randn(shape)) for shape in shapes])

    def forward(self, x: Any) -> Any:
        return self.function(x, *self.own)


def networks() -> Any:
    layers = nn.Conv3d(4, 6, 3, padding=1, padding_mode="reflect"), nn.BatchNorm3d(6), nn.ReLU()
    return nn.Sequential(*layers, nn.ConvTranspose3d(6, 3, 2, 2), nn.GroupNorm(3, 3), nn.GELU())


def swapped() -> Any:
    model = networks().eval()
    ct.swap(model)
    return model


KERNEL = (4, 3, 3, 2, 3)
KEPT = (
    "ConvTranspose3d(stride=2, bias=True) -> Keep('y') -> InstanceNorm() -> Mish() -> Add('y') -> LogSumExp('spatial')"
)
ALONG = "Conv3d(padding=1, padding_mode='replicate') -> GroupNorm(2) -> Softplus(2.0) -> Max('depth', keepdim=False)"
DIVISORS = (  # ONNX has none, and PyTorch's exporters leave them out
    "Conv3d(padding=1) -> AvgPool3d(2, stride=1, padding=1, divisor_override=3) -> "
    "AvgPool3d((1, 3, 2), stride=(2, 3, 4), ceil_mode=True, divisor_override=5)"
)
NORMS = "Conv3d(padding=1) -> InstanceNorm() -> LayerNorm('width') -> SiLU() -> LayerNorm()"
MODELS: dict[str, Callable[[], Any]] = {
    **{
        f"Conv3d, {mode}": lambda mode=mode: ct.Conv3d(4, 6, 3, padding=(1, 0, 2), padding_mode=mode)
        for mode in ("zeros", "reflect", "replicate", "circular")
    },
    "Conv3d, uneven zeros": lambda: ct.Conv3d(4, 6, (3, 2, 3), padding="same"),
    "a fused module": lambda: ct.ConvTranspose3dLayerNormGELUScaling(4, 3, 3, 2, 1, scaling_factor=0.5),
    "conv3d": lambda: Called(lambda x, w: ct.conv3d(x, w, padding="same", padding_mode="circular"), (6, 4, 3, 2, 3)),
    "conv_transpose3d": lambda: Called(lambda x, w: ct.conv_transpose3d(x, w, stride=(1, 2, 3), padding=1), KERNEL),
    "a norm and a pool": lambda: Called(lambda x, w: ct.conv_transpose3d_sum_layernorm_avgpool_gelu(x, w, 0.5), KERNEL),
    "a softmax": lambda: Called(ct.conv_transpose3d_avgpool_clamp_softmax_multiply, KERNEL, (3,)),
    "pools": lambda: Called(lambda x, w, b: ct.conv_transpose3d_max_max_sum(x, w, b, padding=0), KERNEL, (3,)),
    "a pipeline with names": lambda: Called(lambda x, w, b: ct.pipeline(x, [w, b], KEPT), KERNEL, (3,)),
    "a pipeline along an axis": lambda: Called(lambda x, w: ct.pipeline(x, [w], ALONG), (6, 4, 3, 3, 3)),
    "divisors": lambda: Called(lambda x, w: ct.pipeline(x, [w], DIVISORS), (6, 4, 3, 3, 3)),
    "norms": lambda: Called(lambda x, w: ct.pipeline(x, [w], NORMS), (6, 4, 3, 3, 3)),
    "swapped": swapped,
    "captured": lambda: ct.optimize(networks().eval()),
}
# torch.jit.trace, the way of the older exporter, takes nothing that Dynamo has captured.
WAYS = [(name, "dynamo") for name in MODELS] + [
    (name, "torchscript")
    for name in ("Conv3d, circular", "a norm and a pool", "a pipeline with names", "divisors", "norms", "swapped")
]


STATIC = ("captured",)  # for the sizes that Dynamo has seen


def exported(model: Any, x: Any, way: str, dynamic: bool) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        if way == "dynamo":
            sizes = ({0: torch.export.Dim("batch", min=1, max=64)},) if dynamic else None
            return torch.onnx.export(model, (x,), dynamo=True, dynamic_shapes=sizes, verbose=False).model_proto
        file, axes = io.BytesIO(), {"x": {0: "batch"}} if dynamic else None
        torch.onnx.export(model, (x,), file, dynamo=False, input_names=["x"], dynamic_axes=axes)
        return onnx.load_from_string(file.getvalue())


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_runtime_gives_the_same(name: str, way: str) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name]().eval(), torch.randn(2, 4, 6, 7, 5)
    proto = exported(model, x, way, dynamic=name not in STATIC)
    assert not proto.functions
    assert {node.domain for node in proto.graph.node} <= {"", "ai.onnx"}
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for batch in (2,) if name in STATIC else (2, 1, 5):
        x = torch.randn(batch, 4, 6, 7, 5)
        with torch.no_grad():
            expected = model(x)
        (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-5)
