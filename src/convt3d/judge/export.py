"""A problem as one self-contained file: the Triton kernels of its GPU plan, and a `solution` that launches them.

The kernels are written for parameters that no rewrite simplifies, and ask for every size, stride and scalar as an
argument: one text serves all parameters that the problem allows. Declared finite, inputs and weights need no second
kernel that waits for NaN and infinity.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from importlib import resources

from ..gpu.geometry import GpuAxis
from ..gpu.pieces import PACKED, WILD, FilledName, PartialsName, PreparedName
from ..gpu.plan import GpuPlan, gpu_plan
from ..gpu.run import run_of
from ..gpu.steps import GpuFinish, GpuKernel, GpuPack, GpuStep, Memory
from ..gpu.text.kernel import PLANES, KernelText
from ..gpu.text.module import Module, module
from ..gpu.text.parts import parts_of
from ..plan.names import INPUT, OUTPUT, ArrayName, OperandName, StatisticName, ValueName
from ..spec.dtypes import DTYPES
from ..spec.problems import Problem
from ..spec.stages import CHANNELS, LayerNorm
from .starter import comment, python_signature

LANGUAGES = ("triton",)
# Two groups, and numbers that let no rewrite fire; each is found again among the constants of the kernels.
GENERAL = {"groups": 2, "sum_weight": 70000.5, "clamp_min": -100.25, "clamp_max": 100.5, "scaling_factor": 3.25}
_NO_HALO = re.compile(r"^( *)if not X_HALO:\n(?:\1 +[^\n]*\n)+", re.MULTILINE)
VARIANTS = {"float32": "", "float16": "_16bit"}  # 16-bit types may need other kernels: they are rounded once

HEAD = '''\
"""ConvTranspose3d fused with its neighbours: {chain}.

An implicit matrix product over phases: a program computes some positions of one phase times some channels. Of each tap
that meets the phase it multiplies a tile of the input, gathered from channels-last memory, with a tile of the weights,
so no zero that a stride would insert is multiplied, and no column buffer or full-size intermediate exists. What
follows the convolution is computed on the accumulator. Every size, stride and scalar is an argument.{finite}
"""

from contextlib import nullcontext
from dataclasses import dataclass
from math import gcd, prod

import torch
import triton
import triton.language as tl
'''


FINITE = """

Inputs and weights are finite numbers: this file was exported with --finite. NaN and infinity show where they should,
and at the border, where they are multiplied with zeros, also where they should not."""


def export(problem: Problem, language: str, finite: bool = False) -> str:
    """The text of the file. `finite`: nobody gives it NaN or infinity."""
    assert language in LANGUAGES
    variants = [_Variant(problem, dtype, finite) for dtype in VARIANTS]
    if variants[1].texts == variants[0].texts:
        variants = variants[:1]
    kernels = _distinct(variants)
    parts = parts_of("\n".join(kernels)).strip()
    chain = " -> ".join(stage.name for stage in variants[0].plan.asked.stages)
    head = HEAD.format(chain=chain, finite=FINITE if finite else "")
    host = [text for text in _host_texts() if not (finite and text.startswith("def guarding("))]
    body = "\n\n\n".join([parts, *kernels, *host, "\n".join(_solution(problem, variants))])
    return f"{comment(problem, '#')}{head}\n\n{body}\n"


def file_name(problem: Problem, language: str) -> str:
    return f"{problem.slug.replace('-', '_')}_{language}.py"


class _Variant:
    """The kernels for a type, without the names that tell plans apart."""

    def __init__(self, problem: Problem, dtype: str, finite: bool) -> None:
        values = {name: GENERAL.get(name, value) for name, value in problem.benchmark.items()}
        pipeline, shapes = problem.pipeline(values), problem.shapes(values)
        operands = pipeline.operand_shapes(shapes["input"], shapes["kernel"])
        self.plan: GpuPlan = gpu_plan(pipeline, shapes["input"], operands, DTYPES[dtype], wide=True, finite=finite)
        self.module: Module = module(self.plan)
        self.suffix = VARIANTS[dtype]
        self.names = [re.sub(r"^ct3d_[a-z0-9]+_\d+_", "", kernel.name) for kernel in self.module.kernels]
        self.texts = [_general(*pair) for pair in zip(self.module.kernels, self.names, strict=True)]

    def constants(self, problem: Problem) -> list[str]:
        """Numbers of the stages, as expressions of the problem's scalars."""
        given = {value: name for name, value in GENERAL.items() if name in problem.sample}
        exact = [float(stage.eps) for stage in self.plan.asked.stages if isinstance(stage, LayerNorm)]
        given |= {self.plan.dtype.round_scalar(eps): repr(eps) for eps in exact}  # float64 sees all of its digits
        return [given.get(value, repr(value)) for value in self.module.constants]


def _general(kernel: KernelText, name: str) -> str:
    """The text with the types of sums and of indices as constants, and without what is for inputs that have no zeros
    around them in memory: `room` gives them."""
    text = _NO_HALO.sub("", kernel.text.replace(kernel.name, name))
    for written, constant in (("tl.float32", "ACC"), ("tl.int64", "INDEX")):
        if written in text:
            text = text.replace(written, constant).replace("\n):", f" {constant}: tl.constexpr,\n):", 1)
    return text


def _distinct(variants: list[_Variant]) -> list[str]:
    """All kernels once; one that differs from that of the same name in the first variant is renamed."""
    found = dict(zip(variants[0].names, variants[0].texts, strict=True))
    for variant in variants[1:]:
        for at, (name, text) in enumerate(zip(variant.names, variant.texts, strict=True)):
            if found.get(name, text) != text:
                variant.names[at] = name + variant.suffix
                text = text.replace(f"def {name}(", f"def {variant.names[at]}(")
            found[variant.names[at]] = text
    return list(found.values())


def _host_texts() -> list[str]:
    source = (resources.files(__package__) / "export_host.py").read_text(encoding="utf-8")
    own = source.partition("# --- exported from here on ")[2].partition("\n")[2]
    shared = [inspect.getsource(one) for one in (GpuAxis, Memory, run_of)]
    return [_untyped(text.strip()) for text in (*shared, *own.strip().split("\n\n\n"))]


def _untyped(text: str) -> str:
    """Without types that the file would have to import."""
    for typed, plain in (
        (": dict[str, Any] =", " ="),
        ("dict[str, Any]", "dict"),
        (": Any", ""),
        (" -> Any", ""),
        ("Sequence[GpuAxis]", "list"),
    ):
        text = text.replace(typed, plain)
    return text.replace(": Sequence[int]", "")


# --- solution ---------------------------------------------------------------------------------------------------------


def _solution(problem: Problem, variants: list[_Variant]) -> Iterator[str]:
    yield python_signature(problem)
    yield "    if not batch_size:"
    yield "        return"
    yield from (f"    {line}" for line in _geometry(problem, variants[0]))
    if len(variants) == 1:
        yield from (f"    {line}" for line in _launches(problem, variants[0]))
        return
    for head, variant in zip(("if input.dtype == sums:", "else:"), variants, strict=True):
        yield f"    {head}"
        yield from (f"        {line}" for line in _launches(problem, variant))


def _geometry(problem: Problem, variant: _Variant) -> Iterator[str]:
    """Numbers of the convolution's axes, its tile and its weights."""
    kernel = next(kernel for kernel in variant.plan.kernels if kernel.piece.conv is not None)
    window, jump = kernel.axes[0].window, kernel.axes[0].jump
    whole = any(link.stage.couples & CHANNELS for link in kernel.piece.links)
    groups = "groups" if "groups" in problem.sample else "1"

    def triple(name: str, otherwise: str) -> str:
        return f"({name}_d, {name}_h, {name}_w)" if f"{name}_d" in problem.sample else otherwise

    sizes = "(depth, height, width)"
    if "pool_kernel" in problem.sample:
        sizes = f"[size // pool_kernel for size in {sizes}]"
    yield "sums = torch.float64 if input.dtype == torch.float64 else torch.float32"
    yield f"kernels, strides = {triple('kernel', '')}, {triple('stride', '')}"
    yield f"paddings, extras = {triple('padding', '')}, {triple('output_padding', '(0, 0, 0)')}"
    yield f"dilations = {triple('dilation', '(1, 1, 1)')}"
    yield f"sizes, ends = {sizes}, output.shape[2:]"
    yield "outs = ["
    yield "    (size - 1) * stride - 2 * padding + dilation * (taps - 1) + extra + 1"
    yield "    for size, taps, stride, padding, dilation, extra in zip("
    yield "        sizes, kernels, strides, paddings, dilations, extras, strict=True"
    yield "    )"
    yield "]"
    yield f"pools = ({window},) * 3, ({jump},) * 3, (0,) * 3  # window, stride and padding of the pool after it"
    yield "axes = ["
    yield "    GpuAxis(*one)"
    yield "    for one in zip(ends, outs, sizes, kernels, strides, paddings, dilations, *pools, strict=True)"
    yield "]"
    yield f"groups = {groups}"
    yield "channels = out_channels // groups"
    crowded = kernel.piece.pool is not None or kernel.piece.reduce is not None
    yield f"tile = tile_of(input.dtype, in_channels // groups, channels, whole={whole}, crowded={crowded})"
    yield "memory = memory_of(input.dtype, in_channels // groups, groups, tile[2], axes)"
    for name in problem.operand_names[1:]:
        yield f"{name} = {name}.reshape(-1).contiguous()"
    yield "weights, wild = packed(pack, kernel, memory, tile[1])"


def _launches(problem: Problem, variant: _Variant) -> Iterator[str]:
    constants = variant.constants(problem)
    for step, kernel, name in zip(variant.plan.steps, variant.module.kernels, variant.names, strict=True):
        yield from _LAUNCHES[type(step)](step, name, kernel, _table(problem, kernel, constants))


def _pack(step: GpuPack, name: str, kernel: KernelText, table: str) -> Iterator[str]:
    """Nothing: it runs once for all variants."""
    return iter(())


def _finish(step: GpuFinish, name: str, kernel: KernelText, table: str) -> Iterator[str]:
    for array in kernel.pointers.values():
        if isinstance(array, StatisticName):
            yield f"stat_{array.word} = partials.new_empty(partials.shape[1:3])"
    yield from _call("finish", name, table)


def _kernel(step: GpuKernel, name: str, kernel: KernelText, table: str) -> Iterator[str]:
    if step.piece.conv is None:
        yield from _walk(step, name, table)
        return
    tile = f"guarding(tile, {step.piece.reduce is not None})" if step.guarded else "tile"
    if step.piece.reduce is not None and not step.guarded:
        shape = f"({PLANES[step.piece.reduce]}, batch_size, out_channels, parts_of(axes, tile))"
        yield f"partials = torch.empty({shape}, dtype=sums, device=input.device)"
    guards = ["guards=True"] if step.guarded else []
    yield from _call("launch", name, "axes", tile, table, "batch_size", "channels", "memory", *guards)


_LAUNCHES: dict[type[GpuStep], Callable[..., Iterator[str]]] = {GpuPack: _pack, GpuFinish: _finish, GpuKernel: _kernel}


def _walk(step: GpuKernel, name: str, table: str) -> Iterator[str]:
    """A kernel without convolution: over the input, which it prepares, or over the output."""
    if isinstance(step.piece.dest, PreparedName):
        yield "x = room(input, batch_size, sizes, memory)"
        pool = "1, 1, 0" if step.pool is None else "pool_kernel, pool_kernel, 0"
        yield "walk = ["
        yield f"    GpuAxis(n, m, m, 1, 1, 0, 1, {pool}, *halo)"
        yield "    for n, m, *halo in zip(sizes, input.shape[2:], memory.low, memory.high, strict=True)"
        yield "]"
        yield "plain = tile_of(input.dtype, 1, groups * memory.filled, whole=False, crowded=True)"
        yield from _call("launch", name, "walk", "plain", table, "batch_size", "in_channels", "memory", "prepares=True")
        return
    yield "walk = [GpuAxis(n, n, n, 1, 1, 0, 1, 1, 1, 0) for n in ends]"
    yield "plain = tile_of(input.dtype, 1, out_channels, whole=False, crowded=False)"
    yield from _call("launch", name, "walk", "plain", table, "batch_size", "out_channels", "Memory()")


def _call(*words: str) -> Iterator[str]:
    """A call in one line, or with its table in a line of its own."""
    function, *arguments = words
    line = f"{function}({', '.join(arguments)})"
    if len(line) <= 104:
        yield line
        return
    at = next(number for number, argument in enumerate(arguments) if argument.startswith("{"))
    yield f"{function}("
    yield f"    {', '.join(arguments[:at])},"
    yield f"    {arguments[at]},"
    yield from (f"    {', '.join(rest)}," for rest in [arguments[at + 1 :]] if rest)
    yield ")  # fmt: skip"


def _table(problem: Problem, kernel: KernelText, constants: list[str]) -> str:
    """Arrays, and the constants that the kernel asks for."""
    entries = [f'"{name}": {_variable(problem, array)}' for name, array in kernel.pointers.items()]
    asked = {one.name for one in kernel.arguments}
    named = {f"constant_{at}": value for at, value in enumerate(constants)}
    entries += [f'"{name}": {value}' for name, value in named.items() if name in asked]
    return "{" + ", ".join(entries) + "}"


def _variable(problem: Problem, array: ArrayName) -> str:
    """What `solution` calls an array of the plan."""
    if isinstance(array, OperandName):
        return problem.operand_names[array.place]
    return f"stat_{array.word}" if isinstance(array, StatisticName) else _VARIABLES.get(array) or _KINDS[type(array)]


_VARIABLES: dict[ArrayName, str] = {INPUT: "input", OUTPUT: "output", PACKED: "weights", WILD: "wild"}
_KINDS: dict[type[ArrayName], str] = {
    FilledName: "inner(x, memory)",
    PreparedName: "x",
    PartialsName: "partials",
    ValueName: "value",
}
