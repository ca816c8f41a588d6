"""One kernel of a GpuPlan as Triton text: positions, the source, links, the pool's window, the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from ...plan.names import ArrayName, OperandName, StatisticName
from ...spec.stages import AvgPool3d, Conv3d
from ...spec.stages.padding import Pad
from ..config import Config
from ..pieces import WILD, PreparedName
from .chain import Chain
from .code import AXES, Argument, Code, Constants
from .conv import accumulate, addresses

if TYPE_CHECKING:
    from ..plan import GpuPlan
    from ..steps import GpuKernel


@dataclass(frozen=True)
class KernelText:
    """A kernel's text and what a launch, or a compilation ahead of time, needs to know of it."""

    name: str
    text: str
    arguments: tuple[Argument, ...]
    constexprs: tuple[tuple[str, int | str], ...]
    warps: int
    stages: int
    registers: int
    grid: int

    @property
    def pointers(self) -> dict[str, ArrayName]:
        """What its pointers point to."""
        return {one.name: one.array for one in self.arguments if one.array is not None and one.type.startswith("*")}


def kernel_text(plan: GpuPlan, kernel: GpuKernel, name: str, constants: Constants) -> KernelText:
    return _Writer(plan, kernel, constants).write(name)


class _Writer:
    def __init__(self, plan: GpuPlan, kernel: GpuKernel, constants: Constants) -> None:
        self.plan, self.kernel, self.piece = plan, kernel, kernel.piece
        self.code = Code(plan.dtype, constants, plan.parts)
        self.prepares = isinstance(self.piece.dest, PreparedName)
        self.pooled = kernel.pool is not None
        arrays = {array for link in self.piece.links for array in link.arrays}
        self.names = {array: self._name(array) for array in arrays}
        shapes = enumerate(plan.simplified.operand_shapes)
        self.lengths: dict[ArrayName, int] = {OperandName(at): shape[0] for at, shape in shapes if len(shape) == 1}

    def write(self, name: str) -> KernelText:
        code = self.code
        if self.piece.dest is not None:
            code.pointer("y", self.piece.dest)
        if not self.kernel.guarded:
            code.add(f"program = tl.program_id(0){self._wide}")
            self._body()
            return self._finished(name)
        with code.block(f"if tl.load({code.pointer('wild', WILD, 'i32')}) == 0:"):
            code.add("return")
        programs = code.number("programs", self.kernel.programs)
        with code.block(f"for start in range(tl.program_id(0), {programs}, tl.num_programs(0)):"):
            code.add("program = tl.full((), start, tl.int64)" if self.plan.wide else "program = start")
            self._body()
        return self._finished(name)

    def _body(self) -> None:
        code = self.code
        self._positions()
        if self.kernel.kind != "load":
            addresses(code, self.kernel)
        chain = self._pool() if self.pooled else self._value(self._chain("p", "inside"))
        if self.pooled:
            for link in self.piece.after:
                chain.link(link)
        if self.piece.dest is not None:
            self._store(chain)
        if self.piece.reduce is not None:
            self._statistics(chain, self.piece.reduce)

    def _finished(self, name: str) -> KernelText:
        kernel = self.kernel
        constexprs: dict[str, int | str] = {"BLOCK_P": kernel.config.positions, "BLOCK_C": kernel.config.channels}
        if kernel.kind == "dot":
            constexprs["BLOCK_K"] = kernel.config.inputs
        if kernel.kind in ("dot", "plain") or self.prepares:
            constexprs["PARTS"] = self.plan.parts
        if kernel.kind == "dot" or self.prepares:
            constexprs["PRECISION"] = self.plan.precision
        grid = min(kernel.programs, _GUARDS) if kernel.guarded else kernel.programs
        return written(name, self.code, constexprs, self._title(), grid, kernel.config)

    @property
    def _wide(self) -> str:
        return ".to(tl.int64)" if self.plan.wide else ""

    def _title(self) -> str:
        piece, stages = self.piece, self.plan.pipeline.stages
        steps = [] if piece.conv is None else [f"{stages[piece.conv].name} ({self.kernel.kind})"]
        steps += [link.stage.name for link in piece.before]
        steps += [] if piece.pool is None else [stages[piece.pool].name]
        steps += [link.stage.name for link in piece.after]
        steps += [] if piece.reduce is None else [f"statistics: {piece.reduce}"]
        return f"{' -> '.join(steps) or 'copy'} of {self.plan.array_name(piece.source)}."

    def _name(self, array: ArrayName) -> str:
        return self.plan.array_name(array).removeprefix("the ").replace(" ", "_")

    # --- where the program is -----------------------------------------------------------------------------------------

    def _positions(self) -> None:
        code, kernel = self.code, self.kernel
        code.number("columns", kernel.columns)
        code.number("tiles", kernel.tiles)
        code.number("channels", kernel.channels, fixed=True)
        rest = "program"
        phased = kernel.kind != "load"
        if phased:  # residues are next to each other, so that their outputs meet in the cache
            self._numbers("pace")
            code.add("residue = program % (pace_d * pace_h * pace_w)")
            code.add("a_w = residue % pace_w", "a_h = residue // pace_w % pace_h", "a_d = residue // (pace_w * pace_h)")
            code.add("block = program // (pace_d * pace_h * pace_w)")
            rest = "block"
        code.add(f"c = {rest} % columns * BLOCK_C + tl.arange(0, BLOCK_C)")
        rest = f"{rest} // columns"
        code.add("channel, in_channel = c, c < channels")
        if self.prepares:
            self._memory_columns()
        elif kernel.groups > 1:
            code.number("groups", kernel.groups)
            code.add(f"group = {rest} % groups", "channel = group * channels + c")
            rest = f"{rest} // groups"
        code.add(f"tile = {rest} % tiles", f"n = {rest} // tiles", "q = tile * BLOCK_P + tl.arange(0, BLOCK_P)")
        self._numbers("count", "ends")
        code.add("row, q_w = q // count_w, q % count_w", "q_d, q_h = row // count_h, row % count_h")
        if self.prepares:
            self._numbers("low")
        for axis in AXES:
            halo = f"q_{axis} - low_{axis}" if self.prepares else f"q_{axis}"
            code.add(f"p_{axis} = q_{axis} * pace_{axis} + a_{axis}" if phased else f"p_{axis} = {halo}")
        code.add("inside = (q_d < count_d) & (p_d < ends_d) & (p_h < ends_h) & (p_w < ends_w)")
        if self.prepares:
            code.add("in_memory = q_d < count_d", "inside = inside & (p_d >= 0) & (p_h >= 0) & (p_w >= 0)")
            self._pad()
        if any(isinstance(array, StatisticName) for link in self.piece.links for array in link.arrays):
            code.number("all_channels", kernel.groups * kernel.channels)

    def _pad(self) -> None:
        """Where the voxels lie that those of a padded input are copies of."""
        if self.piece.pad is None:
            return
        pad = self.plan.pipeline.stages[self.piece.pad]
        assert isinstance(pad, Pad)
        for axis, numbers, (before, after) in zip(AXES, self.kernel.axes, pad.sides, strict=True):
            first = self.code.number(f"before_{axis}", before)
            size = self.code.number(f"held_{axis}", numbers.ends - before - after)
            self.code.add(f'p_{axis} = copied(p_{axis} - {first}, {size}, "{pad.mode}")')

    def _memory_columns(self) -> None:
        """Columns of the convolution's input in memory: the channels of each group, filled up."""
        memory = self.kernel.memory
        self.code.number("filled", memory.filled, fixed=True)
        if memory.groups == 1:
            self.code.add("column, in_column = c, c < filled")
            return
        self.code.number("inputs", memory.inputs, fixed=True)
        self.code.number("groups", memory.groups)
        self.code.add("group, inner = c // filled, c % filled", "in_column = group < groups")
        self.code.add("channel, column = group * inputs + inner, group * (PARTS * filled) + inner")
        self.code.add("in_channel = in_column & (inner < inputs)")

    def _numbers(self, *names: str) -> None:
        for name in names:
            for axis, numbers in zip(AXES, self.kernel.axes, strict=True):
                self.code.axis(name, axis, numbers)

    def _chain(self, place: str, valid: str) -> Chain:
        return Chain(self.code, self.names, self.lengths, place, valid)

    # --- the value, its pool and where it goes ------------------------------------------------------------------------

    def _value(self, chain: Chain) -> Chain:
        """`v` at the positions of the chain: the source, and the links before the pool."""
        code = self.code
        if self.kernel.kind == "load":
            self.names.setdefault(self.piece.source, "x")
            code.add(f"v = {chain.tensor(self.piece.source)}")
        else:
            self._numbers("shift")
            first = {axis: f"a_{axis} + shift_{axis}" for axis in AXES}
            if self.pooled:
                first = {axis: f"a_{axis} * jump_{axis} + j_{axis} + shift_{axis}" for axis in AXES}
                if isinstance(self.plan.pipeline.conv, Conv3d):
                    self._numbers("scale")
                    first = {
                        axis: f"(a_{axis} * jump_{axis} + j_{axis}) * scale_{axis} + shift_{axis}" for axis in AXES
                    }
            accumulate(code, self.kernel, first)
            code.add("v = acc")
        for link in self.piece.before:
            chain.link(link)
        return chain

    def _pool(self) -> Chain:
        """Runs over the window; the outputs of the convolution it holds are computed one after the other."""
        code, average = self.code, isinstance(self.kernel.pool, AvgPool3d)
        self._numbers("window", "jump", "pad", "outs")
        columns = "1" if self._reduced() else "BLOCK_C"
        start = f"tl.zeros((BLOCK_P, {columns}), {code.acc})"
        code.add(f"pooled = {start}" if average else f'pooled = {start} - float("inf")')
        exact = average and prod(numbers.window for numbers in self.kernel.axes) > _PLAINLY
        if exact:
            code.add(f"lost = {start}")
        with code.block("for member in range(window_d * window_h * window_w):"):
            code.add("j_w = member % window_w", "j_h = member // window_w % window_h")
            code.add("j_d = member // (window_w * window_h)")
            for axis in AXES:
                code.add(f"o_{axis} = p_{axis} * jump_{axis} + j_{axis} - pad_{axis}")
            bounds = [f"(o_{axis} >= 0) & (o_{axis} < outs_{axis})" for axis in AXES]
            code.add(f"valid = inside & {bounds[0]}", f"valid = valid & {bounds[1]}", f"valid = valid & {bounds[2]}")
            chain = self._value(self._chain("o", "valid"))
            if exact:
                code.add("term = tl.where(valid[:, None], v, 0.0)", "total = pooled + term", "came = total - pooled")
                code.add("lost += (pooled - (total - came)) + (term - came)  # to rounding", "pooled = total")
            elif average:
                code.add("pooled += tl.where(valid[:, None], v, 0.0)")
            else:  # NaN stays, once it is there
                code.add("pooled = tl.where(valid[:, None] & ((v > pooled) | (v != v)), v, pooled)")
        if exact:
            code.add('pooled += tl.where(tl.abs(pooled) == float("inf"), 0.0, lost)')
        code.add(f"v = pooled / {self._divisor()}" if average else "v = pooled")
        chain.place, chain.valid = "p", "inside"
        return chain

    def _reduced(self) -> bool:
        return any(link.stage.out_shape((1, 2, 1, 1, 1), ())[1] == 1 for link in self.piece.before)

    def _divisor(self) -> str:
        """Padding right of the array counts only up to the pool's padding, as in PyTorch."""
        code, pool = self.code, self.kernel.pool
        assert isinstance(pool, AvgPool3d)
        if pool.divisor_override is not None:
            return code.constant(float(pool.divisor_override))
        for axis, numbers in zip(AXES, self.kernel.axes, strict=True):
            border = code.number(f"border_{axis}", numbers.pad if pool.count_include_pad else 0, fixed=True)
            code.add(
                f"first = p_{axis} * jump_{axis} - pad_{axis}",
                f"of_{axis} = tl.minimum(first + window_{axis}, outs_{axis} + {border}) - tl.maximum(first, -{border})",
            )
        return f"(of_d * of_h * of_w).to({code.acc})[:, None]"

    def _store(self, chain: Chain) -> None:
        code = self.code
        dest = self.piece.dest
        assert dest is not None
        if self.prepares:
            self._prepare(dest, chain)
            return
        rows = code.rows("y", dest, "p")
        if chain.whole:
            c, run = code.stride("y", dest, "c"), code.run("y", dest)
            code.add(f"store_tile(y, {rows}, channel, {c}, v, inside, in_channel, {run})")
        else:
            code.add(f"tl.store(y + {rows}[:, None], stored(v, y.dtype.element_ty), mask=inside[:, None])")

    def _prepare(self, dest: ArrayName, chain: Chain) -> None:
        """Factors of products, in their parts; zeros around the input and in channels that fill it up."""
        code = self.code
        rows, run = code.rows("y", dest, "q"), code.run("y", dest)
        there = "in_channel[None, :]" if chain.whole else "(c == 0)[None, :]"
        code.add(f"v = tl.where(inside[:, None] & {there}, v, 0.0)")
        if not self.plan.finite:
            wild = code.pointer("wild", WILD, "i32")
            with code.block("if PARTS == 3:  # of infinity, whose parts make no infinite product"):
                code.add('odd = tl.max(tl.max((tl.abs(v) == float("inf")).to(tl.int32), 0), 0)')
                with code.block("if odd > 0:"):
                    code.add(f"tl.store({wild}, 1)")
        with code.block("for part in tl.static_range(PARTS):"):
            code.add("kept = factor_part(v, part, PARTS, PRECISION)")
            code.add(f"store_tile(y, {rows} + part * filled, column, 1, kept, in_memory, in_column, {run})")

    def _statistics(self, chain: Chain, kind: str) -> None:
        """One number (or a few) for each channel of the tile; combined in a fixed order by a kernel of its own."""
        code = self.code
        assert self.piece.partials is not None
        part = code.pointer("partials", self.piece.partials)
        code.number("plane", self.piece.shape[0] * self.piece.result[1] * self.kernel.parts)
        phased = self.kernel.kind != "load"
        parts, place = "tiles", "tile"
        if phased:
            parts, place = "tiles * (pace_d * pace_h * pace_w)", "tile * (pace_d * pace_h * pace_w) + residue"
        if chain.whole:
            total = code.number("all_channels", self.kernel.groups * self.kernel.channels)
            row, mask = f"n * {total} + channel", "in_channel"
        else:
            row, mask = "n + tl.arange(0, 1)", "tl.arange(0, 1) < 1"
        code.add(f"part_at = {part} + ({row}) * ({parts}) + {place}")
        for plane, (lines, value) in enumerate(_PARTIALS[kind]):
            code.add(*lines)
            code.add(f"tl.store(part_at + {plane} * plane, {value}, mask={mask})")


_PLAINLY = 64  # values of a window that are added without a second number for what rounding takes
_GUARDS = 1024  # programs of a kernel that rarely has anything to do

_MASKED = "tl.where(inside[:, None], {}, {})"
_PEAK = f"peak = largest({_MASKED.format('v', 'float(' + chr(34) + '-inf' + chr(34) + ')')}, 0)"
_PARTIALS: dict[str, list[tuple[list[str], str]]] = {
    "sum": [([], f"tl.sum({_MASKED.format('v', '0.0')}, 0)")],
    "max": [([_PEAK], "tl.sum(peak, 0)")],
    "maxexp": [
        ([_PEAK], "tl.sum(peak, 0)"),
        ([], f"tl.sum({_MASKED.format('tl.exp(v - finite_or_zero(peak))', '0.0')}, 0)"),
    ],
    "moments": [
        (
            [
                "number = tl.sum(inside.to(v.dtype), 0)",
                f"mean = tl.sum({_MASKED.format('v', '0.0')}, 0) / tl.maximum(number, 1.0)",
                f"away = {_MASKED.format('v - mean[None, :]', '0.0')}",
                "rest = tl.sum(away, 0) / tl.maximum(number, 1.0)  # that rounding has left of the mean",
                f"away = {_MASKED.format('away - rest[None, :]', '0.0')}",
            ],
            "mean",
        ),
        # Masked once more: `away * away + what another thread has` would be fused, a thread's own square would not be
        # rounded and the other's would, and threads that compute one sum would differ in its last bit.
        ([], f"tl.sum({_MASKED.format('away * away', '0.0')}, 0)"),
        ([], "tl.zeros_like(mean) + number"),
        ([], "rest"),
    ],
}
PLANES = {kind: len(numbers) for kind, numbers in _PARTIALS.items()}  # numbers of a partial statistic


_SMALL = Config(positions=0, channels=0, inputs=0, warps=4, stages=1)  # how kernels without a tile are launched


def written(
    name: str, code: Code, constexprs: Mapping[str, int | str], title: str, grid: int, config: Config = _SMALL
) -> KernelText:
    text = "\n".join([*_head(name, code, constexprs, title), *code.lines])
    constants = tuple(constexprs.items())
    return KernelText(name, text, code.ordered, constants, config.warps, config.stages, config.registers, grid)


def _head(name: str, code: Code, constexprs: Iterable[str], title: str) -> list[str]:
    """Triton compiles anew for numbers that are 1 or a multiple of 16. For sizes it must not: they are too many."""
    kinds = {"constexpr": ": tl.constexpr", "fp64": ": tl.float64"}
    arguments = code.ordered
    names = [argument.name + kinds.get(argument.type, "") for argument in arguments]
    loose = [at for at, argument in enumerate(arguments) if not argument.fixed]
    head = f"@triton.jit(do_not_specialize=range({loose[0]}, {loose[-1] + 1}))"
    names += [f"{constant}: tl.constexpr" for constant in constexprs]
    return [head, f"def {name}(", *wrapped(names), "):  # fmt: skip", f'    """{title}"""']


def wrapped(names: list[str]) -> list[str]:
    """Arguments in lines of at most 120 columns."""
    lines, line = [], "   "
    for name in names:
        if len(line) + len(name) + 2 > 119:
            lines.append(line)
            line = "   "
        line += f" {name},"
    return [*lines, line]
