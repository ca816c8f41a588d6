"""When and where tasks run, as far as schedulers may be told.

Strips come before boxes, wherever a worker has the choice: another one may wait for them. And boxes are computed where
their chunks are, if chunks that are kept on a cluster lie in balance there: distributed sends a chunk away as soon as
the queue of its worker is longer by a box than another one, which costs more than it gains.

Layers of a graph say so by annotations. When dask optimises arrays it makes one layer of them all, without annotations:
`optimize`, which its configuration names in the place of its own, gives them theirs back.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import dask
from dask._task_spec import DependenciesMapping, resolve_aliases
from dask.array.optimization import optimize as merge_and_fuse
from dask.core import flatten, reverse_dict
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

FIRST = {"priority": 1}
STRIP = "convt3d-strip-"  # keys begin so
BALANCED = 1.2  # the most chunks that a worker may have, over the mean, where boxes stay with them


def optimize(graph: Any, keys: Any, **how: Any) -> Any:
    """As dask does it."""
    made = merge_and_fuse(graph, keys, **how)
    if isinstance(made, HighLevelGraph) or not any(map(_is_strip, made)):
        return made
    # Where dask fuses tasks it leaves another one under their name, and each costs a scheduler a millisecond or two.
    wanted = set(flatten(keys if isinstance(keys, (list, set)) else [keys]))
    made = resolve_aliases(made, wanted, reverse_dict(DependenciesMapping(made)))
    return _in_layers(made, {key: task for key, task in made.items() if _is_strip(key)})


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
    held, workers = _holders(set(homes.values())) if homes else ({}, 0)
    found: dict[str, list[Any]] = {}
    for key, chunk in homes.items():
        if holders := held.get(chunk):
            found.setdefault(min(holders, key=lambda each: len(found.get(each, ()))), []).append(key)
    return found if found and _balanced([len(boxes) for boxes in found.values()], workers) else {}


def _balanced(boxes: Sequence[int], workers: int) -> bool:
    """Whether no worker of the cluster has many more than the mean, or one more."""
    return max(boxes) <= max(BALANCED * sum(boxes) / workers, -(-sum(boxes) // workers))


def _holders(chunks: Collection[Any]) -> tuple[Mapping[Any, Sequence[str]], int]:
    """Workers that hold each chunk, where a cluster is at hand, and how many it has. Graphs are optimised where the
    scheduler is or, by earlier versions, the client."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return {}, 0
    for scheduler in list(distributed.Scheduler._instances):
        known = [scheduler.tasks[chunk] for chunk in chunks if chunk in scheduler.tasks]
        held = {task.key: [worker.address for worker in list(task.who_has or ())] for task in known}
        if any(held.values()):
            return held, len(scheduler.workers)
    try:
        client = distributed.default_client()
    except ValueError:  # none
        return {}, 0
    if client.asynchronous:
        return {}, 0
    held = client.sync(client.scheduler.who_has, keys=list(chunks))
    return held, len(client.scheduler_info(n_workers=-1)["workers"])


if not dask.config.get("array_optimize", None):  # unless somebody wants another one
    dask.config.set(array_optimize=optimize)
