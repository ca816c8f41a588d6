"""Prints the accuracy table of docs/math.md: errors of direct summation and of Winograd's method, in float32.

    python tools/accuracy.py [--channels 32] [--volume 24] [--draws 3]

Signed uniform data; error is root mean square and maximum over all outputs, both relative to the root mean square of
the float64 result. PyTorch is a column where it is installed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

import convt3d
from convt3d.cpu.plan.choice import Options
from convt3d.cpu.plan.plan import make_plan
from convt3d.cpu.plan.winograd import AxisMethod
from convt3d.spec.dtypes import DTYPES

# kernel, stride, padding; of the transposed convolution, then of the convolution
LAYERS = [(2, 1, 0), (3, 1, 1), (5, 1, 2), (7, 1, 3), (4, 2, 1), (5, 2, 2), (3, 2, 1)]
FORWARD = [(3, 1, 1), (3, 2, 1), (4, 2, 1), (5, 2, 2)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--volume", type=int, default=24)
    parser.add_argument("--draws", type=int, default=3)
    args = parser.parse_args()
    print("| layer | precision | schemes of depth, height, width | fewer products | direct | Winograd | PyTorch |")
    print("|---|---|---|---|---|---|---|")
    for layer, precision in product(LAYERS, ("full", "fast")):
        row(*layer, precision, args)
    for layer in FORWARD:
        row(*layer, "full", args, forward=True)


def row(
    kernel: int, stride: int, padding: int, precision: str, args: argparse.Namespace, forward: bool = False
) -> None:
    conv = convt3d.Conv3d if forward else convt3d.ConvTranspose3d
    pipe = convt3d.Pipeline(conv(stride=stride, padding=padding))
    x_shape, w_shape = (1, args.channels, *(args.volume,) * 3), (args.channels, args.channels, *(kernel,) * 3)
    plan = make_plan(pipe, x_shape, (w_shape,), DTYPES["float32"], Options("winograd", precision))
    contenders: dict[str, Callable[[Any, Any], Any]] = {
        "direct": lambda x, w: pipe(x, w, algorithm="direct"),
        "winograd": lambda x, w: pipe(x, w, algorithm="winograd", precision=precision),
    }
    try:
        import torch

        function = torch.nn.functional.conv3d if forward else torch.nn.functional.conv_transpose3d
        contenders["torch"] = lambda x, w: function(
            torch.from_numpy(x), torch.from_numpy(w), None, stride, padding
        ).numpy()
    except ImportError:
        pass
    errors = {name: errors_of(pipe, call, x_shape, w_shape, args.draws) for name, call in contenders.items()}
    schemes = ", ".join(axis_text(axis) for axis in plan.method.axes)
    shown = [errors.get(name, "-") for name in ("direct", "winograd", "torch")]
    layer, saving = f"{'conv ' if forward else ''}k{kernel} s{stride}", f"{float(plan.method.saving):.2f}x"
    print("| " + " | ".join([layer, precision, schemes, saving, *shown]) + " |", flush=True)


def axis_text(axis: AxisMethod) -> str:
    names = []
    for group in axis.groups():
        pieces = ["plain" if scheme.plain else f"F({scheme.outputs},{scheme.taps})" for scheme in group.schemes]
        names.append("plain" if set(pieces) == {"plain"} else " & ".join(sorted(pieces, reverse=True)))
    return " + ".join(dict.fromkeys(names))


def errors_of(pipe: convt3d.Pipeline, call: Callable[[Any, Any], Any], x_shape: Any, w_shape: Any, draws: int) -> str:
    """rms and maximum."""
    square, worst = 0.0, 0.0
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        x, w = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in (x_shape, w_shape))
        truth = pipe(x.astype(np.float64), w.astype(np.float64), algorithm="direct")
        error = (call(x, w) - truth) / np.sqrt((truth**2).mean())
        square += float((error**2).mean()) / draws
        worst = max(worst, float(np.abs(error).max()))
    return f"{np.sqrt(square):.1e} / {worst:.1e}"


if __name__ == "__main__":
    main()
