"""Triton's driver for a GPU that is played here: `kernel[grid](...)` compiles to PTX and runs it on CPU tensors.

`use(80)` makes it Triton's driver for the process. Nothing of Triton's is changed but its list of compilers: one that
ends at PTX takes the place of the one that calls ptxas.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .machine import launch
from .memory import Fault, Region
from .numbers import Array
from .text import Kernel, Unknown, read

SHARED = {80: 163, 90: 227, 100: 227}  # KiB that a block may have
PTX_VERSION = 87


faults: list[tuple[str, str]] = []  # the first of each call that nobody has asked for: the judge's word, and why


def use(capability: int = 80, alone: bool = False) -> None:
    """From now on Triton compiles for this capability, and its kernels run here; not with TRITON_INTERPRET. `alone`:
    the process has a cache folder for itself, in which nothing may be moved to another folder."""
    from triton.backends import backends
    from triton.runtime import driver

    theirs: Any = backends["nvidia"]
    if not getattr(theirs.compiler, "ends_at_ptx", False):
        backends["nvidia"] = dataclasses.replace(theirs, compiler=_compiler(theirs.compiler))
    driver.set_active(_Driver(capability))
    if alone:
        from triton import knobs

        knobs.cache.manager_class = _cache()


def _cache() -> Any:
    from triton.runtime.cache import FileCacheManager

    class Cache(FileCacheManager):  # type: ignore[misc]
        def put(self, data: Any, filename: str, binary: bool = True) -> str:
            path = Path(self.cache_dir, filename)
            path.write_bytes(data if isinstance(data, bytes) else str(data).encode())
            return str(path)

    return Cache


def _compiler(theirs: Any) -> Any:
    class Compiler(theirs):  # type: ignore[misc]
        ends_at_ptx = True

        def __init__(self, target: Any) -> None:
            super().__init__(target)
            self.binary_ext = "ptx"

        def parse_options(self, options: Any) -> Any:
            return super().parse_options({"ptx_version": PTX_VERSION, **options})

        def add_stages(self, stages: Any, *arguments: Any) -> None:
            super().add_stages(stages, *arguments)
            del stages["cubin"]

        def hash(self) -> str:
            return f"ptx-{PTX_VERSION}-{self.target.arch}"

    return Compiler


class _Driver:
    def __init__(self, capability: int) -> None:
        self.capability = capability
        self.utils = self

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED[self.capability] * 1024, "multiprocessor_count": 108, "warpSize": 32}

    def load_binary(self, name: str, ptx: bytes, shared: int, device: int) -> tuple[Any, Kernel, int, int, int]:
        kernel = read(ptx.decode())
        return kernel, kernel, 0, 0, 1024

    def unload_module(self, module: Any) -> None:
        pass

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        names = [name for name, kind in source.signature.items() if kind != "constexpr"]
        places = [at for at, kind in enumerate(source.signature.values()) if kind != "constexpr"]

        def run(x: int, y: int, z: int, stream: int, kernel: Kernel, *rest: Any) -> None:
            given = rest[4:]  # behind what profilers are told
            _launch(kernel, (x, y, z), metadata.shared, {n: given[at] for n, at in zip(names, places, strict=True)})

        return run


def _launch(kernel: Kernel, grid: tuple[int, int, int], shared: int, given: dict[str, Any]) -> None:
    values: dict[str, Array] = {}
    regions: dict[tuple[int, int], Region] = {}
    each: Iterator[tuple[str, Any]] = iter(given.items())
    none: tuple[str, Any] = ("", 0)
    for kind, parameter in kernel.parameters:
        name, value = next(each, none)  # Triton's own come last: scratch memory that nobody asked for
        if hasattr(value, "data_ptr"):
            storage = value.untyped_storage()
            bounds = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
            if bounds[0] != bounds[1]:
                regions.setdefault(bounds, Region(*bounds, f"`{name}`"))
            value = value.data_ptr()
        values[parameter] = _bits(value, kind)
    try:
        launch(kernel, values, grid, shared, list(regions.values()))
    except Fault as fault:
        faults[:1] = faults[:1] or [(fault.word, fault.detail)]
        raise
    except Unknown as unknown:
        faults[:1] = faults[:1] or [("compiled, not run", f"Triton compiles it, but {unknown}")]
        raise


def _bits(value: Any, kind: str) -> Array:
    if kind in ("f32", "f64"):
        return np.array(value, np.float32 if kind == "f32" else np.float64).view(
            np.uint32 if kind == "f32" else np.uint64
        )
    if not isinstance(value, (int, np.integer)):
        raise Unknown(f"an argument {type(value).__name__} for a parameter .{kind}")
    bits = int(kind[1:])
    return np.array(int(value) % 2**bits, f"u{bits // 8}")
