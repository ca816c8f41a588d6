"""What a stage is: a frozen, hashable description of one step, its tensors, its shape rule and what it reads.

Nothing here computes; the meaning of each stage is in `reference.py`, its fast form in `cpu/code/`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar

from ..errors import ShapeError, described
from .checks import answers
from .shapes import AXES, Box, Shape

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        return lambda decorator: decorator


SPATIAL = frozenset(AXES)
CHANNELS = frozenset({"channels"})

# Numbers of the axes of a value.
OVER = {"channels": (1,), "spatial": (2, 3, 4), "depth": (2,), "height": (3,), "width": (4,)}

OperandKind: TypeAlias = Literal["kernel", "channel", "out_channel", "slope", "width", "tensor"]


@dataclass(frozen=True)
class Operand:
    """A tensor a stage takes at the call, beside the value that flows through the pipeline."""

    role: str
    kind: OperandKind
    number: bool = False  # whether one number, an array without axes, serves all channels
    layout: str = ""  # axes of a kernel

    def normal_shape(self, stage: str, name: str, given: tuple[int, ...], value: Shape) -> tuple[int, ...]:
        """`given`, a vector without size-1 axes around it, a number as often as it is needed, a tensor with all axes;
        an error if it does not fit a value of shape `value`."""
        channels, width = value[1], value[4]
        if self.kind == "kernel":
            fits = len(given) == 5 and min(given) >= 1
            rule = f"must be 5-D {self.layout} with no empty axis"
        elif self.kind == "tensor":
            full = (1,) * (5 - len(given)) + given if len(given) in (0, 4) else given
            fits = len(full) == 5 and all(g in (1, v) for g, v in zip(full, value, strict=True))
            given = full if fits else given
            rule = f"must have the value's shape {value}, or 1 on axes to repeat; the batch may be left out"
        elif self.kind == "width":
            fits = given == (width,)
            rule = f"must have shape ({width},), one number for each position along the width"
        else:
            lengths = (1, channels) if self.kind == "slope" else (channels,)
            around = [shape for n in lengths for shape in ((n,), (n, 1, 1, 1), (1, n, 1, 1, 1))]
            fits = given in around or (given == () and self.number)
            given = (max(given, default=lengths[0]),) if fits else given
            rule = f"must have shape {' or '.join(f'({n},)' for n in lengths)} for {channels} channels"
            rule += ", with axes of size 1 around it or not" + (", or be one number" if self.number else "")
        if not fits:
            raise ShapeError(stage, name, described(f"array of shape {given}"), rule, "Reshape it")
        return given

    def usual_shape(self, value: Shape) -> tuple[int, ...]:
        """The shape such a tensor has for a value of shape `value`; a kernel has none of its own."""
        return {"tensor": value, "width": (value[4],)}.get(self.kind, (value[1],))


@dataclass(frozen=True, eq=False, repr=False)
class Stage:
    """One step of a pipeline. Subclasses are frozen dataclasses that hold parameters only."""

    # Axes along which one output depends on more than the same position of the input.
    couples: ClassVar[frozenset[str]] = frozenset()

    def operands(self) -> tuple[Operand, ...]:
        """The tensors it takes at the call, in order."""
        return ()

    def out_shape(self, shape: Shape, operands: Sequence[tuple[int, ...]]) -> Shape:
        return shape

    def reads(self, box: Box, shape: Shape, operands: Sequence[tuple[int, ...]]) -> Box:
        """The part of its input (of `shape`) that the outputs in `box` depend on."""
        return box

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def uses(self) -> str | None:
        """The name of the earlier value it takes beside the current one, or in its place."""
        return None

    @property
    def keeps(self) -> str | None:
        """The name that it gives to the current value."""
        return None

    @property
    def reduces(self) -> tuple[int, ...]:
        """Axes that it reduces to one number."""
        return ()

    @property
    def drops(self) -> tuple[int, ...]:
        """Axes that it drops from the pipeline's result; in values they are kept, with size 1."""
        return ()

    def meet(self, shape: Shape, other: Shape) -> Shape:
        """The result's shape, where it `uses` a value of shape `other`."""
        return shape

    def key(self) -> tuple[Any, ...]:
        """Equality by bits: -0.0 differs from 0.0 (Divide would tell), and NaN equals NaN (a cache must find it)."""
        values = (getattr(self, field.name) for field in fields(self))
        return (self.name, *((float, value.hex()) if isinstance(value, float) else value for value in values))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stage) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def __repr__(self) -> str:
        """As one would write it: parameters at their default left out, equal triples written once."""
        parts = []
        for field in fields(self):
            value = getattr(self, field.name)
            shown = value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value
            if shown != field.default or type(shown) is not type(field.default):
                parts.append(f"{field.name}={shown!r}")
        return f"{self.name}({', '.join(parts)})"

    def _set(self, **values: Any) -> None:
        """Stores normalised parameters; only for __post_init__."""
        for name, value in values.items():
            object.__setattr__(self, name, value)


Kind = TypeVar("Kind", bound=Stage)


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(dataclasses.field,))
def stage(*, kw_only: bool = False) -> Callable[[type[Kind]], type[Kind]]:
    """Makes a frozen dataclass of a subclass of Stage; with `kw_only` its own parameters are given by name only."""

    def make(kind: type[Kind]) -> type[Kind]:
        made = dataclass(frozen=True, eq=False, repr=False, kw_only=kw_only)(kind)
        made.__init__ = answers(made.__init__, made.__name__)  # type: ignore[method-assign]
        return made

    return make


def whole(shape: Shape) -> Box:
    """The box of everything in one sample."""
    _, c, d, h, w = shape
    return (0, c), (0, d), (0, h), (0, w)


def coupled_box(over: str, box: Box, shape: Shape) -> Box:
    """`box` with the axes of `over` whole."""
    full = whole(shape)
    c, d, h, w = (full[axis] if axis + 1 in OVER[over] else box[axis] for axis in range(4))
    return c, d, h, w
