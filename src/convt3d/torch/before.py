"""Before the convolution: norms, activations, pools and padding whose value only this convolution reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from ..errors import Error
from ..spec.pipeline import Pipeline
from ..spec.stage import Stage
from ..spec.stages import Conv3d
from .graphs import example, is_barrier, is_tensor, name_of
from .meanings import Fused, check_result, meaning_of
from .patterns import Given
from .views import PLAIN, NoStageError, Value, is_plain

_PADS = (functional.pad, torch._C._nn.pad)


def with_stages_before(nodes: Sequence[Any], found: Sequence[Fused], taken: set[Any]) -> list[Fused]:
    """The pipelines, each with what comes before its convolution as far as nobody else needs it; `taken` grows."""
    places = {node: place for place, node in enumerate(nodes)}
    result: list[Fused] = []
    for each in found:
        longest, longer = each, _longer(each, nodes, places, taken)
        while longer is not None:
            longest = longer
            taken |= set(longest.nodes)
            longer = _longer(longest, nodes, places, taken)
        result.append(longest)
    return result


def _longer(fused: Fused, nodes: Sequence[Any], places: dict[Any, int], taken: set[Any]) -> Fused | None:
    """With one more node in front; None if there is none to take."""
    node, like = fused.input, example(fused.nodes[-1])
    if node in taken or not node.op.startswith("call") or not is_tensor(node) or set(node.users) - set(fused.nodes):
        return None
    between = nodes[places[node] + 1 : places[fused.nodes[-1]]]
    if any(each not in taken and is_barrier(each) for each in between):
        return None
    try:
        pads = node.target in _PADS
        stages, given, main = _padding(node, fused.stages[0]) if pads else _stages(node, like)
        if name_of(node)[1]:  # it writes to what it reads, which must be a value of the pipeline, then
            _stages(main, like)
            if set(main.users) != {node} or main in taken:
                return None
        stages, operands = (*stages, *fused.stages[pads:]), (*given, *fused.operands)
        Pipeline(*stages)
        last = fused.nodes[-1]
        laid_out = check_result(stages, main, operands, last, fused.view)
    except (NoStageError, Error):
        return None
    more = replace(fused, nodes=(node, *fused.nodes), stages=stages, operands=operands, input=main, laid_out=laid_out)
    if name_of(node)[1]:
        return _longer(more, nodes, places, taken | {node})
    return more


def _padding(node: Any, conv: Stage) -> tuple[tuple[Stage, ...], tuple[Given, ...], Any]:
    """In the place of the convolution, one that pads its input as the node does; no operands; and that input."""
    given: dict[str, Any] = {"mode": "constant", "value": None} | dict(
        zip(("input", "pad", "mode", "value"), node.args, strict=False)
    )
    x, sides, mode, value = ((given | dict(node.kwargs)).get(name) for name in ("input", "pad", "mode", "value"))
    if not isinstance(conv, Conv3d) or conv.padding not in (0, (0, 0, 0), "valid") or conv.padding_mode != "zeros":
        raise NoStageError("pads something else than the input of a convolution without padding")
    if not isinstance(sides, (list, tuple)) or len(sides) != 6 or not is_tensor(x) or value:
        raise NoStageError("pads other axes, or with other numbers")
    w, h, d = (tuple(sides[at : at + 2]) for at in (0, 2, 4))
    if not all(type(one) is int and one == other and one >= 0 for one, other in (d, h, w)):
        raise NoStageError("pads both sides of an axis by different numbers")
    mode = "zeros" if mode == "constant" else str(mode)
    return (replace(conv, padding=(d[0], h[0], w[0]), padding_mode=mode),), (), x


def _stages(node: Any, like: Any) -> tuple[tuple[Stage, ...], tuple[Given, ...], Any]:
    """A node as stages of its first tensor, their operands, and that tensor."""
    main = next((each for each in node.all_input_nodes if is_tensor(each)), None)
    tensor = example(main)
    if main is None or tensor.dim() != 5 or tensor.dtype != like.dtype or tensor.device != like.device:
        raise NoStageError("reads no tensor with five axes")
    meaning = meaning_of(node, {main: Value(main, PLAIN, tuple(tensor.shape), main)}, like)
    stages = tuple(stage for stage, _ in meaning.parts)
    if not is_plain(meaning.view) or any(s.uses or s.keeps or s.reduces for s in stages):
        raise NoStageError("is no stage before a convolution")
    return stages, tuple(each for _, given in meaning.parts for each in given), main
