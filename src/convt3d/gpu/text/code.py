"""Lines of a Triton kernel and the arguments they ask for, gathered while the text is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...plan.names import ArrayName
from ...spec.dtypes import DType
from ..geometry import INT32_MAX, SIZES, GpuAxis
from ..pieces import FilledName, PreparedName, WeightsName

ELEMENTS = {"float32": "fp32", "float64": "fp64", "float16": "fp16", "bfloat16": "bf16"}
AXES = "dhw"


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel: a pointer to `array`, a stride of it along `axis` (0 where it is repeated), how it lies
    (constexprs, see `run` and `halo`), or a number known to the plan."""

    name: str
    type: str  # as Triton writes it: *fp32, i32, i64, fp64, constexpr
    array: ArrayName | None = None
    axis: str | None = None
    value: int | float | None = None
    fixed: bool = True  # whether Triton may compile for its value: 1, or a multiple of 16


@dataclass
class Constants:
    """Numbers of the stages, which kernels take as arguments: code does not depend on them."""

    values: list[float] = field(default_factory=list)

    def place(self, value: float) -> int:
        self.values.append(value)
        return len(self.values) - 1


class Code:
    """Text of one kernel under way."""

    def __init__(self, dtype: DType, constants: Constants, parts: int = 1) -> None:
        """`parts`: how many bfloat16 numbers each factor of a product is the sum of, 1 if it is stored as it is."""
        self.dtype, self.constants, self.parts = dtype, constants, parts
        self.acc = f"tl.{dtype.accumulate}"
        self.lines: list[str] = []
        self.arguments: dict[str, Argument] = {}
        self.depth = 1

    def add(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line if line else "" for line in lines]

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.add(head)
        self.depth += 1
        yield
        self.depth -= 1

    def pointer(self, name: str, array: ArrayName, element: str | None = None) -> str:
        stored = ELEMENTS[self.dtype.accumulate if array.of_numbers else self.dtype.name]
        if self.parts > 1 and isinstance(array, (FilledName, PreparedName, WeightsName)):
            stored = "bf16"
        return self._argument(Argument(name, f"*{element or stored}", array=array))

    def stride(self, name: str, array: ArrayName, axis: str, fixed: bool = False) -> str:
        return self._argument(Argument(f"{name}_{axis}", "i32", array=array, axis=axis, fixed=fixed))

    def run(self, name: str, array: ArrayName) -> str:
        """Of how many channels next to each other in memory the array surely consists; 0 if they are not."""
        return self._argument(Argument(f"{name.upper()}_RUN", "constexpr", array=array))

    def halo(self, name: str, array: ArrayName) -> str:
        """1 if zeros lie around the array wherever an address may reach, else 0."""
        return self._argument(Argument(f"{name.upper()}_HALO", "constexpr", array=array, axis="halo"))

    def rows(self, name: str, array: ArrayName, place: str) -> str:
        """Where the channels of the positions `place_d`, `place_h`, `place_w` begin. That these are whole runs is said
        here and not in a function that the kernel calls: Triton drops what is said of a function's argument."""
        n, d, h, w = (self.stride(name, array, axis) for axis in "ndhw")
        rows, run = f"{name}_rows", self.run(name, array)
        self.add(f"{rows} = n * {n} + {place}_d * {d} + {place}_h * {h} + {place}_w * {w}")
        with self.block(f"if {run}:"):
            self.add(f"{rows} = tl.multiple_of({rows}, {run})")
        return rows

    def number(self, name: str, value: int, fixed: bool = False) -> str:
        return self._argument(Argument(name, "i32" if value <= INT32_MAX else "i64", value=value, fixed=fixed))

    def axis(self, name: str, axis: str, numbers: GpuAxis) -> str:
        """Stride, dilation and the like belong to the operator: to know that one is 1 saves registers."""
        return self.number(f"{name}_{axis}", numbers.number(name), fixed=name not in SIZES)

    def constant(self, value: float) -> str:
        """In float64, as Triton would pass numbers in float32."""
        name = f"constant_{self.constants.place(value)}"
        return f"tl.full((), {self._argument(Argument(name, 'fp64', value=value, fixed=False))}, {self.acc})"

    @property
    def ordered(self) -> tuple[Argument, ...]:
        """Those that Triton may not look at come after the others, constexprs last."""
        return tuple(sorted(self.arguments.values(), key=lambda one: (one.type == "constexpr", not one.fixed)))

    def _argument(self, argument: Argument) -> str:
        known = self.arguments.setdefault(argument.name, argument)
        assert known == argument
        return argument.name
