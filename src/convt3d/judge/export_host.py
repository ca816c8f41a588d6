"""The host's side of an exported Triton file: memory for the kernels, their tiles, their launch. Written out as text.

What follows the line below goes into the file after the kernels, and so does the text of what is imported from convt3d;
nothing here is imported by convt3d itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from math import prod
from typing import Any

import torch
import triton
import triton.language as tl

from ..gpu.geometry import GpuAxis
from ..gpu.run import run_of
from ..gpu.steps import Memory

# --- exported from here on --------------------------------------------------------------------------------------------

OF_CONV = ("step", "shift", "kernel", "stride", "dilation", "common", "inverse", "hop", "back", "size")
NUMBERS = ("pace", "count", "ends", "low", *OF_CONV, "window", "jump", "pad", "outs")


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
    """The tile of the kernel that runs only where a number is not finite: it needs more registers for each output."""
    return tile[0] if statistics else tile[0] // 2, tile[1], tile[2], tile[3]


def filled_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def factors_of(kind: Any) -> Any:
    """The type in which factors of products are stored: float32 as the sum of three bfloat16 numbers."""
    return torch.bfloat16 if kind == torch.float32 else kind


def memory_of(kind: Any, inputs: int, groups: int, step: int, axes: Sequence[GpuAxis]) -> Memory:
    """How the convolution's input lies in memory."""
    low, high = zip(*(axis.beside for axis in axes), strict=True)
    return Memory(inputs, filled_up(inputs, step), groups, 3 if kind == torch.float32 else 1, low, high)


def room(like: Any, batch: int, sizes: Sequence[int], memory: Memory) -> Any:
    """Memory for the convolution's input, with its halo: the numbers of a voxel are next to each other."""
    shape = (batch, *memory.sizes(sizes), memory.row)
    return like.new_empty(shape, dtype=factors_of(like.dtype)).permute(0, 4, 1, 2, 3)


def inner(x: Any, memory: Memory) -> Any:
    """The convolution's input from its first voxel on."""
    low_d, low_h, low_w = memory.low
    return x[:, :, low_d:, low_h:, low_w:]


def packed(kernel: Any, w: Any, memory: Memory, columns: int) -> Any:
    """Weights as (groups, taps, parts, inputs, outputs), filled up with zeros to whole blocks, and, where the kernel
    looks for it, a number on the device that is not 0 if one of them is not finite."""
    _, channels, *kernels = w.shape
    width, taps, filled = filled_up(channels, columns), prod(kernels), memory.filled
    blocks = memory.groups * taps * filled * width
    result = w.new_empty(memory.parts * blocks, dtype=factors_of(w.dtype))
    wild = w.new_zeros(1, dtype=torch.int32) if "wild" in kernel.arg_names else None
    known: dict[str, Any] = {"given": w, "packed": result, "wild": wild, "BLOCK": 1024, "taps": taps}
    known |= {"filled": filled, "width": width, "inputs": memory.inputs, "channels": channels, "groups": memory.groups}
    known |= {f"given_{axis}": stride for axis, stride in zip("ncdhw", w.stride(), strict=True)}
    known |= {"kernel_h": kernels[1], "kernel_w": kernels[2], "w_row": width, "w_column": 1}
    known |= {"PARTS": memory.parts, "PRECISION": "ieee"}
    run(kernel, triton.cdiv(blocks, 1024), known, 4, 1)
    return result, wild


def parts_of(axes: Sequence[GpuAxis], tile: tuple[int, int, int, int]) -> int:
    """Programs for each sample and channel; every one of them leaves partial statistics."""
    return -(-prod(axis.count for axis in axes) // tile[0]) * prod(axis.pace for axis in axes)


def furthest(array: Any, axes: Sequence[GpuAxis]) -> int:
    """The largest offset that an address is made of: positions beside the input have taps inside it."""
    reach = (0, 0, *(axis.reach for axis in axes))
    strides = zip(array.shape, reach, array.stride(), strict=True)
    return sum(max(size - 1, most) * stride for size, most, stride in strides if size > 1)


def launch(
    kernel: Any,
    axes: Sequence[GpuAxis],
    tile: tuple[int, int, int, int],
    arrays: dict[str, Any],
    batch: int,
    channels: int,
    memory: Memory,
    prepares: bool = False,
    guards: bool = False,
) -> None:
    """Runs a kernel with the arguments it has names for: numbers of the axes, sizes, arrays and their strides. One that
    `prepares` writes the convolution's input; one that `guards` has something to do only if a number is not finite."""
    positions, columns, step, warps = tile
    groups = 1 if prepares else memory.groups
    parts, blocks = parts_of(axes, tile), triton.cdiv(memory.groups * memory.filled if prepares else channels, columns)
    known: dict[str, Any] = {
        f"{name}_{axis}": one.number(name) for axis, one in zip("dhw", axes, strict=True) for name in NUMBERS
    }
    far = max(axis.largest for axis in axes)
    for name in ("x", "y"):
        if name in arrays:
            far = max(far, furthest(arrays[name], axes))
            strides = zip("ncdhw", arrays[name].stride(), arrays[name].shape, strict=True)
            known |= {f"{name}_{axis}": stride if size > 1 else 0 for axis, stride, size in strides}
            known[f"{name.upper()}_RUN"] = run_of(arrays[name])
    known |= dict.fromkeys(("border_d", "border_h", "border_w"), 0)
    known |= {"columns": blocks, "channels": channels, "groups": memory.groups, "all_channels": groups * channels}
    known |= {"tiles": parts // prod(axis.pace for axis in axes), "plane": batch * groups * channels * parts}
    width = blocks * columns
    known |= {"x_part": memory.filled, "x_group": memory.parts * memory.filled, "w_row": width, "w_column": 1}
    known |= {"w_part": memory.filled * width, "w_tap": memory.parts * memory.filled * width, "filled": memory.filled}
    known |= {"inputs": memory.inputs if prepares else memory.filled, "PARTS": memory.parts, "X_HALO": 1}
    known |= {"BLOCK_P": positions, "BLOCK_C": columns, "BLOCK_K": step, "PRECISION": "ieee"}
    known["programs"] = programs = batch * groups * blocks * parts
    if guards:  # its programs share the work, should there be any
        run(kernel, min(programs, 1024), {**known, **arrays}, warps, 1, far)
    else:
        run(kernel, programs, {**known, **arrays}, warps, 3 if "w" in arrays else 2, far)


def finish(kernel: Any, arrays: dict[str, Any]) -> None:
    """Combines partial statistics (planes, samples, channels, parts): one program for each sample and channel."""
    _, batch, channels, parts = arrays["partials"].shape
    known: dict[str, Any] = {"length": parts, "plane": batch * channels * parts, "BLOCK": 1024}
    run(kernel, batch * channels, {**known, **arrays}, 4, 1)


def run(kernel: Any, programs: int, known: dict[str, Any], warps: int, stages: int, far: int = 0) -> None:
    tensors = [value for value in known.values() if isinstance(value, torch.Tensor)]
    sizes = [tensor.numel() for tensor in tensors]
    large = max(*sizes, far, programs * known.get("BLOCK_P", 1)) > 2**31 - 1
    sums = tl.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else tl.float32
    known |= {"ACC": sums, "INDEX": tl.int64 if large else tl.int32}
    arguments = {name: known[name] for name in kernel.arg_names}
    # Registers: all of a block must fit the GPU's; left alone ptxas takes so many that fewer blocks fit, with a tighter
    # bound than these it spills.
    most = min(255, 2048 // warps)
    if "wild" not in known and sums is tl.float32 and known.get("PARTS") == 1:
        most = {4: 176, 8: 168}.get(warps, most)
    bound = {} if torch.version.hip else {"maxnreg": most}  # which AMD's compiler does not take
    device = tensors[0].device
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel[(programs,)](**arguments, num_warps=warps, num_stages=stages, enable_fp_fusion=True, **bound)
