"""On a machine with an NVIDIA GPU: runs the GPU tests there, then times the five operators beside eager PyTorch.

    python tools/gpu_here.py [--quick]

Without a GPU it says so, does nothing and ends well. Results are compared before they are timed. TF32 is off, so that
all contenders multiply float32 exactly; times are medians; the roofline is that of the data sheet, for GPUs in
tests/gpu_proof/limits.py.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from gpu_proof.limits import DEVICES, Device  # noqa: E402

from convt3d.spec.problems import PROBLEMS, Problem  # noqa: E402
from convt3d.spec.work import count  # noqa: E402

TESTS = ("tests/gpu/test_kernels.py", "tests/torch_front/test_cuda.py")
CLOSE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 8e-2}  # of the largest number in the result
Timer = Callable[[Callable[[], Any]], float]  # milliseconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one sample of each operator")
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("skipped: PyTorch finds no CUDA device here, so nothing was run and nothing is known")
        return 0
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    tested = subprocess.run([sys.executable, "-m", "pytest", "-q", *TESTS], cwd=ROOT, env=environment, check=False)
    if tested.returncode:
        print("tests failed on this GPU: nothing is timed")
        return tested.returncode
    from triton.testing import do_bench

    name = torch.cuda.get_device_name()
    sheet = next((device for device in DEVICES if device.name in name), None)
    print(
        f"\n{name}, torch {torch.__version__}; milliseconds, and the time of the fastest eager over the faster of ours"
    )
    print("| operator | type | convt3d | tuned | eager | eager ch.last | ratio | needed TFLOP/s | of roofline |")
    print("|---|---|---|---|---|---|---|---|---|")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for problem in PROBLEMS.values():
        values = {**problem.benchmark, "batch_size": 1} if args.quick else problem.benchmark
        for dtype in CLOSE:
            times = measure(problem, values, dtype, "cuda", lambda call: float(do_bench(call, return_mode="median")))
            print(row(problem, values, dtype, times, sheet), flush=True)
    return 0


def measure(problem: Problem, values: Mapping[str, Any], dtype: str, device: str, timer: Timer) -> dict[str, float]:
    """Milliseconds of each contender, whose results agree."""
    import torch

    import convt3d.torch
    from convt3d.torch.gpu import on_gpu
    from convt3d.torch.stock import function_of

    shapes, pipeline = problem.shapes(values), problem.pipeline(values)
    generator = torch.Generator(device).manual_seed(0)
    kind = getattr(torch, dtype)

    def drawn(name: str) -> Any:
        tensor = torch.randn(shapes[name], generator=generator, device=device, dtype=torch.float32)
        scale = shapes["kernel"][0] ** -0.5 if name == "kernel" else 1.0
        tensor = (tensor * scale).to(kind)
        return tensor.reshape(-1) if name == "scale" else tensor

    x, operands = drawn("input"), [drawn(name) for name in problem.operand_names]
    last = torch.channels_last_3d
    x_last, operands_last = (
        x.to(memory_format=last),
        [w.to(memory_format=last) if w.dim() == 5 else w for w in operands],
    )
    eager = function_of(pipeline)
    with torch.inference_mode():
        check(problem.slug, on_gpu(pipeline, x, operands), eager(x, operands), CLOSE[dtype])
        times = {
            "convt3d": timer(lambda: on_gpu(pipeline, x, operands)),
            "eager": timer(lambda: eager(x, operands)),
            "eager ch.last": timer(lambda: eager(x_last, operands_last)),
        }
        with convt3d.torch.autotune():
            check(problem.slug, on_gpu(pipeline, x, operands), eager(x, operands), CLOSE[dtype])
        times["tuned"] = timer(lambda: on_gpu(pipeline, x, operands))
    return times


def check(slug: str, got: Any, expected: Any, close: float) -> None:
    largest = float(expected.double().abs().max())
    error = float((got.double() - expected.double()).abs().max())
    if not error <= close * largest:
        raise SystemExit(f"{slug}: results differ by {error:.3g}, the largest is {largest:.3g}; nothing more is timed")


def row(
    problem: Problem, values: Mapping[str, Any], dtype: str, times: Mapping[str, float], sheet: Device | None
) -> str:
    shapes, pipeline = problem.shapes(values), problem.pipeline(values)
    trace = pipeline.trace(shapes["input"], [shapes[name] for name in problem.operand_names])
    flop = count(pipeline, trace).needed
    ours, theirs = min(times["convt3d"], times["tuned"]), min(times["eager"], times["eager ch.last"])
    share = "-"
    if sheet is not None:
        moved = sum(prod(shape) for shape in shapes.values()) * (4 if dtype == "float32" else 2)
        share = f"{max(sheet.seconds(flop, dtype, moved)) * 1e3 / ours:.0%}"
    columns = [f"{times[name]:.3f}" for name in ("convt3d", "tuned", "eager", "eager ch.last")]
    rate = f"{flop / ours / 1e9:.1f}"
    return "| " + " | ".join([problem.slug, dtype, *columns, f"{theirs / ours:.2f}", rate, share]) + " |"


if __name__ == "__main__":
    sys.exit(main())
