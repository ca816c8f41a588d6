"""Times the host's part of a call on the GPU, without one: kernels are compiled, a launcher counts and does nothing.
Sizes are small: memory of the CPU, which takes the place of the GPU's, is dear to have in large pieces.

TRITON_INTERPRET=0 python tools/gpu_host.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from convt3d.gpu import run as gpu_run
from convt3d.judge.ptx import driver
from convt3d.spec.problems import PROBLEMS
from convt3d.torch import gpu as front

SLUGS = ("conv-transpose3d-layernorm-gelu-scaling", "conv-transpose3d-avgpool-clamp-softmax-multiply")
SIZES = {"batch_size": 1, "in_channels": 16, "out_channels": 16, "depth": 4, "height": 4, "width": 4}
ROUNDS, CALLS = 15, 100


def main() -> None:
    launched = 0

    def launcher(self: Any, source: Any, metadata: Any) -> Callable[..., None]:
        def launch(*arguments: Any) -> None:
            nonlocal launched
            launched += 1

        return launch

    driver.use(80)
    driver._Driver.launcher_cls = launcher  # type: ignore[method-assign]
    gpu_run._capability = lambda x: 80
    for slug in SLUGS:
        problem = PROBLEMS[slug]
        values = {**problem.sample, **SIZES}
        shapes, pipeline = problem.shapes(values), problem.pipeline(values)
        x = torch.zeros(shapes["input"])
        operands = [torch.zeros(each) for each in pipeline.operand_shapes(shapes["input"], shapes["kernel"])]
        out = front.on_gpu(pipeline, x, operands)
        _, again = gpu_run.repeatable(pipeline, x, operands, out, front.float32_precision())
        assert again is not None
        ways: dict[str, Callable[[], Any]] = {
            "launches alone": lambda: gpu_run.repeat(again, (x, out, *operands)),  # noqa: B023
            "torch front": lambda: front.run("pipeline", pipeline, x, operands),  # noqa: B023
        }
        for name, call in ways.items():
            call()
            launched, taken = 0, []
            for _ in range(ROUNDS):
                start = time.perf_counter()
                for _ in range(CALLS):
                    call()
                taken.append((time.perf_counter() - start) / CALLS)
            print(f"{slug}, {name}: {min(taken) * 1e6:.0f} us, {launched // (ROUNDS * CALLS)} launches")


if __name__ == "__main__":
    main()
