"""convt3d itself, through its public call, into an array that is reused; `convt3d-direct` sums products one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...cpu.plan.cores import num_threads
from ..cases import Arrays, Case, Storage
from .base import Ready, UnsupportedError

OPTIONS: dict[str, dict[str, Any]] = {"convt3d": {}, "convt3d-direct": {"algorithm": "direct"}}


def contender(name: str) -> Own:
    return Own(OPTIONS[name])


@dataclass(frozen=True)
class Own:
    options: dict[str, Any] = field(default_factory=dict)

    def prepare(self, case: Case, arrays: Arrays) -> Ready:
        out = np.full(case.output, case.dtype.narrow(np.array(np.nan)), case.dtype.storage)
        x, y, *operands = (_public(case, array) for array in (arrays.x, out, *arrays.operands))

        def run() -> Any:
            with num_threads(case.threads):
                return case.pipeline(x, *operands, out=y, **self.options)

        return Ready(run, lambda _: out)


def _public(case: Case, array: Storage) -> Any:
    """The array as a caller holds it: bfloat16 has a numpy type only with ml_dtypes."""
    if case.dtype.name != "bfloat16":
        return array
    try:
        import ml_dtypes
    except ModuleNotFoundError:
        raise UnsupportedError("bfloat16 in numpy needs ml_dtypes") from None
    return array.view(ml_dtypes.bfloat16)
