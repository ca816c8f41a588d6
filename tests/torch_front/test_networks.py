"""Networks that nobody here wrote, and some of this kind: the same results through the backend, most of it ours."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from helpers.captured import Recorder, close  # noqa: E402

from convt3d.bench.networks import NETWORKS, Network  # noqa: E402
from convt3d.torch.between import UNCHANGED  # noqa: E402
from convt3d.torch.graphs import shown  # noqa: E402

# What PyTorch still computes of each.
REST: dict[str, set[str]] = {
    "monai-unet": set(),
    "monai-dynunet": set(),
    "monai-attention-unet": set(),
    "monai-vnet": {"repeat"},
    "nnunet": set(),
    "nnunet-residual": set(),
    "3d-gan": set(),
    "3d-gan-batch": set(),
    "monai-segresnet": {"group_norm", "relu", "pad"},
    "vae-decoder": set(),
    "stereo-hourglass": {"arange", "view", "squeeze", "softmax", "mul", "sum"},
}


def first(result: Any) -> Any:
    return result[0] if isinstance(result, (tuple, list)) else result


def built(name: str) -> Network:
    network = NETWORKS[name]
    if network.package and importlib.util.find_spec(network.package) is None:
        pytest.skip(f"{network.package} is not installed: pip install '.[models]'")
    return network


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str) -> None:
    network, recorder = built(name), Recorder()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of these packages
        model, x = network.build(), network.input(small=True)
        expected = first(model(x))
        got = first(torch.compile(model, backend=recorder)(x))
    close(got, expected, 1e-4)
    kinds = torch.nn.Conv3d, torch.nn.ConvTranspose3d, torch.nn.Upsample
    convolutions = sum(isinstance(each, kinds) for each in model.modules())
    asked = [each for found in recorder.found for each in found.fused if UNCHANGED not in each.conv.meta]
    assert 0 < len(asked) <= convolutions
    assert [why for found in recorder.found for why in found.left.values()] == []
    assert name not in REST or {shown(node) for found in recorder.found for node in found.rest} <= REST[name]


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("name", ["monai-unet", "nnunet", "vae-decoder"])
def test_gradients_of_networks(name: str) -> None:
    network, rows = built(name), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for through in (False, True):
            model, x = network.build().train().double(), network.input(small=True)[..., :16, :16, :16].double()
            step = torch.compile(model, backend=Recorder()) if through else model
            torch.manual_seed(2)
            first(step(x)).square().mean().backward()
            rows.append([each.grad for each in model.parameters() if each.grad is not None])
    scale = max(float(each.abs().max()) for each in rows[0])
    close(rows[1], rows[0], 1e-8, scale / 10)
