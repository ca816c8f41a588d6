"""Text of Triton kernels -> a Python module, once for each text. Nothing is written to disk but Triton's own cache."""

from __future__ import annotations

import hashlib
import linecache
import weakref
from functools import lru_cache
from types import ModuleType


@lru_cache(maxsize=1024)
def load(text: str) -> ModuleType:
    """The module of a text. Triton reads the source of its kernels, which it finds in `linecache` as long as the module
    lives."""
    name = f"convt3d_triton_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    filename = f"{name}.py"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    module = ModuleType(name)
    module.__file__ = filename
    exec(compile(text, filename, "exec"), module.__dict__)
    weakref.finalize(module, linecache.cache.pop, filename, None)
    return module
