"""torch.compile(backend="convt3d"), optimize(model) and explain(model, x) as people use them."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from helpers.captured import Recorder, close  # noqa: E402
from helpers.command import python  # noqa: E402
from torch import nn  # noqa: E402

import convt3d.torch as ct  # noqa: E402
from convt3d.cpu.runtime import kernels  # noqa: E402
from convt3d.cpu.runtime.compiled import loaded  # noqa: E402
from convt3d.cpu.runtime.ready import bindings  # noqa: E402
from convt3d.torch import backend, prepared  # noqa: E402
from convt3d.torch.capture import rewrite  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Net(nn.Module):  # type: ignore[misc]
    """A level of a U-Net, with a residual block and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.down = nn.Sequential(
            nn.Conv3d(2, 4, 3, 2, 1), nn.InstanceNorm3d(4, affine=True), nn.LeakyReLU(inplace=True)
        )
        self.block = nn.Sequential(nn.Conv3d(4, 4, 3, 1, 1), nn.BatchNorm3d(4), nn.ReLU(inplace=True))
        self.up = nn.ConvTranspose3d(4, 2, 2, 2)
        self.head = nn.Conv3d(4, 3, 1)

    def forward(self, x: Any) -> Any:
        y = self.down(x)
        y = y + self.block(y)
        return self.head(torch.cat([self.up(y), x], 1))


def given(*shape: int) -> Any:
    torch.manual_seed(3)
    return torch.randn(*(shape or (1, 2, 8, 10, 12)))


def test_by_name() -> None:
    model, x = Net().eval(), given()
    with torch.no_grad():
        close(torch.compile(model, backend="convt3d")(x), model(x))


def test_name_is_known_without_import() -> None:
    """By the entry point, where the package is installed with it; after `import convt3d.torch` in any case."""
    script = "import torch, convt3d.torch; print('convt3d' in torch._dynamo.list_backends())"
    assert python("-c", script).strip() == "True"


def test_kernels_are_compiled_before_the_first_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """All of them together; the call finds them."""
    monkeypatch.setenv("CONVT3D_CACHE_DIR", str(tmp_path / "cache"))
    loaded.clear()
    bindings.cache_clear()
    counts = []

    def ahead(gm: Any, inputs: Any) -> Any:
        start = kernels.compilations
        forward = backend.convt3d(gm, inputs)
        counts.extend((start, kernels.compilations))
        return forward

    model, x = Net().eval(), given()
    with torch.no_grad():
        close(torch.compile(model, backend=ahead)(x), model(x))
    assert counts[0] + 4 <= counts[1] == kernels.compilations


def test_a_function() -> None:
    weight, x = given(4, 2, 3, 3, 3), given()

    @torch.compile(backend="convt3d")
    def convolved(x: Any) -> Any:
        return torch.relu(torch.nn.functional.conv3d(x, weight))

    close(convolved(x), torch.relu(torch.nn.functional.conv3d(x, weight)))


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ValueError, match="rest='eager' or rest='inductor'"):
        ct.optimize(Net(), rest="xla")
    with pytest.raises(Exception, match="rest='eager' or rest='inductor'"):
        torch.compile(Net(), backend="convt3d", options={"tune": True})(given())


def test_optimize() -> None:
    model, x = Net().eval(), given()
    fast = ct.optimize(model, x)
    with torch.no_grad():
        close(fast(x), model(x))
    assert fast.state_dict().keys() == model.state_dict().keys()
    assert fast.head is model.head
    assert not fast.training
    fast.train()
    assert model.training
    fast.load_state_dict(model.state_dict())
    for copied in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        with torch.no_grad():
            close(copied.eval()(x), model.eval()(x))


def test_parts_of_a_model_keep_their_modes() -> None:
    """As fine-tuning has them: norms in eval while the rest is in training."""
    model = Net().train()
    model.block[1].eval()
    fast = ct.optimize(model)
    assert (fast.training, model.training, model.block[1].training) == (True, True, False)


def test_new_weights_count() -> None:
    model, x = Net().eval(), given()
    fast = ct.optimize(model)
    with torch.no_grad():
        fast(x)
        for each in model.parameters():
            each.mul_(1.5)
        close(fast(x), model(x))
        model.load_state_dict(Net().state_dict())
        close(fast(x), Net().eval()(x))


def test_what_is_assigned_is_the_models() -> None:
    """A new head: that of the model, so the next call has it, and its state_dict."""
    model, x = Net().eval(), given()
    fast = ct.optimize(model)
    with torch.no_grad():
        fast(x)
        name, old = next((name, each) for name, each in model.named_children())
        setattr(fast, name, copy.deepcopy(old))
        for each in getattr(fast, name).parameters():
            each.mul_(1.5)
        assert getattr(model, name) is getattr(fast, name) is not old
        close(fast(x), model(x))
        assert list(fast.state_dict()) == list(model.state_dict())


def test_training() -> None:
    """Losses of a few steps, and running statistics."""
    x, losses, states = given(2, 2, 8, 8, 8), [], []
    for through in (False, True):
        model = Net().train()
        step = torch.compile(model, backend="convt3d") if through else model
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimiser.zero_grad()
            loss = step(x).square().mean()
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        states.append(list(model.state_dict().values()))
    close(losses[3:], losses[:3])
    close(states[1], states[0], 1e-4)


def test_modes_are_apart() -> None:
    """train, eval, no_grad, inference_mode: each call is right, whatever was compiled before."""
    model, x = Net(), given(2, 2, 8, 8, 8)
    fast = ct.optimize(model)
    for mode in (torch.no_grad(), torch.inference_mode(), torch.enable_grad()):
        with mode:
            close(fast.eval()(x).detach(), model.eval()(x).detach())
    twin = copy.deepcopy(model)
    close(fast.train()(x).detach(), twin.train()(x).detach())


@pytest.mark.parametrize("dynamic", [None, True])
def test_dynamic_shapes(dynamic: bool | None) -> None:
    """After the second shape no graph is captured again, and pipelines are as for fixed sizes."""
    model, recorder = Net().eval(), Recorder()
    step = torch.compile(model, backend=recorder, dynamic=dynamic)
    with torch.no_grad():
        for shape in ((1, 2, 8, 10, 12), (2, 2, 12, 8, 16), (3, 2, 16, 12, 8), (2, 2, 10, 14, 20)):
            x = given(*shape)
            close(step(x), model(x))
    assert len(recorder.found) <= 3  # a batch of 1 has a graph of its own
    assert [fused.text for fused in recorder.found[-1].fused] == [fused.text for fused in recorder.found[0].fused]


def test_dynamic_views() -> None:
    """Views by sizes that are symbols are known for what they are."""

    def chain(x: Any, w: Any) -> Any:
        y = torch.conv3d(x, w)
        b, c, d, h, width = y.shape
        y = torch.softmax(y.view(b, c, -1), -1).view(b, c, d, h, width)
        return y - y.mean((2, 3, 4), keepdim=True)

    recorder, w = Recorder(), given(3, 2, 2, 2, 2)
    step = torch.compile(chain, backend=recorder, dynamic=True)
    for shape in ((5, 2, 6, 7, 8), (7, 2, 8, 6, 9)):
        close(step(given(*shape), w), chain(given(*shape), w))
    assert len(recorder.found) == 1
    assert [len(fused.nodes) for fused in recorder.found[0].fused] == [6]


def test_graph_breaks() -> None:
    class Broken(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv3d(2, 3, 3), nn.Conv3d(3, 2, 3)

        def forward(self, x: Any) -> Any:
            y = self.one(x).relu()
            torch._dynamo.graph_break()
            return self.two(y).tanh() if float(y.sum()) > 0 else self.two(y)

    model, x, recorder = Broken(), given(), Recorder()
    with torch.no_grad():
        close(torch.compile(model, backend=recorder)(x), model(x))
    assert len(recorder.texts) == 2


def test_rest_by_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor is given the graph with the pipelines in it."""
    seen: list[Any] = []
    compile_fx = pytest.importorskip("torch._inductor.compile_fx")
    monkeypatch.setattr(compile_fx, "compile_fx", lambda gm, inputs: seen.append(gm) or gm.forward)
    model, x = Net().eval(), given()
    with torch.no_grad():
        close(torch.compile(model, backend="convt3d", options={"rest": "inductor"})(x), model(x))
    assert "ConvTranspose3d(stride=2, bias=True)" in seen[0].code


def test_what_fails_is_left_to_pytorch(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    model, x = Net().eval(), given()

    def fails(graph: Any) -> Any:
        raise RuntimeError("a defect")

    monkeypatch.setattr(backend, "capture", fails)
    with torch.no_grad():
        close(ct.optimize(model)(x), model(x))
    assert "a graph is left to PyTorch: RuntimeError('a defect')" in caplog.text


def test_errors_of_dynamo_do_not_reach_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.exc import InternalTorchDynamoError

    def fails(*args: Any) -> Any:
        raise InternalTorchDynamoError("a defect of another kind")

    model, x = Net().eval(), given()
    fast = ct.optimize(model)
    fast.__dict__["_compiled"] = fails
    with torch.no_grad():
        close(fast(x), model(x))
        close(fast(x), model(x))


def test_errors_are_eager_errors() -> None:
    model = Net().eval()
    with torch.no_grad():
        with pytest.raises(RuntimeError) as eager:
            model(given(1, 3, 8, 8, 8))
        with pytest.raises(RuntimeError) as ours:
            ct.optimize(model)(given(1, 3, 8, 8, 8))
    assert "expected input" in str(eager.value)
    assert "expected input" in str(ours.value)


def test_a_refused_call_does_not_end_the_capture(caplog: pytest.LogCaptureFixture) -> None:
    """What eager refuses as well says nothing about the model."""
    fast = ct.optimize(Net().eval())
    with torch.no_grad(), pytest.raises(RuntimeError):
        fast(given(1, 3, 8, 8, 8))
    assert fast._compiled is not fast.model
    assert "left to PyTorch" not in caplog.text


@pytest.mark.filterwarnings("ignore")  # it is deprecated
def test_optimized_models_can_be_traced() -> None:
    """By torch.jit, which takes no function of Dynamo's: it sees the model itself."""
    model, x = Net().eval(), given()
    with torch.no_grad():
        close(torch.jit.trace(ct.optimize(model), x, check_trace=False)(x), model(x))


# --- explain ----------------------------------------------------------------------------------------------------------


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    made = ct.explain(Net().eval(), given())
    text = capsys.readouterr().out
    assert text == f"{made}\n"
    assert [row.name for row in made.rows] == ["down.0", "block.0", "up", "head"]
    assert all(row.eager and row.ours for row in made.rows)
    for piece in (
        "down.0\n",
        "Conv3d(stride=2, padding=1, bias=True) -> InstanceNorm(affine=True) -> LeakyReLU()",
        "ends at: cat is no stage of convt3d",
        "ends at: the end of the graph",
        "written in place: 1 concatenation",
        "all of it: ",
    ):
        assert piece in text
    assert repr(made) == "<Explanation: 4 pipelines; 0 convolutions left to PyTorch>"


def test_explain_says_why_a_convolution_is_left() -> None:
    made = ct.explain(nn.Conv3d(2, 3, 3), given(2, 5, 6, 7), times=False, quiet=True)
    assert made.left == [("conv3d", "has no batch")]
    assert "left: conv3d has no batch" in str(made)


def test_explain_does_not_change_the_strides_or_values_of_inputs() -> None:
    x = given()
    before = x.clone()
    ct.explain(Net().eval(), x, times=True, quiet=True)
    assert torch.equal(x, before)


def test_pipelines_own_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed once, whatever skip comes with a call, and again when a weight has changed."""
    from convt3d.cpu.runtime import weights

    packed: list[Any] = []
    pack = weights.pack
    monkeypatch.setattr(weights, "pack", lambda *given: packed.append(given) or pack(*given))

    class Residual(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = torch.nn.Conv3d(4, 4, 3, padding=1), torch.nn.BatchNorm3d(4)

        def forward(self, x: Any, skip: Any) -> Any:
            return torch.relu(self.norm(self.conv(x)) + skip)

    model = Residual().eval()
    optimized = ct.optimize(model)
    with torch.no_grad():
        for turn in range(3):
            x, skip = torch.randn(1, 4, 5, 6, 7), torch.randn(1, 4, 5, 6, 7)
            close(optimized(x, skip), model(x, skip))
            assert len(packed) == 1, turn
        model.conv.weight.mul_(2.0)
        model.norm.running_mean.add_(1.0)
        close(optimized(x, skip), model(x, skip))
        assert len(packed) == 2


def test_models_that_share_a_graph_own_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds of an ensemble, called in turns: each is packed once, and what belongs to one that is gone is freed."""
    from convt3d.cpu.runtime import weights
    from convt3d.torch import owned_call

    packed: list[Any] = []
    pack = weights.pack
    monkeypatch.setattr(weights, "pack", lambda *given: packed.append(given) or pack(*given))
    calls: list[Any] = []
    monkeypatch.setattr(backend, "rewrite", lambda graph, found: (rewrite(graph, found), calls.append(graph)))
    models = [nn.Sequential(nn.Conv3d(2, 4, 3), nn.BatchNorm3d(4), nn.ReLU()).eval() for _ in range(5)]
    folds = [ct.optimize(each) for each in models]
    with torch.no_grad():
        for _ in range(3):
            for fold, model in zip(folds, models, strict=True):
                x = torch.randn(1, 2, 5, 6, 7)
                close(fold(x), model(x))
        assert (len(packed), len(calls)) == (5, 1)
        (own,) = [each.target for each in calls[0].nodes if isinstance(each.target, owned_call.OwnedCall)]
        del folds, models, fold, model
        gc.collect()
        last = nn.Sequential(nn.Conv3d(2, 4, 3), nn.BatchNorm3d(4), nn.ReLU()).eval()
        close(ct.optimize(last)(x), last(x))
    assert len(prepared.owned(own).states) == 1


@pytest.mark.skipif(
    "recompile_limit" not in inspect.signature(torch.compile).parameters, reason="this PyTorch has one limit for all"
)
def test_graphs_that_break_inside_of_many_modules() -> None:
    """PyTorch computes a function eagerly that it has captured 8 times: `optimize` lets it capture more."""

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.first, self.second = nn.Conv3d(channels, 2, 1), nn.Conv3d(2, channels + 1, 1)

        def forward(self, x: Any) -> Any:
            y = self.first(x)
            torch._dynamo.graph_break()
            return torch.relu(self.second(y))

    model, x = nn.Sequential(*(Block(channels) for channels in range(1, 13))).eval(), given(1, 1, 3, 3, 3)
    assert len(ct.explain(model, x, times=False, quiet=True).rows) == 24
    captured: list[int] = []
    fused = backend.fused
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(backend, "fused", lambda *given: captured.append(1) or fused(*given))
        close(ct.optimize(model)(x), model(x))
    assert len(captured) == 24


def test_vectors_that_are_computed_are_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate of one sample has the shape of a vector of channels. Views of a parameter are the parameter."""
    from convt3d.torch import engine

    class Gated(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.gate, self.shift = nn.Conv3d(2, 4, 3), nn.Linear(2, 4), nn.Parameter(torch.randn(4))

        def forward(self, x: Any) -> Any:
            gate = torch.sigmoid(self.gate(x.mean((2, 3, 4))))
            y = self.conv(x) * gate.view(1, 4, 1, 1, 1) / x.amax()
            return torch.relu(y - self.shift.view(1, -1, 1, 1, 1))

    model = Gated().eval()
    optimized = ct.optimize(model)
    (row,) = ct.explain(model, given(), times=False, quiet=True).rows
    assert row.stages.count("'tensor'") == 2
    assert row.stages.endswith("Subtract(other='channel') -> ReLU()")
    with torch.no_grad():
        close(optimized(given()), model(given()))
        monkeypatch.setattr(engine, "run", None)
        for seed in range(5):
            torch.manual_seed(seed)
            x = torch.randn(1, 2, 8, 10, 12)
            close(optimized(x), model(x))
            monkeypatch.undo()
            model.shift.data.add_(0.5)
            close(optimized(x), model(x))
            monkeypatch.setattr(engine, "run", None)
