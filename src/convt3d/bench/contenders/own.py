"""convt3d itself, through its public call, into an array that is reused; `convt3d-direct` sums products one by one,
`convt3d-prepared` is given its weights once, as peers are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...cpu.plan.cores import num_threads
from ...front.prepared import Prepared
from ..cases import Arrays, Case, Storage
from .base import NotInstalledError, Ready, UnsupportedError

OPTIONS: dict[str, dict[str, Any]] = {"convt3d-direct": {"algorithm": "direct"}}


def contender(name: str) -> Own:
    return Own(OPTIONS.get(name, {}), prepared=name == "convt3d-prepared")


@dataclass(frozen=True)
class Own:
    options: dict[str, Any] = field(default_factory=dict)
    prepared: bool = False

    def prepare(self, case: Case, arrays: Arrays) -> Ready:
        if case.training:
            return _prepare_step(case, arrays)
        out = np.full(case.output, case.dtype.narrow(np.array(np.nan)), case.dtype.storage)
        x, y, *operands = (_public(case, array) for array in (arrays.x, out, *arrays.operands))

        if self.prepared:
            kinds = [slot.operand.kind for slot in case.pipeline.slots]
            own = [operand.copy() for operand, kind in zip(operands, kinds, strict=True) if kind != "tensor"]
            for each in own:
                each.flags.writeable = False  # constant, as a peer's are
            rest = [operand for operand, kind in zip(operands, kinds, strict=True) if kind == "tensor"]
            layer = Prepared(case.pipeline, own)

            def run_prepared() -> Any:
                with num_threads(case.threads):
                    return layer(x, *rest, out=y)

            return Ready(run_prepared, lambda _: out)

        def run() -> Any:
            with num_threads(case.threads):
                return case.pipeline(x, *operands, out=y, **self.options)

        return Ready(run, lambda _: out)


def _prepare_step(case: Case, arrays: Arrays) -> Ready:
    """In training we are PyTorch's operators."""
    try:
        import torch
    except ModuleNotFoundError:
        raise NotInstalledError("training needs torch") from None
    from ..training import ours, prepare_step

    torch.set_num_threads(case.threads)
    ready = prepare_step(case, arrays, ours(case))

    def run() -> Any:
        with num_threads(case.threads):
            return ready.run()

    return replace(ready, run=run)


def _public(case: Case, array: Storage) -> Any:
    """The array as a caller holds it: bfloat16 has a numpy type only with ml_dtypes."""
    if case.dtype.name != "bfloat16":
        return array
    try:
        import ml_dtypes
    except ModuleNotFoundError:
        raise UnsupportedError("bfloat16 in numpy needs ml_dtypes") from None
    return array.view(ml_dtypes.bfloat16)
