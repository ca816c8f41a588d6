"""Graphs drawn at random, through the cutter and as they are: the same values, and the same gradients."""

from __future__ import annotations

import operator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("hypothesis")
from helpers.captured import close, scale_of  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import fx  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from convt3d.torch.backend import fused  # noqa: E402

SHAPE = (2, 4, 3, 4, 5)

# Functions of a value, another value of the graph, a vector of channels and a tensor that broadcasts.
OPERATIONS: dict[str, Any] = {
    "conv": lambda v, o, c, t, w: torch.conv3d(v, w, c, 1, 1),
    "up": lambda v, o, c, t, w: F.conv_transpose3d(v, w, None, 1, 1),
    "relu": lambda v, o, c, t, w: F.relu(v),
    "relu in place": lambda v, o, c, t, w: F.relu(v, inplace=True),
    "add in place": lambda v, o, c, t, w: v.add_(1),
    "+=": lambda v, o, c, t, w: operator.iadd(v, o),
    "tanh": lambda v, o, c, t, w: v.tanh(),
    "mish": lambda v, o, c, t, w: F.mish(v),
    "elu": lambda v, o, c, t, w: F.elu(v),
    "clamp": lambda v, o, c, t, w: v.clamp(-0.5, 0.7),
    "leaky": lambda v, o, c, t, w: F.leaky_relu(v, 0.2),
    "dropout": lambda v, o, c, t, w: F.dropout(v, 0.5, False),
    "+": lambda v, o, c, t, w: v + o,
    "-": lambda v, o, c, t, w: v - o,
    "*": lambda v, o, c, t, w: v * o,
    "2 - v": lambda v, o, c, t, w: 2 - v,
    "+ number": lambda v, o, c, t, w: v + 0.5,
    "+ channel": lambda v, o, c, t, w: v + c.view(-1, 1, 1, 1),
    "* tensor": lambda v, o, c, t, w: v * t,
    "tensor - v": lambda v, o, c, t, w: t - v,
    "+ last axis": lambda v, o, c, t, w: v + c,
    "mean": lambda v, o, c, t, w: v.mean(1, keepdim=True),
    "sum of an axis": lambda v, o, c, t, w: v.sum(-1),
    "space": lambda v, o, c, t, w: v.amax((2, 3, 4), keepdim=True),
    "logsumexp": lambda v, o, c, t, w: v.logsumexp(1, keepdim=True),
    "softmax": lambda v, o, c, t, w: v.softmax(1),
    "unsqueeze": lambda v, o, c, t, w: v.unsqueeze(1),
    "squeeze": lambda v, o, c, t, w: v.squeeze(),
    "flatten": lambda v, o, c, t, w: v.flatten(2),
    "reshape": lambda v, o, c, t, w: v.reshape(SHAPE),
    "permute": lambda v, o, c, t, w: v.permute(0, 2, 3, 4, 1),
    "permute back": lambda v, o, c, t, w: v.permute(0, 4, 1, 2, 3),
    "layer norm": lambda v, o, c, t, w: F.layer_norm(v, v.shape[-1:]),
    "group norm": lambda v, o, c, t, w: F.group_norm(v, 2, c, c),
    "instance norm": lambda v, o, c, t, w: F.instance_norm(v),
    "batch norm": lambda v, o, c, t, w: F.batch_norm(v, c, c * c, c, c),
    "pool": lambda v, o, c, t, w: F.max_pool3d(v, 3, 1, 1),
    "cat": lambda v, o, c, t, w: torch.cat([v, o], 1),
    "cat of some": lambda v, o, c, t, w: torch.cat([o, v], 1)[:, 2:6],
    "largest": lambda v, o, c, t, w: v.max(1, keepdim=True)[0],
    "sin": lambda v, o, c, t, w: v.sin(),
}

steps = st.lists(
    st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=14
)


def tensors() -> list[Any]:
    torch.manual_seed(0)
    shapes = (SHAPE, (4,), (1, 4, 1, 4, 5), (4, 4, 3, 3, 3))
    return [torch.randn(shape, dtype=torch.float64) / 2 for shape in shapes]


class Drawn(torch.nn.Module):  # type: ignore[misc]
    """A convolution and the steps; each takes the last value, or one of those before, and one that is older."""

    def __init__(self, program: list[tuple[str, int, int]], outputs: int) -> None:
        super().__init__()
        self.program, self.outputs = program, outputs

    def forward(self, x: Any, c: Any, t: Any, w: Any) -> Any:
        values = [torch.conv3d(x, w, None, 1, 1)]
        for name, back, other in self.program:
            value, second = (values[max(0, len(values) - 1 - each)] for each in (back, other))
            values.append(OPERATIONS[name](value, second, c, t, w))
        return tuple(values[-self.outputs :])


def runnable(program: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """The steps that PyTorch takes, in their order."""
    kept: list[tuple[str, int, int]] = []
    for step in program:
        try:
            Drawn([*kept, step], 1)(*tensors())
            kept.append(step)
        except (RuntimeError, ValueError, IndexError):
            pass
    return kept


def captured(model: Any, inputs: Any = None) -> tuple[Any, Any, Any]:
    """The graph as it is, the graph with pipelines, and what was found."""
    gm = fx.symbolic_trace(model)
    mode = FakeTensorMode(allow_non_fake_inputs=True)  # weights of modules are real

    class Examples(fx.Interpreter):  # type: ignore[misc]
        def run_node(self, n: Any) -> Any:
            n.meta["example_value"] = super().run_node(n)
            return n.meta["example_value"]

    with mode:
        Examples(gm).run(*(mode.from_tensor(each) for each in inputs or tensors()))
    rewritten, found = fused(gm)
    assert not found.failed, found.failed
    return gm, rewritten, found


def test_modules_that_are_called_whole() -> None:
    """As torch 2.4 captures them, and torch.fx."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.ConvTranspose3d(4, 4, 3, padding=1),
        torch.nn.BatchNorm3d(4),
        torch.nn.ELU(inplace=True),
        torch.nn.Dropout(0.2),
        torch.nn.Conv3d(4, 6, 3),
        torch.nn.GroupNorm(2, 6),
        torch.nn.PReLU(6),
        torch.nn.MaxPool3d(1),
        torch.nn.AdaptiveAvgPool3d(1),
        torch.nn.Softmax(1),
    )
    model = model.eval().double()
    gm, rewritten, found = captured(model, tensors()[:1])
    assert [len(each.nodes) for each in found.fused] == [3, 6]
    assert found.rest == []
    with torch.no_grad():
        close(rewritten(tensors()[0]), gm(tensors()[0]), 1e-12)
    model[0].register_forward_hook(lambda module, given, result: None)
    _, _, found = captured(model, tensors()[:1])
    assert len(found.fused) == 1


def run(gm: Any, gradients: bool) -> list[Any]:
    given = [each.requires_grad_(gradients) for each in tensors()]
    results = list(gm(*given))
    if gradients:
        total = sum((each * torch.linspace(-1, 1, each.numel()).reshape(each.shape)).sum() for each in results)
        results += [torch.zeros(()) if g is None else g for g in torch.autograd.grad(total, given, allow_unused=True)]
    return [each.detach() for each in results]


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(steps, st.integers(1, 3), st.booleans())
def test_drawn_graphs(program: list[tuple[str, int, int]], outputs: int, gradients: bool) -> None:
    program = runnable(program)
    gm, rewritten, _ = captured(Drawn(program, outputs))
    try:
        expected = run(gm, gradients and "largest" not in str(program))
    except RuntimeError:  # eager refuses a gradient where something was written to that it needs
        expected, gradients = run(gm, False), False
    got = run(rewritten, len(expected) > outputs)
    scale = max(map(scale_of, expected))
    close(got, expected, 1e-10, scale / 10)


def test_most_of_a_long_chain_is_one_pipeline() -> None:
    program = [(name, 0, 1) for name in ("relu", "+ channel", "*", "group norm", "2 - v", "permute", "+ last axis")]
    program += [("permute back", 0, 0), ("pool", 0, 0), ("mean", 0, 0), ("tanh", 0, 0)]
    _, _, found = captured(Drawn(program, 1))
    (only,) = found.fused
    assert len(only.nodes) == 12
