"""What the code of a gradient depends on: type, instruction set, what registers hold, and how many taps the pieces of
Winograd's method have. Sizes, strides, padding and dilation are not among them."""

from __future__ import annotations

from dataclasses import dataclass

from .pieces import Schemes
from .registers import Registers


@dataclass(frozen=True)
class Structure:
    dtype: str
    isa: str
    registers: Registers
    schemes: Schemes | None  # None: direct summation

    @property
    def key(self) -> str:
        """A text that is equal exactly for equal code."""
        return f"weight gradient {self!r}"

    @property
    def name(self) -> str:
        """Says the case in a few words: ct3d_f32_weight_gradient_large8x2_winograd3x3x3__avx512."""
        short = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}[self.dtype]
        words = [short, "weight_gradient", self.registers.name]
        if self.schemes:
            words.append("winograd" + "x".join(str(max(axis)) for axis in self.schemes.lengths))
        return f"ct3d_{'_'.join(words)}__{self.isa}"

    @property
    def zeros(self) -> bool:
        """Whether zeros around the arrays take part, as they do unless each tap keeps to the positions it has."""
        return self.schemes is not None or self.registers.taps > 1
