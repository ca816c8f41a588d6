"""A user's program for type checkers: the same kind of array comes out, and what is wrong is said before it runs.

Lines that are marked must be refused: a mark that is not needed is an error, too. `make lint` and tests/test_types.py
check this file; nothing runs it.
"""
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import convt3d

x: npt.NDArray[np.float32] = np.ones((1, 8, 3, 4, 5), np.float32)
w: npt.NDArray[np.float32] = np.ones((8, 4, 2, 2, 2), np.float32)
v: npt.NDArray[np.float32] = np.ones(4, np.float32)
t = torch.ones(1, 8, 3, 4, 5)

# --- what comes out ---------------------------------------------------------------------------------------------------

y: npt.NDArray[np.float32] = convt3d.conv_transpose3d(x, w, v, stride=2, padding=(0, 1, 0))
k: npt.NDArray[np.float32] = convt3d.conv3d(x, w, v, padding="same", padding_mode="reflect")
z: npt.NDArray[np.float32] = convt3d.conv_transpose3d_avgpool_clamp_softmax_multiply(x, w, v, clamp_min=None, out=y)
u: torch.Tensor = convt3d.conv_transpose3d(t, torch.ones(8, 4, 2, 2, 2), groups=1)
norm = convt3d.GroupNorm(2, affine=True)
pipe = convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2, bias=True), norm, convt3d.MaxPool3d(2), convt3d.Add("tensor"))
a: npt.NDArray[np.float32] = pipe(x, w, v, groupnorm_weight=v, groupnorm_bias=v, add_other=y)
text: str = pipe.explain(x.shape, w.shape, "bfloat16")
names: tuple[str, ...] = pipe.operand_names
with convt3d.num_threads(2):
    count: int = convt3d.get_num_threads()
try:
    convt3d.problems["max-max-sum"].solution(x, w)
except convt3d.Error as error:
    parts: tuple[str, str, Any] = error.operator, error.argument, error.received

# --- what is refused --------------------------------------------------------------------------------------------------

other: npt.NDArray[np.float64] = convt3d.conv_transpose3d(x, w)  # type: ignore[arg-type]
convt3d.conv_transpose3d([1.0], w)  # type: ignore[type-var]
convt3d.conv_transpose3d(x, w, strides=2)  # type: ignore[call-arg]
convt3d.conv_transpose3d(x, w, stride="2")  # type: ignore[arg-type]
convt3d.conv3d(x, w, padding="full")  # type: ignore[arg-type]
convt3d.ConvTranspose3d(4, 2, 2)  # type: ignore[call-arg]
convt3d.GroupNorm(4, 16)  # type: ignore[call-arg]
convt3d.BatchNorm(16)  # type: ignore[call-arg]
convt3d.Softplus(beta="1")  # type: ignore[arg-type]
convt3d.Pipeline([convt3d.ReLU()])  # type: ignore[arg-type]
norm.num_groups = 3  # type: ignore[misc]
