"""swap(model): models as people build them give the same results, state_dicts and training, and can be swapped back."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import convt3d.torch as ct  # noqa: E402
from convt3d.torch import functions  # noqa: E402
from convt3d.torch.fold import FOLDS, fold_chain, shape_after  # noqa: E402


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


def close(got: Any, expected: Any, tolerance: float = 2e-5) -> None:
    scale = max(1.0, float(expected.detach().abs().max()))
    torch.testing.assert_close(got, expected, rtol=0.0, atol=tolerance * scale)


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    model, swapped, x = warmed(name)
    text, keys = repr(swapped), list(swapped.state_dict())
    parameters = list(swapped.parameters())
    report = ct.swap(swapped)
    convolutions = [m for m in model.modules() if isinstance(m, nn.ConvTranspose3d)]
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


def fused_calls(model: Any, x: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many fused chains a call runs."""
    texts: list[str] = []
    real = functions._call

    def spy(name: str, *arguments: Any) -> Any:
        if name == "pipeline":
            texts.append(arguments[2])
        return real(name, *arguments)

    monkeypatch.setattr(functions, "_call", spy)
    with torch.no_grad():
        model(x)
    monkeypatch.setattr(functions, "_call", real)
    return len(texts)


def test_what_is_fused_is_decided_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = gan(), torch.randn(1, 6, 1, 1, 1)
    report = ct.swap(model)
    model.train()
    assert fused_calls(model, x, monkeypatch) == 1  # only conv and Sigmoid: batch norms use the batch
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
    assert report.swapped["batch.0"] == "alone; then BatchNorm3d uses the statistics of the batch"
    assert report.swapped["then.0"] == "fused with ReLU; then Conv3d is no stage"
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


TAILS: list[Any] = [
    nn.BatchNorm3d(6),
    nn.BatchNorm3d(6, affine=False, eps=0.1),
    nn.InstanceNorm3d(6, affine=True),
    nn.GroupNorm(3, 6),
    nn.GroupNorm(2, 6, affine=False),
    nn.LayerNorm(9),
    nn.MaxPool3d((2, 1, 2), padding=(1, 0, 0), ceil_mode=True),
    nn.AvgPool3d(2, 1, 1, count_include_pad=False),
    nn.Softmax(1),
    nn.Identity(),
    nn.Dropout3d(0.5),
    nn.ReLU(inplace=True),
    nn.ReLU6(),
    nn.LeakyReLU(0.3),
    nn.PReLU(),
    nn.PReLU(6),
    nn.SiLU(),
    nn.GELU(),
    nn.GELU("tanh"),
    nn.Sigmoid(),
    nn.Tanh(),
    nn.Softplus(2.0, 3.0),
    nn.Hardswish(),
    nn.Hardtanh(-0.5, 0.7),
    nn.Mish(),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_every_tail(dtype: Any) -> None:
    torch.manual_seed(2)
    assert set(FOLDS) - {type(tail) for tail in TAILS} == {
        nn.SyncBatchNorm,
        nn.Dropout,
        nn.AlphaDropout,
        nn.FeatureAlphaDropout,
    }
    x = torch.randn(2, 4, 3, 5, 4, dtype=dtype)
    for tail in TAILS:
        if isinstance(tail, nn.AvgPool3d) and dtype == torch.bfloat16:  # PyTorch has none
            continue
        model = nn.Sequential(nn.ConvTranspose3d(4, 6, 3, 2, 0), copy.deepcopy(tail)).to(dtype).eval()
        with torch.no_grad():
            if hasattr(tail, "running_mean") and model[1].running_mean is not None:
                model[1].running_mean.normal_(), model[1].running_var.uniform_(0.5, 2.0)
            expected = model(x)
            ct.swap(model)
            assert fold_chain(list(model))[2] == 2, tail
            close(model(x), expected, {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 3e-2}[dtype])


def test_what_cannot_be_folded_says_why() -> None:
    conv = nn.ConvTranspose3d(4, 6, 3)
    half = nn.GroupNorm(2, 6)
    half.bias = None
    for tail, why in (
        (nn.MaxPool3d(2, dilation=2), "dilation"),
        (nn.MaxPool3d(2, return_indices=True), "indices"),
        (nn.AvgPool3d(2, divisor_override=3), "divisor"),
        (nn.LayerNorm((5, 9)), "several axes"),
        (nn.Softmax(2), "this axis"),
        (nn.Dropout(0.5), "random"),
        (nn.BatchNorm3d(6, track_running_stats=False).eval(), "statistics of the batch"),
        (nn.InstanceNorm3d(6, track_running_stats=True), "running statistics"),
        (nn.InstanceNorm3d(6, track_running_stats=True).eval(), "running statistics"),
        (half, "without a bias"),
        (nn.ELU(), "ELU is no stage"),
    ):
        assert why in fold_chain([conv, tail])[3]


@pytest.mark.parametrize("tail", [nn.GroupNorm(2, 4), nn.Softmax(1), nn.PReLU(4), nn.BatchNorm3d(4)], ids=str)
def test_unbatched_input_means_what_eager_makes_of_it(tail: Any) -> None:
    """Channels stand first there, which modules that count axes from the front do not know."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.ConvTranspose3d(3, 4, 3, padding=1), copy.deepcopy(tail)).eval()
    if isinstance(tail, nn.PReLU):
        nn.init.uniform_(model[1].weight)
    swapped, x = copy.deepcopy(model), torch.randn(3, 4, 5, 6)
    ct.swap(swapped)
    if isinstance(tail, nn.BatchNorm3d):
        with pytest.raises(ValueError, match="expected 5D input"):
            swapped(x)
    else:
        close(swapped(x), model(x))


@pytest.mark.parametrize("tail", [*TAILS, nn.InstanceNorm3d(6, track_running_stats=True)], ids=str)
def test_strides_of_channels_last(tail: Any) -> None:
    x = torch.randn(2, 4, 3, 5, 4).contiguous(memory_format=torch.channels_last_3d)
    model = nn.Sequential(nn.ConvTranspose3d(4, 6, 3, 2, 0), copy.deepcopy(tail)).eval()
    with torch.no_grad():
        expected = model(x)
        ct.swap(model)
        assert model(x).stride() == expected.stride()


def test_norms_of_a_single_value_are_refused_as_in_eager() -> None:
    for tail, shape, refused in (
        ([nn.InstanceNorm3d(6)], (2, 4, 1, 1, 1), True),
        ([nn.GroupNorm(6, 6)], (1, 4, 1, 1, 1), True),
        ([nn.GroupNorm(6, 6)], (2, 4, 1, 1, 1), False),
        ([nn.GroupNorm(3, 6)], (1, 4, 1, 1, 1), False),
        ([nn.GroupNorm(6, 6)], (0, 4, 1, 1, 1), False),
        ([nn.MaxPool3d(2, ceil_mode=True), nn.Tanh(), nn.InstanceNorm3d(6)], (2, 4, 2, 2, 2), True),
        ([nn.MaxPool3d(2, 1, 1), nn.Tanh(), nn.InstanceNorm3d(6)], (2, 4, 1, 1, 1), False),
    ):
        model = nn.Sequential(nn.ConvTranspose3d(4, 6, 1), *tail)
        swapped, x = copy.deepcopy(model), torch.randn(shape)
        ct.swap(swapped)
        if refused:
            for each in (model, swapped):
                with pytest.raises(ValueError, match="Expected more than 1"):
                    each(x)
        else:
            torch.testing.assert_close(swapped(x), model(x), rtol=1e-4, atol=1e-4)
            assert fold_chain(list(swapped), shape)[2] == 1 + len(tail)


def test_shape_after_is_that_of_the_modules() -> None:
    x = torch.randn(2, 4, 3, 5, 4)
    conv = nn.ConvTranspose3d(4, 6, (3, 2, 3), (2, 3, 1), (1, 0, 0), (1, 2, 0), 2, bias=False, dilation=(2, 1, 3))
    for tail in (nn.MaxPool3d((2, 1, 2), padding=(1, 0, 0), ceil_mode=True), nn.AvgPool3d(2, 3, 1), nn.ReLU()):
        model = nn.Sequential(conv, tail, nn.GroupNorm(2, 6))
        assert shape_after(list(model), x.shape) == model(x).shape


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
        "first.0": "fused with ReLU; at another place: alone: last of its sequence; "
        "at another place: alone: ModuleDict decides what follows it",
        "twice.0": "fused with Tanh; then ConvTranspose3d is no stage; at another place: fused with SiLU",
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


class Adn(nn.Sequential):  # type: ignore[misc]
    """Norm, dropout and activation, as MONAI puts them together."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.add_module("N", nn.InstanceNorm3d(channels))
        self.add_module("D", nn.Dropout(0.2))
        self.add_module("A", nn.PReLU())


class Convolution(nn.Sequential):  # type: ignore[misc]
    """A convolution and its Adn, with attributes of its own."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.cin, self.cout = cin, cout
        self.add_module("conv", nn.ConvTranspose3d(cin, cout, 3, 2, 1, 1))
        self.add_module("adn", Adn(cout))

    @property
    def channels(self) -> tuple[int, int]:
        return self.cin, self.cout


class Doubled(nn.Sequential):  # type: ignore[misc]
    """Does more than run its modules in order."""

    def forward(self, input: Any) -> Any:
        return 2 * super().forward(input)


class Backwards(nn.Sequential):  # type: ignore[misc]
    def __iter__(self) -> Any:
        return iter(list(self._modules.values())[::-1])


def test_subclasses_of_sequential_are_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(5)
    model = nn.Sequential(Convolution(2, 4), nn.Sequential(Convolution(4, 3), nn.Tanh())).eval()
    x, text, copied = torch.randn(2, 2, 3, 4, 3), repr(model), copy.deepcopy(model)
    with torch.no_grad():
        expected = model(x)
    report = ct.swap(model)
    assert report.swapped == {
        "0.conv": "fused with InstanceNorm3d, Dropout, PReLU; then ConvTranspose3d is no stage",
        "1.0.conv": "fused with InstanceNorm3d, Dropout, PReLU, Tanh",
    }
    assert repr(model) == text
    assert isinstance(model[0], Convolution)
    assert model[0].channels == (2, 4)
    with torch.no_grad():
        close(model(x), expected)
        close(model[0](x), copied[0](x))  # also when it is called by itself
        for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert isinstance(again[0], Convolution)
            assert again[0].channels == (2, 4)
            assert fused_calls(again, x, monkeypatch) == 2
            close(again(x), expected)
    assert fused_calls(model, x, monkeypatch) == 2
    model.train()  # dropout draws: conv and norm are fused, what follows is not
    assert fused_calls(model, x, monkeypatch) == 2
    report.undo()
    assert [type(m) for m in model.modules()] == [type(m) for m in copied.modules()]


def test_subclasses_with_a_forward_of_their_own_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(6)
    for kind, tail in ((Doubled, (nn.ConvTranspose3d(2, 2, 2), nn.ReLU())), (Backwards, (nn.ReLU(), nn.Tanh()))):
        model = nn.Sequential(nn.ConvTranspose3d(2, 2, 2), kind(*tail), nn.SiLU()).eval()
        x = torch.randn(1, 2, 3, 3, 3)
        with torch.no_grad():
            expected = model(x)
            report = ct.swap(model)
            close(model(x), expected)
        assert type(model[1]) is kind
        assert report.swapped["0"] == f"alone; then {kind.__name__} is no stage"
        if kind is Doubled:
            assert report.swapped["1.0"] == "alone: Doubled decides what follows it"
        assert fused_calls(model, x, monkeypatch) == 0
    bare = ct.swap(nn.ConvTranspose3d(2, 2, 2))
    assert bare.swapped == {"(model)": "alone: it is the whole model"}


def test_lazy_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.LazyConvTranspose3d(4, 3, 2), nn.ReLU())
    stock, x = copy.deepcopy(model), torch.randn(1, 2, 3, 3, 3)
    report = ct.swap(model)
    assert report.swapped == {"0": "lazy: fused with what can be, once it has its weight"}
    torch.manual_seed(0)
    expected = stock(x)
    torch.manual_seed(0)
    close(model(x), expected)
    assert type(model[0]) is ct.ConvTranspose3d
    assert fused_calls(model, x, monkeypatch) == 1
    assert report.undo() == []
    assert type(model[0]) is nn.ConvTranspose3d
    lazy = nn.Sequential(nn.LazyConvTranspose3d(4, 3))
    ct.swap(lazy).undo()
    assert type(lazy[0]) is nn.LazyConvTranspose3d
    own = ct.LazyConvTranspose3d(4, 3, bias=False)
    assert own(x).shape == (1, 4, 5, 5, 5)
    assert type(own) is ct.ConvTranspose3d
