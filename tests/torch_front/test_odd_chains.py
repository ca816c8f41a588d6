"""Models as benchmarks of kernels have them: a convolution and an odd chain after it, all of it one pipeline."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from helpers.captured import agrees, agrees_in_training  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from convt3d.torch import explain, optimize  # noqa: E402

CHAINS: dict[str, Any] = {}


def chain(kind: str = "conv", channels: int = 6, **named: Any) -> Any:
    """Enters a chain: f(m, y), where m holds a convolution, norms and tensors, and y is the convolution's result."""

    def enter(function: Any) -> Any:
        CHAINS[function.__name__] = (kind, channels, named, function)
        return function

    return enter


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self, kind: str, channels: int, named: dict[str, Any], function: Any) -> None:
        super().__init__()
        made = nn.Conv3d if kind == "conv" else nn.ConvTranspose3d
        self.conv = made(4, channels, 3, padding=1, **named)
        self.function = function
        self.bias = nn.Parameter(torch.randn(channels, 1, 1, 1))
        self.scale = nn.Parameter(torch.rand(1) + 0.5)
        self.per_channel = nn.Parameter(torch.rand(1, channels, 1, 1, 1) + 0.5)
        self.rows = nn.Parameter(torch.randn(5))
        self.group, self.batch = nn.GroupNorm(2, channels), nn.BatchNorm3d(channels)
        self.instance, self.layer = nn.InstanceNorm3d(channels), nn.LayerNorm(channels)
        self.whole, self.drop = nn.LayerNorm((5, 6, 5)), nn.Dropout(0.4)
        self.prelu, self.pool = nn.PReLU(channels), nn.AdaptiveAvgPool3d((1, 1, 1))
        self.batch.running_mean.normal_()
        self.batch.running_var.uniform_(0.5, 2)

    def forward(self, x: Any) -> Any:
        return self.function(self, self.conv(x))


@chain()
def softmax_sigmoid(m: Any, y: Any) -> Any:
    return torch.sigmoid(F.softmax(y, dim=1))


@chain()
def absolute_softsign(m: Any, y: Any) -> Any:
    return F.softsign(torch.abs(y) - m.bias).abs_()


@chain("transposed")
def celu_selu(m: Any, y: Any) -> Any:
    return F.selu(F.celu(y * m.scale, 0.5), inplace=True)


@chain()
def softmin_shrunk(m: Any, y: Any) -> Any:
    return F.tanhshrink(F.softmin(y, dim=1))


@chain()
def shrunk_log_sigmoid(m: Any, y: Any) -> Any:
    return F.rrelu(F.logsigmoid(30 * F.softshrink(y, 0.2)))


@chain()
def tokens(m: Any, y: Any) -> Any:
    return m.layer(y.flatten(2).transpose(1, 2))


@chain("transposed")
def attention_over_space(m: Any, y: Any) -> Any:
    return torch.softmax(y.mean(1).view(y.shape[0], 1, -1), -1)


@chain()
def channels_last_at_the_end(m: Any, y: Any) -> Any:
    return F.gelu(y.amax(2).permute(0, 2, 3, 1)[:, None] + m.layer.bias)


@chain()
def numbers_times_alpha(m: Any, y: Any) -> Any:
    return torch.sub(y, 0.5, alpha=3).add(1.5, alpha=-2).relu()


@chain()
def min_over_depth_softmax(m: Any, y: Any) -> Any:
    return torch.softmax(torch.min(y, dim=2, keepdim=True)[0], dim=1)


@chain()
def logsumexp_relu(m: Any, y: Any) -> Any:
    return torch.relu(torch.logsumexp(F.max_pool3d(y, 2, stride=2), dim=1, keepdim=True))


@chain()
def mish_tanh(m: Any, y: Any) -> Any:
    return torch.tanh(F.mish(y))


@chain()
def mish_times_tanh(m: Any, y: Any) -> Any:
    return F.mish(y) * torch.tanh(y)


@chain("transposed", stride=2)
def min_clamp_divide(m: Any, y: Any) -> Any:
    return torch.clamp(y.amin(1), min=-0.5) / 2.0


@chain("transposed")
def max_over_channels_of_tuple(m: Any, y: Any) -> Any:
    largest, _ = y.max(dim=1, keepdim=True)
    return F.hardswish(largest)


@chain()
def global_pool_bias_sum(m: Any, y: Any) -> Any:
    return torch.sum(m.pool(F.max_pool3d(y / 3.0, 2)) + m.bias, dim=1)


@chain()
def hardswish_groupnorm_mean(m: Any, y: Any) -> Any:
    return torch.mean(m.group(F.hardswish(y)), dim=[2, 3, 4])


@chain()
def leaky_sum_clamp_gelu(m: Any, y: Any) -> Any:
    return F.gelu(torch.clamp(F.leaky_relu(y, negative_slope=0.2) + m.bias, min=-1.0, max=1.0))


@chain()
def relu_leaky_gelu_sigmoid_bias(m: Any, y: Any) -> Any:
    return torch.sigmoid(F.gelu(F.leaky_relu(F.relu(y), 0.01))) + m.bias


@chain()
def subtract_divide_bias(m: Any, y: Any) -> Any:
    return (y - 0.5) / m.per_channel - m.bias


@chain("transposed")
def residual_twice(m: Any, y: Any) -> Any:
    return ((y + m.bias) + y) * y + y


@chain("transposed")
def swish_by_hand(m: Any, y: Any) -> Any:
    return m.group(torch.sigmoid(y) * y)


@chain()
def not_quite_hardswish(m: Any, y: Any) -> Any:
    return y * torch.sigmoid(y + 3) / 6


@chain()
def hardswish_by_hand(m: Any, y: Any) -> Any:
    return y * torch.clamp(y + 3, 0, 6) / 6


@chain()
def layernorm_of_channels(m: Any, y: Any) -> Any:
    return m.layer(y.permute(0, 2, 3, 4, 1)).permute(0, 4, 1, 2, 3) * m.scale


@chain()
def layernorm_of_space(m: Any, y: Any) -> Any:
    return F.gelu(m.whole(y))


@chain()
def layernorm_of_everything(m: Any, y: Any) -> Any:
    return F.layer_norm(y, y.shape[1:])


@chain()
def bias_along_width(m: Any, y: Any) -> Any:
    return torch.relu(y + m.rows)


@chain()
def bias_of_channels_last(m: Any, y: Any) -> Any:
    return (y.movedim(1, -1) + m.layer.bias).movedim(-1, 1).exp()


@chain("transposed", stride=2)
def softmax_over_space(m: Any, y: Any) -> Any:
    b, c, d, h, w = (y := F.avg_pool3d(y, 2)).shape
    return torch.softmax(y.clamp(0, 1).view(b, c, -1), dim=2).view(b, c, d, h, w)


@chain()
def flat_softmax(m: Any, y: Any) -> Any:
    return F.softmax(y.flatten(2), -1).reshape(y.shape) * m.per_channel


@chain()
def centred(m: Any, y: Any) -> Any:
    return y - y.mean(dim=(2, 3, 4), keepdim=True)


@chain("transposed")
def sum_of_means_and_maxima(m: Any, y: Any) -> Any:
    return y.mean((2, 3, 4), keepdim=True) + y.amax((2, 3, 4), keepdim=True)


@chain()
def in_place_everywhere(m: Any, y: Any) -> Any:
    y = F.relu(y, inplace=True)
    y += 1
    y.mul_(2)
    y.clamp_(max=3)
    return F.leaky_relu_(y - 2, 0.3)


@chain()
def batch_norm_dropout_prelu(m: Any, y: Any) -> Any:
    return m.prelu(m.drop(m.batch(y)))


@chain()
def instance_norm_tanh_scaled(m: Any, y: Any) -> Any:
    return 2 - m.instance(y).tanh() * 3 + torch.rsub(y, 1)


@chain("transposed")
def squares(m: Any, y: Any) -> Any:
    return (y**2 + torch.square(y)).sum(1, keepdim=True).log()


@chain()
def elu_and_more(m: Any, y: Any) -> Any:
    return F.elu(y, 0.7) + F.softplus(y, beta=2) + F.hardtanh(y, -0.2, 0.4) + F.relu6(y) + F.silu(-y)


@chain()
def limits_as_tensors(m: Any, y: Any) -> Any:
    low = torch.maximum(torch.tensor(-0.5, dtype=y.dtype), y.max(torch.tensor(-0.7, dtype=y.dtype)))
    return torch.min(low, torch.tensor(0.25, device=y.device, dtype=y.dtype)).minimum(
        other=torch.tensor(0.2, dtype=y.dtype)
    )


@chain()
def kept_axes_come_back(m: Any, y: Any) -> Any:
    return (y.mean(1).unsqueeze(1) * y).squeeze()


@chain()
def flat_at_the_end(m: Any, y: Any) -> Any:
    return torch.flatten(m.pool(y), 1).mul(2)


def model(name: str, dtype: Any = None) -> tuple[Any, Any]:
    torch.manual_seed(len(name))
    made = Model(*CHAINS[name]).eval().to(dtype or torch.float32)
    return made, torch.randn(2, 4, 5, 6, 5, dtype=dtype or torch.float32)


@pytest.mark.parametrize("name", CHAINS)
def test_chain(name: str) -> None:
    recorder = agrees(*model(name))
    assert len(recorder.texts) == 1
    assert recorder.rest == [], recorder.texts


@pytest.mark.parametrize("name", [name for name in CHAINS if name != "in_place_everywhere"])  # eager refuses that
def test_gradients(name: str) -> None:
    agrees_in_training(*model(name, torch.float64))


def test_a_limit_that_is_written_to_is_read_when_it_is_met() -> None:
    def function(m: Any, y: Any) -> Any:
        limit = torch.tensor(5.0)
        limit.sub_(4.9)
        return torch.min(y, limit)

    agrees(Model("conv", 6, {}, function).eval(), torch.randn(1, 4, 5, 6, 5))


@pytest.mark.parametrize("dim", [1, 2], ids=["channels", "space"])
def test_log_softmax(dim: int) -> None:
    """Large numbers cost no digits, since the largest is subtracted first. All sums of this convolution are exact."""
    torch.manual_seed(5)
    conv = nn.Conv3d(2, 5, 1).requires_grad_(False)
    conv.weight.copy_(torch.randint(-2, 3, conv.weight.shape))
    conv.bias.copy_(torch.randint(30_000, 30_003, conv.bias.shape))
    model = nn.Sequential(conv, nn.Flatten(2), nn.Unflatten(2, (5, 6, 7)), nn.LogSoftmax(1))
    if dim == 2:
        model = nn.Sequential(conv, nn.Flatten(2), nn.LogSoftmax(2), nn.Unflatten(2, (5, 6, 7)))
    x = torch.randint(-2, 3, (2, 2, 5, 6, 7)).float()
    found = explain(model, x, times=False, quiet=True)
    assert [row.stages.count("LogSumExp") for row in found.rows] == [1], found
    result, meant = optimize(model)(x), copy.deepcopy(model).double()(x.double())
    torch.testing.assert_close(result.double(), meant, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("function", [F.elu, F.selu, lambda y: F.celu(y, 0.5), lambda y: F.elu(y, -0.7)])
def test_small_numbers_keep_their_digits(function: Any) -> None:
    """Beside zero exp(x) - 1 is about x."""
    model = Model("conv", 6, {"bias": False}, lambda m, y: function(y)).eval()
    x = 1e-6 * torch.randn(1, 4, 3, 4, 5)
    (text,) = agrees(model, x).texts
    assert "Tanh" in text


def test_explain_where_a_result_is_copied() -> None:
    """LayerNorm over channels leaves another layout than eager, so a copy follows its pipeline."""
    torch.manual_seed(6)
    model = Model("conv", 6, {}, lambda m, y: F.silu(m.layer(y.permute(0, 2, 3, 4, 1)).permute(0, 4, 1, 2, 3))).eval()
    found = explain(model, torch.randn(2, 4, 5, 6, 5), quiet=True)
    assert [row.ours is not None for row in found.rows] == [True]
