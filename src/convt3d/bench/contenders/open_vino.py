"""OpenVINO on the CPU: one infer request whose tensors share memory with the arrays. float32 stays float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino

from ..cases import Arrays, Case
from .as_onnx import onnx_model
from .base import Ready, UnsupportedError


def contender(name: str) -> OpenVino:
    return OpenVino()


class OpenVino:
    def prepare(self, case: Case, arrays: Arrays) -> Ready:
        if case.dtype.name == "float64":
            raise UnsupportedError("it computes float64 in float32")
        model = onnx_model(case, arrays)
        core = openvino.Core()
        settings = {
            "INFERENCE_NUM_THREADS": str(case.threads),
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_PRECISION_HINT": "f16" if case.dtype.name == "float16" else "f32",  # not bfloat16, its default
        }
        compiled = core.compile_model(core.read_model(model.content), "CPU", settings)
        request = compiled.create_infer_request()
        for name, array in model.inputs.items():
            request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
        out = np.full(case.output, np.nan, case.dtype.storage)
        request.set_tensor("y", openvino.Tensor(out, shared_memory=True))

        def run(bound: Any = (model.inputs, out)) -> Any:  # the request knows addresses only: these must live as long
            request.infer()

        return Ready(run, lambda _: out)
