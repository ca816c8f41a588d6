"""The host's side of an exported Triton file: tiles, numbers of the axes, launches. Written out as text.

What follows the line below goes into the file after the kernels; nothing here is imported by convt3d itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from math import gcd, prod
from typing import Any

import torch
import triton
import triton.language as tl

# --- exported from here on --------------------------------------------------------------------------------------------


def tile_of(kind: Any, inputs: int, channels: int, whole: bool, crowded: bool) -> tuple[int, int, int, int]:
    """Positions and channels of a program, input channels of one step, warps: what neither spills nor leaves tensor
    cores idle on sm_80, sm_90 and sm_100. `whole`: a program must hold all channels; `crowded`: and a pool's
    accumulator or statistics beside its own, as products of parts have one too."""
    most = triton.next_power_of_2(channels)
    columns = max(16, most if whole else min(most, 64))
    crowded = crowded or kind.itemsize == 4
    numbers = columns * (2 if crowded else 1) * (2 if kind.itemsize == 8 else 1)  # accumulators of a position
    positions = max(16, min(128, 8192 // numbers))
    step = 32 if kind.itemsize < 8 and -inputs % 32 <= inputs // 8 and columns <= 128 else 16
    return positions, columns, step, 4 if positions * numbers <= 4096 else 8 if positions * numbers <= 8192 else 16


def guarding(tile: tuple[int, int, int, int], statistics: bool) -> tuple[int, int, int, int]:
    """The tile of a kernel where it waits for numbers that are not finite: it needs more registers for each output."""
    return tile[0] if statistics else tile[0] // 2, tile[1], 1, tile[3]


def axis_of(
    size: int,
    ends: int,
    outs: int,
    kernel: int = 1,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    window: int = 1,
    jump: int = 1,
    low: int = 0,
    high: int = 0,
) -> dict[str, int]:
    """Numbers of an axis of so many inputs, outputs (`ends`), and outputs of the convolution before a pool of that
    window and stride (`jump`). Outputs pace * q + a of one residue a meet the same taps: every `hop`-th from a first
    one, each at the input `back` before. `low` and `high`: zeros around the convolution's input."""
    pace, common = stride // gcd(stride, jump), gcd(stride, dilation)
    hop, back, step = stride // common, dilation // common, jump * pace // stride
    count, taps = -(-ends // pace) + low + high, (kernel - 1) * dilation
    last = step * (count - 1) + (padding + (pace - 1) * jump + window - 1) // stride
    numbers = {"size": size, "ends": ends, "outs": outs, "kernel": kernel, "stride": stride, "padding": padding}
    numbers |= {"dilation": dilation, "window": window, "jump": jump, "low": low, "pace": pace, "common": common}
    numbers |= {"hop": hop, "back": back, "step": step, "count": count, "inverse": pow(back, -1, hop) if hop > 1 else 0}
    # How far before the first input and after the last one addresses reach, and the largest number on the way.
    numbers |= {"before": max(0, (taps - padding + stride - 1) // stride), "after": max(0, last - size + 1)}
    far = (kernel + stride) * dilation + stride * stride + padding
    return numbers | {"largest": ends * jump + window + (pace + 1) * jump + far}


def parts_of(axes: Sequence[dict[str, int]], tile: tuple[int, int, int, int]) -> int:
    """Programs for each sample and block of channels."""
    return -(-prod(one["count"] for one in axes) // tile[0]) * prod(one["pace"] for one in axes)


def launch(
    kernel: Any,
    axes: Sequence[dict[str, int]],
    tile: tuple[int, int, int, int],
    samples: int,
    channels: int,
    known: dict[str, Any],
) -> None:
    """Runs a kernel for each tile of so many samples (or groups of their channels) and channels, with all that it has
    names for: numbers of the axes, strides of x and y, and what is known besides."""
    positions, columns, step, warps = tile
    parts, blocks = parts_of(axes, tile), -(-channels // columns)
    known = known | {f"{word}_{axis}": one[word] for axis, one in zip("dhw", axes, strict=True) for word in one}
    for name in ("x", "y"):
        if name in known:
            known |= {f"{name}_{axis}": stride for axis, stride in zip("ncdhw", known[name].stride(), strict=True)}
    known |= {"columns": blocks, "tiles": parts // prod(one["pace"] for one in axes)}
    known |= {"BLOCK_P": positions, "BLOCK_C": columns, "BLOCK_K": step}
    run(kernel, samples * blocks * parts, known, warps, 3 if "w" in known else 2)


def run(kernel: Any, programs: int, known: dict[str, Any], warps: int, stages: int) -> None:
    """Runs a kernel with what it has names for."""
    tensors = [value for value in known.values() if isinstance(value, torch.Tensor)]
    sizes = [value.untyped_storage().nbytes() // value.itemsize for value in tensors]
    numbers = [value for value in known.values() if isinstance(value, int)]
    large = max(*sizes, *numbers, programs * (known.get("BLOCK_P") or known["BLOCK"])) >= 2**31
    sums = tl.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else tl.float32
    known = known | {"ACC": sums, "INDEX": tl.int64 if large else tl.int32}
    # Registers: all of a block must fit the GPU's; left alone ptxas takes so many that fewer blocks fit, with a tighter
    # bound than these it spills.
    most = min(255, 2048 // warps)
    if "w" in known and not known.get("GUARD") and sums is tl.float32 and known["PARTS"] == 1:
        most = {4: 176, 8: 168}.get(warps, most)
    bound = {} if torch.version.hip else {"maxnreg": most}  # which AMD's compiler does not take
    arguments = {name: known[name] for name in kernel.arg_names}
    device = tensors[0].device
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel[(programs,)](**arguments, num_warps=warps, num_stages=stages, enable_fp_fusion=True, **bound)
