"""What may be taken into a pipeline and what may not: each case is a model that gives the same either way."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from helpers.captured import agrees, agrees_in_training, close, compiled  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812


def made(function: Any, *, kind: Any = nn.Conv3d, **conv: Any) -> Any:
    """A model that applies f(y, x) to the result y of a convolution 4 -> 6 of x."""

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.conv = kind(4, 6, **{"kernel_size": 3, "padding": 1} | conv)

        def forward(self, x: Any) -> Any:
            return function(self.conv(x), x)

    return Model().eval()


def given(*shape: int, dtype: Any = None) -> Any:
    torch.manual_seed(1)
    return torch.randn(*(shape or (2, 4, 5, 6, 6)), dtype=dtype)


UP = "ConvTranspose3d(stride=2, padding=1, output_padding=1, bias=True)"
CONV = "Conv3d(padding=1, bias=True)"
WIDE, HALF = torch.linspace(-1, 1, 6), torch.linspace(-1, 1, 6, dtype=torch.float64)

# name -> function of (y, x), the pipeline that must come of it, and what is left to PyTorch
STOPS: dict[str, tuple[Any, str, list[str]]] = {
    "a vector meets the width": (lambda y, x: y + WIDE, f"{CONV} -> Add(other='tensor')", []),
    "an alpha": (lambda y, x: torch.add(y, y, alpha=2), CONV, ["add"]),
    "an alpha of one": (lambda y, x: torch.sub(y, 1.0, alpha=1), f"{CONV} -> Subtract(other=1.0)", []),
    "indices are used": (lambda y, x: y.max(1), CONV, ["max"]),
    "indices are not used": (lambda y, x: y.max(1)[0], f"{CONV} -> Max()", []),
    "the smallest": (
        lambda y, x: y.min(1).values,
        f"{CONV} -> Multiply(other=-1.0) -> Max() -> Multiply(other=-1.0)",
        [],
    ),
    "a maximum of two tensors": (lambda y, x: torch.max(y, y * 2), CONV, ["mul", "max"]),
    "other types": (lambda y, x: y.double() + 1, CONV, ["double", "add"]),
    "a tensor of another type": (lambda y, x: y + HALF, CONV, ["add"]),
    "the same type again": (lambda y, x: y.float().relu().to(torch.float32), f"{CONV} -> ReLU()", []),
    "a larger tensor": (
        lambda y, x: y.sum(1, keepdim=True) + torch.ones(6, 1, 1, 1),
        f"{CONV} -> Sum()",
        ["ones", "add"],
    ),
    "more axes": (lambda y, x: y + torch.ones(3, 1, 1, 1, 1, 1), CONV, ["ones", "add"]),
    "a batch is reduced": (lambda y, x: y.mean(0), CONV, ["mean"]),
    "everything is reduced": (lambda y, x: y.sum(), CONV, ["sum"]),
    "softmax along the width": (lambda y, x: y.softmax(-1), CONV, ["softmax"]),
    "a quotient is rounded": (lambda y, x: torch.div(y, 2, rounding_mode="floor"), CONV, ["div"]),
    "dropout in training": (lambda y, x: F.dropout(y, 0.0, True).relu(), f"{CONV} -> ReLU()", []),
    "a batch norm of the batch": (lambda y, x: F.batch_norm(y, None, None, training=True), CONV, ["batch_norm"]),
    "bounds the wrong way": (lambda y, x: y.clamp(1, 0), CONV, ["clamp"]),
    "bounds are tensors": (lambda y, x: torch.clamp(y, torch.zeros(1)), CONV, ["zeros", "clamp"]),
    "a power": (lambda y, x: y**4, CONV, ["pow"]),
    "a third power": (
        lambda y, x: y**3,
        f"{CONV} -> Keep(label='v0') -> Multiply(other='v0') -> Multiply(other='v0')",
        [],
    ),
    "an inverse": (lambda y, x: (y * y + 1).pow(-1.0), None, []),
    "new axes by index": (
        lambda y, x: y.mean((2, 3, 4))[:, :, None, None, None] * y[...],
        f"{CONV} -> Keep(label='v0') -> Mean(over='spatial') -> Multiply(other='v0')",
        [],
    ),
    "new axes beside others": (lambda y, x: y.sum(1)[:, None] + y.sum(-1)[..., None], None, []),
    "a part by index": (lambda y, x: y[:, 1:][..., None], CONV, ["getitem", "getitem"]),
    "detached": (lambda y, x: y.detach().relu(), f"{CONV} -> ReLU()", []),
    "no stage": (lambda y, x: torch.sin(y.relu()).relu(), f"{CONV} -> ReLU()", ["sin", "relu"]),
    "a split axis": (lambda y, x: y.reshape(2, 2, 3, 5, 6, 6).sum(1), CONV, ["reshape", "sum"]),
    "an end that is permuted": (lambda y, x: y.relu().permute(0, 2, 3, 4, 1), f"{CONV} -> ReLU()", ["permute"]),
    "an end that is flat": (lambda y, x: y.relu().flatten(1), f"{CONV} -> ReLU()", ["flatten"]),
    "used twice outside": (lambda y, x: (y.relu().sin(), y.relu().cos()), CONV, ["relu", "sin", "relu", "cos"]),
    "two values leave": (lambda y, x: (y.relu(), y.tanh()), CONV, ["relu", "tanh"]),
    "one leaves and one goes on": (lambda y, x: (z := y.relu(), z.tanh()), f"{CONV} -> ReLU()", ["tanh"]),
    "a detour": (lambda y, x: y + torch.sin(y), CONV, ["sin", "add"]),
    "a tensor with gaps": (lambda y, x: y * x[:, 1:2, ::5], f"{CONV} -> Multiply(other='tensor')", ["getitem"]),
    "the input again": (lambda y, x: y[:, :4] + x, CONV, ["getitem", "add"]),
    "a branch is added": (
        lambda y, x: torch.relu(y + F.interpolate(x, scale_factor=1).repeat(1, 2, 1, 1, 1)[:, :6]),
        f"{CONV} -> Add(other='tensor') -> ReLU()",
        ["interpolate", "repeat", "getitem"],
    ),
    "unequal adaptive windows": (lambda y, x: F.adaptive_avg_pool3d(y, 4), CONV, ["adaptive_avg_pool3d"]),
    "equal adaptive windows": (
        lambda y, x: F.adaptive_max_pool3d(y, (5, 3, None)),
        f"{CONV} -> MaxPool3d(kernel_size=(1, 2, 1), stride=(1, 2, 1))",
        [],
    ),
    "pool indices": (lambda y, x: F.max_pool3d(y, 2, return_indices=True), CONV, ["fn"]),
    "a dilated pool": (lambda y, x: F.max_pool3d(y, 2, dilation=2), CONV, ["max_pool3d"]),
}


@pytest.mark.parametrize("name", STOPS)
def test_where_pipelines_end(name: str) -> None:
    function, text, rest = STOPS[name]
    recorder = agrees(made(function), given())
    assert text is None or recorder.texts == [text]
    left = [each if each in rest else "fn" for each in recorder.rest if each != "getitem" or "getitem" in rest]
    assert left == rest, recorder.rest


# --- tensors that are written to --------------------------------------------------------------------------------------


def _later_name(y: Any, x: Any) -> Any:
    y.relu_()
    return y.tanh()


def _view_written(y: Any, x: Any) -> Any:
    shown = y.view(2, 6, -1)
    shown.relu_()
    return y.tanh()


def _view_read_later(y: Any, x: Any) -> Any:
    shown = y.view(2, 6, -1)
    y.add_(1)
    return shown * 2


def _read_before(y: Any, x: Any) -> Any:
    before = y * 2
    y.add_(1)
    return before + y


def _input_written(y: Any, x: Any) -> Any:
    x.add_(1)
    return y + x.mean()


def _written_operand(y: Any, x: Any) -> Any:
    other = torch.ones(6, 1, 1, 1)
    y = y + other
    other.mul_(3)
    return y * other


def _slice_written(y: Any, x: Any) -> Any:
    y = y.relu()
    y[:, 0] = 3.0
    return y.tanh()


def _written_by_position(y: Any, x: Any) -> Any:
    shown = y.view(2, 6, -1)
    F.elu(y, 1.0, True)
    F.selu(y, True)
    return shown * 2


def _outer_written(y: Any, x: Any) -> Any:
    sums = torch.zeros(2, 6, 5, 6, 6)
    sums += y
    return sums.relu() + sums


def _dropped_then_written(y: Any, x: Any) -> Any:
    z = F.dropout(y, 0.5, False)
    z.relu_()
    return y + 1


def _statistics_moved(name: str, norm: Any) -> Any:
    """What a norm in training does to its running statistics, which are operands before it."""

    def moved(y: Any, x: Any) -> Any:
        mean, variance = torch.zeros(6), torch.ones(6)
        y = F.batch_norm(y, mean, variance)
        z = norm(torch.linspace(-3, 5, y.numel()).view(y.shape), mean, variance)
        return y.relu() + z

    moved.__name__ = name
    return moved


def _rows_scaled(y: Any, x: Any) -> Any:
    table = torch.linspace(-3, 5, 12).view(6, 2)
    y = y + table[:, :1].view(6, 1, 1, 1)
    rows = F.embedding(torch.arange(6), table, max_norm=0.5)
    return y.relu() * rows.mean()


def _called_by_its_name(y: Any, x: Any) -> Any:
    other = torch.ones(6, 1, 1, 1)
    y = y + other
    other.__iadd__(3)
    return y.relu() * other


def _written_by_an_operator(y: Any, x: Any) -> Any:
    other = torch.ones(6, 1, 1, 1)
    y = y + other
    torch.ops.aten.add_.Scalar(other, 3)
    return y.relu() * other


def _written_as_numpy(y: Any, x: Any) -> Any:
    other = torch.ones(6, 1, 1, 1)
    y = y + other
    other.view(-1).numpy()[:] = 3
    return y.relu() * other


def _written_inside_a_checkpoint(y: Any, x: Any) -> Any:
    other = torch.ones(6, 1, 1, 1)
    y = y + other
    torch.utils.checkpoint.checkpoint(lambda tensor: tensor.mul_(3), other, use_reentrant=False)
    return y.relu() * other


WRITES = (
    _statistics_moved("of batch norm", lambda z, *given: F.batch_norm(z, *given, training=True, momentum=0.5)),
    _statistics_moved("of instance norm", lambda z, *given: F.instance_norm(z, *given, momentum=0.5)),
    _statistics_moved("told by place", lambda z, *given: torch.batch_norm(z, None, None, *given, True, 0.5, 1, False)),
    _rows_scaled, _called_by_its_name, _written_by_an_operator, _written_as_numpy, _written_inside_a_checkpoint,
    _later_name, _view_written, _view_read_later, _read_before, _input_written, _written_operand, _slice_written,
    _outer_written, _written_by_position, _dropped_then_written,
)  # fmt: skip


@pytest.mark.parametrize("function", WRITES, ids=lambda function: function.__name__.strip("_"))
def test_writes(function: Any) -> None:
    agrees(made(function), given())


@pytest.mark.parametrize("function", [_later_name, _read_before, _written_operand], ids=lambda f: f.__name__.strip("_"))
def test_gradients_through_writes(function: Any) -> None:
    agrees_in_training(made(function).double(), given(dtype=torch.float64))


def test_writes_are_taken_where_nobody_sees_them() -> None:
    assert agrees(made(_later_name), given()).texts == [f"{CONV} -> ReLU() -> Tanh()"]
    assert agrees(made(_read_before), given()).rest == []


# --- convolutions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "conv", "shape", "text"),
    [
        (nn.Conv3d, {"padding": "same", "dilation": 2}, (), "Conv3d(padding='same', dilation=2, bias=True)"),
        (nn.Conv3d, {"padding_mode": "reflect"}, (), "Conv3d(padding=1, bias=True, padding_mode='reflect')"),
        (nn.Conv3d, {"padding_mode": "circular", "bias": False, "padding": (1, 0, 2)}, (),
         "Conv3d(padding=(1, 0, 2), padding_mode='circular')"),
        (nn.Conv3d, {"padding_mode": "replicate", "stride": 2}, (),
         "Conv3d(stride=2, padding=1, bias=True, padding_mode='replicate')"),
        (nn.Conv3d, {"padding_mode": "reflect", "padding": "same", "kernel_size": (3, 2, 3)}, (), "Conv3d(bias=True)"),
        (nn.Conv3d, {"groups": 2, "stride": (1, 2, 3)}, (), "Conv3d(stride=(1, 2, 3), padding=1, groups=2, bias=True)"),
        (nn.Conv3d, {}, (4, 5, 6, 7), None),
        (nn.Conv3d, {}, (0, 4, 5, 6, 7), None),
        (nn.ConvTranspose3d, {"stride": 2, "output_padding": 1}, (), UP),
        (nn.ConvTranspose3d, {}, (4, 5, 6, 7), None),
    ],
    ids=["same", "reflect", "circular", "replicate", "uneven", "groups", "unbatched", "empty", "transposed",
         "unbatched transposed"],
)  # fmt: skip
def test_convolutions(kind: Any, conv: dict[str, Any], shape: tuple[int, ...], text: str | None) -> None:
    recorder = agrees(made(lambda y, x: y.relu(), kind=kind, **conv), given(*shape))
    assert recorder.texts == ([] if text is None else [f"{text} -> ReLU()"])


def test_output_size() -> None:
    class Up(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose3d(4, 3, 2, 2)

        def forward(self, x: Any) -> Any:
            return self.up(x, output_size=[11, 12, 13]).relu()

    assert agrees(Up(), given()).texts == ["ConvTranspose3d(stride=2, output_padding=(1, 0, 1), bias=True) -> ReLU()"]


def test_a_sum_goes_to_the_branch_that_is_computed_last() -> None:
    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.short, self.one, self.two = (nn.Conv3d(4, 4, k, padding=k // 2) for k in (1, 3, 3))

        def forward(self, x: Any) -> Any:
            short = self.short(x)
            y = F.relu(self.one(x), inplace=True)
            y = self.two(y)
            y += short
            return F.relu(y, inplace=True)

    recorder = agrees(Block(), given())
    assert recorder.texts == [
        "Conv3d(bias=True)",
        "Conv3d(padding=1, bias=True) -> ReLU()",
        "Conv3d(padding=1, bias=True) -> Add(other='tensor') -> ReLU()",
    ]
    assert recorder.rest == []


class Activated(nn.Module):  # type: ignore[misc]
    """Norm and activation before the convolution, as residual networks have them."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.conv, self.act = nn.GroupNorm(2, 4), nn.Conv3d(4, 4, 3, padding=1), act

    def forward(self, x: Any) -> Any:
        x = torch.sin(x)
        return x + self.conv(self.act(self.norm(x)))


BEFORE = {
    "plain": (nn.ReLU(), 1),
    "in place": (nn.ReLU(inplace=True), 1),
    "dropout": (nn.Sequential(nn.SiLU(), nn.Dropout(0.5)), 1),
    "no stage": (torch.cos, 0),
    "in place of no stage": (lambda y: nn.functional.relu(torch.cos(y), inplace=True), 0),
}


@pytest.mark.parametrize("name", BEFORE)
def test_stages_before_the_convolution(name: str) -> None:
    act, before = BEFORE[name]
    recorder = agrees(Activated(act).eval(), given())
    assert recorder.texts[0].startswith("GroupNorm") == bool(before)
    assert recorder.texts[0].endswith("Add(other='tensor')")
    agrees_in_training(Activated(act).eval().double(), given(dtype=torch.float64))


PADS = {
    "zeros": (lambda x: F.pad(x, (1, 1, 2, 2, 0, 0)), "Conv3d(padding=(0, 2, 1)"),
    "a mode": (lambda x: F.pad(x, [1] * 6, mode="replicate"), "Conv3d(padding=1, padding_mode='replicate'"),
    "before a norm": (lambda x: F.relu(F.pad(x, [1] * 6, value=0.0)), "ReLU() -> Conv3d()"),
    "after a norm": (lambda x: F.pad(F.relu(torch.sin(x)), [1] * 6, "circular"), "ReLU() -> Conv3d(padding=1"),
    "another number": (lambda x: F.pad(x, [1] * 6, value=2.0), "Conv3d()"),
    "one side": (lambda x: F.pad(x, (1, 0, 1, 1, 1, 1)), "Conv3d()"),
    "cut off": (lambda x: F.pad(x, [-1] * 6), "Conv3d()"),
    "one axis": (lambda x: F.pad(x, (1, 1)), "Conv3d()"),
    "twice": (lambda x: F.pad(F.pad(x, [1] * 6), [1] * 6), "Conv3d(padding=1)"),
}


@pytest.mark.parametrize("name", PADS)
def test_padding_before_the_convolution(name: str) -> None:
    pad, text = PADS[name]
    torch.manual_seed(0)
    weight = torch.randn(2, 4, 3, 3, 3)
    recorder = agrees(made(lambda y, x: F.conv3d(pad(x), weight) + y.mean()), given())
    assert any(each.startswith(text) for each in recorder.texts), recorder.texts


def test_what_comes_before_is_not_moved_past_a_write() -> None:
    def written(y: Any, x: Any) -> Any:
        z = torch.sin(x)
        again = F.conv3d(F.relu(z), torch.ones(2, 4, 1, 1, 1))
        z.add_(1)
        return again.tanh() + z.mean(1, keepdim=True)

    agrees(made(written), given())


def test_two_branches_one_input() -> None:
    """Values of one pipeline are operands of the other."""

    class Two(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv3d(4, 4, 3), nn.ConvTranspose3d(4, 4, 3, padding=2)

        def forward(self, x: Any) -> Any:
            one, two = self.one(x).sigmoid(), self.two(x).tanh()
            return one * two - two

    agrees(Two(), given())
    agrees_in_training(Two().double(), given(dtype=torch.float64))


def test_not_finite() -> None:
    x = given()
    x[0, 0, 0, 0, 0], x[1, 2, 3, 4, 5], x[1, 0, 0, 0, 0] = torch.nan, torch.inf, -torch.inf
    assert len(agrees(made(lambda y, x: F.elu(y.clamp(-2, 2)) + y.amin(1, keepdim=True)), x).texts) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_types(dtype: Any) -> None:
    model = made(lambda y, x: F.gelu(F.group_norm(y, 2)) + 1).to(dtype)
    assert len(agrees(model, given(dtype=dtype)).texts) == 1


def test_complex_numbers_are_left() -> None:
    weight = given(6, 4, 3, 3, 3, dtype=torch.complex64)
    model = made(lambda y, x: F.conv3d(torch.complex(x, x), weight).abs())
    recorder = agrees(model, given())
    assert recorder.texts == [CONV]
    assert "conv3d" in recorder.rest


def test_autocast() -> None:
    model, x = made(lambda y, x: F.relu(y) + 1), given()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = model(x)
        got, _ = compiled(model, x)
    close(got, expected)


def test_ties_of_maxima_have_eager_gradients() -> None:
    """Of equal values, max(dim) gives one of them the gradient, amax shares it out."""
    model = made(lambda y, x: y.relu().max(1)[0] + y.relu().amax(1)).double()
    agrees_in_training(model, given(dtype=torch.float64))


def test_channels_last() -> None:
    x = given().contiguous(memory_format=torch.channels_last_3d)
    model = made(lambda y, x: y.relu().permute(0, 2, 3, 4, 1).view(-1, 6).mean(1))
    agrees(model, x)


STRIDES = {
    "contiguous": lambda y, x: y.contiguous() * 2,
    "adaptive pool": lambda y, x: F.adaptive_max_pool3d(y[..., :6], (1, 2, 3)),
    "norm of channels": lambda y, x: F.layer_norm(y.movedim(1, -1), (6,)).movedim(-1, 1) * 2,
    "tokens": lambda y, x: F.layer_norm(y.flatten(2).transpose(1, 2), (6,)),
    "tokens turned": lambda y, x: F.layer_norm(y.flatten(2).transpose(1, 2), (6,)).transpose(1, 2) * 2,
    "axes reversed": lambda y, x: F.gelu(F.layer_norm(y.movedim(1, -1), (6,)).permute(0, 4, 3, 2, 1)),
    "slope between two": lambda y, x: F.rrelu(y.transpose(2, 4)) * 2,
}


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("name", STRIDES)
def test_results_have_eager_strides(name: str, last: bool) -> None:
    layout = torch.channels_last_3d if last else torch.contiguous_format
    model, x = made(STRIDES[name]).to(memory_format=layout), given().contiguous(memory_format=layout)
    with torch.no_grad():
        assert compiled(model, x)[0].stride() == model(x).stride()


def test_view_of_a_result_with_other_strides() -> None:
    def norm(y: Any, x: Any) -> Any:
        y = F.layer_norm(y.permute(0, 2, 3, 4, 1), (6,)).permute(0, 4, 1, 2, 3)
        return torch.sin(y), y.permute(0, 2, 3, 4, 1).view(-1, 6)

    assert len(agrees(made(norm), given()).texts) == 1
    got, _ = compiled(made(lambda y, x: norm(y, x)[1].sin()), given())
    assert got.is_contiguous()


@pytest.mark.parametrize("kind", ["conv3d", "conv_transpose3d"])
def test_both_convolutions_are_taken_on_cuda(kind: str) -> None:
    """On tensors that claim to be there and hold nothing: what a capture sees of them."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from convt3d.torch.capture import capture

    graph = torch.fx.Graph()
    function = getattr(torch.nn.functional, kind)
    with FakeTensorMode():
        x, w = torch.empty(1, 4, 5, 5, 5, device="cuda"), torch.empty(4, 4, 3, 3, 3, device="cuda")
        nodes = [graph.placeholder(name) for name in ("x", "w")]
        nodes += [graph.call_function(function, (nodes[0], nodes[1]))]
        nodes += [graph.call_function(torch.relu, (nodes[2],))]
        values = [x, w, function(x, w), torch.relu(function(x, w))]
        for node, value in zip(nodes, values, strict=True):
            node.meta["example_value"] = value
        graph.output(nodes[-1])
        found = capture(graph)
    assert not found.left
    assert [len(fused.stages) for fused in found.fused] == [2]
