"""When and where tasks run, as far as schedulers may be told.

Strips come before boxes, wherever a worker has the choice: another one may wait for them. And boxes are computed where
their chunks are, if chunks that are kept on a cluster lie in balance there: distributed sends a chunk away as soon as
the queue of its worker is longer by a box than another one, which costs more than it gains.

Layers of a graph say so by annotations. When dask optimises arrays it makes one layer of them all, without annotations:
`optimize`, which its configuration names in the place of its own, gives them theirs back.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dask
from dask.array.optimization import optimize as merge_and_fuse
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

FIRST = {"priority": 1}
STRIP = "convt3d-strip-"  # keys begin so
BALANCED = 1.2  # the most chunks that a worker may have, over the mean, where boxes stay with them


def optimize(graph: Any, keys: Any, **how: Any) -> Any:
    """As dask does it."""
    made = merge_and_fuse(graph, keys, **how)
    if isinstance(made, HighLevelGraph):
        return made
    strips = {key: task for key, task in made.items() if _is_strip(key)}
    return _in_layers(made, strips) if strips else made


def _is_strip(key: Any) -> bool:
    return isinstance(key, str) and key.startswith(STRIP)


def _in_layers(graph: Mapping[Any, Any], strips: Mapping[Any, Any]) -> HighLevelGraph:
    layers = {"strips": MaterializedLayer(strips, annotations=FIRST)}
    rest = {key: task for key, task in graph.items() if key not in strips}
    for worker, boxes in _at_home(rest).items():
        own = {key: rest.pop(key) for key in boxes}
        # Others may take them, should that worker be lost.
        layers[f"boxes of {worker}"] = MaterializedLayer(
            own, annotations={"workers": [worker], "allow_other_workers": True}
        )
    layers["boxes"] = MaterializedLayer(rest)
    above = {name: set(layers) - {name, "strips"} if name == "boxes" else {"strips"} for name in layers}
    return HighLevelGraph(layers, {**above, "strips": set()})


def _at_home(tasks: Mapping[Any, Any]) -> dict[str, list[Any]]:
    """Tasks that read strips and one chunk that a cluster keeps, by the worker that keeps it; none, where some workers
    have many more chunks than others."""
    homes = {}
    for key, task in tasks.items():
        needed = tuple(getattr(task, "dependencies", ()))
        kept = [each for each in needed if each not in tasks and not _is_strip(each)]  # of no task: of the cluster
        if len(kept) == 1 and any(map(_is_strip, needed)):
            homes[key] = kept[0]
    held = _holders(homes.values()) if homes else {}
    found: dict[str, list[Any]] = {}
    for key, chunk in homes.items():
        if holders := held.get(chunk):
            found.setdefault(min(holders, key=lambda each: len(found.get(each, ()))), []).append(key)
    return found if found and _balanced([len(boxes) for boxes in found.values()]) else {}


def _balanced(boxes: Sequence[int]) -> bool:
    """Whether no worker of the cluster has many more than the mean, or one more."""
    workers = len(sys.modules["distributed"].default_client().scheduler_info(n_workers=-1)["workers"])
    mean = sum(boxes) / workers
    return max(boxes) <= max(BALANCED * mean, -(-sum(boxes) // workers))


def _holders(chunks: Iterable[Any]) -> Mapping[Any, Any]:
    """Workers that hold each chunk, where a cluster is at hand."""
    distributed = sys.modules.get("distributed")
    try:
        client = distributed.default_client() if distributed is not None else None
    except ValueError:  # none
        return {}
    if client is None or client.asynchronous:
        return {}
    held: Mapping[Any, Any] = client.sync(client.scheduler.who_has, keys=list(chunks))
    return held


if not dask.config.get("array_optimize", None):  # unless somebody wants another one
    dask.config.set(array_optimize=optimize)
