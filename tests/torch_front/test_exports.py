"""Sizes that change are symbols in traced graphs; torch.fx, ONNX and sharded tensors take swapped models."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import convt3d.torch as ct  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class UNet(nn.Module):  # type: ignore[misc]
    """Gives its result the size of its input, odd or even."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv3d(1, 4, 3, 2, 1)
        self.up = nn.ConvTranspose3d(4, 2, 3, 2, 1)

    def forward(self, x: Any) -> Any:
        return self.up(self.down(x), output_size=x.shape[2:])


def sequence() -> Any:
    tail = nn.BatchNorm3d(4), nn.LeakyReLU(0.2), nn.ConvTranspose3d(4, 2, 2, 2), nn.GroupNorm(2, 2), nn.Softplus(1.5)
    return nn.Sequential(nn.ConvTranspose3d(1, 4, 3, 2, 1, 1), *tail).eval()


def pair(build: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    stock = build()
    ours = copy.deepcopy(stock)
    ct.swap(ours)
    return stock, ours


SHAPES = [(2, 1, 9, 8, 11), (3, 1, 8, 9, 10), (2, 1, 11, 12, 6), (4, 1, 6, 7, 7)]


@pytest.mark.parametrize("strict", [True, False])
def test_export_with_sizes_that_change(strict: bool) -> None:
    stock, ours = pair(UNet)
    auto = getattr(torch.export.Dim, "AUTO", None)
    if auto is None:
        pytest.skip("torch 2.6 brought Dim.AUTO")
    shapes = (dict.fromkeys((0, 2, 3, 4), auto),)
    exported = torch.export.export(ours, (torch.randn(SHAPES[0]),), dynamic_shapes=shapes, strict=strict)
    assert any(str(node.target) == "convt3d.conv_transpose3d.default" for node in exported.graph.nodes)
    for shape in SHAPES[1:]:
        x = torch.randn(shape)
        torch.testing.assert_close(exported.module()(x), stock(x), rtol=1e-4, atol=1e-5)


def short() -> Any:
    return nn.Sequential(nn.ConvTranspose3d(1, 2, 3, 2, 1, 1), nn.GroupNorm(2, 2), nn.Softplus(1.5))


@pytest.mark.parametrize("build", [UNet, short])
def test_dynamic_shapes_are_compiled_as_often_as_eager_s(build: Any) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    counts = []
    for model in (models := pair(build)):
        model.requires_grad_(build is UNet)  # tracing backward takes many seconds
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(model, backend=counter, dynamic=True, fullgraph=True)
        for shape in SHAPES[:3]:
            x = torch.randn(shape)
            y = compiled(x)
            torch.testing.assert_close(y, models[0](x), rtol=1e-4, atol=1e-5)
            if y.requires_grad:
                y.sum().backward()
        counts.append(counter.frame_count)
        torch._dynamo.reset()
    assert counts[1] <= counts[0] < 3


@pytest.mark.parametrize("how", ["dynamo", "exported program", "torchscript"])
@pytest.mark.parametrize("build", [UNet, sequence])
def test_onnx_holds_standard_operators_only(build: Any, how: str) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    stock, ours = pair(build)
    x, found = torch.randn(SHAPES[0]), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        for model in (stock, ours):
            if how == "torchscript":
                file = io.BytesIO()
                torch.onnx.export(model, (x,), file, dynamo=False)
                proto = onnx.load_from_string(file.getvalue())
            elif how == "dynamo":
                proto = torch.onnx.export(model, (x,), dynamo=True, verbose=False).model_proto
            else:
                proto = torch.onnx.export(torch.export.export(model, (x,)), dynamo=True, verbose=False).model_proto
            assert not proto.functions
            assert {node.domain for node in proto.graph.node} <= {"", "ai.onnx"}
            found.append(sum(node.op_type == "ConvTranspose" for node in proto.graph.node))
    assert found[0] == found[1] > 0


def test_symbolic_trace() -> None:
    stock, ours = pair(sequence)
    traced, x = torch.fx.symbolic_trace(ours), torch.randn(SHAPES[0])
    assert any(node.target is ct.conv_transpose3d for node in traced.graph.nodes)
    torch.testing.assert_close(traced(x), stock(x), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # deprecations of torch.ao
def test_prepare_fx() -> None:
    try:
        from torch.ao.quantization import get_default_qconfig_mapping
        from torch.ao.quantization.quantize_fx import prepare_fx
    except ImportError:
        pytest.skip("this torch has no torch.ao.quantization")
    stock, ours = pair(sequence)
    x = torch.randn(SHAPES[0])
    prepared = prepare_fx(ours, get_default_qconfig_mapping(), (x,))
    torch.testing.assert_close(prepared(x), stock(x), rtol=1e-4, atol=1e-5)


SHARDED = """
import tempfile, torch
import torch.distributed as dist
import convt3d.torch as ct
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
dist.init_process_group("gloo", store=dist.FileStore(tempfile.mktemp(), 1), rank=0, world_size=1)
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
x, w = torch.randn(2, 2, 3, 3, 3), torch.randn(2, 4, 2, 2, 2)
xs, ws = distribute_tensor(x, mesh, [Shard(0)]), distribute_tensor(w, mesh, [Replicate()]).requires_grad_()
for text in ("ConvTranspose3d(stride=2)", "ConvTranspose3d(stride=2) -> ReLU()"):
    y = ct.pipeline(xs, [ws], text)
    assert y.placements == (Shard(0),), y.placements
    torch.testing.assert_close(y.full_tensor(), ct.pipeline(x, [w], text))
    y.full_tensor().sum().backward()
dist.destroy_process_group()
print("sharded")
"""


def test_sharded_batches() -> None:
    """In a process of its own, which has a group of one."""
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this build of torch has no gloo")
    pytest.importorskip("torch.distributed.tensor", reason="torch 2.5 brought torch.distributed.tensor")
    done = subprocess.run([sys.executable, "-c", SHARDED], capture_output=True, text=True, timeout=300)
    assert "sharded" in done.stdout, done.stderr[-2000:]
