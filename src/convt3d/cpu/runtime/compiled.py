"""All native code of the process: loaded once for each key, from the cache or newly compiled.

Code is unmapped when nobody holds it any more: neither this table, which drops what was not used for long, nor a
`Function` taken from it. So whoever jumps into code holds a `Function` meanwhile, and an address alone is never kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import NamedTuple

from ...cache import object_cache
from ...recent import Recent, undisturbed
from ..plan.cores import get_num_threads
from ..plan.host import load_llvm
from ..plan.machine import Machine, machine
from .build import Build, Code, Target, compile_ir, load
from .keys import about_entry, entry_key
from .link import NOTHING

loaded: Recent[Code] = Recent(512)


def compiled(
    plan_key: str,
    write_ir: Callable[[], str],
    names: Sequence[str],
    host: Machine | None = None,
    given: Mapping[str, int] = NOTHING,
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


class Wanted(NamedTuple):
    """Code that somebody is going to ask for, with the arguments of `compiled`."""

    plan_key: str
    write_ir: Callable[[], str]
    host: Machine
    name: str


def compile_together(wanted: Iterable[Wanted]) -> None:
    """Compiles all that is not in the cache yet by several threads, while this one goes on to the next; and keeps it
    there."""
    from concurrent.futures import Future, ThreadPoolExecutor  # which few calls need

    cache, builds = object_cache(), dict[str, tuple[str, "Future[Build]"]]()
    with undisturbed, ThreadPoolExecutor(get_num_threads()) as pool:  # its threads start when there is work
        for each in wanted:
            key = entry_key(each.plan_key, each.host)
            if key in builds or loaded.get((each.plan_key, each.host)) is not None or cache.get(key) is not None:
                continue
            load_llvm()
            build = pool.submit(compile_ir, each.write_ir(), Target.of(each.host), lock=nullcontext())
            builds[key] = about_entry(each.name, each.host), build
        for key, (about, build) in builds.items():
            cache.put(key, build.result().object_code, about)
