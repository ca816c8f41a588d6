"""Modules own their packed weights: every change of a parameter is seen, and nothing else about a module changes."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import convt3d.torch as ct
from convt3d import ArgumentTypeError
from convt3d.cpu.runtime import weights
from convt3d.torch import engine, prepared

X = torch.randn(2, 4, 4, 4, 5)


def _sequence() -> nn.Sequential:
    layers = nn.ConvTranspose3d(4, 6, 3, 2, 1), nn.BatchNorm3d(6), nn.ReLU(), nn.ConvTranspose3d(6, 2, 2), nn.Tanh()
    return nn.Sequential(*layers).eval()


def _swapped() -> nn.Module:
    model = _sequence()
    ct.swap(model)
    return model


def _swapped_forward() -> nn.Module:
    """The same of convolutions that are not transposed."""
    model = nn.Sequential(nn.Conv3d(4, 6, 3, padding=1), nn.BatchNorm3d(6), nn.ReLU(), nn.Conv3d(6, 2, 1), nn.Tanh())
    ct.swap(model.eval())
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "convolution": lambda: ct.ConvTranspose3d(4, 6, 3, stride=2, padding=1),
    "without bias": lambda: ct.ConvTranspose3d(4, 6, 3, stride=2, bias=False),
    "groups": lambda: ct.ConvTranspose3d(4, 6, 3, groups=2),
    "max max sum": lambda: ct.ConvTranspose3dMaxMaxSum(4, 6, 5, stride=2, padding=2),
    "layer norm": lambda: ct.ConvTranspose3dLayerNormGELUScaling(4, 6, 4, elementwise_affine=True),
    "average": lambda: ct.ConvTranspose3dSumLayerNormAvgPoolGELU(4, 6, 3, stride=2, padding=1, output_padding=1),
    "softmax": lambda: ct.ConvTranspose3dAvgPoolClampSoftmaxMultiply(4, 6, 3, stride=2, padding=1, pool_kernel=1),
    "swapped": _swapped,
    "swapped, forward": _swapped_forward,
}
EACH = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def anew(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The result of a module that has never been called."""
    return copy.deepcopy(model)(x)


def check(model: nn.Module, x: torch.Tensor = X) -> None:
    expected = anew(model, x)
    for _ in range(3):
        assert torch.equal(model(x), expected)


def test_weights_are_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not asked for in the cache for everyone, and kept whatever that holds."""
    packs: list[int] = []
    pack = weights.pack
    monkeypatch.setattr(weights, "pack", lambda *given: packs.append(1) or pack(*given))
    monkeypatch.setattr(weights._kept.entries, "most", 0)
    model = _swapped()
    for _ in range(3):
        model(X)
        model(X[:1])
    assert len(packs) == 2


@EACH
def test_changes_that_pytorch_counts(name: str) -> None:
    model = MODELS[name]()
    check(model)
    for tensor in [*model.parameters(), *(each for each in model.buffers() if each.is_floating_point())]:
        tensor.mul_(1.5)
        check(model)
        tensor.view(-1)[-1] += 1
        check(model)


@EACH
def test_changes_that_pytorch_does_not_count(name: str) -> None:
    """Through .data, and through numpy; by another tensor in the same parameter, of other memory or other strides."""
    model = MODELS[name]()
    check(model)
    for tensor in model.parameters():
        tensor.data.mul_(1.5)
        check(model)
        tensor.detach().numpy().reshape(-1)[-1] += 1
        check(model)
        tensor.data = torch.randn_like(tensor)
        check(model)
        if tensor.dim() == 5:
            tensor.data = tensor.data.transpose(2, 3)
            check(model)
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last_3d)
            check(model)


def test_unbatched_inputs_are_prepared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ct.Conv3d(4, 6, 3, padding=1)
    expected = model(X[:1])[0]
    monkeypatch.setattr(engine, "run", None)
    got = model(X[0])
    assert torch.equal(got, expected)
    assert got.stride() == expected.stride()


def test_large_weights_are_sampled() -> None:
    """A change of all numbers that PyTorch does not count is seen; for one of few there is `forget`."""
    model = ct.ConvTranspose3d(64, 64, 3)
    x = torch.randn(1, 64, 2, 2, 2)
    check(model, x)
    for change in (lambda w: w.mul_(2), lambda w: w.zero_(), lambda w: w.normal_(), lambda w: w.copy_(w.flip(0))):
        change(model.weight.data)
        check(model, x)
    model.weight.data[5, 5, 1, 1, 1] += 1
    ct.forget(model)
    check(model, x)


def test_optimisers_and_state_dicts() -> None:
    model, other = _swapped(), _swapped()
    check(model)
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        optimiser = kind(model.parameters(), lr=0.1)
        for _ in range(2):
            with torch.enable_grad():
                model(X).square().mean().backward()
            optimiser.step()
            check(model)
    model.load_state_dict(other.state_dict())
    check(model)
    assert torch.equal(model(X), other(X))
    model.load_state_dict(_swapped().state_dict(), assign=True)
    check(model)
    model.train()
    model(X)
    model.eval()  # running statistics have moved
    check(model)
    nn.init.normal_(model[0].weight)
    check(model)
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(other.parameters()), model.parameters())
    check(model)


@EACH
def test_types_and_other_parameters(name: str) -> None:
    model = MODELS[name]()
    check(model)
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        model.to(dtype)
        check(model, X.to(dtype))
    for module in model.modules():
        if isinstance(module, (nn.Conv3d, nn.ConvTranspose3d)):
            module.weight = nn.Parameter(torch.randn_like(module.weight))
            check(model)
            if module.bias is not None:
                module.bias = None
    check(model)


@pytest.mark.parametrize("kind", [nn.ConvTranspose3d, nn.Conv3d])
def test_attributes_count_at_once(kind: Any) -> None:
    """Also those of modules that are fused, hooks, modes, and a list that changes in place."""
    pool = nn.MaxPool3d([2, 2, 2])
    model: Any = nn.Sequential(kind(4, 4, 2, 2), nn.BatchNorm3d(4), nn.LeakyReLU(), pool)
    eager = copy.deepcopy(model)
    ct.swap(model)

    def same() -> None:
        for _ in range(2):
            torch.testing.assert_close(model(X), eager(X))

    same()
    for each in (model, eager):
        each.eval()
    same()
    for each in (model, eager):
        each[2].negative_slope = 0.7
    same()
    for each in (model, eager):
        each[1].eps = 0.5
        each[3].kernel_size[0] = 1
    same()
    for each in (model, eager):
        each[3] = nn.ReLU()
    same()
    for each in (model, eager):
        each[2].negative_slope = 0.1
        each[0].stride = (1, 2, 1)
    same()
    seen: list[int] = []
    handles = [each[1].register_forward_hook(lambda *_: seen.append(1)) for each in (model, eager)]
    same()
    assert len(seen) == 4
    for handle in handles:
        handle.remove()
    same()
    assert len(seen) == 4
    handles = [each[0].register_forward_hook(lambda *_: seen.append(1)) for each in (model, eager)]
    same()
    assert len(seen) == 8
    for handle in handles:
        handle.remove()
    for each in (model, eager):
        each[2].forward = torch.sigmoid
    same()
    for each in (model, eager):
        del each[2].forward
        each.append(nn.Sequential(nn.ConvTranspose3d(4, 2, 2), nn.Tanh()))
    eager[4].load_state_dict(model[4].state_dict())
    same()
    for each in (model, eager):
        each[4][1] = nn.SiLU()
    same()


@EACH
def test_gradients(name: str) -> None:
    """Recorded past PyTorch's dispatcher: the same bits each time, and but for rounding the same as through it."""
    model = MODELS[name]()
    x = X.clone().requires_grad_()
    found = []
    with torch.enable_grad():
        for _ in range(2):
            y = model(x)
            assert y.requires_grad
            found.append(torch.autograd.grad(y.square().sum(), [x, *model.parameters()]))
        with torch.autograd.profiler.profile():  # which the dispatcher must see
            y = model(x)
        found.append(torch.autograd.grad(y.square().sum(), [x, *model.parameters()]))
    past, again, through = found
    assert all(map(torch.equal, past, again))
    # there the convolution's result is not kept, and sums of the fused pipeline have another order
    for mine, other in zip(past, through, strict=True):
        torch.testing.assert_close(mine, other)


def test_a_change_between_forward_and_backward_is_refused() -> None:
    model = ct.ConvTranspose3d(4, 6, 3)
    with torch.enable_grad():
        for _ in range(2):
            y = model(X.clone().requires_grad_()).sum()
    model.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@EACH
def test_copies_and_pickles(name: str) -> None:
    model = MODELS[name]()
    before = set(model.__dict__)
    expected = model(X)
    size = len(pickle.dumps(MODELS[name]()))
    assert set(model.__dict__) == before, "nothing is kept in the module"
    assert abs(len(pickle.dumps(model)) - size) < 100
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    for other in (copy.deepcopy(model), copy.copy(model), torch.load(stored, weights_only=False)):
        assert torch.equal(other(X), expected)
        assert torch.equal(other(X), expected)
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        parameter.mul_(2)
    check(other)
    assert torch.equal(model(X), expected)


def test_replicas_that_share_attributes() -> None:
    """As nn.DataParallel makes them: other parameters in a module with the same attributes, each in a thread."""
    model = ct.ConvTranspose3d(4, 6, 3)
    replicas = []
    for factor in range(1, 4):
        replica = model._replicate_for_data_parallel()
        replica._parameters = {name: nn.Parameter(p * factor) for name, p in model._parameters.items()}
        replicas.append(replica)
    wanted = [nn.functional.conv_transpose3d(X, each.weight, each.bias) for each in replicas]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(100):
            if not torch.allclose(replicas[number](X), wanted[number], atol=1e-5):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_threads_that_share_a_module() -> None:
    model = _swapped()
    inputs = [X * number for number in range(1, 5)]
    wanted = [model(each) for each in inputs]
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.no_grad():
            for _ in range(100):
                if not torch.equal(model(inputs[number]), wanted[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork() -> None:
    model = ct.ConvTranspose3d(4, 6, 3)
    expected = model(X)
    child = os.fork()
    if child == 0:
        good = torch.equal(model(X), expected)
        model.weight.zero_()
        model.bias.zero_()
        os._exit(0 if good and not model(X).any() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    check(model)


def test_memory_goes_with_the_module() -> None:
    """Also where modules refer to each other in circles, through a hook."""
    model = _swapped()
    assert ct.prepared_bytes(model) == 0
    model(X)
    kernels = sum(each.nbytes for each in model.parameters() if each.dim() == 5)
    assert ct.prepared_bytes(model) >= kernels
    ct.forget(model)
    assert ct.prepared_bytes(model) == 0
    model(X)
    model[3].register_forward_hook(lambda *_, whole=model: None)
    model(X)
    keys = [id(each) for each in model.modules() if id(each) in prepared._owned]
    assert keys
    gone = [weakref.ref(each) for each in (model, model[0].weight, model[3])]
    del model
    gc.collect()
    assert [each() for each in gone] == [None] * 3
    assert not any(key in prepared._owned for key in keys)


def test_replaced_parameters_are_not_kept() -> None:
    model = ct.ConvTranspose3d(4, 6, 3)
    model(X)
    gone = weakref.ref(model.weight)
    model.weight = nn.Parameter(torch.randn(4, 6, 3, 3, 3))
    assert gone() is None


def test_undo_frees_it() -> None:
    model = _sequence()
    report = ct.swap(model)
    model(X)
    report.undo()
    assert ct.prepared_bytes(model) == 0


def test_computed_weights() -> None:
    """Parametrizations, weight norm and functional calls bring a tensor of their own each time."""
    model = ct.ConvTranspose3d(4, 6, 3)
    model(X)
    nn.utils.parametrize.register_parametrization(model, "weight", nn.Tanh())
    expected = nn.functional.conv_transpose3d(X, model.weight, model.bias)
    torch.testing.assert_close(model(X), expected)
    model.parametrizations.weight.original.mul_(0.5)
    torch.testing.assert_close(model(X), nn.functional.conv_transpose3d(X, model.weight, model.bias))
    model = ct.ConvTranspose3d(4, 6, 3)
    model(X)
    other = {name: each * 2 for name, each in model.named_parameters()}
    doubled = torch.func.functional_call(model, other, (X,))
    torch.testing.assert_close(doubled, model(X) * 2)
    check(model)


def test_transforms_and_compiled_code_see_the_operator() -> None:
    model = ct.ConvTranspose3d(4, 6, 3)
    expected = model(X)
    batched = torch.vmap(model)(X[:, None])
    torch.testing.assert_close(batched[:, 0], expected)
    with torch.enable_grad():
        jacobian = torch.func.jacrev(lambda b: torch.func.functional_call(model, {"bias": b}, (X,)).sum())(model.bias)
    assert (jacobian == expected[:, 0].numel()).all()
    exported = torch.export.export(model, (X,))
    assert any("convt3d.conv_transpose3d" in str(node.target) for node in exported.graph.nodes)
    model.weight.mul_(2)
    traced = make_fx(model)(X)
    assert "convt3d.conv_transpose3d" in str(traced.graph)


def test_errors() -> None:
    for function in (ct.forget, ct.prepared_bytes):
        with pytest.raises(ArgumentTypeError, match=r"model = int: must be an nn\.Module"):
            function(3)  # type: ignore[arg-type]
