"""Lines of a Triton kernel and the arguments they ask for, gathered while the text is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..plan.gpu import INT32_MAX
from ..spec.dtypes import DType

ELEMENTS = {"float32": "fp32", "float64": "fp64", "float16": "fp16", "bfloat16": "bf16"}
AXES = "dhw"


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel: a pointer to `array`, a stride of it along `axis` (0 where it is repeated), or a number
    known to the plan."""

    name: str
    type: str  # as Triton writes it: *fp32, i32, i64
    array: str | None = None
    axis: str | None = None
    value: int | None = None


@dataclass
class Constants:
    """Numbers of the stages, in one array of the type of sums: code does not depend on them."""

    values: list[float] = field(default_factory=list)

    def place(self, value: float) -> int:
        self.values.append(value)
        return len(self.values) - 1


class Code:
    """Text of one kernel under way."""

    def __init__(self, dtype: DType, constants: Constants) -> None:
        self.dtype, self.constants = dtype, constants
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

    def pointer(self, name: str, array: str, element: str | None = None) -> str:
        """Values and statistics are in the type of sums, all else is as stored."""
        if element is None:
            own = array.split(":")[0] in ("value", "stat", "partials", "constants")
            element = ELEMENTS[self.dtype.accumulate if own else self.dtype.name]
        return self._argument(Argument(name, f"*{element}", array=array))

    def stride(self, name: str, array: str, axis: str) -> str:
        return self._argument(Argument(f"{name}_{axis}", "i32", array=array, axis=axis))

    def number(self, name: str, value: int) -> str:
        return self._argument(Argument(name, "i32" if value <= INT32_MAX else "i64", value=value))

    def constant(self, value: float) -> str:
        return f"tl.load({self.pointer('constants', 'constants')} + {self.constants.place(value)})"

    def _argument(self, argument: Argument) -> str:
        known = self.arguments.setdefault(argument.name, argument)
        assert known == argument
        return argument.name
