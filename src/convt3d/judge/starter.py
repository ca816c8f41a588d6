"""Files to start from: the problem's signature in each language, the sizes of the output, and a body that fills it with
zeros. They compile and run; what they lack is the computation."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from ..spec.problem_file import SIZE, TENSOR
from ..spec.problems import Problem
from ..spec.stages import AvgPool3d, MaxPool3d, Sum

Sizes = tuple[str, str, str, str]  # channels, depth, height, width as expressions of the parameters

ABOUT = """\
convt3d problem: {slug}
{title}: `convt3d show {slug}` prints what it computes.
`convt3d sample FILE` runs it on a tiny case, `convt3d check FILE` judges it, `convt3d bench FILE` times it."""

C_TYPES = """\
#ifndef CONVT3D_REAL /* the judge compiles once for each --dtype, and says here which */
#define CONVT3D_REAL float
#define CONVT3D_SUM float
#endif
typedef CONVT3D_REAL real; /* of the arrays */
typedef CONVT3D_SUM sum_t; /* of sums: float for the 16-bit types */
"""

C_BODY = """\
{{
    const size_t out_channels_ = {channels};
    const size_t out_depth = {depth};
    const size_t out_height = {height};
    const size_t out_width = {width};
    const size_t voxels = batch_size * out_channels_ * out_depth * out_height * out_width;
    for (size_t at = 0; at < voxels; ++at) {{
        sum_t sum = 0; /* the computation of one voxel goes here */
        output[at] = (real)sum;
    }}
}}
"""

CUDA = """\
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stddef.h>

{types}
__global__ void fill(real* output, size_t voxels)
{{
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < voxels) {{
        sum_t sum = 0; /* the computation of one voxel goes here */
        output[at] = (real)sum;
    }}
}}

/* All pointers are of the device. */
extern "C" {signature}
{{
    const size_t voxels = batch_size * ({channels}) * ({depth}) * ({height}) * ({width});
    fill<<<(unsigned)((voxels + 255) / 256), 256>>>(output, voxels);
    cudaDeviceSynchronize();
}}
"""

PYTHON = """\
import numpy as np


{signature}
    # numpy arrays; `import torch` in this file and they are torch CPU tensors. bfloat16 is that of ml_dtypes.
    out_channels_ = {channels}
    out_depth = {depth}
    out_height = {height}
    out_width = {width}
    result = np.zeros((batch_size, out_channels_, out_depth, out_height, out_width))  # the computation goes here
    output[...] = result
"""

TRITON = """\
import triton
import triton.language as tl


@triton.jit
def fill(output, voxels, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)  # the computation of these voxels goes here
    tl.store(output + at, total.to(output.dtype.element_ty), mask=at < voxels)


{signature}
    # torch tensors; without a GPU the judge runs this through Triton's interpreter (TRITON_INTERPRET=1).
    out_channels_ = {channels}
    out_depth = {depth}
    out_height = {height}
    out_width = {width}
    voxels = batch_size * out_channels_ * out_depth * out_height * out_width
    fill[(triton.cdiv(voxels, 256),)](output, voxels, BLOCK=256)
"""


def starter(problem: Problem, language: str) -> str:
    return _LANGUAGES[language][1](problem)


def file_name(problem: Problem, language: str) -> str:
    return problem.slug.replace("-", "_") + _LANGUAGES[language][0]


def output_sizes(problem: Problem, divide: str) -> Sizes:
    """The output's axes after the batch; `divide` is the language's sign for whole division."""
    pipeline = problem.pipeline(problem.benchmark)
    before, after = pipeline.stages[: pipeline.conv_index], pipeline.stages[pipeline.conv_index + 1 :]
    window = prod(stage.triples[0][0] for stage in after if isinstance(stage, (MaxPool3d, AvgPool3d)))
    channels = "1" if any(isinstance(stage, Sum) for stage in after) else "out_channels"
    sizes = []
    for name, axis in (("depth", "d"), ("height", "h"), ("width", "w")):
        entering = f"({name} {divide} pool_kernel - 1)" if before else f"({name} - 1)"
        dilated = f"dilation_{axis} * " if "dilation_d" in problem.sample else ""
        extra = f" + output_padding_{axis}" if "output_padding_d" in problem.sample else ""
        # + before -: the sizes are unsigned in C
        out = f"{entering} * stride_{axis} + {dilated}(kernel_{axis} - 1){extra} + 1 - 2 * padding_{axis}"
        sizes.append(out if window == 1 else f"({out}) {divide} {window}")
    return channels, *sizes  # type: ignore[return-value]


def _sizes(problem: Problem, divide: str) -> dict[str, str]:
    return dict(zip(("channels", "depth", "height", "width"), output_sizes(problem, divide), strict=True))


def comment(problem: Problem, sign: str) -> str:
    lines = ABOUT.format(slug=problem.slug, title=problem.title).splitlines()
    return "".join(f"{sign} {line}\n" for line in lines)


def c_signature(problem: Problem) -> str:
    def declared(kind: str, const: bool) -> str:
        return f"{'const ' * const}real*" if kind == TENSOR else kind

    parts = [f"    {declared(p.type, p.const)} {p.name}" for p in problem.parameters]
    return "void solution(\n" + ",\n".join(parts) + ")"


def python_signature(problem: Problem) -> str:
    kinds = {SIZE: ": int", TENSOR: "", "double": ": float"}
    parts = [f"    {p.name}{kinds[p.type]}," for p in problem.parameters]
    return "def solution(\n" + "\n".join(parts) + "\n):"


def _c(problem: Problem, export: str = "") -> str:
    includes = (
        "#include <math.h>\n#include <stddef.h>\n\n" if not export else "#include <cmath>\n#include <cstddef>\n\n"
    )
    body = C_BODY.format(**_sizes(problem, "/"))
    return f"{comment(problem, '//')}{includes}{C_TYPES}\n{export}{c_signature(problem)}\n{body}"


def _cuda(problem: Problem) -> str:
    text = CUDA.format(types=C_TYPES, signature=c_signature(problem), **_sizes(problem, "/"))
    return comment(problem, "//") + text


def _python(template: str) -> Callable[[Problem], str]:
    def text(problem: Problem) -> str:
        filled = template.format(signature=python_signature(problem), **_sizes(problem, "//"))
        return comment(problem, "#") + filled

    return text


_LANGUAGES: dict[str, tuple[str, Callable[[Problem], str]]] = {
    "python": (".py", _python(PYTHON)),
    "triton": ("_triton.py", _python(TRITON)),
    "c": (".c", _c),
    "cpp": (".cpp", lambda problem: _c(problem, 'extern "C" ')),
    "cuda": (".cu", _cuda),
}
LANGUAGES = tuple(_LANGUAGES)
