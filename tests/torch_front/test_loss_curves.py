"""Training with swapped layers gives eager's loss curve within rounding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

torch = pytest.importorskip("torch")

from helpers.curves import NETWORKS, curve  # noqa: E402

import convt3d as ct  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Of PyTorch and of ours: these networks are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with ct.num_threads(1):
        yield
    torch.set_num_threads(before)


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("steps", [25, pytest.param(100, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_curve_is_eagers(name: str, steps: int) -> None:
    """In float64 the curves are the same but for its rounding; in float32 ours is as near to that curve as eager's."""
    eager, ours = (curve(name, steps, swapped, torch.float64) for swapped in (False, True))
    assert max(eager) - min(eager) > 1e-3, "it learns something"
    assert apart(eager, ours) < 1e-10
    short_eager, short_ours = (curve(name, steps, swapped) for swapped in (False, True))
    assert short_eager != short_ours, "our kernels ran"
    assert apart(short_ours, eager) <= 4 * apart(short_eager, eager) + 1e-6 * max(eager)
