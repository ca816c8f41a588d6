"""Strips come before boxes, wherever a worker has the choice: another one may wait for them.

Layers of a graph say so by an annotation. When dask optimises arrays it makes one layer of them all, without
annotations: `optimize`, which its configuration names in the place of its own, gives strips theirs back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dask
from dask.array.optimization import optimize as merge_and_fuse
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

FIRST = {"priority": 1}
STRIP = "convt3d-strip-"  # keys begin so


def optimize(graph: Any, keys: Any, **how: Any) -> Any:
    """As dask does it."""
    made = merge_and_fuse(graph, keys, **how)
    if isinstance(made, HighLevelGraph):
        return made
    strips = {key: task for key, task in made.items() if isinstance(key, str) and key.startswith(STRIP)}
    return _in_layers(made, strips) if strips else made


def _in_layers(graph: Mapping[Any, Any], strips: Mapping[Any, Any]) -> HighLevelGraph:
    boxes = {key: task for key, task in graph.items() if key not in strips}
    layers = {"boxes": MaterializedLayer(boxes), "strips": MaterializedLayer(strips, annotations=FIRST)}
    return HighLevelGraph(layers, {"boxes": {"strips"}, "strips": set()})


if not dask.config.get("array_optimize", None):  # unless somebody wants another one
    dask.config.set(array_optimize=optimize)
