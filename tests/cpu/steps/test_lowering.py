"""From what is asked to the step that does it: what no step does is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

import convt3d as ct
from convt3d.cpu.plan.plan import make_plan
from convt3d.cpu.steps.lowering import steps_of
from convt3d.plan.sweeps import Op
from convt3d.spec.dtypes import DTYPES


@dataclass(frozen=True)
class Unknown(Op):
    """A step that nobody has heard of."""


def test_an_unknown_step_is_an_error() -> None:
    one = make_plan(ct.Pipeline(ct.ConvTranspose3d()), (1, 2, 3, 3, 3), ((2, 2, 2, 2, 2),), DTYPES["float32"]).sweeps[0]
    with pytest.raises(NotImplementedError, match="the CPU has no step for Unknown: add it to STEPS"):
        steps_of(replace(one.sweep, ops=(*one.sweep.ops, Unknown())), one.where)
