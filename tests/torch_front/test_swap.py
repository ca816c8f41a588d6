"""swap(model): models as people build them give the same results, state_dicts and training, and can be swapped back."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from helpers.swapped import close, fused_calls  # noqa: E402
from torch import nn  # noqa: E402

import convt3d.torch as ct  # noqa: E402
from convt3d.errors import Error  # noqa: E402


class UNet(nn.Module):  # type: ignore[misc]
    """Skips, instance norms and PReLU inside sequences; one bare convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv3d(1, 4, 3, 2, 1), nn.InstanceNorm3d(4), nn.PReLU())
        self.deep = nn.Sequential(nn.Conv3d(4, 8, 3, 2, 1), nn.InstanceNorm3d(8), nn.PReLU(8))
        self.up1 = nn.Sequential(
            nn.ConvTranspose3d(8, 4, 3, 2, 1, 1), nn.InstanceNorm3d(4, affine=True), nn.Dropout(0.1), nn.PReLU()
        )
        self.up0 = nn.ConvTranspose3d(8, 2, 2, 2)

    def forward(self, x: Any) -> Any:
        fine = self.down(x)
        return self.up0(torch.cat([fine, self.up1(self.deep(fine))], 1))


class Stereo(nn.Module):  # type: ignore[misc]
    """As in stereo matching: convolution and batch norm in a sequence, then an addition, then ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv3d(4, 8, 3, 2, 1, bias=False), nn.BatchNorm3d(8), nn.ReLU(inplace=True))
        self.conv2 = nn.Sequential(nn.Conv3d(8, 8, 3, 2, 1, bias=False), nn.BatchNorm3d(8), nn.ReLU(inplace=True))
        self.conv5 = nn.Sequential(
            nn.ConvTranspose3d(8, 8, 3, padding=1, output_padding=1, stride=2, bias=False), nn.BatchNorm3d(8)
        )
        self.conv6 = nn.Sequential(
            nn.ConvTranspose3d(8, 4, 3, padding=1, output_padding=1, stride=2, bias=False), nn.BatchNorm3d(4)
        )

    def forward(self, x: Any) -> Any:
        half = self.conv1(x)
        return self.conv6(torch.relu(self.conv5(self.conv2(half)) + half)) + x


def gan() -> Any:
    """A generator: one long sequence, with a sequence inside."""
    return nn.Sequential(
        nn.ConvTranspose3d(6, 8, 4),
        nn.BatchNorm3d(8),
        nn.ReLU(True),
        nn.Sequential(
            nn.ConvTranspose3d(8, 4, 4, 2, 1, bias=False), nn.BatchNorm3d(4, affine=False), nn.LeakyReLU(0.2)
        ),
        nn.ConvTranspose3d(4, 1, 4, 2, 1),
        nn.Sigmoid(),
    )


MODELS = {
    "unet": (UNet, (2, 1, 8, 8, 12)),
    "stereo": (Stereo, (2, 4, 8, 4, 8)),
    "gan": (gan, (3, 6, 1, 1, 1)),
}


def warmed(name: str) -> tuple[Any, Any, Any]:
    """The stock model with running statistics of its own, its swapped copy, an input."""
    torch.manual_seed(0)
    build, shape = MODELS[name]
    model, x = build(), torch.randn(shape)
    for _ in range(2):
        model(torch.randn(shape))
    return model, copy.deepcopy(model), x


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    model, swapped, x = warmed(name)
    text, keys = repr(swapped), list(swapped.state_dict())
    parameters = list(swapped.parameters())
    report = ct.swap(swapped)
    convolutions = [m for m in model.modules() if isinstance(m, (nn.Conv3d, nn.ConvTranspose3d))]
    assert len(report.swapped) == len(convolutions)
    assert report.left == {}
    assert repr(swapped) == text
    assert list(swapped.state_dict()) == keys
    assert all(a is b for a, b in zip(swapped.parameters(), parameters, strict=True))

    model.eval(), swapped.eval()
    with torch.no_grad():
        expected, got = model(x), swapped(x)
    assert got.stride() == expected.stride()
    close(got, expected)
    for copied in (copy.deepcopy(swapped), pickle.loads(pickle.dumps(swapped))):
        with torch.no_grad():
            assert torch.equal(copied(x), got)

    fresh = MODELS[name][0]()
    fresh.load_state_dict(swapped.state_dict())  # checkpoints go both ways
    swapped.load_state_dict(model.state_dict())
    report.undo()
    assert not any(isinstance(m, (ct.ConvTranspose3d, ct.FusedSequential)) for m in swapped.modules())
    with torch.no_grad():
        assert torch.equal(swapped(x), expected)


@pytest.mark.parametrize("name", MODELS)
def test_training(name: str) -> None:
    """Batch norms use and update statistics, dropout draws the same numbers, an optimiser goes the same way."""
    model, swapped, x = warmed(name)
    ct.swap(swapped)
    for each in (model, swapped):
        optimiser = torch.optim.SGD(each.parameters(), lr=0.05)
        for step in range(2):
            each.train()
            torch.manual_seed(step)
            optimiser.zero_grad()
            each(x).square().mean().backward()
            optimiser.step()
            each.eval()
            optimiser.zero_grad()
            each(x).square().mean().backward()  # gradients through the folded chain
            optimiser.step()
    for (key, a), b in zip(model.state_dict().items(), swapped.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=lambda text, key=key: f"{key}: {text}")


def test_what_is_fused_is_decided_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = gan(), torch.randn(1, 6, 1, 1, 1)
    report = ct.swap(model)
    model.train()
    assert fused_calls(model, x, monkeypatch) == 3  # batch norms take the batch
    model.eval()
    assert fused_calls(model, x, monkeypatch) == 3
    handle = model[5].register_forward_hook(lambda *_: None)
    assert fused_calls(model, x, monkeypatch) == 2
    handle.remove()
    everywhere = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert fused_calls(model, x, monkeypatch) == 0
    everywhere.remove()
    model[1].double()  # a norm kept in a wider type is left to PyTorch, which refuses or promotes as it does
    assert fused_calls(model[3:], torch.randn(1, 8, 2, 2, 2), monkeypatch) == 2
    report.undo()
    assert fused_calls(model[3:], torch.randn(1, 8, 2, 2, 2), monkeypatch) == 0


def test_hooks_run_and_see_the_same() -> None:
    model, x = gan().eval(), torch.randn(2, 6, 1, 1, 1)
    seen: list[Any] = []
    for at in (0, 1, 5):
        model[at].register_forward_hook(lambda module, inputs, output: seen.append(output.clone()))
    with torch.no_grad():
        model(x)
        ct.swap(model)
        model(x)
    assert len(seen) == 6
    for a, b in zip(seen[:3], seen[3:], strict=True):
        close(b, a)


def test_what_is_left_and_why() -> None:
    class Own(nn.ConvTranspose3d):  # type: ignore[misc]
        pass

    model = nn.ModuleDict(
        {
            "own": Own(2, 2, 2),
            "normed": nn.utils.parametrizations.weight_norm(nn.ConvTranspose3d(2, 2, 2)),
            "spectral": nn.utils.parametrizations.spectral_norm(nn.ConvTranspose3d(2, 2, 2)),
            "complex": nn.ConvTranspose3d(2, 2, 2, dtype=torch.complex64),
            "plain": nn.ConvTranspose3d(2, 2, 2),
            "batch": nn.Sequential(nn.ConvTranspose3d(2, 2, 2), nn.BatchNorm3d(2)),
            "then": nn.Sequential(nn.ConvTranspose3d(2, 2, 2), nn.ReLU(), nn.Conv3d(2, 2, 1)),
        }
    )
    model["patched"] = nn.ConvTranspose3d(2, 2, 2)
    model["patched"].forward = lambda x: x
    report = ct.swap(model)
    assert report.left["own"] == "is a Own, which may compute something else"
    assert "Parametrized" in report.left["normed"]
    assert "Parametrized" in report.left["spectral"]
    assert report.left["complex"] == "its weight is torch.complex64"
    assert report.left["patched"] == "has a forward of its own"
    assert report.swapped["plain"] == "alone: ModuleDict decides what follows it"
    assert report.swapped["batch.0"] == "fused with BatchNorm3d"
    assert report.swapped["then.0"] == "fused with ReLU; not with Conv3d, which is no stage of convt3d"
    assert "left    own: is a Own" in str(report)
    assert ct.swap(model).swapped == {}  # a second time there is nothing to do
    assert "nothing to swap" in str(ct.swap(nn.ReLU()))


def test_old_weight_norm_and_shared_modules() -> None:
    """A weight that a hook computes before each call, and a module at two places, stay right."""
    torch.manual_seed(1)
    with pytest.warns(FutureWarning):
        normed = nn.utils.weight_norm(nn.ConvTranspose3d(3, 3, 2, 2))
    shared = nn.ConvTranspose3d(3, 3, 3, 1, 1)
    model = nn.Sequential(normed, nn.ReLU(), shared, nn.Tanh(), shared, nn.SiLU()).eval()
    x = torch.randn(1, 3, 3, 3, 3)
    with torch.no_grad():
        expected = model(x)
        ct.swap(model)
        close(model(x), expected)
        normed.weight_g.mul_(2.0)
        doubled = model(x)
    assert not torch.allclose(doubled, expected)


def test_undo_leaves_a_class_that_something_else_set() -> None:
    model, x = nn.Sequential(nn.ConvTranspose3d(2, 2, 2), nn.ReLU()), torch.randn(1, 2, 3, 3, 3)
    expected = model(x)
    report = ct.swap(model)
    nn.utils.parametrizations.weight_norm(model[0])
    assert report.undo() == ["0"]
    assert type(model) is nn.Sequential
    close(model(x), expected)
    nn.utils.parametrize.remove_parametrizations(model[0], "weight")
    assert report.undo() == []
    assert type(model[0]) is nn.ConvTranspose3d
    close(model(x), expected)


def test_report_of_shared_modules_names_every_place() -> None:
    shared, twice = nn.ConvTranspose3d(2, 2, 1), nn.ConvTranspose3d(2, 2, 1)
    model = nn.ModuleDict(
        {
            "first": nn.Sequential(shared, nn.ReLU()),
            "second": nn.Sequential(shared),
            "bare": shared,
            "twice": nn.Sequential(twice, nn.Tanh(), nn.Sequential(twice), nn.SiLU()),
        }
    )
    report = ct.swap(model)
    assert report.swapped == {
        "first.0": "fused with ReLU; at another place: alone: nothing follows it in its sequence; "
        "at another place: alone: ModuleDict decides what follows it",
        "twice.0": "fused with Tanh; not with ConvTranspose3d, which is no stage of convt3d; "
        "at another place: fused with SiLU",
    }
    assert report.left == {}


def test_report_of_a_swapped_model_says_so() -> None:
    model = nn.Sequential(nn.ConvTranspose3d(2, 2, 1), nn.ReLU())
    ct.swap(model)
    again = ct.swap(model)
    assert again.swapped == {}
    assert str(again) == "left    0: is convt3d's already"
    around = ct.swap(nn.Sequential(model[0], nn.Tanh()))
    assert around.swapped == {"0": "fused with Tanh"}
    assert around.left == {}


@pytest.mark.parametrize("training", [False, True])
def test_report_says_what_happens_in_both_modes(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever the model is in at the time; and that is what happens."""
    model = nn.Sequential(nn.ConvTranspose3d(2, 2, 2), nn.InstanceNorm3d(2), nn.Dropout(0.5), nn.ReLU()).train(training)
    model[0].register_forward_hook(lambda *_: None).remove()
    assert ct.swap(model).swapped["0"] == (
        "in eval: fused with InstanceNorm3d, Dropout, ReLU. "
        "In training: fused with InstanceNorm3d; not with Dropout, which draws random numbers"
    )
    hooked = nn.Sequential(nn.ConvTranspose3d(2, 2, 2), nn.ReLU()).train(training)
    hooked[0].register_forward_hook(lambda *_: None)
    assert ct.swap(hooked).swapped["0"] == "alone: it has hooks"
    assert fused_calls(hooked, torch.randn(1, 2, 2, 2, 2), monkeypatch) == 0


@pytest.mark.parametrize("wrong", [None, nn.Sequential, nn.ReLU().forward, "model"], ids=str)
def test_only_models_are_taken(wrong: Any) -> None:
    with pytest.raises(Error, match=r"swap: model = .*: must be an nn.Module. Pass the model itself"):
        ct.swap(wrong)


def test_weights_of_every_device_with_an_engine_are_taken() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    for device, taken in (("cpu", True), ("meta", True), ("cuda", True), ("xpu", False)):
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = nn.Sequential(nn.ConvTranspose3d(2, 2, 2, device="meta"))
            weight = torch.empty(2, 2, 2, 2, 2, device=device)
        model[0].weight = nn.Parameter(weight)
        report = ct.swap(model)
        assert bool(report.swapped) == taken, device
        assert report.left == ({} if taken else {"0": f"its weight is on {device}"})


def test_convolutions_are_swapped_and_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conv3d as ConvTranspose3d: with what follows it, whatever its padding."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv3d(2, 4, 3, padding="same"),
        nn.InstanceNorm3d(4),
        nn.LeakyReLU(0.1),
        nn.Conv3d(4, 4, 2, stride=2, padding=1),
        nn.BatchNorm3d(4),
        nn.MaxPool3d(2),
        nn.Conv3d(4, 2, 1, bias=False),
        nn.LazyConv3d(3, 2),
        nn.ReLU(),
    )
    x = torch.randn(1, 2, 8, 7, 9)
    model(x)
    swapped = copy.deepcopy(model).eval()
    model.eval()
    report = ct.swap(swapped)
    assert list(report.swapped) == ["0", "3", "6", "7"]
    assert "fused with InstanceNorm3d, LeakyReLU" in report.swapped["0"]
    assert fused_calls(swapped, x, monkeypatch) == 3
    with torch.no_grad():
        close(swapped(x), model(x))
    assert report.undo() == []
    assert [type(m) for m in swapped] == [type(m) for m in model]
