"""Inductor told to call the operators as they are.

Each of them has a decomposition, for ONNX. An operator that has one, and that inductor was told nothing about, is an
error where the environment variable CI is set. Importing inductor takes seconds, so it is told when it traces one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

_LOWERINGS = "torch._inductor.lowering"


def call_as_they_are(overloads: Sequence[Any]) -> None:
    """If inductor is there: from now on, with operands that have the strides they were traced with."""
    lowering = sys.modules.get(_LOWERINGS)
    ready = getattr(lowering, "make_fallback", None)
    if lowering is None or ready is None:
        return
    for overload in overloads:
        if overload not in lowering.lowerings:
            ready(overload, layout_constraint=_constraint(lowering, overload), warn=False)


def _constraint(lowering: Any, overload: Any) -> Any:
    """As inductor chooses it for operators that are not its own; before torch 2.6, the order of strides."""
    chosen = getattr(lowering, "tag_to_layout_constraint", None)
    if chosen is None:
        return lowering.constrain_to_fx_strides
    from torch._library.utils import get_layout_constraint_tag

    return chosen(get_layout_constraint_tag(overload, with_default=True))
