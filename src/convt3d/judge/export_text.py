"""Kernels of a plan as an exported file has them: shorter, since such a file knows more than a plan does.

Its arrays are contiguous, its convolution's input is in memory with the zeros around it, and what is true of all that
the problem allows (no dilation, no pool) is said by leaving out. The kernel that waits for numbers that are not finite
becomes the other branch of a constant of the kernel that it waits for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher

from ..gpu.text.code import Argument
from ..gpu.text.kernel import wrapped

CONSTANTS = ("BLOCK_P", "BLOCK_C", "BLOCK_K", "BLOCK", "PARTS", "GUARD", "ROUNDED", "ACC", "INDEX")
_WORDS = {
    "program = ": "Which outputs.",
    "k_d, n_d, i_d = ": "The taps that meet them.",
    "v = acc": "What follows the convolution.",
    "y_rows = n": "Where they go.",
}
RUN = 16  # of numbers next to each other in what kernels prepare, whole blocks of channels

_INTERPRETED = "\nINTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)\n"
_KNOWN = {"X_HALO": True, "HALO": True}  # constants that have one value here
_LONG = (
    # No mask beside the input, no TensorFloat32.
    (r' *if PARTS == 1 and PRECISION == "tf32":\n +v = rounded_off\(v, 13\)\n', ""),
    (r"PARTS, X_HALO, PRECISION,\n", "PARTS, PRECISION,\n"),
    (r"input_precision=PRECISION", 'input_precision="ieee"'),
    (r", PRECISION(: tl\.constexpr)?\b", ""),
    (r", HALO: tl\.constexpr|, hit\[:, None\]", ""),
    (r", hit, (HALO|True)\b", ""),
    (r"(?<=acc, x_at, x_part, )hit, |(?<=def factor_tile\(at), hit\b", ""),
    (r"add_product\(\n +(acc, .*),\n +PARTS,\n +\)  # fmt: skip", r"add_product(\1, PARTS)"),
    (r"; beside the input are zeros, in memory \(HALO\) or not\.", "."),
    (r"(?s)\n@triton\.jit\ndef made\(\):.*?\nINTERPRETED = [^\n]*\n", _INTERPRETED),
    (
        r"(?s)A tile of a factor; .*? is another\.",
        "The input stays in L1 (.ca) for the next tap, weights pass it by (.cg).",
    ),
    # A kernel that waits has as many programs as the other, and one input channel a step.
    (r" +for start in range\(tl\.program_id\(0\), programs.*\n", ""),
    (r"tl\.full\(\(\), start, tl\.int64\)", "tl.program_id(0).to(tl.int64)"),
    (r"n_d \* n_h \* n_w \* inputs\b", "n_d * n_h * n_w * (inputs // BLOCK_K)"),
    (r"tl\.where\(done, 1, 0\)", "tl.where(done, BLOCK_K, 0)"),
    # Pools without padding.
    (r" - pad_[dhw]\b| \+ border_[dhw]\b", ""),
    (r"-border_[dhw]\b", "0"),
    # Lines as short as ours.
    (
        r"( +)w_hop_d, w_hop_h, w_hop_w = .*\n",
        r"\1w_hop_w = hop_w * w_tap\n\1w_hop_h = hop_h * kernel_w * w_tap\n"
        r"\1w_hop_d = hop_d * kernel_h * kernel_w * w_tap\n",
    ),
    (r" / channels  # what rounding has left of the mean", r" / channels  # what rounding has left"),
    (
        r"( +)part_at = partials \+ (.*) \* \((tiles \* (\(pace.*?\)))\) \+ tile \* .* \+ residue",
        r"\1tiles_before = \2 * tiles + tile\n\1part_at = partials + tiles_before * \4 + residue",
    ),
    (
        r"( +)(tl\.store\(part_at.*?), (tl\.sum\(tl\.where\(.*\), 0\)), mask=in_channel\)",
        r"\1total = \3\n\1\2, total, mask=in_channel)",
    ),
    (
        r"( +)moved = tl\.exp\(finite_or_zero\((tl\.load.*?tl\.float64\))\) - (.*)\)",
        r"\1own = \2\n\1moved = tl.exp(finite_or_zero(own) - \3)",
    ),
    # Outputs of packed weights are neighbours; the first of several planes begins where all do.
    (r" \* w_column\b", ""),
    (r" \+ 0 \* plane\b", ""),
    (r"\b1 \* plane\b", "plane"),
)
_UNDILATED = (
    (r", dilation_[dhw], common_[dhw], inverse_[dhw]\)", ")"),
    (r"\bhop_([dhw])\b", r"stride_\1"),
    (r"\bback_[dhw]\b", "1"),
)
_UNPOOLED = (
    (r"\bpace_([dhw])\b", r"stride_\1"),
    (r" *b_[hw] = q_[hw] \* step_[hw]\n", ""),
    (r"\bb_([hw])\b", r"q_\1"),
    (r"\bstep_[dhw]\b", "1"),
)
_ONES = ((r" \* 1\b(?!\.)", ""), (r"\b1 \* (?=\w)", ""))
_TAPS = '''
@triton.jit
def taps_of(at, kernel, stride):
    """Taps k = at (mod stride): the first, how many there are, and the input that the first meets."""
    first = (at % stride + stride) % stride
    return first, (kernel - first + stride - 1) // stride, (at - first) // stride
'''


def shortened(text: str, prepares: bool = False) -> str:
    """Of a kernel, or of functions that kernels call. One that `prepares` writes runs of channels."""
    if prepares:
        text = text.replace("in_column, Y_RUN)", f"in_column, {RUN})")
        text = re.sub(r" +if Y_RUN:\n +(y_rows = tl.multiple_of\(y_rows), Y_RUN\)", rf"    \1, {RUN})", text)
    if "for start in range(tl.program_id(0), programs" in text:
        head, line, inner = re.split(r"( +for start in range\(tl\.program_id\(0\), programs.*\n)", text)
        text = head + line + re.sub(r"^    ", "", inner, flags=re.M)
    text = pruned(text, {**_KNOWN, **dict.fromkeys(re.findall(r"\b\w+_RUN\b", text), False)})
    text = re.sub(r", [XY]_RUN\)", lambda found: ", 0)" if "Y" in found[0] else ")", text)
    text = _all(text, _LONG)
    return text if "whole_factor(" in text else re.sub(r" +hit = inside\n", "", text)


def of_problem(text: str, dilated: bool, pooled: bool) -> str:
    """Without numbers that are 1, or others, in all calls."""
    text = re.sub(r"\bshift_([dhw])\b", r"padding_\1", text)  # pools have no padding
    for rules in (() if dilated else _UNDILATED, () if pooled else _UNPOOLED, _ONES):
        text = _all(text, rules)
    if not dilated:
        text = re.sub(r" *x_back_d, x_back_h, x_back_w = .*\n", "", text)
        text = re.sub(r"\bx_back_([dhw])\b", r"x_\1", text)
    return text


def functions(text: str, dilated: bool) -> str:
    """Those that kernels share (gpu/text/parts.py)."""
    text = _all(pruned(text, _KNOWN), _LONG)
    loads = text.partition("def load_tile(")[2].partition("\n@triton.jit")[0]
    short = pruned(loads, {"RUN": False}).replace(", RUN: tl.constexpr", "")
    short = re.sub(r"Neighbouring threads.*?positions\.", "Neighbouring threads take neighbours.", short, flags=re.S)
    text = text.replace(loads, short) if loads else text
    return text if dilated else re.sub(r"\n@triton\.jit\ndef taps_of\(.*?\n(?=\n\n|\Z)", _TAPS, text, flags=re.S)


def pruned(text: str, known: Mapping[str, bool]) -> str:
    """Without `if` of what is known: the lines of the branch that is taken, one level further out."""
    lines, found = text.split("\n"), []
    while lines:
        line = lines.pop(0)
        match = re.fullmatch(r"( *)if (not )?(\w+):", line)
        if match is None or match[3] not in known:
            found.append(line)
            continue
        inner, other = _block(lines, match[1]), []
        if lines and lines[0] == f"{match[1]}else:":
            lines.pop(0)
            other = _block(lines, match[1])
        taken = inner if known[match[3]] != bool(match[2]) else other
        lines[:0] = [one.removeprefix("    ") for one in taken]
    return "\n".join(found)


def joined(constant: str, lines: Sequence[str], guard: Sequence[str]) -> list[str]:
    """Two bodies as one: where they differ, a constant chooses the second."""
    found: list[str] = []
    for kind, a, b, c, e in SequenceMatcher(None, lines, guard, autojunk=False).get_opcodes():
        if kind == "equal":
            found += lines[a:b]
            continue
        ours, theirs = lines[a:b], guard[c:e]
        first = (ours or theirs)[0]
        indent = first[: len(first) - len(first.lstrip())]
        for head, block in ((f"if {constant}:", theirs), ("else:" if theirs else f"if not {constant}:", ours)):
            if block:
                found += [indent + head, *("    " + line for line in block)]
    return found


def kernel_source(name: str, title: str, body: Sequence[str], known: Sequence[Argument]) -> str:
    """A kernel with the arguments that its body asks for; Triton compiles anew for numbers of `known` that it may look
    at (`fixed`), and for constants."""
    words = set(re.findall(r"\w+", "\n".join(body)))
    asked = {one.name: one for one in known if one.name in words and one.name.isidentifier()}
    loose = [one for one in asked.values() if not one.fixed]
    fixed = [one for one in asked.values() if one.fixed]
    names = [one.name for one in fixed] + [one.name + (": tl.float64" if one.type == "fp64" else "") for one in loose]
    names += [f"{constant}: tl.constexpr" for constant in CONSTANTS if constant in words]
    head = f"@triton.jit(do_not_specialize=range({len(fixed)}, {len(fixed) + len(loose)}))"
    return "\n".join([head, f"def {name}(", *wrapped(names), "):  # fmt: skip", f'    """{title}"""', *_told(body)])


def _told(body: Sequence[str]) -> Iterator[str]:
    """With words between its parts."""
    for line in body:
        for start, words in _WORDS.items():
            if line.strip().startswith(start):
                yield f"{line[: len(line) - len(line.lstrip())]}# {words}"
        yield line


def body_of(text: str) -> list[str]:
    """The lines behind the docstring."""
    return text.partition('"""\n')[2].split("\n")


def _all(text: str, rules: Sequence[tuple[str, str]]) -> str:
    for pattern, other in rules:
        text = re.sub(pattern, other, text)
    return text


def _block(lines: list[str], indent: str) -> list[str]:
    """Takes the lines that are further in."""
    found = []
    while lines and lines[0].startswith(f"{indent}    "):
        found.append(lines.pop(0))
    return found
