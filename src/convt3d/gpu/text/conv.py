"""The convolution's accumulator for one tile: a flat loop over the taps of the tile's phase and blocks of inputs.

No zero that a stride would insert is multiplied, and no column buffer exists: the phase's taps are an arithmetic
progression, counted by scalars. Positions whose tap leaves the input read zeros, which lie around it in memory where
there is room for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..pieces import PACKED, FilledName
from .code import AXES, Code

if TYPE_CHECKING:
    from ..steps import GpuKernel


def addresses(code: Code, kernel: GpuKernel) -> None:
    """Once for a program: inputs of the positions and columns of the weights."""
    for axis, numbers in zip(AXES, kernel.axes, strict=True):
        code.axis("step", axis, numbers)
    code.add("b_d = tl.minimum(q_d, count_d - 1) * step_d", "b_h = q_h * step_h", "b_w = q_w * step_w")
    source = FilledName(kernel.piece.source)
    code.pointer("x", source)
    # A dot's input is filled up: its strides are multiples of 16 whatever its size.
    n, d, h, w = (code.stride("x", source, axis, fixed=kernel.kind == "dot") for axis in "ndhw")
    code.pointer("w", PACKED)
    code.number("w_tap", kernel.weight_tap, fixed=True)
    if kernel.kind == "depthwise":
        code.number("multiplier", kernel.multiplier, fixed=True)
        code.add(f"rows = tl.multiple_of(n * {n} + b_d * {d} + b_h * {h} + b_w * {w}, {code.run('x', source)})")
        code.add("x_at = x + rows[:, None] + (channel // multiplier)[None, :]", "w_at = w + c")
        return
    memory = kernel.memory
    code.number("inputs", memory.filled if kernel.kind == "dot" else kernel.inputs, fixed=True)
    for name, stride in zip(("w_row", "w_column"), kernel.weight_strides, strict=True):
        code.number(name, stride, fixed=True)
    code.number("x_part", memory.filled, fixed=True)
    code.number("w_part", memory.filled * kernel.width, fixed=True)
    group, weights = "", "w"
    if kernel.groups > 1:
        taps = " * ".join(code.axis("kernel", axis, a) for axis, a in zip(AXES, kernel.axes, strict=True))
        weights = f"w + group * (w_tap * {taps})"
        group = " + group * " + code.number("x_group", memory.parts * memory.filled, fixed=True)
    code.add(f"rows = n * {n} + b_d * {d} + b_h * {h} + b_w * {w}{group}")
    if kernel.kind == "plain":
        code.add("x_at = x + rows", f"w_at = {weights} + c * w_column")
    else:
        code.add("k = tl.arange(0, BLOCK_K)", "x_at = x + rows[:, None] + k[None, :]")
        code.add(f"w_at = {weights} + k[:, None] * w_row + c[None, :] * w_column")


def accumulate(code: Code, kernel: GpuKernel, first_output: dict[str, str]) -> None:
    """acc for the outputs `first_output` of residue and window member, as seen from tap 0."""
    for axis, numbers in zip(AXES, kernel.axes, strict=True):
        for name in ("kernel", "stride", "dilation", "common", "inverse", "hop", "back", "size"):
            code.axis(name, axis, numbers)
        given = ", ".join(f"{name}_{axis}" for name in ("kernel", "stride", "dilation", "common", "inverse"))
        code.add(f"k_{axis}, n_{axis}, i_{axis} = taps_of({first_output[axis]}, {given})")
    code.add(
        "x_first = i_d * x_d + i_h * x_h + i_w * x_w  # of the first tap, at position 0",
        "w_first = ((k_d * kernel_h + k_h) * kernel_w + k_w) * w_tap",
        "x_back_d, x_back_h, x_back_w = back_d * x_d, back_h * x_h, back_w * x_w  # to the next tap",
        "w_hop_d, w_hop_h, w_hop_w = hop_d * kernel_h * kernel_w * w_tap, hop_h * kernel_w * w_tap, hop_w * w_tap",
        f"acc = tl.zeros((BLOCK_P, BLOCK_C), {code.acc})",
        "t_d = 0",
        "t_h = 0",
        "t_w = 0",
    )
    blocks = {"dot": " * (inputs // BLOCK_K)", "plain": " * inputs", "depthwise": ""}[kernel.kind]
    if blocks:
        code.add("ci = 0")
    with code.block(f"for _ in range(n_d * n_h * n_w{blocks}):"):
        code.add("x_tap = x_first - t_d * x_back_d - t_h * x_back_h - t_w * x_back_w")
        code.add("w_tap_at = w_first + t_d * w_hop_d + t_h * w_hop_h + t_w * w_hop_w")
        code.add("hit = inside")
        if kernel.kind == "dot":
            with code.block(f"if not {code.halo('x', FilledName(kernel.piece.source))}:"):
                _masks(code)
        else:
            _masks(code)
        _INNER[kernel.kind](code)
        _count(code, bool(blocks), "BLOCK_K" if kernel.kind == "dot" else "1")


def _masks(code: Code) -> None:
    """Which positions meet an input by this tap. Without a dot, nothing is multiplied with a zero beside the input:
    weights may be infinite."""
    for axis in AXES:
        code.add(f"in_{axis} = b_{axis} + (i_{axis} - t_{axis} * back_{axis})")
        code.add(f"hit = hit & (in_{axis} >= 0) & (in_{axis} < size_{axis})")


def _dot(code: Code) -> None:
    code.add("acc = add_product(")
    code.add("    acc, x_at + (x_tap + ci), x_part, hit[:, None], w_at + (w_tap_at + ci * w_row), w_part,")
    code.add("    PARTS, X_HALO, PRECISION,")
    code.add(")  # fmt: skip")


def _plain(code: Code) -> None:
    code.add(
        f"xs = whole_factor(x_at + (x_tap + ci), x_part, hit, PARTS, {code.acc})",
        f"ws = whole_factor(w_at + (w_tap_at + ci * w_row), w_part, c >= 0, PARTS, {code.acc})",
        "acc += tl.where(hit[:, None], xs[:, None] * ws[None, :], 0.0)",
    )


def _depthwise(code: Code) -> None:
    code.add(
        "hit_c = hit[:, None] & in_channel[None, :]",
        f"xs = tl.load(x_at + tl.multiple_of(x_tap, X_RUN), mask=hit_c, other=0.0).to({code.acc})",
        f"ws = tl.load(w_at + w_tap_at).to({code.acc})",
        "acc += tl.where(hit_c, xs * ws[None, :], 0.0)",
    )


_INNER = {"dot": _dot, "plain": _plain, "depthwise": _depthwise}


def _count(code: Code, blocks: bool, step: str) -> None:
    """Width, inputs, height, depth: scalars that carry over, since a division for each round would cost more. Taps
    along the width come first: they read the same block of the same voxels, moved by one, which is in L1 still."""
    code.add("t_w += 1", "done = t_w == n_w", "t_w = tl.where(done, 0, t_w)")
    if blocks:
        code.add(f"ci += tl.where(done, {step}, 0)", "done = ci >= inputs", "ci = tl.where(done, 0, ci)")
    code.add("t_h += done.to(tl.int32)", "done = t_h == n_h", "t_h = tl.where(done, 0, t_h)")
    code.add("t_d += done.to(tl.int32)")
