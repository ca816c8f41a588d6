"""The caller's tensors stay as they were: they can be resized, and copies on write stay copies to be."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional  # noqa: E402

import convt3d  # noqa: E402
import convt3d.torch as ct  # noqa: E402

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("front", [convt3d.conv_transpose3d, ct.conv_transpose3d], ids=["numpy front", "torch front"])
def test_tensors_can_be_resized_afterwards(front: Any, dtype: Any) -> None:
    x, w = torch.randn(1, 2, 3, 3, 3).to(dtype), torch.randn(2, 2, 2, 2, 2).to(dtype)
    y = front(x, w)
    for tensor in (x, w, *([y] if front is ct.conv_transpose3d else [])):
        storage = tensor.untyped_storage()
        assert storage.resizable()
        storage.resize_(0)  # as FSDP frees parameters
        storage.resize_(4096)
        tensor.resize_(3, 3)


def test_out_can_be_resized_afterwards() -> None:
    x, w, y = torch.randn(1, 2, 3, 3, 3), torch.randn(2, 2, 2, 2, 2), torch.full((1, 2, 4, 4, 4), torch.nan)
    convt3d.conv_transpose3d(x, w, out=y)
    torch.testing.assert_close(y, functional.conv_transpose3d(x, w))
    y.resize_(2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("front", [convt3d.conv_transpose3d, ct.conv_transpose3d], ids=["numpy front", "torch front"])
def test_copies_on_write_are_read_where_they_are(front: Any, dtype: Any) -> None:
    x, w = torch.randn(2, 2, 3, 3, 3).to(dtype), torch.randn(2, 2, 2, 2, 2).to(dtype)
    lazy = [torch._lazy_clone(x), torch._lazy_clone(w)]
    got = front(lazy[0][1:], lazy[1])
    assert all(map(torch._C._is_cow_tensor, lazy))
    torch.testing.assert_close(got, front(x[1:], w))


def test_out_that_is_a_copy_on_write_is_copied_first() -> None:
    x, w, before = torch.randn(1, 2, 3, 3, 3), torch.randn(2, 2, 2, 2, 2), torch.zeros(1, 2, 4, 4, 4)
    lazy = torch._lazy_clone(before)
    convt3d.conv_transpose3d(x, w, out=lazy)
    assert not before.any()
    torch.testing.assert_close(lazy, functional.conv_transpose3d(x, w))


def test_memory_lives_as_long_as_the_array() -> None:
    from convt3d.front.arrays import tensor_storage
    from convt3d.spec.dtypes import DTYPES as KNOWN

    array = tensor_storage(torch.full((1 << 16,), 3.0)[1:], KNOWN["float32"], torch)
    torch.full((1 << 16,), 4.0)
    assert array.shape == ((1 << 16) - 1,)
    assert (array == 3.0).all()


FSDP = """
import os, tempfile, torch, copy
import torch.distributed as dist
import convt3d.torch as ct
from torch import nn
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo", store=dist.FileStore(tempfile.mktemp(), 1), rank=0, world_size=1)
torch.manual_seed(0)
stock = nn.Sequential(nn.ConvTranspose3d(2, 4, 2, 2), nn.GroupNorm(2, 4), nn.ReLU(), nn.ConvTranspose3d(4, 1, 2, 2))
ours = copy.deepcopy(stock)
ct.swap(ours)
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
fully_shard(ours[0], mesh=mesh)
fully_shard(ours, mesh=mesh)
x = torch.randn(1, 2, 3, 3, 3)
for step in range(2):
    losses = []
    for model in (stock, ours):
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        losses.append(loss.detach())
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
    torch.testing.assert_close(*losses)
for a, b in zip(stock.parameters(), ours.parameters()):
    torch.testing.assert_close(a, b.full_tensor(), rtol=1e-4, atol=1e-5)
dist.destroy_process_group()
print("trained")
"""


def test_fsdp_shards_swapped_models() -> None:
    """In a process of its own, which has a group of one."""
    distributed = pytest.importorskip("torch.distributed")
    if not (distributed.is_available() and distributed.is_gloo_available()):
        pytest.skip("this build of torch has no gloo")
    pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(torch.distributed.fsdp, "fully_shard"):
        pytest.skip("torch 2.6 brought fully_shard to torch.distributed.fsdp")
    done = subprocess.run([sys.executable, "-c", FSDP], capture_output=True, text=True, timeout=300)
    assert "trained" in done.stdout, done.stderr[-2000:]
