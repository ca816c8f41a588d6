"""What the code of a sweep depends on: its steps, the kinds of arrays, the register tile, type and instruction set.

Volume, batch, stride, padding and dilation are not among them: they reach the kernel as tables and numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..steps.base import Step
from ..words import SweepCall, SweepWords, Words


@dataclass(frozen=True)
class Structure:
    """All that the code of a sweep depends on: sweeps of equal keys share one kernel."""

    steps: tuple[Step, ...]
    dtype: str
    isa: str

    @property
    def key(self) -> str:
        """A text that is equal exactly for equal code."""
        return " | ".join([self.dtype, self.isa, *(step.key for step in self.steps)])

    @property
    def name(self) -> str:
        """Says the case in a few words: ct3d_f32_conv8x3_layernorm_gelu_multiply__avx512."""
        words = [word for step in self.steps for word in step.names]
        short = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}[self.dtype]
        return f"ct3d_{short}_{'_'.join(words) or 'copy'}__{self.isa}"

    @property
    def words(self) -> list[type[Words]]:
        """The sets of the kernel's table that the plan fills, those of the sweep first."""
        return [SweepWords, *(words for step in self.steps for words in step.words)]

    @property
    def call_words(self) -> list[type[Words]]:
        """The sets that follow them, which every call fills."""
        return [SweepCall, *(words for step in self.steps for words in step.call)]
