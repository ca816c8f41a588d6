"""Plans cut into drawn tiles instead of the cheapest ones: every size of tile must give the right answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from convt3d.plan import plan as planning
from convt3d.plan.passes import RowNorm
from convt3d.plan.tiles import layout


@contextmanager
def drawn_tiles(seed: int) -> Iterator[None]:
    """Plans made inside have tiles of any size, most of them small; rows stay whole where a norm needs them."""
    rng = np.random.default_rng(seed)

    def choose(pipeline: Any, trace: Any, one: Any, machine: Any, item: int) -> Any:
        whole = any(isinstance(op, RowNorm) for op in one.ops)
        tile = [_part(rng, size) for size in one.result[2:]]
        if whole:
            tile[2] = one.result[4]
        return layout(pipeline, trace, one, (tile[0], tile[1], tile[2]), machine, item)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "choose", choose)
        planning._make_plan.cache_clear()
        try:
            yield
        finally:
            planning._make_plan.cache_clear()


def _part(rng: np.random.Generator, size: int) -> int:
    return int(rng.integers(1, size + 1)) if rng.integers(2) else min(size, int(rng.integers(1, 5)))
