"""Attention of captured graphs in pieces: eager's numbers, whatever is done to the scores and however they are cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402

import convt3d.torch  # noqa: E402
from convt3d.torch import attention  # noqa: E402
from convt3d.torch.attention import pieces  # noqa: E402

B, H, N, D = 6, 3, 5, 4


def _windows(q: Any, k: Any, v: Any, bias: Any, mask: Any) -> Any:
    """Of Swin's."""
    scores = (q * 0.5) @ k.transpose(-2, -1) + bias.unsqueeze(0)
    scores = scores.view(B // 3, 3, H, N, N) + mask[:3].unsqueeze(1).unsqueeze(0)
    return torch.nn.functional.dropout(torch.softmax(scores.view(-1, H, N, N), -1), 0.1, False).to(v.dtype) @ v


def _masked(q: Any, k: Any, v: Any, bias: Any, mask: Any) -> Any:
    scores = torch.matmul(q, k.transpose(2, 3)) / 2.0
    scores += bias
    return torch.matmul(scores.masked_fill(mask[:, None] > 0.5, -1e9).softmax(dim=3), v)


def _three(q: Any, k: Any, v: Any, bias: Any, mask: Any) -> Any:
    q, k, v = (each.flatten(0, 1) for each in (q, k, v))
    return torch.bmm(torch.nn.functional.softmax(bias[:1] - 1 + torch.bmm(q, k.mT), dim=-1) * 2, v)


def _reversed(q: Any, k: Any, v: Any, bias: Any, mask: Any) -> Any:
    return (bias - q @ k.mT).softmax(-1) @ v


def _seen(q: Any, k: Any, v: Any, bias: Any, mask: Any) -> Any:
    scores = (q @ k.mT).softmax(-1)
    return scores @ v + scores.sum()


def _written(q: Any, k: Any, v: Any, bias: Any, mask: Any) -> Any:
    q = q.clone()
    scores = q @ k.mT
    q.zero_()
    return scores.softmax(-1) @ v + q


def _across(q: Any, k: Any, v: Any, bias: Any, mask: Any) -> Any:
    return (q @ k.mT).softmax(1) @ v


TAKEN, LEFT = (_windows, _masked, _three), (_reversed, _seen, _written, _across)


class _Model(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Any) -> Any:
        return self.function(*given)


def _given(dtype: Any = torch.float32) -> list[Any]:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, B, N, H, D, dtype=dtype).transpose(2, 3)
    return [q, k, v, torch.randn(H, N, N, dtype=dtype), torch.rand(B, N, N, dtype=dtype)]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "FROM", 0)
    torch._dynamo.reset()


@pytest.mark.parametrize("rows", [1, 2 * N, 2 * H * N, 1000], ids="{} rows".format)
@pytest.mark.parametrize("function", TAKEN, ids=lambda each: each.__name__[1:])
def test_pieces_have_eagers_numbers(function: Any, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "PIECE", rows * N * 4)
    given = _given()
    with torch.no_grad():
        expected = function(*given)
        result = convt3d.torch.optimize(_Model(function))(*given)
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)
    assert result.stride() == expected.stride()


@pytest.mark.parametrize("function", [*TAKEN, *LEFT], ids=lambda each: each.__name__[1:])
def test_what_is_taken(function: Any) -> None:
    given = _given(torch.float64)
    found = convt3d.torch.explain(_Model(function), *given, times=False, quiet=True)
    assert (found.pieces > 0) == (function in TAKEN)
    with torch.no_grad():
        result = convt3d.torch.optimize(_Model(function))(*given)
    torch.testing.assert_close(result, function(*given), rtol=1e-12, atol=1e-12)


def test_gradients_and_small_scores_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    given = _given()
    given[0].requires_grad_()
    result = convt3d.torch.optimize(_Model(_masked))(*given)
    result.sum().backward()
    own, given[0].grad = given[0].grad, None
    _masked(*given).sum().backward()
    torch.testing.assert_close(own, given[0].grad)
    monkeypatch.setattr(attention, "FROM", 1 << 20)
    torch._dynamo.reset()
    assert convt3d.torch.explain(_Model(_masked), *_given(), times=False, quiet=True).pieces == 0


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # PyTorch's own, in forward mode
def test_where_pytorch_must_see_each_operation() -> None:
    """A tangent, say."""
    given = _given(torch.float64)
    whole = attention.Attention([attention._Step("add_", 0), attention._Step("softmax")])
    q, k, v, bias, _ = given
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        results = forward_ad.unpack_dual(whole(dual, k.mT, v, [bias]))
        expected = forward_ad.unpack_dual((dual @ k.mT + bias).softmax(-1) @ v)
    torch.testing.assert_close(results, expected)


@pytest.mark.parametrize("split", [0, 2, 3])
@pytest.mark.parametrize("size", [1, 5, 20, 30, 60, 600])
def test_every_row_is_in_one_piece(split: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "PIECE", size)
    shape, first, seen = (6, 2, 5, 1), 0, torch.zeros(6, 2, 5, dtype=torch.int64)
    for piece in pieces(shape, 1, split):
        seen[piece] += 1
        first = first or seen[piece].numel()
        assert seen[piece].numel() <= first
        assert not split or piece[0].start // split == (piece[0].stop - 1) // split
    assert (seen == 1).all()
