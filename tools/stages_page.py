"""Writes docs/stages.md: every stage with its parameters, tensors and meaning, and what each backend makes of it.

python tools/stages_page.py            needs torch, onnx and jax
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from convt3d.spec.backends import StageTable, vocabulary
from convt3d.spec.stage import Stage

PAGE = Path(__file__).resolve().parents[1] / "docs" / "stages.md"
TABLES = {
    "meaning": "convt3d.spec.reference.MEANINGS",
    "sweeps": "convt3d.plan.sweeps.LOWER",
    "CPU": "convt3d.cpu.code.chain.CPU",
    "GPU": "convt3d.gpu.text.chain.GPU",
    "PyTorch": "convt3d.torch.stock.STOCK",
    "gradient": "convt3d.torch.stage_gradients.GRADIENTS",
    "gradient on the CPU": "convt3d.plan.tails.BACK",
    "ONNX": "convt3d.bench.contenders.as_onnx.ONNX",
    "JAX": "convt3d.jax.formulas.JAX",
}
# Parameters with which a stage takes all the tensors it can take.
FULL = {"bias": True, "affine": True, "other": "channel", "scale": "channel", "min": 0.0}
NEEDED = {"kernel_size": 2, "num_groups": 1, "label": "y"}

HEAD = """# Stages

What a pipeline may hold around its convolutions, one or more, with PyTorch's names, order and defaults of parameters.
Values are (B, C, D, H, W). The tensors are those that a call takes after `x`, stage after stage, in this order; those
of a second convolution are `weight_2` and `bias_2`. Those
in brackets are there if a parameter asks for them: `bias=True`, `affine=True`, `scale="channel"`, `other="channel"` or
`other="tensor"`.

`tools/stages_page.py` writes this page, and a test compares it.

| stage | tensors | meaning |
|---|---|---|
"""
BACKENDS = """
## Backends

Each has a table of its own, in the file named: the meaning in float64 (`spec/reference.py`), how a stage is cut into
sweeps (`plan/sweeps.py`), code for the CPU (`cpu/code/chain.py`) and for GPUs (`gpu/text/chain.py`), PyTorch's own
operations (`torch/stock.py`), gradients by those (`torch/stage_gradients.py`) and by our kernels on the CPU
(`plan/tails.py`), what peers of the benchmark are told in ONNX (`bench/contenders/as_onnx.py`), and JAX's own
operations (`jax/formulas.py`), from which its gradients follow.

"yes" means that there is an entry. Some parameters and uses of a stage are left to PyTorch's operations all the same:
on GPUs LayerNorm along the width ([gpu.md](gpu.md)), and of the gradients on the CPU those that
[torch.md](torch.md#gradients) lists.

"""


def table(name: str) -> StageTable[Any]:
    module, _, attribute = TABLES[name].rpartition(".")
    found: StageTable[Any] = getattr(import_module(module), attribute)
    return found


def cell(name: str, kind: type[Stage]) -> str:
    """What the page says of one stage on one backend."""
    try:
        found = table(name)
    except ImportError:
        return shown(name, kind)
    return "yes" if kind in found.entries else f"no: {found.reasons[kind]}"


def shown(name: str, kind: type[Stage]) -> str:
    """What it says now."""
    lines = PAGE.read_text(encoding="utf-8").partition("## Backends")[2].splitlines() if PAGE.exists() else []
    found = [line for line in lines if line.startswith(f"| `{kind.__name__}` |")]
    return found[0].split("|")[2 + list(TABLES).index(name)].strip() if found else "not looked at"


def row(kind: type[Stage]) -> str:
    text = " ".join((kind.__doc__ or "").partition("\n\n")[0].split()).replace("|", "\\|")
    return f"| `{kind.__name__}({', '.join(map(_parameter, fields(kind)))})` | {_tensors(kind)} | {text} |"


def _parameter(field: Field[Any]) -> str:
    return field.name if field.default is MISSING else f"{field.name}={field.default!r}"


def _tensors(kind: type[Stage]) -> str:
    names = {field.name for field in fields(kind)}
    needed = {name: value for name, value in {**NEEDED, "min": 0.0, "other": 1.0}.items() if name in names}
    always = [operand.role for operand in kind(**needed).operands()]
    full = kind(**{**needed, **{name: value for name, value in FULL.items() if name in names}}).operands()
    return ", ".join(each.role if each.role in always else f"[{each.role}]" for each in full)


def page() -> str:
    kinds = vocabulary().values()
    lines = [f"| `{kind.__name__}` | {' | '.join(cell(name, kind) for name in TABLES)} |" for kind in kinds]
    head = f"| stage | {' | '.join(TABLES)} |\n|---|{'---|' * len(TABLES)}\n"
    return HEAD + "\n".join(map(row, kinds)) + "\n" + BACKENDS + head + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.name}")
