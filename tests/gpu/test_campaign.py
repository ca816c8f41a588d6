"""The five operators in every type and precision, with groups, at every kind of border, against the float64 meaning: by
the interpreter, on a GPU, or, as `test_ptx.py` runs it, as compiled code for sm_80 and sm_90."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", "3.4")
from helpers.gpu import gpu_case  # noqa: E402

from convt3d.gpu.plan import gpu_plan  # noqa: E402
from convt3d.spec.pipeline import Pipeline  # noqa: E402
from convt3d.spec.problems import PROBLEMS  # noqa: E402
from convt3d.spec.stages import ConvTranspose3d  # noqa: E402

pytestmark = pytest.mark.exhaustive
WAYS = {"float32": "bf16x6", "ieee": "ieee", "float64": "ieee", "float16": "ieee", "bfloat16": "ieee"}
GROUPS = {"dense": (1, 16, 6), "groups": (2, 16, 3), "depthwise": (8, 8, 1)}  # groups, inputs, outputs of a group
# Stride, padding, output_padding, kernel.
BORDERS = {
    "none": ((2, 2, 2), (0, 0, 0), (0, 0, 0), (3, 3, 3)),
    "both sides": ((2, 1, 3), (1, 1, 1), (1, 0, 2), (3, 4, 5)),
    "inputs cut off": ((2, 2, 1), (3, 2, 2), (0, 1, 0), (4, 3, 3)),
    "outputs without taps": ((3, 2, 2), (0, 0, 0), (2, 1, 0), (1, 2, 1)),
}
# Along an axis: a pool's window before the convolution, and behind it.
POOLS = {
    "conv-transpose3d-max-max-sum": (1, 6),
    "conv-transpose3d-sum-layernorm-avgpool-gelu": (1, 2),
    "conv-transpose3d-avgpool-clamp-softmax-multiply": (2, 1),
}


def least(outputs: int, stride: int, padding: int, extra: int, taps: int) -> int:
    """Inputs, two at least, of which a transposed convolution makes so many outputs."""
    return max(2, -(-(outputs + 2 * padding - taps - extra) // stride) + 1)


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("slug", PROBLEMS)
def test_an_operator(slug: str, kind: str, groups: str, border: str) -> None:
    problem, dtype = PROBLEMS[slug], "float32" if kind == "ieee" else kind
    (stride, padding, extra, taps), (count, inputs, outputs) = BORDERS[border], GROUPS[groups]
    pipeline = problem.pipeline(problem.sample)
    conv = pipeline.conv
    assert isinstance(conv, ConvTranspose3d)
    conv = replace(conv, stride=stride, padding=padding, output_padding=extra, dilation=1, groups=count)
    pipeline = Pipeline(*(conv if at == pipeline.conv_index else stage for at, stage in enumerate(pipeline.stages)))
    before, behind = POOLS.get(slug, (1, 1))
    d, h, w = (least(behind, *axis) * before for axis in zip(stride, padding, extra, taps, strict=True))
    case = gpu_case(pipeline, (2, inputs, d, h, w + 1), (inputs, outputs, *taps), dtype)
    shapes = case.x.shape, tuple(one.shape for one in case.operands)
    plan = gpu_plan(pipeline, *shapes, case.dtype, precision=WAYS[kind])
    kinds = {"dense": "dot", "groups": "dot", "depthwise": "depthwise"}
    assert {kernel.kind for kernel in plan.kernels if kernel.piece.conv is not None} - {"plain"} == {kinds[groups]}
    case.options = {"precision": WAYS[kind]}
    case.check()
