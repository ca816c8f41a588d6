"""Pipelines that own their weights, called again: the same bits as a call that knows nothing, whatever comes next."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import convt3d.torch as ct  # noqa: E402
from convt3d.torch import engine, prepared  # noqa: E402
from convt3d.torch.owned_call import OwnedCall, Place  # noqa: E402

CONV = "Conv3d(padding=1)"
# The stages, and how many vectors of channels they take; of tensors they take as many as the text says.
CASES = {
    "one sweep": (CONV, 0),
    "a tensor": (f"{CONV} -> Add(other='tensor')", 0),
    "two tensors": (f"{CONV} -> Multiply(other='tensor') -> ReLU() -> Subtract(other='tensor')", 0),
    "a norm": (f"{CONV} -> InstanceNorm() -> PReLU()", 1),
    "norms and a tensor": (f"{CONV} -> InstanceNorm(affine=True) -> Add(other='tensor') -> GroupNorm(2) -> ReLU()", 2),
    "a norm before": (f"GroupNorm(2) -> ReLU() -> {CONV} -> Mean(over='spatial') -> Softmax()", 0),
    "a kept value": (f"{CONV} -> Keep('y') -> Softmax(over='spatial') -> Multiply('y') -> Add(other='tensor')", 0),
    "a pool between": (f"{CONV} -> Keep('y') -> InstanceNorm() -> MaxPool3d(3, 1, 1) -> Subtract('y') -> GELU()", 0),
    "dropped axes": (f"{CONV} -> LogSumExp(over='channels', keepdim=False)", 0),
}


def drawn(shape: tuple[int, ...], seed: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def given(text: str, vectors: int, shape: tuple[int, ...], seed: int) -> tuple[Any, list[Any]]:
    """An input and operands: tensors differ with the seed, weights do not."""
    weights = [drawn((4, 4, 3, 3, 3), 0), *(drawn((4,), 1 + at) for at in range(vectors))]
    tensors = [drawn(shape, 100 * seed + at) for at in range(text.count("'tensor'"))]
    if "affine" in text:  # the vectors come first
        return drawn(shape, seed), [*weights, *tensors]
    return drawn(shape, seed), [weights[0], *tensors, *weights[1:]]


@pytest.mark.parametrize("name", CASES)
def test_again(name: str) -> None:
    text, vectors = CASES[name]
    call = OwnedCall()
    _, own = given(text, vectors, (2, 4, 3, 5, 7), 0)
    for seed, shape in enumerate([(2, 4, 3, 5, 7)] * 3 + [(1, 4, 6, 2, 9)] * 2 + [(2, 4, 3, 5, 7)]):
        x, operands = given(text, vectors, shape, seed)
        operands = [
            mine if mine.dim() < 5 or mine.shape[1:] == (4, 3, 3, 3) else new
            for mine, new in zip(own, operands, strict=True)
        ]
        got = call(x, operands, text)
        assert torch.equal(got, ct.pipeline(x, [each.clone() for each in operands], text)), seed
    (state,) = prepared.owned(call).states.values()
    assert len(state.weights.quick) == 2


def _last(x: Any) -> Any:
    return x.contiguous(memory_format=torch.channels_last_3d)


# The stages, the shape of the weight, and the layout of the input and of the weight.
LAYOUTS: dict[str, tuple[str, tuple[int, ...], Any, Any]] = {
    "single taps": ("Conv3d() -> ReLU()", (6, 4, 1, 1, 1), None, None),
    "channels last": (f"{CONV} -> BatchNorm()", (6, 4, 3, 3, 3), _last, None),
    "weights with channels last": (f"{CONV} -> SiLU()", (6, 4, 3, 3, 3), None, _last),
    "both, contiguous results": (f"{CONV} -> InstanceNorm()", (6, 4, 3, 3, 3), _last, _last),
    "transposed axes": (f"{CONV} -> GELU()", (6, 4, 3, 3, 3), lambda x: x.transpose(2, 4), None),
    "every other voxel": (f"{CONV} -> Softmax()", (6, 4, 3, 3, 3), lambda x: x[..., ::2], None),
    "repeated samples": (f"{CONV} -> GroupNorm(2)", (6, 4, 3, 3, 3), lambda x: x[:1].expand(2, 4, 3, 5, 7), None),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_again_in_every_layout(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call finds all of it done, and a result with the strides of the first."""
    text, shape, of_input, of_weight = LAYOUTS[name]
    weight = drawn(shape, 0)
    weight = weight if of_weight is None else of_weight(weight)
    own = [weight, drawn((6,), 1), drawn((6,), 2).abs()] if "BatchNorm" in text else [weight]
    inputs = [drawn((2, 4, 3, 5, 7), seed) for seed in range(3)]
    inputs = [each if of_input is None else of_input(each) for each in inputs]
    expected = [ct.pipeline(x, [each.clone() for each in own], text) for x in inputs]
    call = OwnedCall()
    first = call(inputs[0], own, text)
    monkeypatch.setattr(engine, "run", None)
    for x, wanted in zip(inputs, expected, strict=True):
        got = call(x, own, text)
        assert torch.equal(got, wanted)
        assert got.stride() == wanted.stride() == first.stride()


def test_again_into_a_part_of_a_larger_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of the result lie apart."""
    call, weight, x = OwnedCall(), drawn((6, 4, 3, 3, 3), 0), drawn((2, 4, 3, 5, 7), 1)
    call.place = call.beside = Place(2, 6, 9)
    expected = ct.pipeline(x, [weight.clone()], CONV)
    call(x, [weight], CONV)
    monkeypatch.setattr(engine, "run", None)
    got = call(x, [weight], CONV)
    assert torch.equal(got, expected)
    assert got.stride() == (9 * 105, 105, 35, 7, 1)
    assert got.storage_offset() == 2 * 105


def test_again_with_a_large_result_of_fewer_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "HUGE_FROM", 0)
    text, call, weight, x = CASES["dropped axes"][0], OwnedCall(), drawn((4, 4, 3, 3, 3), 0), drawn((2, 4, 3, 5, 7), 1)
    for _ in range(2):
        assert torch.equal(call(x, [weight], text), ct.pipeline(x, [weight.clone()], text))


def test_tensors_of_other_layouts() -> None:
    """Repeated, permuted, of another type: each is read as what it is."""
    text, call, weight = f"{CONV} -> Add(other='tensor')", OwnedCall(), drawn((4, 4, 3, 3, 3), 0)
    x = drawn((2, 4, 3, 5, 5), 1)
    permuted = drawn((2, 4, 3, 5, 5), 3).transpose(3, 4)
    tensors = [drawn((2, 4, 3, 5, 5), 2), permuted, drawn((1, 4, 1, 1, 5), 4), drawn((5, 5), 5)]
    for tensor in (*tensors, *tensors, x):
        assert torch.equal(call(x, [weight, tensor], text), ct.pipeline(x, [weight.clone(), tensor], text))
    with pytest.warns(UserWarning, match="different types"):
        got = call(x, [weight, tensors[0].double()], text)
    assert got.dtype == torch.float64


def test_samples_that_winograds_method_leaves() -> None:
    """A call on what is known of another finds huge inputs: they are computed by direct summation, as always."""
    text, call, weight = f"{CONV} -> InstanceNorm()", OwnedCall(), drawn((16, 16, 3, 3, 3), 0)
    for seed, factor in enumerate((1.0, 1.0, 1e37, 1.0)):
        x = drawn((3, 16, 12, 12, 12), seed)
        x[1] *= factor
        expected = ct.pipeline(x, [weight.clone()], text)
        torch.testing.assert_close(call(x, [weight], text), expected, rtol=0, atol=0, equal_nan=True)


def test_threads() -> None:
    text, vectors = CASES["norms and a tensor"]
    call, own = OwnedCall(), given(text, vectors, (2, 4, 3, 5, 7), 0)[1]
    tensor = next(at for at, each in enumerate(own) if each.shape == (2, 4, 3, 5, 7))

    def run(seed: int) -> bool:
        x, new = given(text, vectors, (2, 4, 3, 5, 7), seed)
        operands = [*own[:tensor], new[tensor], *own[tensor + 1 :]]
        return torch.equal(call(x, operands, text), ct.pipeline(x, [each.clone() for each in operands], text))

    assert run(0)
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(40)))


def test_another_thread_finds_that_operands_are_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept may be gone when a call comes back."""
    call, x, weight = OwnedCall(), drawn((1, 4, 3, 5, 5), 0), drawn((4, 4, 3, 3, 3), 0)
    expected, run = call(x, [weight], CONV), prepared.run

    def interrupted(*given: Any) -> Any:
        result = run(*given)
        prepared.owned(call).states.clear()
        return result

    monkeypatch.setattr(prepared, "run", interrupted)
    assert torch.equal(call(x, [weight], CONV), expected)
