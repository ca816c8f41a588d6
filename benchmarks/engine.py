"""How fast the CPU engine is, beside the FLOP rate of this machine and beside PyTorch, all in one run.

    python benchmarks/engine.py            # the operators at 1/8 batch, layers of real networks, AVX2, latency
    python benchmarks/engine.py --full     # the operators at their full shapes
    python benchmarks/engine.py --json     # the same figures for a program

Contenders take turns within a round, so that a slow moment of a shared machine meets all of them; figures are medians
over rounds. Every result is checked against the float64 meaning before it is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Idle threads of the other libraries must sleep while somebody else is timed.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

import numpy as np

import convt3d
from convt3d.cli.terminal import Progress, Screen
from convt3d.front.verify import sampled_check
from convt3d.plan.cores import get_num_threads
from convt3d.plan.plan import make_plan
from convt3d.spec.dtypes import DTYPES

F32 = DTYPES["float32"]
PAUSE = 0.05  # seconds between contenders: threads that still spin go to sleep


@dataclass
class Case:
    name: str
    pipeline: convt3d.Pipeline
    x: Any
    operands: tuple[Any, ...]
    peers: dict[str, Callable[[], Any]]


def seeds(full: bool, rng: np.random.Generator) -> list[Case]:
    """The five operators at their benchmark shapes, or at an eighth of the batch."""
    cases = []
    for slug, problem in convt3d.problems.items():
        values = dict(problem.benchmark)
        values["batch_size"] = values["batch_size"] if full else max(1, values["batch_size"] // 8)
        arrays = {name: F32.narrow(array) for name, array in problem.make_inputs(values, rng).items()}
        operands = tuple(
            arrays[name].reshape(-1) if arrays[name].shape[0] == 1 else arrays[name] for name in problem.operand_names
        )
        pipeline = convt3d.Pipeline(*problem.pipeline(values).stages)
        short = slug.removeprefix("conv-transpose3d-").removeprefix("conv-transpose-3d-")
        peers = {} if full else torch_operators(slug, values, arrays)
        cases.append(Case(short, pipeline, arrays["input"], operands, peers))
    return cases


# name, batch, Cin, Cout, (D, H, W), kernel, stride, padding, output_padding, groups
LAYERS = [
    ("k2 s2 320->320 @8x10x12", 1, 320, 320, (8, 10, 12), 2, 2, 0, 0, 1),
    ("k3 s2 64->32 @24x32x64", 1, 64, 32, (24, 32, 64), 3, 2, 1, 1, 1),
    ("k4 s2 256->128 @8x8x8", 1, 256, 128, (8, 8, 8), 4, 2, 1, 0, 1),
    ("depthwise k3 s2 64 @32^3", 1, 64, 1, (32, 32, 32), 3, 2, 1, 1, 64),
    ("k3 s2 3->16 @16x32x32", 1, 3, 16, (16, 32, 32), 3, 2, 1, 1, 1),
    ("k3 s2 3->16 @16x32x32 b32", 32, 3, 16, (16, 32, 32), 3, 2, 1, 1, 1),
    ("k4 s2 256->128 @8x8x8 b32", 32, 256, 128, (8, 8, 8), 4, 2, 1, 0, 1),
]


def layers(rng: np.random.Generator) -> list[Case]:
    """Convolutions of real networks, beside PyTorch in both memory layouts."""
    cases = []
    for name, batch, cin, cout, volume, kernel, stride, padding, extra, groups in LAYERS:
        x = rng.standard_normal((batch, cin, *volume), dtype=np.float32)
        w = rng.standard_normal((cin, cout, kernel, kernel, kernel), dtype=np.float32) / np.float32(cin * 8) ** 0.5
        pipeline = convt3d.Pipeline(convt3d.ConvTranspose3d(stride, padding, extra, groups))
        cases.append(Case(name, pipeline, x, (w,), torch_peers(x, w, (stride, padding, extra, groups))))
    return cases


def torch_peers(x: Any, w: Any, parameters: tuple[int, ...]) -> dict[str, Callable[[], Any]]:
    stride, padding, extra, groups = parameters

    def conv(torch: Any, x: Any, w: Any) -> Any:
        return torch.nn.functional.conv_transpose3d(x, w, None, stride, padding, extra, groups)

    return in_both_layouts(conv, (x, w))


def torch_operators(slug: str, values: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """One of the five operators as a PyTorch user writes it."""

    def triple(name: str, default: int) -> tuple[int, ...]:
        return tuple(values.get(f"{name}_{axis}", default) for axis in "dhw")

    geometry = triple("stride", 1), triple("padding", 0), triple("output_padding", 0), values.get("groups", 1)

    def operator(torch: Any, x: Any, w: Any, other: Any = None) -> Any:
        f = torch.nn.functional
        if "avgpool-clamp" in slug:
            x = f.avg_pool3d(x, values["pool_kernel"])
        bias = other if "max-max" in slug else None
        y = f.conv_transpose3d(x, w, bias, *geometry, triple("dilation", 1))
        if "max-max" in slug:
            return f.max_pool3d(f.max_pool3d(y, 2), 3).sum(1, keepdim=True)
        if "avgpool-clamp" in slug:
            y = y.clamp(values["clamp_min"], values["clamp_max"])
            return y.flatten(2).softmax(2).view(y.shape) * other
        if "layernorm" in slug:
            y = y + values["sum_weight"] if "sum_weight" in values else y
            y = f.layer_norm(y.movedim(1, -1), (y.shape[1],)).movedim(-1, 1)
            y = f.avg_pool3d(y, 2) if "avgpool" in slug else y
            return f.gelu(y) * values.get("scaling_factor", 1.0)
        return y

    return in_both_layouts(operator, tuple(arrays.values()))


def in_both_layouts(function: Callable[..., Any], arrays: tuple[Any, ...]) -> dict[str, Callable[[], Any]]:
    """The function on torch tensors, contiguous and channels_last_3d; nothing where torch is missing."""
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(get_num_threads())
    peers = {}
    for name, layout in (("torch", torch.contiguous_format), ("torch channels_last", torch.channels_last_3d)):
        given = [torch.from_numpy(array) for array in arrays]
        tensors = [tensor.contiguous(memory_format=layout) if tensor.ndim == 5 else tensor for tensor in given]

        def run(tensors: list[Any] = tensors) -> Any:
            with torch.inference_mode():
                return function(torch, *tensors)

        peers[name] = run
    return peers


def sgemm_rate() -> Callable[[], float]:
    """GFLOP/s of numpy's matrix product: the usual measure of what this machine can do."""
    n = 2048
    a, b = (np.random.default_rng(0).standard_normal((n, n), dtype=np.float32) for _ in range(2))
    out = np.empty_like(a)

    def rate() -> float:
        start = time.perf_counter()
        np.matmul(a, b, out=out)
        return float(2 * n**3 / (time.perf_counter() - start) / 1e9)

    return rate


def run_case(case: Case, rounds: int, limit: Callable[[], float]) -> dict[str, Any]:
    shapes = tuple(array.shape for array in case.operands)
    plan = make_plan(case.pipeline, case.x.shape, shapes, F32)
    out = case.pipeline(case.x, *case.operands)
    check = sampled_check(case.pipeline, case.x, case.operands, out, F32, np.random.default_rng(1))
    wrong = [
        name for name, peer in case.peers.items() if not np.allclose(np.asarray(peer()), out, rtol=1e-3, atol=1e-3)
    ]
    contenders: dict[str, Callable[[], Any]] = {"convt3d": lambda: case.pipeline(case.x, *case.operands, out=out)}
    contenders |= {name: peer for name, peer in case.peers.items() if name not in wrong}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    shares = []
    for _ in range(rounds if check.passed else 0):
        peak = limit()
        for name, contender in contenders.items():
            time.sleep(PAUSE)
            contender()  # brings its own data back into the caches
            start = time.perf_counter()
            contender()
            times[name].append(time.perf_counter() - start)
        shares.append(plan.work.needed / times["convt3d"][-1] / 1e9 / peak)
        time.sleep(PAUSE)
    medians = {name: statistics.median(seconds) for name, seconds in times.items() if seconds}
    return {
        "case": case.name,
        "correct": check.passed,
        "milliseconds": {name: 1e3 * seconds for name, seconds in medians.items()},
        "gflops": plan.work.needed / medians["convt3d"] / 1e9 if medians else 0.0,
        "share_of_sgemm": statistics.median(shares) if shares else 0.0,
        "scratch_megabytes": plan.scratch * get_num_threads() / 1e6,
        "intermediate_megabytes": plan.intermediate / 1e6,
    }


def first_calls() -> dict[str, float]:
    """Seconds of the first call in a new process, with an empty and with a warm disk cache, import left out."""
    script = (
        "import time, numpy as np, convt3d\n"
        "x, w = np.ones((1, 32, 16, 32, 32), 'f4'), np.ones((32, 64, 4, 4, 4), 'f4')\n"
        "out = np.zeros((1, 64, 32, 64, 64), 'f4')\n"
        "start = time.perf_counter()\n"
        "convt3d.conv_transpose3d_layernorm_gelu_scaling(x, w, out=out)\n"
        "first = time.perf_counter() - start\n"
        "start = time.perf_counter()\n"
        "convt3d.conv_transpose3d_layernorm_gelu_scaling(x, w, out=out)\n"
        "print(first - (time.perf_counter() - start))\n"
    )
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        for name in ("empty cache", "warm cache"):
            environment = {**os.environ, "CONVT3D_CACHE_DIR": folder}
            done = subprocess.run(
                [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
            )
            found[name] = float(done.stdout)
    return found


def overhead() -> float:
    """Seconds of a repeated call on a tiny volume: all of it is overhead."""
    x, w = np.ones((1, 4, 2, 3, 4), "f4"), np.ones((4, 4, 3, 3, 3), "f4")
    out = convt3d.conv_transpose3d(x, w)
    times = []
    for _ in range(300):
        start = time.perf_counter()
        convt3d.conv_transpose3d(x, w, out=out)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def avx2() -> dict[str, float] | None:
    """GFLOP/s with AVX2 forced, and of a loop of AVX2 multiply-adds in registers alone; one thread each, in one run."""
    environment = {**os.environ, "CONVT3D_ISA": "avx2", "CONVT3D_NUM_THREADS": "1"}
    command = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "avx2.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--full", action="store_true", help="the operators at their full batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rng, limit = np.random.default_rng(0), sgemm_rate()
    limit()
    cases = [*seeds(options.full, rng), *layers(rng)]
    rows = []
    with Progress(sys.stderr) as progress:
        for number, case in enumerate(cases):
            progress.begin(case.name, number / len(cases), (number + 1) / len(cases))
            rows.append(run_case(case, options.rounds, limit))
    document = {"cases": rows, "first_call": first_calls(), "overhead": overhead(), "avx2": avx2()}
    if options.json:
        print(json.dumps(document, indent=1))
    else:
        show(document)


def show(document: dict[str, Any]) -> None:
    screen = Screen(sys.stdout)
    rows = []
    for row in document["cases"]:
        own = row["milliseconds"].get("convt3d", 0.0)
        peers = [f"{name} {ms / own:.2f}x" for name, ms in row["milliseconds"].items() if name != "convt3d"]
        rows.append(
            [
                row["case"],
                f"{own:.2f}" if row["correct"] else "WRONG",
                f"{row['gflops']:.1f}",
                f"{row['share_of_sgemm']:.2f}",
                f"{row['scratch_megabytes']:.1f}",
                ", ".join(peers),
            ]
        )
    headers = ["case", "ms", "needed GFLOP/s", "share of sgemm", "scratch MB", "peers' time over ours"]
    print(screen.table(headers, rows, right={1, 2, 3, 4}))
    first, forced = document["first_call"], document["avx2"]
    print(f"first call beyond a repeated one: {first['empty cache']:.3f} s with an empty disk cache, ", end="")
    print(f"{1e3 * first['warm cache']:.1f} ms with a warm one")
    print(f"repeated call on a tiny volume: {1e6 * document['overhead']:.1f} us")
    if forced:
        print(f"AVX2, one thread: {forced['gflops']:.1f} of {forced['registers']:.1f} GFLOP/s = {forced['share']:.2f}")


if __name__ == "__main__":
    main()
