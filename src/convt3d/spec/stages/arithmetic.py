"""Arithmetic with a second value: a number, an array given at the call, or an earlier value by its name."""

from __future__ import annotations

from typing import Any, ClassVar

from ...errors import ArgumentError, ArgumentTypeError, ShapeError, described
from ..checks import flag, is_a, real
from ..shapes import Shape
from ..stage import Operand, Stage, stage


@stage()
class Keep(Stage):
    """Gives the value at this point a name, so that a later Add, Subtract, Multiply, Divide or Recall can use it.

    Parameters
    ----------
    label : str
        The name: an identifier.

    Raises
    ------
    convt3d.ArgumentError
        No identifier, a reserved word, or a label that the pipeline does not know.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Pipeline(convt3d.ConvTranspose3d(), convt3d.Keep("y"), convt3d.Sigmoid(), convt3d.Multiply("y"))
    Pipeline(ConvTranspose3d(), Keep(label='y'), Sigmoid(), Multiply(other='y'))
    """

    label: str

    def __post_init__(self) -> None:
        _check_name(self)
        if self.label in Binary.RESERVED:
            raise ArgumentError(self.name, "label", self.label, "is a reserved word", "Choose another name")

    @property
    def keeps(self) -> str:
        return self.label


@stage()
class Recall(Stage):
    """Makes a kept value, or the pipeline's input "x", the current one again.

    Where the first stage is a convolution and the second `Recall("x")`, the convolution is not computed: what follows
    is a pipeline without one.

    Parameters
    ----------
    label : str
        The name that Keep gave, or "x".

    Raises
    ------
    convt3d.ArgumentError
        No identifier, a reserved word, or a label that the pipeline does not know.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Recall("y")
    Recall(label='y')
    """

    label: str

    def __post_init__(self) -> None:
        _check_name(self)

    @property
    def uses(self) -> str:
        return self.label

    def meet(self, shape: Shape, other: Shape) -> Shape:
        return other


def _check_name(stage: Keep | Recall) -> None:
    if not is_a(stage.label, str) or not stage.label.isidentifier():
        raise ArgumentError(stage.name, "label", stage.label, "must be a name such as 'skip'", "Write an identifier")


def _shape_of(value: Any) -> tuple[Any, ...]:
    """Of an array; of anything else ()."""
    try:
        return tuple(getattr(value, "shape", ()))
    except Exception:  # a foreign object may raise anything, and is refused where it is read as a number
        return ()


@stage()
class Binary(Stage):
    """value (op) other. `other` is a number; "channel": a vector (C,) given at the call; "tensor": an array of the
    value's shape (1 repeats) given at the call; "x": the pipeline's input; or the label of an earlier Keep."""

    other: float | str

    RESERVED: ClassVar[tuple[str, ...]] = ("channel", "tensor", "x")

    def __post_init__(self) -> None:
        shape = _shape_of(self.other)
        if shape:
            raise ArgumentTypeError(
                self.name,
                "other",
                described(f"array of shape {shape}"),
                "must be a number or a word",
                "Write 'channel' or 'tensor', and give the array at the call",
            )
        if not is_a(self.other, str):
            self._set(other=real(self.name, "other", self.other, nan=True))

    @property
    def label(self) -> str | None:
        """The earlier value it uses, if it uses one."""
        return self.other if isinstance(self.other, str) and self.other not in ("channel", "tensor") else None

    @property
    def uses(self) -> str | None:
        return self.label

    def meet(self, shape: Shape, other: Shape) -> Shape:
        """A kept value may have size 1 where the current one has not, and the other way round."""
        if any(v != o and 1 not in (v, o) for v, o in zip(shape, other, strict=True)):
            raise ShapeError(
                self.name,
                "other",
                self.other,
                f"names a value of shape {other}, which does not fit the current shape {shape}",
                "Sizes must be equal, or 1 on an axis to repeat",
            )
        b, c, d, h, w = (o if v == 1 else v for v, o in zip(shape, other, strict=True))
        return b, c, d, h, w

    def sides(self, value: Any, other: Any) -> tuple[Any, Any]:
        """What stands left and right of the sign."""
        return value, other

    def operands(self) -> tuple[Operand, ...]:
        if self.other == "channel":
            return (Operand("other", "channel", number=True),)
        return (Operand("other", "tensor"),) if self.other == "tensor" else ()


@stage()
class Add(Binary):
    """value + other.

    Parameters
    ----------
    other : float or str
        A number; "channel": a vector (C,) given at the call; "tensor": an array of the value's shape, or with 1
        on axes to repeat, given at the call; "x": the pipeline's input; or the label of an earlier Keep.

    Raises
    ------
    convt3d.ArgumentTypeError
        A value of another kind, or an unknown parameter.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Pipeline(convt3d.ConvTranspose3d(), convt3d.Add("channel")).operand_names
    ('weight', 'add_other')
    """


@stage()
class _Ordered(Binary):
    """One whose sides must not be swapped, unless `reverse` asks for it."""

    reverse: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(reverse=flag(self.name, "reverse", self.reverse))

    def sides(self, value: Any, other: Any) -> tuple[Any, Any]:
        return (other, value) if self.reverse else (value, other)


@stage()
class Subtract(_Ordered):
    """value - other.

    Parameters
    ----------
    other : float or str
        A number; "channel": a vector (C,) given at the call; "tensor": an array of the value's shape, or with 1
        on axes to repeat, given at the call; "x": the pipeline's input; or the label of an earlier Keep.
    reverse : bool, default False
        Whether it is other - value.

    Raises
    ------
    convt3d.ArgumentTypeError
        A value of another kind, or an unknown parameter.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Subtract(2.0, reverse=True)
    Subtract(other=2.0, reverse=True)
    """


@stage()
class Multiply(Binary):
    """value * other.

    Parameters
    ----------
    other : float or str
        A number; "channel": a vector (C,) given at the call; "tensor": an array of the value's shape, or with 1
        on axes to repeat, given at the call; "x": the pipeline's input; or the label of an earlier Keep.

    Raises
    ------
    convt3d.ArgumentTypeError
        A value of another kind, or an unknown parameter.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Pipeline(convt3d.ConvTranspose3d(), convt3d.Multiply("channel")).operand_names
    ('weight', 'multiply_other')
    """


@stage()
class Divide(_Ordered):
    """value / other.

    Parameters
    ----------
    other : float or str
        A number; "channel": a vector (C,) given at the call; "tensor": an array of the value's shape, or with 1
        on axes to repeat, given at the call; "x": the pipeline's input; or the label of an earlier Keep.
    reverse : bool, default False
        Whether it is other / value.

    Raises
    ------
    convt3d.ArgumentTypeError
        A value of another kind, or an unknown parameter.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Divide(2.0, reverse=True)
    Divide(other=2.0, reverse=True)
    """
