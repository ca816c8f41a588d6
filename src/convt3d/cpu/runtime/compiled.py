"""All native code of the process: loaded once for each key, from the cache or newly compiled.

Code is unmapped when nobody holds it any more: neither this table, which drops what was not used for long, nor a
`Function` taken from it. So whoever jumps into code holds a `Function` meanwhile, and an address alone is never kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from ...cache import object_cache
from ...recent import Recent
from ..plan.host import load_llvm
from ..plan.machine import Machine, machine
from .build import Code, Target, compile_ir, load
from .keys import entry_key

loaded: Recent[Code] = Recent(512)


def compiled(plan_key: str, write_ir: Callable[[], str], names: Sequence[str], host: Machine | None = None) -> Code:
    """Functions `names` of the plan. `plan_key` must determine the text that `write_ir` returns on this machine, or on
    `host`, which may be told to use fewer of its instructions."""
    return compiled_kernel(plan_key, lambda: (write_ir(), ()), names, host or machine())


def compiled_kernel(
    plan_key: str, emit: Callable[[], tuple[str, Sequence[str]]], names: Sequence[str], host: Machine
) -> Code:
    """The same for code that says its parameters: `emit` returns the text and their names."""

    def build() -> bytes:
        """The parameters and the object file in one piece, as they are cached."""
        load_llvm()
        text, parameters = emit()
        header = json.dumps(parameters).encode()
        return len(header).to_bytes(8, "little") + header + compile_ir(text, Target.of(host)).object_code

    def find() -> tuple[Code, int]:
        packed = object_cache().fetch(entry_key(plan_key, host), build)
        end = 8 + int.from_bytes(packed[:8], "little")
        return load(packed[end:], names, json.loads(packed[8:end])), 1

    return loaded.once((plan_key, host), find)
