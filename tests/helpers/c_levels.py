"""Which instruction sets a library is exported for where it is only run here."""

from __future__ import annotations

from convt3d.cpu.plan.machine import machine
from convt3d.export.objects import Level, levels
from convt3d.spec.dtypes import DType


def own_level(target: str, dtype: DType) -> list[Level]:
    """What this processor would choose of a library's instruction sets: the others are not compiled."""
    found, here = levels(target, dtype), machine()
    own = [one for one in found if one.isa.name == here.isa and (not one.more or here.multiplies_bfloat16)]
    return own[:1] or found
