"""A problem as one self-contained file: the Triton kernels of its GPU plan, and a `solution` that launches them.

The kernels are written for parameters that no rewrite simplifies, and ask for every size, stride and scalar as an
argument: one text serves all parameters that the problem allows. Declared finite, inputs and weights need no second
kernel that waits for NaN and infinity.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources

from ..gpu.pieces import PACKED, WILD, FilledName, PartialsName, PreparedName
from ..gpu.plan import GpuPlan, gpu_plan
from ..gpu.steps import GpuFinish, GpuKernel, GpuStep
from ..gpu.text.code import Argument
from ..gpu.text.kernel import PLANES, KernelText
from ..gpu.text.module import module
from ..gpu.text.parts import parts_of
from ..plan.names import INPUT, OUTPUT, ArrayName, OperandName, StatisticName, ValueName
from ..spec.dtypes import DTYPES
from ..spec.problems import Problem
from ..spec.stages import CHANNELS, LayerNorm
from .export_text import body_of, functions, joined, kernel_source, of_problem, shortened
from .starter import comment, python_signature

LANGUAGES = ("triton",)
# Two groups, and numbers that let no rewrite fire; each is found again among the constants of the kernels.
GENERAL = {"groups": 2, "sum_weight": 70000.5, "clamp_min": -100.25, "clamp_max": 100.5, "scaling_factor": 3.25}
ROUNDED = 'known |= {"ROUNDED": input.itemsize == 2}  # 16-bit types are rounded once: they are computed again'
WILD_ENTRY = '"wild": wild, '
VARIANTS = {"float32": "", "float16": "_16bit"}  # 16-bit types may need other kernels: they are rounded once

HEAD = '''\
"""ConvTranspose3d fused with its neighbours: {chain}.

An implicit matrix product over phases: a program computes some positions of one phase times some channels. Of each tap
that meets the phase it multiplies a tile of the input, gathered from channels-last memory, with a tile of the weights,
so no zero that a stride would insert is multiplied, and no column buffer or full-size intermediate exists. What
follows the convolution is computed on the accumulator. Every size, stride and scalar is an argument.{finite}
"""

from contextlib import nullcontext
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
    if [kernel.text for kernel in variants[1].kernels] == [kernel.text for kernel in variants[0].kernels]:
        variants = variants[:1]
    kernels = _distinct(variants)
    parts = functions(parts_of("\n".join(kernels)), "dilation_d" in problem.sample).strip()
    chain = " -> ".join(stage.name for stage in variants[0].plan.asked.stages)
    head = HEAD.format(chain=chain, finite=FINITE if finite else "")
    host = [text for text in _host_texts() if not (finite and text.startswith("def guarding("))]
    body = "\n\n\n".join([parts, *kernels, *host, "\n".join(_solution(problem, variants))])
    return f"{comment(problem, '#')}{head}\n\n{body}\n"


def file_name(problem: Problem, language: str) -> str:
    return f"{problem.slug.replace('-', '_')}_{language}.py"


@dataclass(frozen=True)
class Exported:
    """A kernel of the file."""

    step: GpuStep
    name: str
    title: str
    body: tuple[str, ...]
    arguments: tuple[Argument, ...]
    pointers: dict[str, ArrayName]
    guarded: bool  # whether it has a branch that waits for what is not finite

    @property
    def text(self) -> str:
        return kernel_source(self.name, self.title, self.body, self.arguments)

    def with_branch(self, constant: str, other: Exported) -> Exported:
        """One kernel for both."""
        further = tuple(one for one in other.arguments if one not in self.arguments)
        body, pointers = tuple(joined(constant, self.body, other.body)), other.pointers | self.pointers
        return replace(self, body=body, arguments=self.arguments + further, pointers=pointers)


class _Variant:
    """The kernels for a type, without the names that tell plans apart."""

    def __init__(self, problem: Problem, dtype: str, finite: bool) -> None:
        values = {name: GENERAL.get(name, value) for name, value in problem.benchmark.items()}
        pipeline, shapes = problem.pipeline(values), problem.shapes(values)
        operands = pipeline.operand_shapes(shapes["input"], shapes["kernel"])
        self.problem, self.suffix = problem, VARIANTS[dtype]
        self.plan: GpuPlan = gpu_plan(pipeline, shapes["input"], operands, DTYPES[dtype], wide=True, finite=finite)
        self.constants = self._constants(module(self.plan).constants)
        steps = list(zip(self.plan.steps, module(self.plan).kernels, strict=True))
        self.kernels: list[Exported] = []
        while steps:
            step, kernel = steps.pop(0)
            own = self._exported(step, kernel)
            if steps and getattr(steps[0][0], "guarded", False):
                own = replace(own.with_branch("GUARD", self._exported(*steps.pop(0))), guarded=True)
            self.kernels.append(own)

    def _constants(self, numbers: tuple[float, ...]) -> dict[str, str]:
        """Numbers of the stages, as expressions of the problem's scalars."""
        given = {value: name for name, value in GENERAL.items() if name in self.problem.sample}
        exact = [float(stage.eps) for stage in self.plan.asked.stages if isinstance(stage, LayerNorm)]
        given |= {self.plan.dtype.round_scalar(eps): repr(eps) for eps in exact}  # float64 sees all of its digits
        return {f"constant_{at}": given.get(value, repr(value)) for at, value in enumerate(numbers)}

    def _exported(self, step: GpuStep, kernel: KernelText) -> Exported:
        name, title = re.sub(r"^ct3d_[a-z0-9]+_\d+_", "", kernel.name), re.search(r'"""(.*)"""', kernel.text)
        assert title is not None
        words = title[1].replace("prepared 0", "x").replace(" (dot)", "").replace("copy of", "The input of")
        if _prepares(step):
            words += " Channels come last; beside it and in channels that fill it up are zeros."
        arguments = tuple(replace(one, name=self._rewritten(step, one.name)) for one in kernel.arguments)
        body = tuple(body_of(self._rewritten(step, shortened(kernel.text, _prepares(step)))))
        return Exported(step, name, words, body, arguments, kernel.pointers, False)

    def _rewritten(self, step: GpuStep, text: str) -> str:
        """A kernel's text, or the name of an argument."""
        text = of_problem(text, "dilation_d" in self.problem.sample, getattr(step, "pool", None) is not None)
        for constant, name in self.constants.items():
            text = re.sub(rf"\b{constant}\b", name, text)
        return text.replace("tl.float32", "ACC").replace("tl.int64", "INDEX")


def _prepares(step: GpuStep) -> bool:
    return isinstance(step, GpuKernel) and isinstance(step.piece.dest, PreparedName)


def _distinct(variants: list[_Variant]) -> list[str]:
    """All kernels once. One that differs from that of the same name in the first variant is a branch of it."""
    found: dict[str, Exported] = {}
    for kernel in (kernel for variant in variants for kernel in variant.kernels):
        known = found.setdefault(kernel.name, kernel)
        if known.text != kernel.text:
            found[kernel.name] = known.with_branch("ROUNDED", kernel)
    for variant in variants:
        variant.kernels = [found[kernel.name] for kernel in variant.kernels]
    return [kernel.text for kernel in found.values()]


def _host_texts() -> list[str]:
    source = (resources.files(__package__) / "export_host.py").read_text(encoding="utf-8")
    own = source.partition("# --- exported from here on ")[2].partition("\n")[2]
    return [_untyped(text.strip()) for text in own.strip().split("\n\n\n")]


def _untyped(text: str) -> str:
    """Without types that the file would have to import."""
    for typed, plain in (
        (": dict[str, Any] =", " ="),
        ("dict[str, Any]", "dict"),
        (": Any", ""),
        (" -> Any", ""),
        ("Sequence[dict[str, int]]", "list"),
    ):
        text = text.replace(typed, plain)
    return text.replace(": Sequence[int]", "")


# --- solution ---------------------------------------------------------------------------------------------------------


def _solution(problem: Problem, variants: list[_Variant]) -> Iterator[str]:
    yield python_signature(problem)
    yield "    if not batch_size:"
    yield "        return"
    yield from (f"    {line}".rstrip() for line in _geometry(problem, variants[0]))
    first, *others = ([*_launches(problem, variant)] for variant in variants)
    same = next((at for at, lines in enumerate(zip(first, *others, strict=False)) if len({*lines}) > 1), len(first))
    yield from (f"    {line}" for line in first[:same])
    for head, lines in zip(("if input.dtype == sums:", "else:"), (first, *others) if others else (), strict=False):
        yield f"    {head}"
        yield from (f"        {line}" for line in lines[same:])


def _geometry(problem: Problem, variant: _Variant) -> Iterator[str]:
    """Numbers of the convolution's axes, its tile, its weights in blocks and its input with zeros around it."""
    kernel = next(kernel for kernel in variant.plan.kernels if kernel.piece.conv is not None)
    window, jump = kernel.axes[0].window, kernel.axes[0].jump
    whole = any(link.stage.couples & CHANNELS for link in kernel.piece.links)
    crowded = kernel.piece.pool is not None or kernel.piece.reduce is not None
    guarded = any(one.guarded for one in variant.kernels)
    rounded = any("ROUNDED" in kernel.text for kernel in variant.kernels)
    summed = any(one.piece.reduce is not None for one in variant.plan.kernels)

    def triple(name: str, otherwise: str) -> str:
        return f"({name}_d, {name}_h, {name}_w)" if f"{name}_d" in problem.sample else otherwise

    pooled = "pool_kernel" in problem.sample
    pool = ", 1, 1, 0, 1, pool_kernel, pool_kernel" if pooled else ""
    text = f"""
parts = 3 if input.dtype == torch.float32 else 1  # bfloat16 numbers whose sum a factor of products is
{"sums = torch.float64 if input.dtype == torch.float64 else torch.float32" if summed else ""}
factors = torch.bfloat16 if parts == 3 else input.dtype
{"" if "groups" in problem.sample else "groups = 1"}
inputs, channels = in_channels // groups, out_channels // groups
sizes = {"[size // pool_kernel for size in (depth, height, width)]" if pooled else "(depth, height, width)"}
kernels, strides = {triple("kernel", "")}, {triple("stride", "")}
paddings, extras = {triple("padding", "")}, {triple("output_padding", "(0, 0, 0)")}
dilations = {triple("dilation", "(1, 1, 1)")}
axes = []
for size, end, taps, stride, padding, extra, dilation in zip(
    sizes, output.shape[2:], kernels, strides, paddings, extras, dilations, strict=True
):
    out = (size - 1) * stride - 2 * padding + dilation * (taps - 1) + extra + 1
    axes.append(axis_of(size, end, out, taps, stride, padding, dilation{f", {window}, {jump}" if window > 1 else ""}))
tile = tile_of(input.dtype, inputs, channels, whole={whole}, crowded={crowded})
filled, width = -(-inputs // tile[2]) * tile[2], -(-channels // tile[1]) * tile[1]  # channels in whole blocks
known = {{"groups": groups, "channels": channels, "all_channels": out_channels, "inputs": filled, "filled": filled}}
known |= {{"width": width, "x_part": filled, "x_group": parts * filled, "PARTS": parts, "GUARD": False}}
{ROUNDED if rounded else ""}
known |= {{"w_row": width, "w_part": filled * width, "w_tap": parts * filled * width}}

# Weights as (groups, taps, parts, inputs, outputs).
taps = kernel_d * kernel_h * kernel_w
weights = kernel.new_empty(groups * taps * parts * filled * width, dtype=factors)
{"wild = kernel.new_zeros(1, dtype=torch.int32)  # not zero, once a number is not finite" if guarded else ""}
given = {{f"given_{{axis}}": stride for axis, stride in zip("ncdhw", kernel.stride(), strict=True)}}
given |= {{"given": kernel, "packed": weights, {WILD_ENTRY if guarded else ""}"taps": taps, "BLOCK": 1024}}
given |= {{"inputs": inputs, "kernel_h": kernel_h, "kernel_w": kernel_w}}
run(pack, -(-groups * taps * filled * width // 1024), known | given, 4, 1)

# The input with the channels of a voxel next to each other, and zeros around it.
walk = [
    axis_of(size, n, size{pool}, low=one["before"], high=one["after"])
    for n, size, one in zip(sizes, input.shape[2:], axes, strict=True)
]
row = groups * parts * filled
x = input.new_empty((batch_size, *(one["count"] for one in walk), row), dtype=factors).permute(0, 4, 1, 2, 3)
plain = tile_of(input.dtype, 1, groups * filled, whole=False, crowded=True)
given = {{"x": input, "y": x, {WILD_ENTRY if guarded else ""}"inputs": inputs, "channels": in_channels}}
launch(load, walk, plain, batch_size, groups * filled, known | given)
x = x[:, :, axes[0]["before"] :, axes[1]["before"] :, axes[2]["before"] :]
"""
    if not pooled:
        text = text.replace("axis_of(size, n, size, low=", "axis_of(size, size, size, low=")
        text = text.replace(
            "for n, size, one in zip(sizes, input.shape[2:], axes, strict=True)",
            "for size, one in zip(sizes, axes, strict=True)",
        )
    if not guarded:
        text = text.replace(', "GUARD": False', "")
    yield from (line for line in re.sub(r"(?<=.)\n\n(?!#)", "\n", text.strip()).split("\n"))
    for name in problem.operand_names[1:]:
        yield f"{name} = {name}.reshape(-1).contiguous()"


def _launches(problem: Problem, variant: _Variant) -> Iterator[str]:
    """What follows the preparation."""
    for kernel in variant.kernels:
        given = partial(_given, problem, kernel, variant)
        if isinstance(kernel.step, GpuFinish):
            yield "stat_scale, stat_shift = (partials.new_empty(partials.shape[1:3]) for _ in range(2))"
            yield from given(', "length": partials.shape[3], "plane": partials[0].numel(), "BLOCK": 1024')
            yield f"run({kernel.name}, batch_size * out_channels, given, 4, 1)"
        elif isinstance(kernel.step, GpuKernel) and kernel.step.piece.conv is not None:
            yield from _convolution(kernel, kernel.step, given)
        elif isinstance(kernel.step, GpuKernel) and not _prepares(kernel.step):
            yield "walk = [axis_of(n, n, n) for n in output.shape[2:]]"
            yield "plain = tile_of(input.dtype, 1, out_channels, whole=False, crowded=False)"
            yield from given()
            yield f"launch({kernel.name}, walk, plain, batch_size, out_channels, known | given)"


def _convolution(kernel: Exported, step: GpuKernel, given: Callable[..., Iterator[str]]) -> Iterator[str]:
    if step.piece.reduce is not None:
        shape = f"({PLANES[step.piece.reduce]}, batch_size, out_channels, parts_of(axes, tile))"
        yield f"partials = torch.empty({shape}, dtype=sums, device=input.device)"
    yield from given(', "plane": partials[0].numel()' if step.piece.reduce is not None else "")
    yield f"launch({kernel.name}, axes, tile, batch_size * groups, channels, known | given)"
    if kernel.guarded:
        tile = f"guarding(tile, {step.piece.reduce is not None})"
        yield 'given["GUARD"] = True  # nothing is computed then if all is finite'
        yield f"waiting = {tile}"
        yield f"launch({kernel.name}, axes, waiting, batch_size * groups, channels, known | given)"


def _given(problem: Problem, kernel: Exported, variant: _Variant, further: str = "") -> Iterator[str]:
    """Arrays and constants that the kernel asks for."""
    asked = set(re.findall(r"\w+", kernel.text))
    names = [name for name in dict.fromkeys(variant.constants.values()) if f"{name}: tl.float64" in kernel.text]
    entries = [(name, _variable(problem, array)) for name, array in kernel.pointers.items() if name in asked]
    entries += zip(names, names, strict=True)
    words = [f'"{name}": {value}' for name, value in entries] + further.split(", ")[1:]
    sign = "="
    while words:
        fit = next((at for at in range(1, len(words)) if len(", ".join(words[: at + 1])) > 96), len(words))
        yield f"given {sign} {{{', '.join(words[:fit])}}}"
        words, sign = words[fit:], "|="


def _variable(problem: Problem, array: ArrayName) -> str:
    """What `solution` calls an array of the plan."""
    if isinstance(array, OperandName):
        return problem.operand_names[array.place]
    return f"stat_{array.word}" if isinstance(array, StatisticName) else _VARIABLES.get(array) or _KINDS[type(array)]


_VARIABLES: dict[ArrayName, str] = {INPUT: "input", OUTPUT: "output", PACKED: "weights", WILD: "wild"}
_KINDS: dict[type[ArrayName], str] = {
    FilledName: "x",
    PreparedName: "x",
    PartialsName: "partials",
    ValueName: "value",
}
