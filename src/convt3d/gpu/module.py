"""Text of Triton kernels -> a Python module, once for each text. Nothing is written to disk but Triton's own cache."""

from __future__ import annotations

import hashlib
import linecache
from functools import lru_cache
from threading import Lock
from types import ModuleType
from typing import Any
from weakref import WeakValueDictionary, finalize

_lock = Lock()
_living: WeakValueDictionary[str, ModuleType] = WeakValueDictionary()


@lru_cache(maxsize=1024)
def load(text: str) -> ModuleType:
    """The module of a text, of which there is one at a time: they would share a place in `linecache`."""
    with _lock:
        module = _living.get(text)
        if module is None:
            module = _living[text] = _made(text)
    return module


def _made(text: str) -> ModuleType:
    """Triton reads the source of its kernels, which it finds in `linecache` as long as the module lives."""
    name = f"convt3d_triton_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    filename = f"{name}.py"
    entry = (len(text), None, text.splitlines(keepends=True), filename)
    linecache.cache[filename] = entry
    module = ModuleType(name)
    module.__file__ = filename
    exec(compile(text, filename, "exec"), module.__dict__)
    finalize(module, _forget, filename, entry)
    return module


def _forget(filename: str, entry: Any) -> None:
    if linecache.cache.get(filename) is entry:
        del linecache.cache[filename]
