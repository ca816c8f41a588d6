"""`explain(model, x)`: what became of a model, pipeline by pipeline, with times; what was left to PyTorch, and why."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from ..units import counted, duration, ratio
from .backend import fused, recompile_limit
from .capture import FUSED, RESULT, Captured
from .graphs import shown, without_dropouts
from .meanings import Fused

ROUNDS = 3
PAUSE = 0.03  # seconds between turns: PyTorch's threads spin for a while after their work
_WIDTH = 100  # of the text of a pipeline


@dataclass(frozen=True)
class Row:
    """One pipeline: the name of its convolution, its text, why it ends, and seconds in PyTorch and here."""

    name: str
    stages: str
    ends: str
    eager: float | None = None
    ours: float | None = None


@dataclass
class Explanation:
    """What `explain` has found. `str` of it is the table."""

    rows: list[Row] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)  # convolutions that are PyTorch's still, and why
    rest: Counter[str] = field(default_factory=Counter)  # all else that is
    joined: int = 0  # concatenations that copy nothing a pipeline computes
    pieces: int = 0  # operations of attention that PyTorch computes in pieces
    failed: list[str] = field(default_factory=list)  # graphs that are
    eager: float | None = None
    ours: float | None = None

    def __repr__(self) -> str:
        convolutions = counted(len(self.left), "convolution")
        return f"<Explanation: {counted(len(self.rows), 'pipeline')}; {convolutions} left to PyTorch>"

    def __str__(self) -> str:
        lines = []
        for number, row in enumerate(self.rows, 1):
            lines.append(f"{number:3} {_times(row.eager, row.ours):28} {row.name}")
            lines += [f"{'':33}{line}" for line in (*_wrapped(row.stages), f"ends at: {row.ends}")]
        lines += [f"    left: {name} {why}" for name, why in self.left]
        lines += [f"    a graph is left to PyTorch: {error}" for error in self.failed]
        if self.joined:
            lines.append(f"written in place: {counted(self.joined, 'concatenation')}")
        if self.pieces:
            lines.append(f"PyTorch's in pieces: {counted(self.pieces, 'operation')} of attention")
        if self.rest:
            rest = ", ".join(f"{name} {count}x" if count > 1 else name for name, count in self.rest.most_common())
            lines.append(f"PyTorch's still: {rest}")
        if self.eager is not None:
            lines.append(f"all of it: {_times(self.eager, self.ours)}")
        return "\n".join(lines)


def explain(model: Any, *inputs: Any, times: bool = True, quiet: bool = False) -> Explanation:
    """Prints what `optimize` and `torch.compile(backend="convt3d")` make of a model.

    Each pipeline is listed with the convolution it starts at, its stages, why it ends, and the time it takes beside the
    time that PyTorch takes for the same operations; then what is left to PyTorch. The model is called several times,
    in its mode; without gradients unless it is in training.

    Parameters
    ----------
    model : nn.Module
        Any model.
    *inputs : Any
        What it is called with.
    times : bool, default True
        Whether times are measured.
    quiet : bool, default False
        Whether nothing is printed.

    Returns
    -------
    Explanation
        The same as data: `rows` of pipelines, convolutions that are `left`, the `rest`.

    Raises
    ------
    Exception
        What the model itself raises.

    Examples
    --------
    >>> import torch, convt3d.torch
    >>> model = torch.nn.Sequential(torch.nn.Conv3d(1, 4, 3), torch.nn.ReLU()).eval()
    >>> _ = convt3d.torch.explain(model, torch.ones(1, 1, 5, 6, 7), times=False)
      1                              0
                                     Conv3d(bias=True) -> ReLU()
                                     ends at: the end of the graph
    """
    made = Explanation()

    def backend(gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        without_dropouts(gm.graph)
        rewritten, found = fused(gm)
        first = len(made.rows)
        _describe(made, found)

        def tell(number: int, eager: float, ours: float) -> None:
            made.rows[first + number] = replace(made.rows[first + number], eager=eager, ours=ours)

        calls = iter([_Timed(rewritten, gm, found, tell).run] if times else [])  # only the first call is timed
        return lambda *args: next(calls, rewritten.forward)(*args)

    torch._dynamo.reset()
    try:
        compiled = torch.compile(model, backend=backend, **recompile_limit(model))
        with torch.set_grad_enabled(getattr(model, "training", False)):
            compiled(*inputs)
            if times:
                made.eager, made.ours = _beside(lambda: model(*inputs), lambda: compiled(*inputs))
    finally:
        torch._dynamo.reset()
    if not quiet:
        print(made)
    return made


def _describe(made: Explanation, found: Captured) -> None:
    made.rows += [Row(_name(each.conv), each.text, each.why) for each in found.fused]
    made.left += [(_name(node), why) for node, why in found.left.items()]
    made.joined += len(found.joined)
    made.pieces += len(found.pieces)
    made.rest.update(shown(node) for node in found.rest)
    made.failed += [found.failed] if found.failed else []


def _name(node: Any) -> str:
    """Of the module whose code a node comes from, as `named_modules` has it."""
    path = next((path for path, _ in reversed(node.meta.get("nn_module_stack", {}).values())), "")
    return str(path).partition("].")[2] or shown(node)


class _Timed(fx.Interpreter):  # type: ignore[misc]
    """Runs a graph once, each pipeline also as the nodes it has taken the place of, and takes the times of both."""

    def __init__(self, gm: Any, old: Any, found: Captured, tell: Callable[[int, float, float], None]) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self.old = {node.name: node for node in old.graph.nodes}
        self.owner, self.found, self.tell = old, found, tell
        self.values: dict[str, Any] = {}  # by the names of the old graph

    def run_node(self, n: Any) -> Any:
        each: Fused | None = n.meta.get(FUSED)
        if each is None:
            result = super().run_node(n)
        else:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            module, given = self._alone(each)
            eager, ours = _beside(lambda: module(*given), lambda: n.target(*args, **kwargs))
            self.tell(self.found.fused.index(each), eager, ours)
            result = n.target(*args, **kwargs)
        self.values[n.meta.get(RESULT, n.name)] = result
        return result

    def _alone(self, each: Fused) -> tuple[Any, list[Any]]:
        """The old nodes of a pipeline as a module, and its inputs."""
        graph = fx.Graph()
        names = [node.meta.get(RESULT, node.name) for node in each.nodes]
        nodes = [self.old[name] for name in names if name in self.old]  # but for convolutions that change nothing
        outer = dict.fromkeys(given for node in nodes for given in node.all_input_nodes if given not in nodes)
        made = {node: graph.placeholder(f"given{number}") for number, node in enumerate(outer)}
        for node in nodes:
            made[node] = graph.node_copy(node, lambda given: made[given])
        graph.output(made[nodes[-1]])
        return fx.GraphModule(self.owner, graph), [self.values[node.name] for node in outer]


def _beside(*calls: Callable[[], Any]) -> list[float]:
    """Seconds of each, in turns."""
    seconds: list[list[float]] = [[] for _ in calls]
    for round_ in range(ROUNDS + 1):
        for call, own in zip(calls, seconds, strict=True):
            time.sleep(PAUSE)
            start = time.perf_counter()
            call()
            own += [time.perf_counter() - start] if round_ else []  # the first is to warm up
    return [statistics.median(own) for own in seconds]


def _times(eager: float | None, ours: float | None) -> str:
    if eager is None or ours is None:
        return ""
    return f"{duration(eager)} -> {duration(ours)}, {ratio(eager / ours)}x"


def _wrapped(text: str) -> list[str]:
    lines = [""]
    for part in text.split(" -> "):
        if len(lines[-1]) + len(part) > _WIDTH:
            lines.append("  ")
        lines[-1] += part if lines[-1].strip() == "" else f" -> {part}"
    return lines
