"""One plan's native code: its object file comes from the cache, or is compiled and cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..cache import object_cache
from ..plan.machine import machine
from .build import Code, compile_ir, load
from .keys import entry_key


def compiled(plan_key: str, write_ir: Callable[[], str], names: Sequence[str]) -> Code:
    """Functions `names` of the plan. `plan_key` must determine the text that `write_ir` returns on this machine."""
    key = entry_key(plan_key, machine())
    return load(object_cache().fetch(key, lambda: compile_ir(write_ir()).object_code), names)
