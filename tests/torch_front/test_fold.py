"""Which modules become stages of a fused chain: the same values, strides and errors, or not fused and why."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from helpers.swapped import close  # noqa: E402
from torch import nn  # noqa: E402

import convt3d.torch as ct  # noqa: E402
from convt3d.torch.fold import FOLDS, fold_chain, shape_after  # noqa: E402

TAILS: list[Any] = [
    nn.BatchNorm3d(6),
    nn.BatchNorm3d(6, affine=False, eps=0.1),
    nn.InstanceNorm3d(6, affine=True),
    nn.GroupNorm(3, 6),
    nn.GroupNorm(2, 6, affine=False),
    nn.LayerNorm(9),
    nn.MaxPool3d((2, 1, 2), padding=(1, 0, 0), ceil_mode=True),
    nn.MaxPool3d((2,), (1,), (1,), (1,)),
    nn.MaxPool3d([2, 1, 3], stride=()),
    nn.AvgPool3d(2, 1, 1, count_include_pad=False),
    nn.AvgPool3d((2,), divisor_override=3),
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


def evaluated(*modules: Any, dtype: Any) -> Any:
    """A sequence in eval(), with running statistics of its own."""
    model = nn.Sequential(*copy.deepcopy(modules)).to(dtype).eval()
    for module in model:
        if getattr(module, "running_mean", None) is not None:
            module.running_mean.normal_(), module.running_var.uniform_(0.5, 2.0)
    return model


def test_every_tail() -> None:
    torch.manual_seed(2)
    assert set(FOLDS) - {type(tail) for tail in TAILS} == {
        nn.SyncBatchNorm,
        nn.Dropout,
        nn.AlphaDropout,
        nn.FeatureAlphaDropout,
    }
    x = torch.randn(2, 4, 3, 5, 4)
    for tail in TAILS:
        model = evaluated(nn.ConvTranspose3d(4, 6, 3, 2, 0), tail, dtype=torch.float32)
        with torch.no_grad():
            expected = model(x)
            ct.swap(model)
            assert fold_chain(list(model))[2] == 2, tail
            close(model(x), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_all_tails_in_a_row_in_other_types(dtype: Any) -> None:
    """One kernel with the parameters and tensors of all; PyTorch averages no 16-bit numbers on a CPU."""
    torch.manual_seed(2)
    skipped = (nn.AvgPool3d,) if dtype is torch.bfloat16 else ()
    tails = [tail for tail in TAILS if not isinstance(tail, (nn.LayerNorm, nn.MaxPool3d, nn.Softmax, *skipped))]
    x = torch.randn(2, 4, 3, 5, 4, dtype=dtype)
    model = evaluated(nn.ConvTranspose3d(4, 6, 3, 2, 0), *tails, dtype=dtype)
    with torch.no_grad():
        expected = model(x)
        ct.swap(model)
        assert fold_chain(list(model))[2] == len(model)
        close(model(x), expected, 1e-12 if dtype is torch.float64 else 3e-2)


def test_what_cannot_be_folded_says_why() -> None:
    conv = nn.ConvTranspose3d(4, 6, 3)
    half = nn.GroupNorm(2, 6)
    half.bias = None
    for tail, why in (
        (nn.MaxPool3d(2, dilation=2), "dilation"),
        (nn.MaxPool3d(2, return_indices=True), "indices"),
        (nn.AvgPool3d(2, divisor_override=-3), "divisor_override must be >= 1"),
        (nn.LayerNorm((5, 9)), "several axes"),
        (nn.Softmax(2), "another axis"),
        (nn.Dropout(0.5), "random"),
        (nn.BatchNorm3d(6, track_running_stats=False).eval(), "statistics of the batch"),
        (nn.InstanceNorm3d(6, track_running_stats=True), "running statistics"),
        (nn.InstanceNorm3d(6, track_running_stats=True).eval(), "running statistics"),
        (half, "without a bias"),
        (nn.ELU(), "is no stage"),
    ):
        assert why in fold_chain([conv, tail])[3]


@pytest.mark.parametrize(
    "tail",
    [
        nn.InstanceNorm3d(6, eps=-0.1),
        nn.GroupNorm(2, 6, eps=-1e-3),
        nn.LayerNorm(9, eps=-0.1),
        nn.Softplus(beta=0.0),
        nn.Softplus(threshold=float("nan")),
        nn.LeakyReLU(float("nan")),
        nn.AvgPool3d(2, divisor_override=-3),
    ],
    ids=str,
)
def test_parameters_that_no_stage_has_are_left_to_pytorch(tail: Any) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.ConvTranspose3d(4, 6, 3, 2, 0), nn.ReLU(), copy.deepcopy(tail))
    swapped, x = copy.deepcopy(model), torch.randn(2, 4, 3, 5, 4)
    report = ct.swap(swapped)
    assert "which has parameters that no stage takes" in report.swapped["0"]
    expected = model(x)
    torch.testing.assert_close(swapped(x), expected, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("last", [nn.GroupNorm(2, 6), nn.InstanceNorm3d(6)], ids=str)
def test_sizes_as_pytorch_takes_them(last: Any) -> None:
    """One number, a sequence of one, an empty stride, and numbers in the place of the constructor's triples."""
    conv = nn.ConvTranspose3d(4, 6, 3, (2,), (1,), (1,), dilation=(1,))
    assert conv.stride == (2,)
    plain = nn.ConvTranspose3d(4, 6, 3)
    plain.stride, plain.padding = 2, (1,)
    for first, pool in ((conv, nn.MaxPool3d((2,))), (conv, nn.AvgPool3d([2], ())), (plain, nn.MaxPool3d(2, stride=()))):
        model = nn.Sequential(first, pool, copy.deepcopy(last))
        swapped, x = copy.deepcopy(model), torch.randn(2, 4, 3, 5, 4)
        ct.swap(swapped)
        assert fold_chain(list(swapped), x.shape)[2] == 3
        assert shape_after(list(swapped), x.shape) == model(x).shape
        close(swapped(x), model(x))


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
