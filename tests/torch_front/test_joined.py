"""Concatenations whose parts are written where they belong: the same values, no copy, and nobody can tell."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from helpers.captured import Recorder, agrees, agrees_in_training, close, compiled  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from convt3d.torch.backend import fused  # noqa: E402
from convt3d.torch.joined import Joined  # noqa: E402
from convt3d.torch.owned_call import OwnedCall, Place  # noqa: E402


class Two(nn.Module):  # type: ignore[misc]
    """f(x, one, two): one and two are convolutions of x, to 3 and 5 channels."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.one, self.two = nn.Conv3d(4, 3, 3, padding=1), nn.ConvTranspose3d(4, 5, 3, padding=1)
        self.head = nn.Conv3d(8, 2, 1)

    def forward(self, x: Any) -> Any:
        return self.function(x, F.relu(self.one(x)), self.two(x), self.head)


def given(*shape: int, dtype: Any = torch.float32) -> Any:
    torch.manual_seed(1)
    return torch.randn(*(shape or (2, 4, 3, 5, 7)), dtype=dtype)


def _leaves(x: Any, one: Any, two: Any, head: Any) -> Any:
    return torch.cat([one, two], 1), one


def _view_leaves(x: Any, one: Any, two: Any, head: Any) -> Any:
    return head(torch.cat([one, two], 1)), one.flatten(2)[:, :, 1:]


def _part_written(x: Any, one: Any, two: Any, head: Any) -> Any:
    whole = torch.cat([one, two], 1)
    one.flatten(2).add_(1)
    return whole.sin() + one.mean(1, keepdim=True)


def _whole_written(x: Any, one: Any, two: Any, head: Any) -> Any:
    whole = torch.cat([one, two], 1)
    whole[:, 1:].mul_(2)
    return whole.sin() + one.mean(1, keepdim=True)


def _dense(x: Any, one: Any, two: Any, head: Any) -> Any:
    whole = torch.cat([one, two], 1)
    for _ in range(3):
        whole = torch.cat([whole, head(whole[:, -8:]).tanh()], 1)
    return whole.sin()


# name -> the function, and how many concatenations and pipelines take part
CASES: dict[str, tuple[Any, int, int]] = {
    "two parts": (lambda x, one, two, head: head(torch.cat([one, two], 1)), 1, 2),
    "used elsewhere": (lambda x, one, two, head: head(torch.cat([one, two], 1)) + one.mean(1, keepdim=True), 1, 2),
    "the whole leaves": (lambda x, one, two, head: torch.cat((two, one), dim=-4), 1, 2),
    "one of PyTorch's": (lambda x, one, two, head: torch.cat([x.sin(), two.relu(), x], dim=1), 1, 1),
    "names": (lambda x, one, two, head: torch.cat(tensors=[x, one], axis=1).relu(), 1, 1),
    "the same part twice": (lambda x, one, two, head: torch.cat([one, two, one], 1).sin(), 1, 1),
    "in two wholes": (lambda x, one, two, head: torch.cat([one, two], 1).sin() + torch.cat([two, one], 1), 1, 2),
    "an inner whole": (lambda x, one, two, head: torch.cat([x, torch.cat([one, two], 1)], 1).cos(), 2, 2),
    "an inner whole of PyTorch's": (
        lambda x, one, two, head: torch.cat([torch.cat([x, x], 1), one], 1).cos(), 2, 1),
    "dense": (_dense, 4, 5),
    "a part leaves": (_leaves, 1, 1),
    "a view of a part leaves": (_view_leaves, 1, 1),
    "a part is written to": (_part_written, 1, 1),
    "the whole is written to": (_whole_written, 0, 0),
    "another axis": (lambda x, one, two, head: torch.cat([one, one], 2).sin(), 0, 0),
    "another type": (lambda x, one, two, head: torch.cat([one.double(), two.double()], 1), 0, 0),
    "nothing of ours": (lambda x, one, two, head: torch.cat([x, x], 1).sin() + one.mean() + two.mean(), 0, 0),
}  # fmt: skip


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_joined(name: str, batch: int) -> None:
    function, joined, placed = CASES[name]
    model, recorder = Two(function), Recorder()
    step = torch.compile(model, backend=recorder)
    with torch.no_grad():
        for factor in (1.0, -2.0, 3.0):  # later calls are made by what is remembered of the first
            x = factor * given(batch, 4, 3, 5, 7)
            close(step(x.clone()), model(x.clone()), 2e-5)
    (graph,) = recorder.graphs
    targets = [node.target for node in graph.graph.nodes]
    assert sum(isinstance(each, Joined) for each in targets) == len(recorder.found[0].joined) == joined
    assert sum(isinstance(each, OwnedCall) and each.place is not None for each in targets) == placed


def test_nothing_is_copied() -> None:
    """The convolution after the concatenation reads what the others have written."""
    recorder = agrees(Two(CASES["two parts"][0]), given())
    (node,) = [each for each in recorder.graphs[0].graph.nodes if isinstance(each.target, Joined)]
    written = []

    class Watched(torch.fx.Interpreter):  # type: ignore[misc]
        def run_node(self, n: Any) -> Any:
            result = super().run_node(n)
            if isinstance(n.target, OwnedCall) and n.target.place is not None:
                written.append((result.untyped_storage().data_ptr(), result.storage_offset(), result.stride()))
            return result

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(Two(CASES["two parts"][0]), backend=lambda gm, _: Watched(fused(gm)[0]).run)(given())
    (one, at_one, strides), (two, at_two, also) = written
    assert (one, at_one, at_two) == (two, 0, 3 * 105)
    assert strides == also == (8 * 105, 105, 35, 7, 1)
    assert node.target.place == Place(0, 8, 8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_types(dtype: Any) -> None:
    assert agrees(Two(CASES["two parts"][0]).to(dtype), given(dtype=dtype)).found[0].joined


def test_channels_last() -> None:
    """The pipelines' results have other strides then, and are copied as they were."""
    x = given().contiguous(memory_format=torch.channels_last_3d)
    agrees(Two(CASES["two parts"][0]), x)


def test_gradients_are_recorded() -> None:
    model = Two(CASES["two parts"][0]).double()
    assert agrees_in_training(model, given(dtype=torch.float64)).found[0].joined == []


def test_not_finite() -> None:
    """Such samples are computed another way, into the same memory."""
    x = given()
    x[1, 2, 1, 1, 1], x[0, 0, 0, 0, 0] = torch.inf, torch.nan
    assert agrees(Two(CASES["two parts"][0]), x).found[0].joined


@pytest.mark.usefixtures("fresh_dynamo")
def test_dynamic_shapes() -> None:
    model, recorder = Two(CASES["two parts"][0]), Recorder()
    step = torch.compile(model, backend=recorder, dynamic=True)
    with torch.no_grad():
        for shape in ((2, 4, 3, 5, 7), (3, 4, 6, 2, 9), (2, 4, 5, 5, 5)):
            close(step(given(*shape)), model(given(*shape)))
    assert len(recorder.found) == 1
    assert len(recorder.found[0].joined) == 1


def test_inference_mode() -> None:
    model, x = Two(CASES["an inner whole"][0]), given()
    with torch.inference_mode():
        got, _ = compiled(model, x)
        close(got, model(x))


def test_a_part_that_was_not_placed_is_copied() -> None:
    """Something may compute it another way, as PyTorch's operations do what the engine refuses."""
    part, other = given(2, 3, 2, 3, 4), given(2, 5, 2, 3, 4)
    places = Place(0, 3, 8), Place(3, 5, 8)
    joined = Joined(Place(0, 8, 8), places[0], places)
    assert joined([part, other], part).equal(torch.cat([part, other], 1))
    room = places[0].new(torch.float32, None, part.shape)
    room.copy_(part)
    assert joined([room, other], room).equal(torch.cat([part, other], 1))
    assert places[1].new(torch.float32, (places[0], room), (2, 5, 2, 3, 5)) is None
    assert Place(3, 5, 8).room(room[:, :0]) is None
