"""Arguments as people write them, refused as PyTorch refuses them; other people's tensors and tracers see the calls."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from helpers.eager import tensors  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

import convt3d  # noqa: E402
import convt3d.torch as ct  # noqa: E402
from convt3d.torch import engine  # noqa: E402

TWO = {
    "numpy integer": np.int64(2),
    "numpy integers": (np.int32(2), np.int64(2), np.uint8(2)),
    "0-d tensor": torch.tensor(2),
    "0-d tensors": [torch.tensor(2)] * 3,
    "torch.Size": torch.Size((2, 2, 2)),
    "one number": (2,),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("two", TWO)
def test_numbers(two: str, grad: bool) -> None:
    x, w = tensors((1, 2, 3, 3, 3), (2, 2, 2, 2, 2), grad=False)
    w.requires_grad_(grad)
    expected = functional.conv_transpose3d(x, w, None, 2, 0, 0, 1, 2)
    torch.testing.assert_close(
        ct.conv_transpose3d(x, w, None, TWO[two], groups=np.int64(1), dilation=TWO[two]), expected
    )
    for number in (np.float32(0.5), torch.tensor(0.5), np.float64(0.5)):
        got = ct.conv_transpose3d_layernorm_gelu_scaling(x, w, number)
        torch.testing.assert_close(got, ct.conv_transpose3d_layernorm_gelu_scaling(x, w, 0.5))


WRONG: dict[str, tuple[Any, dict[str, Any]]] = {
    "no input": (lambda x, w: (None, w), {}),
    "no weight": (lambda x, w: (x, None), {}),
    "a numpy input": (lambda x, w: (x.numpy(), w), {}),
    "a numpy weight": (lambda x, w: (x, w.numpy()), {}),
    "a number as bias": (lambda x, w: (x, w, 3.0), {}),
    "a float": (lambda x, w: (x, w), {"stride": 2.0}),
    "a boolean": (lambda x, w: (x, w), {"stride": True}),
    "text": (lambda x, w: (x, w), {"padding": "2"}),
    "None": (lambda x, w: (x, w), {"dilation": None}),
    "groups of a float": (lambda x, w: (x, w), {"groups": 1.0}),
    "two numbers": (lambda x, w: (x, w), {"stride": (1, 2)}),
    "stride 0": (lambda x, w: (x, w), {"stride": 0}),
    "padding -1": (lambda x, w: (x, w), {"padding": -1}),
    "groups 0": (lambda x, w: (x, w), {"groups": 0}),
    "output_padding too large": (lambda x, w: (x, w), {"output_padding": 3}),
    "a bias of another length": (lambda x, w: (x, w, torch.randn(3)), {}),
    "another type": (lambda x, w: (x, w.double()), {}),
}


@pytest.mark.filterwarnings("ignore:convt3d.torch")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("what", WRONG)
def test_errors_are_of_pytorch_s_classes(what: str, grad: bool) -> None:
    x, w = tensors((1, 2, 3, 3, 3), (2, 2, 2, 2, 2), grad=False)
    build, named = WRONG[what]
    given = build(x, w)
    for each in given:
        if grad and isinstance(each, torch.Tensor):
            each.requires_grad_()
    with pytest.raises((RuntimeError, TypeError, ValueError)) as theirs:
        functional.conv_transpose3d(*given, **named)
    with pytest.raises(type(theirs.value)) as ours:
        ct.conv_transpose3d(*given, **named)
    if isinstance(ours.value, convt3d.Error):
        assert ours.value.operator == "conv_transpose3d"


def test_pipelines_and_their_texts() -> None:
    x, w = tensors((1, 2, 3, 3, 3), (2, 2, 2, 2, 2), grad=False)
    pipe = convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2), convt3d.ReLU())
    expected = functional.conv_transpose3d(x, w, None, 2).relu()
    torch.testing.assert_close(ct.pipeline(x, [w], pipe), expected)
    torch.testing.assert_close(ct.pipeline(x, (w.requires_grad_(),), pipe), expected)
    for wrong in (None, 3, ["ReLU()"], nn.ReLU()):
        with pytest.raises(convt3d.Error, match="must be a Pipeline or its text"):
            ct.pipeline(x, [w], wrong)
    for operands in ([], [w, w], [None], w, [np.zeros(3)]):
        with pytest.raises(convt3d.Error, match=r"pipeline: operands"):
            ct.pipeline(x, operands, pipe)


@pytest.mark.filterwarnings("ignore:convt3d.torch")
@pytest.mark.parametrize(
    "shape", [(), (4, 1, 1, 1), (1, 1, 5), (4, 5, 5, 5), (1, 4, 1, 1, 1), (2, 4, 5, 5, 5)], ids=str
)
@pytest.mark.parametrize("stage", ["Add('tensor')", "Divide('tensor')"])
def test_second_values_are_broadcast(stage: str, shape: tuple[int, ...]) -> None:
    x, w, o = tensors((2, 3, 4, 4, 4), (3, 4, 2, 2, 2), shape, dtype=torch.float64)
    results = []
    for value in (ct.pipeline(x, [w, o], f"ConvTranspose3d() -> {stage} -> Tanh()"), None):
        if value is None:
            conv = functional.conv_transpose3d(x, w)
            value = torch.tanh(conv + o if "Add" in stage else conv / o)
        results.append([value, *torch.autograd.grad(value.sum(), (x, w, o))])
    torch.testing.assert_close(*results)


def test_ours_in_the_place_of_pytorch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """What falls back to PyTorch's own function finds it."""
    x, w = tensors((1, 2, 3, 3, 3), (2, 2, 2, 2, 2), grad=False)
    theirs = functional.conv_transpose3d
    monkeypatch.setattr(functional, "conv_transpose3d", ct.conv_transpose3d)
    monkeypatch.setattr(torch, "conv_transpose3d", ct.conv_transpose3d)
    engine._told.clear()
    with pytest.warns(UserWarning, match="stock PyTorch"):
        got = functional.conv_transpose3d(x.to(torch.complex64), w.to(torch.complex64))
    torch.testing.assert_close(got.real, theirs(x, w))
    assert nn.ConvTranspose3d(2, 2, 2)(x.requires_grad_()).shape == (1, 2, 4, 4, 4)


class Seen:
    """Neither a tensor nor known to PyTorch, but it answers for itself."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func, args, kwargs


class Tagged(torch.Tensor):  # type: ignore[misc]
    pass


class Counting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def test_torch_function() -> None:
    x, w, scale = tensors((1, 2, 4, 4, 4), (2, 2, 2, 2, 2), (2,), grad=False)
    for call in (lambda s: ct.conv_transpose3d(s, w), lambda s: ct.conv_transpose3d(x, s)):
        func, args, kwargs = call(Seen())
        assert func is ct.conv_transpose3d
        assert len(args) + len(kwargs) == 8
    assert ct.pipeline(x, [Seen()], "ConvTranspose3d()")[0] is ct.pipeline
    assert ct.conv_transpose3d_avgpool_clamp_softmax_multiply(x, w, Seen())[0] is (
        ct.conv_transpose3d_avgpool_clamp_softmax_multiply
    )
    assert type(ct.conv_transpose3d(x.as_subclass(Tagged), w)) is Tagged
    assert type(ct.pipeline(x, [w.as_subclass(Tagged)], "ConvTranspose3d()")) is Tagged
    with Counting() as mode:
        got = ct.conv_transpose3d_avgpool_clamp_softmax_multiply(x, w, scale, clamp_max=0.5)
    assert ct.conv_transpose3d_avgpool_clamp_softmax_multiply in mode.seen
    torch.testing.assert_close(got, ct.conv_transpose3d_avgpool_clamp_softmax_multiply(x, w, scale, clamp_max=0.5))


def test_flop_counter() -> None:
    counter = pytest.importorskip("torch.utils.flop_counter")
    x = torch.randn(2, 3, 4, 4, 4)
    stock = nn.Sequential(
        nn.ConvTranspose3d(3, 4, 3, 2), nn.ReLU(), nn.AvgPool3d(2), nn.ConvTranspose3d(4, 2, 2, groups=2)
    )
    counts = []
    for model in (stock, ct.swap(stock) and stock):
        with counter.FlopCounterMode(display=False) as mode:
            model(x).sum().backward()
        counts.append(mode.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_without_torch_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None\nimport convt3d.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "pip install 'torch>=2.4'" in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("ImportError")
