"""One plan's native code: its object file comes from the cache, or is compiled and cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..cache import object_cache
from ..plan.machine import Machine, machine
from .build import Code, Target, compile_ir, load
from .keys import entry_key


def compiled(plan_key: str, write_ir: Callable[[], str], names: Sequence[str], host: Machine | None = None) -> Code:
    """Functions `names` of the plan. `plan_key` must determine the text that `write_ir` returns on this machine, or on
    `host`, which may be told to use fewer of its instructions."""
    host = host or machine()
    code = object_cache().fetch(entry_key(plan_key, host), lambda: compile_ir(write_ir(), Target.of(host)).object_code)
    return load(code, names)
