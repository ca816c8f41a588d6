"""On a machine with an NVIDIA GPU: runs the GPU tests there, then times the five operators beside PyTorch, whatever the
tests said, and writes one JSON file and one page, which are all that a report needs.

    python tools/gpu_here.py [--quick] [--output gpu_here]

Peers are eager PyTorch and torch.compile (max-autotune), contiguous and channels_last_3d. float32 has three settings of
PyTorch: TensorFloat32 forbidden; its default, where cuDNN may use it and convt3d keeps float32's accuracy; allowed
everywhere. Each contender is timed once its result agrees with eager PyTorch in IEEE float32 on the same numbers; one
that fails, or is wrong, is a row that says so. Each operator and type has a process of its own, and peers come first in
it: a fault of the device in one leaves the others. Times are medians; the roofline is that of the data sheet, for GPUs
in tests/gpu_proof/limits.py. Without a GPU it says so, writes nothing and ends well. Exit code 1: a test failed, or one
of convt3d's results was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
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
CLOSE_TF32 = 1e-2
# Of PyTorch: whether TensorFloat32 is allowed in matrix products, and in convolutions.
SETTINGS = {"TF32 off": (False, False), "default": (False, True), "TF32 on": (True, True)}
OURS = "convt3d"
HOURS = 2  # after which tests, or a process that times, are given up
Timer = Callable[[Callable[[], Any]], float]  # milliseconds
Row = dict[str, Any]


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one sample of each operator")
    parser.add_argument("--output", default="gpu_here", metavar="NAME", help="of NAME.json and NAME.md")
    parser.add_argument("--only", nargs=2, metavar=("SLUG", "TYPE"), help="print a line of JSON for each row, no more")
    args = parser.parse_args(given)
    import torch

    if not torch.cuda.is_available():
        print("skipped: PyTorch finds no CUDA device here, so nothing was run and nothing is known")
        return 0
    if args.only:
        from triton.testing import do_bench

        slug, dtype = args.only
        values = {**PROBLEMS[slug].benchmark, "batch_size": 1} if args.quick else PROBLEMS[slug].benchmark
        for row in measure(PROBLEMS[slug], values, dtype, "cuda", lambda call: do_bench(call, return_mode="median")):
            print(json.dumps(row), flush=True)
        return 0
    report = {"device": device_facts(), "tests": run_tests(TESTS), "quick": args.quick, "rows": []}
    for slug in PROBLEMS:
        for dtype in CLOSE:
            command = [sys.executable, __file__, "--only", slug, dtype, *(["--quick"] if args.quick else [])]
            report["rows"] += rows_of(command, slug, dtype)
            write(report, args.output)  # what is known stays known if this process ends
            print(f"{slug}, {dtype}: timed", flush=True)
    print(page(report))
    print(f"\nwrote {args.output}.json and {args.output}.md: please send both")
    return 0 if good(report) else 1


def rows_of(command: Sequence[str], slug: str, dtype: str) -> list[Row]:
    """That a process prints; and one of convt3d's that says how it ended, if not well."""
    code, out, err = _ended(command)
    rows: list[Row] = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    if code:
        row: Row = {"operator": slug, "type": dtype, "contender": f"{OURS}, process", "setting": "default"}
        rows.append({**row, "failed": f"ended with code {code}: {err[-300:]}"})
    return rows


def _ended(command: Sequence[str], **options: Any) -> tuple[int, str, str]:
    """Of a process: its exit code and what it printed, also if it was given up."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, check=False, capture_output=True, timeout=3600 * HOURS, text=True, **options
        )
    except subprocess.TimeoutExpired as late:
        out = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        return 124, out, f"it had not ended after {HOURS} hours"
    return done.returncode, done.stdout, done.stderr


def device_facts() -> dict[str, Any]:
    import torch

    facts = torch.cuda.get_device_properties(0)
    known: dict[str, Any] = {"name": facts.name, "multiprocessors": facts.multi_processor_count}
    known |= {"memory": facts.total_memory, "capability": f"{facts.major}.{facts.minor}"}
    known |= {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    for package in ("triton", "convt3d"):
        try:
            known[package] = version(package)
        except PackageNotFoundError:
            known[package] = "?"
    return known


def run_tests(files: Sequence[str]) -> dict[str, Any]:
    """pytest's exit code, its summary line and which tests failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-rf", *files]
    code, out, err = _ended(command, env={**os.environ, "TRITON_INTERPRET": "0"})
    print(out)
    lines = out.splitlines() or [err[-500:]]
    failed = [line.removeprefix("FAILED ") for line in lines if line.startswith("FAILED ")]
    return {"code": code, "summary": lines[-1] if code != 124 else err, "failed": failed}


def measure(problem: Problem, values: Mapping[str, Any], dtype: str, device: str, timer: Timer) -> Iterator[Row]:
    """A row for each contender: milliseconds and error, or what went wrong."""
    import torch

    from convt3d.torch.stock import function_of

    pipeline = problem.pipeline(values)
    x, operands = _arrays(problem, values, dtype, device)
    eager = function_of(pipeline)
    with torch.inference_mode(), _set("TF32 off"):
        expected = eager(x.float(), [operand.float() for operand in operands])
    for name, setting, call in _contenders(pipeline, eager, x, operands, dtype):
        row: Row = {"operator": problem.slug, "type": dtype, "contender": name, "setting": setting}
        rounded = setting == "TF32 on" or (setting == "default" and not name.startswith(OURS))
        try:
            with torch.inference_mode(), _set(setting):
                row["error"] = error_of(call(), expected)
                if row["error"] <= (CLOSE_TF32 if rounded and dtype == "float32" else CLOSE[dtype]):
                    row["ms"] = float(timer(call))
                else:
                    row["failed"] = "its result is wrong"
        except Exception as failure:  # a contender that fails must not hide the others
            row["failed"] = f"{type(failure).__name__}: {str(failure)[:300]}"
        yield _rated(row, problem, values)


def _arrays(problem: Problem, values: Mapping[str, Any], dtype: str, device: str) -> tuple[Any, list[Any]]:
    import torch

    shapes, generator = problem.shapes(values), torch.Generator(device).manual_seed(0)

    def drawn(name: str) -> Any:
        tensor = torch.randn(shapes[name], generator=generator, device=device, dtype=torch.float32)
        scale = shapes["kernel"][0] ** -0.5 if name == "kernel" else 1.0
        tensor = (tensor * scale).to(getattr(torch, dtype))
        return tensor.reshape(-1) if name == "scale" else tensor

    return drawn("input"), [drawn(name) for name in problem.operand_names]


def _contenders(
    pipeline: Any, eager: Any, x: Any, operands: list[Any], dtype: str
) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    import torch

    import convt3d.torch
    from convt3d.torch.gpu import on_gpu

    last = torch.channels_last_3d
    x_last = x.to(memory_format=last)
    operands_last = [w.to(memory_format=last) if w.dim() == 5 else w for w in operands]
    compiled = torch.compile(eager, mode="max-autotune", dynamic=False)

    def tuned() -> Any:
        with convt3d.torch.autotune():
            return on_gpu(pipeline, x, operands)

    for setting in SETTINGS if dtype == "float32" else ("default",):
        yield "eager", setting, lambda: eager(x, operands)
        yield "eager, channels last", setting, lambda: eager(x_last, operands_last)
        yield "torch.compile", setting, lambda: compiled(x, operands)
        yield "torch.compile, channels last", setting, lambda: compiled(x_last, operands_last)
        yield OURS, setting, lambda: on_gpu(pipeline, x, operands)
        yield f"{OURS}, tuned", setting, tuned
        yield f"{OURS}, channels last", setting, lambda: on_gpu(pipeline, x_last, operands_last)


@contextmanager
def _set(setting: str) -> Iterator[None]:
    import torch

    places = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [place.allow_tf32 for place in places]
    try:
        for place, allowed in zip(places, SETTINGS[setting], strict=True):
            place.allow_tf32 = allowed
        yield
    finally:
        for place, old in zip(places, before, strict=True):
            place.allow_tf32 = old


def error_of(got: Any, expected: Any) -> float:
    """The largest difference over the largest number; infinite where one is NaN."""
    error = float((got.double() - expected.double()).abs().max() / expected.double().abs().max())
    return error if error == error else float("inf")


def _rated(row: Row, problem: Problem, values: Mapping[str, Any]) -> Row:
    """With operations a second of those that the result needs."""
    if "ms" in row:
        shapes, pipeline = problem.shapes(values), problem.pipeline(values)
        trace = pipeline.trace(shapes["input"], [shapes[name] for name in problem.operand_names])
        row["flop"] = count(pipeline, trace).needed
        row["bytes"] = sum(prod(shape) for shape in shapes.values()) * (4 if row["type"] == "float32" else 2)
        row["tflops"] = row["flop"] / row["ms"] / 1e9
    return row


def good(report: Mapping[str, Any]) -> bool:
    ours = [row for row in report["rows"] if row["contender"].startswith(OURS)]
    return report["tests"]["code"] == 0 and not any("failed" in row for row in ours)


def write(report: Mapping[str, Any], name: str) -> None:
    Path(f"{name}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    Path(f"{name}.md").write_text(page(report), encoding="utf-8")


def page(report: Mapping[str, Any]) -> str:
    """For people: the verdict, the machine, a table for each operator and type."""
    facts, tests = report["device"], report["tests"]
    sheet = next((device for device in DEVICES if device.name in facts["name"]), None)
    lines = [
        f"# convt3d on {facts['name']}",
        "",
        f"- tests: {tests['summary']}",
        *(f"  - failed: {name}" for name in tests["failed"]),
        f"- {', '.join(f'{name} {value}' for name, value in facts.items() if name != 'name')}",
        *(["- one sample of each operator only"] if report["quick"] else []),
        "- ms: median; ratio: time over that of the fastest contender of convt3d with the same setting, above 1 is"
        " slower than convt3d; error: the largest, over the largest number, against eager IEEE float32",
        "- float32, default: cuDNN may round factors to TensorFloat32, convt3d does not (see the errors); TF32 off:"
        " both multiply in IEEE float32",
        "",
    ]
    for table in dict.fromkeys(map(_table, report["rows"])):
        own = [row for row in report["rows"] if _table(row) == table]
        lines += [f"## {table}", ""]
        lines += ["| contender | ms | ratio | needed TFLOP/s | of roofline | error |", "|---|---|---|---|---|---|"]
        lines += [_line(row, own, sheet) for row in own] + [""]
    return "\n".join(lines)


def _table(row: Row) -> str:
    return f"{row['operator']}, {row['type']}" + (f", {row['setting']}" if row["type"] == "float32" else "")


def _line(row: Row, beside: Sequence[Row], sheet: Device | None) -> str:
    error = f"{row['error']:.2g}" if "error" in row else "-"
    if "ms" not in row:
        return f"| {row['contender']} | {' '.join(row['failed'].split())} | - | - | - | {error} |"
    best = min((one["ms"] for one in beside if one["contender"].startswith(OURS) and "ms" in one), default=None)
    ratio = f"{row['ms'] / best:.2f}" if best else "-"
    share = "-"
    if sheet is not None:
        kind = row["type"]
        if kind == "float32":
            kind = {"TF32 off": "ieee", "TF32 on": "tf32"}.get(
                row["setting"], "float32" if row["contender"].startswith(OURS) else "tf32"
            )
        share = f"{max(sheet.seconds(row['flop'], kind, row['bytes'])) * 1e3 / row['ms']:.0%}"
    return f"| {row['contender']} | {row['ms']:.3f} | {ratio} | {row['tflops']:.1f} | {share} | {error} |"


if __name__ == "__main__":
    sys.exit(main())
