"""All native code of the process: loaded once for each key, from the cache or newly compiled.

Code is unmapped when nobody holds it any more: neither this table, which drops what was not used for long, nor a
`Function` taken from it. So whoever jumps into code holds a `Function` meanwhile, and an address alone is never kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...cache import object_cache
from ...recent import Recent
from ..plan.host import load_llvm
from ..plan.machine import Machine, machine
from .build import Code, Target, compile_ir, load
from .keys import about_entry, entry_key

loaded: Recent[Code] = Recent(512)


def compiled(
    plan_key: str,
    write_ir: Callable[[], str],
    names: Sequence[str],
    host: Machine | None = None,
    given: Mapping[str, int] | None = None,
    name: str | None = None,
) -> Code:
    """Functions `names` of the plan. `plan_key` must determine the text that `write_ir` returns on this machine, or on
    `host`, which may be told to use fewer of its instructions. `given`: addresses that the code expects from elsewhere,
    the same for a key as long as the process lives. `name` is what people call it."""
    host = host or machine()

    def build() -> bytes:
        load_llvm()
        return compile_ir(write_ir(), Target.of(host)).object_code

    def find() -> tuple[Code, int]:
        about = about_entry(name or plan_key, host)
        return load(object_cache().fetch(entry_key(plan_key, host), build, about), names, given), 1

    return loaded.once((plan_key, host), find)
