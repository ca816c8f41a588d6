"""ONNX Runtime on the CPU, with inputs and result bound to memory that is reused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime

from ...spec.stages import ConvTranspose3d
from ..cases import Arrays, Case
from .as_onnx import onnx_model
from .base import Ready, UnsupportedError


def contender(name: str) -> OnnxRuntime:
    return OnnxRuntime()


class OnnxRuntime:
    def prepare(self, case: Case, arrays: Arrays) -> Ready:
        conv = case.pipeline.conv
        if isinstance(conv, ConvTranspose3d) and any(
            e >= s for e, s in zip(conv.triples[2], conv.triples[0], strict=True)
        ):
            raise UnsupportedError("its output_padding must be smaller than the stride, whatever the dilation")
        model = onnx_model(case, arrays)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = case.threads
        options.log_severity_level = 4
        try:
            session = onnxruntime.InferenceSession(model.content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its own family of exceptions is not public
            if "NotImplemented" in type(error).__name__:
                raise UnsupportedError(str(error).splitlines()[0]) from None
            raise
        out = np.full(case.output, np.nan, case.dtype.storage)
        binding = session.io_binding()
        for name, array in model.inputs.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("y", "cpu", 0, out.dtype, out.shape, out.ctypes.data)

        def run(bound: Any = (model.inputs, out)) -> Any:  # the session knows addresses only: these must live as long
            session.run_with_iobinding(binding)

        return Ready(run, lambda _: out)
