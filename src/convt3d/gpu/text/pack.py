"""The kernel that packs weights as tiles are read: (group, tap, part, input, output), filled up with zeros to blocks.

It looks at every weight, so it also says whether all of them are finite (docs/gpu.md tells why that matters).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...spec.stages import Conv3d
from ..pieces import PACKED, WILD
from .code import AXES, Code, Constants
from .kernel import KernelText, written

if TYPE_CHECKING:
    from ..plan import GpuPlan
    from ..steps import GpuPack

BLOCK = 1024


def pack_text(plan: GpuPlan, step: GpuPack, name: str) -> KernelText:
    code, reader = Code(plan.dtype, Constants(), plan.parts), step.reader
    forward = isinstance(plan.pipeline.conv, Conv3d)  # whose outputs come first
    code.pointer("given", step.operand)
    code.pointer("packed", PACKED)
    n, c, d, h, w = (code.stride("given", step.operand, axis) for axis in "ncdhw")
    for axis, numbers in zip(AXES[1:], reader.axes[1:], strict=True):
        code.number(f"kernel_{axis}", numbers.kernel)
    for word, value in (("groups", reader.groups), ("taps", reader.taps), ("filled", reader.weight_rows)):
        code.number(word, value)
    for word, value in (("width", reader.width), ("inputs", reader.inputs), ("channels", reader.channels)):
        code.number(word, value)
    for word, value in zip(("w_row", "w_column"), reader.weight_strides, strict=True):
        code.number(word, value)
    code.add(
        f"at = tl.program_id(0){'.to(tl.int64)' if plan.wide else ''} * BLOCK + tl.arange(0, BLOCK)",
        "column = at % width",
        "row = at // width % filled",
        "tap = at // (width * filled) % taps",
        "group = at // (width * filled * taps)",
        "there = (group < groups) & (row < inputs) & (column < channels)",
        f"place = tap // (kernel_h * kernel_w) * {d} + tap // kernel_w % kernel_h * {h} + tap % kernel_w * {w}",
    )
    if reader.kind == "depthwise":
        code.number("multiplier", reader.multiplier)
        outputs = f"column * {n}" if forward else f"column // multiplier * {n} + column % multiplier * {c}"
        code.add(f"place += {outputs}")
    elif forward:
        code.add(f"place += (group * channels + column) * {n} + row * {c}")
    else:
        code.add(f"place += (group * inputs + row) * {n} + column * {c}")
    code.add(
        f"v = tl.load(given + place, mask=there, other=0.0).to({code.acc})",
        "place = (group * taps + tap) * (PARTS * filled * width) + row * w_row + column * w_column",
    )
    with code.block("for part in tl.static_range(PARTS):"):
        code.add("kept = stored(factor_part(v, part, PARTS, PRECISION), packed.dtype.element_ty)")
        code.add("tl.store(packed + part * (filled * width) + place, kept, mask=group < groups)")
    tells = reader.kind == "dot" and not plan.finite
    if tells:
        code.pointer("wild", WILD, "i32")
        code.add('odd = (v != v) | (tl.abs(v) == float("inf"))')
        with code.block("if tl.max(odd.to(tl.int32), 0) > 0:"):
            code.add("tl.store(wild, 1)  # by whichever program: all write the same")
    title = "Packs the weights, and tells if one of them is not finite." if tells else "Packs the weights."
    constexprs: dict[str, int | str] = {"BLOCK": BLOCK, "PARTS": plan.parts, "PRECISION": plan.precision}
    return written(name, code, constexprs, title, -(-step.size // (plan.parts * BLOCK)))
