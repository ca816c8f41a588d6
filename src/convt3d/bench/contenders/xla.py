"""JAX: the pipeline under jit, compiled by XLA for the CPU. It always uses all cores."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ...cpu.plan.cores import available_cores
from ...jax.formulas import jax_function
from ..cases import Arrays, Case, Storage
from .base import Ready, UnsupportedError


def contender(name: str) -> Xla:
    return Xla()


class Xla:
    def prepare(self, case: Case, arrays: Arrays) -> Ready:
        if case.threads != available_cores():
            raise UnsupportedError(f"JAX uses all {available_cores()} cores; the case asks for {case.threads} threads")
        jax.config.update("jax_enable_x64", case.dtype.name == "float64")
        x, *operands = (jax.device_put(_typed(case, array)) for array in (arrays.x, *arrays.operands))
        function = jax.jit(jax_function(case.pipeline))

        def run() -> Any:
            return jax.block_until_ready(function(x, operands))

        return Ready(run, lambda y: _storage(case, np.asarray(y)), allocates=True)


def _typed(case: Case, array: Storage) -> Any:
    return array.view(jax.numpy.bfloat16) if case.dtype.name == "bfloat16" else array


def _storage(case: Case, array: Any) -> Storage:
    stored: Storage = array.view(case.dtype.storage)
    return stored
