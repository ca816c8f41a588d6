"""Interpolation in captured graphs: by whole factors it is convt3d's, with what follows it; else PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from helpers.captured import Recorder, agrees, agrees_in_training, close, compiled  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from convt3d.torch.upsample import Kernel  # noqa: E402


class Up(nn.Module):  # type: ignore[misc]
    """Interpolates, with a ReLU after it."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__()
        self.args, self.named = args, named

    def forward(self, x: Any) -> Any:
        return F.relu(F.interpolate(x, *self.args, **self.named)) - 1


def given(*shape: int, dtype: Any = torch.float32) -> Any:
    torch.manual_seed(1)
    return torch.randn(*(shape or (2, 3, 4, 5, 7)), dtype=dtype)


LINEAR = {"mode": "trilinear"}
OURS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "trilinear": ((), {"scale_factor": 2, **LINEAR}),
    "not aligned": ((), {"scale_factor": 2.0, "align_corners": False, **LINEAR}),
    "by four": ((None, 4, "trilinear"), {}),
    "each its own": ((), {"scale_factor": (1, 2, 4), **LINEAR}),
    "a size": (((8, 10, 14),), LINEAR),
    "nearest": ((), {"scale_factor": 2}),
    "nearest by position": (((4, 10, 21), None, "nearest"), {}),
    "exactly nearest": ((), {"scale_factor": (3, 1, 2), "mode": "nearest-exact"}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OURS)
def test_taken(name: str, dtype: Any) -> None:
    args, named = OURS[name]
    recorder = agrees(Up(*args, **named), given(dtype=dtype))
    (text,) = recorder.texts
    assert text.startswith("ConvTranspose3d(")
    assert text.endswith(" -> ReLU() -> Subtract(other=1.0)")
    assert recorder.rest == []


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (1, 2, 1, 3, 1), (2, 5, 2, 1, 13)])
def test_short_axes(shape: tuple[int, ...]) -> None:
    assert len(agrees(Up(scale_factor=2, mode="trilinear"), given(*shape)).texts) == 1


LEFT: dict[str, dict[str, Any]] = {
    "corners are aligned": {"scale_factor": 2, "align_corners": True, **LINEAR},
    "by three, which reaches further": {"scale_factor": 3, **LINEAR},
    "no whole factor": {"scale_factor": 1.5, **LINEAR},
    "smaller": {"scale_factor": 0.5},
    "a size that is no multiple": {"size": (8, 10, 15), **LINEAR},
    "far": {"scale_factor": 8},
    "area": {"scale_factor": 2, "mode": "area"},
    "another scale": {"scale_factor": 2, "recompute_scale_factor": True, **LINEAR},
    "nothing to do": {"scale_factor": 1},
}


@pytest.mark.parametrize("name", LEFT)
def test_left(name: str) -> None:
    recorder = agrees(Up(**LEFT[name]), given())
    assert recorder.texts == []
    assert "interpolate" in recorder.rest


def test_other_tensors_are_left() -> None:
    for x in (given(2, 3, 5, 7), given(2, 3, 9), given(dtype=torch.bfloat16)):
        assert agrees(Up(scale_factor=2), x).texts == []
    last = given().contiguous(memory_format=torch.channels_last_3d)
    assert agrees(Up(scale_factor=2), last).texts == []


def test_gradients_are_eagers() -> None:
    assert agrees_in_training(Up(scale_factor=2, mode="trilinear"), given(dtype=torch.float64)).texts == []


class Decoder(nn.Module):  # type: ignore[misc]
    """As SegResNet has it: 1x1x1, interpolation, a skip; then norm, activation and convolution."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.narrow, self.up = nn.Conv3d(3, 4, 1), nn.Upsample(scale_factor=2, mode="trilinear", align_corners=False)
        self.norm, self.conv = nn.GroupNorm(2, 4), nn.Conv3d(4, 5, 3, padding=1)

    def forward(self, x: Any, skip: Any) -> Any:
        y = self.up(self.narrow(x)) + skip
        return y + self.conv(F.relu(self.norm(y)))[:, :4]


def test_decoder() -> None:
    recorder = agrees(Decoder(), given(), given(2, 4, 8, 10, 14))
    assert recorder.texts == [
        "Conv3d(bias=True)",
        "ConvTranspose3d(stride=2, padding=3, groups=4) -> Add(other='tensor')",
        "GroupNorm(num_groups=2, affine=True) -> ReLU() -> Conv3d(padding=1, bias=True)",
    ]


def test_into_a_concatenation() -> None:
    class Joins(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, skip: Any) -> Any:
            return torch.cat([F.interpolate(x, scale_factor=2), skip], 1).sin()

    recorder = agrees(Joins(), given(), given(2, 4, 8, 10, 14))
    assert len(recorder.found[0].joined) == 1


@pytest.mark.usefixtures("fresh_dynamo")
def test_calls_and_shapes() -> None:
    """Weights are made once, also where the first call is in inference mode; sizes may vary."""
    model, recorder = nn.Sequential(nn.Conv3d(3, 3, 1), Up(scale_factor=2, mode="trilinear")), Recorder()
    step = torch.compile(model, backend=recorder, dynamic=True)
    with torch.inference_mode():
        close(step(given()), model(given()))
    with torch.no_grad():
        for shape in ((2, 3, 4, 5, 7), (3, 3, 6, 2, 9)):
            close(step(given(*shape)), model(given(*shape)))
    (kernel,) = {node.target for node in recorder.graphs[-1].graph.nodes if isinstance(node.target, Kernel)}
    assert kernel(given()) is kernel(given(1, 3, 2, 2, 2))
    assert not kernel(given()).is_inference()


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("at", [0, 1, 2, -2, -1])
def test_infinities(name: str, at: int) -> None:
    """They go where eager's go. At its first voxels eager multiplies their neighbours by zero, and by one and zero the
    voxels of an axis that stays as it is."""
    args, named = OURS[name]
    x = given()
    x[0, 0, at, 2, 2], x[1, 1, 2, at, 3], x[0, 2, at, 2, at] = torch.inf, torch.nan, -torch.inf
    x[1, 2, at, at, at] = torch.inf
    with torch.no_grad():
        got, recorder = compiled(Up(*args, **named), x)
        close(got, Up(*args, **named)(x))
    assert len(recorder.texts) == 1


def test_infinities_on_short_axes() -> None:
    for shape in ((1, 1, 1, 1, 1), (2, 1, 2, 1, 3)):
        x = given(*shape)
        x[0, 0, 0, 0, 0] = torch.inf
        agrees(Up(scale_factor=2, mode="trilinear"), x)
