"""Functions of one number."""

from __future__ import annotations

from ...errors import ArgumentError
from ..checks import one_of, real
from ..stage import Operand, Stage, stage


@stage()
class Clamp(Stage):
    """min(max(x, min), max), one- or two-sided; NaN travels.

    Parameters
    ----------
    min : float, optional
        Lower bound.
    max : float, optional
        Upper bound, not below `min`. At least one of them is given.

    Raises
    ------
    convt3d.ArgumentError
        A value outside its range.
    convt3d.ArgumentTypeError
        A value of another kind, or an unknown parameter.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Clamp(0.0, 1.0)
    Clamp(min=0.0, max=1.0)
    """

    min: float | None = None
    max: float | None = None

    def __post_init__(self) -> None:
        low, high = (
            None if bound is None else real(self.name, name, bound)
            for name, bound in (("min", self.min), ("max", self.max))
        )
        self._set(min=low, max=high)
        if low is None and high is None:
            raise ArgumentError(self.name, "min, max", None, "at least one bound must be given", "Write min= or max=")
        if low is not None and high is not None and low > high:
            raise ArgumentError(
                self.name, "min, max", (low, high), "min must not be greater than max", "Swap the bounds"
            )


@stage()
class GELU(Stage):
    """x * Phi(x), exact with erf.

    Parameters
    ----------
    approximate : str, default 'none'
        "tanh" takes the tanh formula.

    Raises
    ------
    convt3d.ArgumentError
        A value outside its range.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.GELU(approximate="tanh")
    GELU(approximate='tanh')
    """

    approximate: str = "none"

    def __post_init__(self) -> None:
        self._set(approximate=one_of(self.name, "approximate", self.approximate, ("none", "tanh")))


@stage()
class ReLU(Stage):
    """max(x, 0); NaN travels.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2), convt3d.ReLU())
    Pipeline(ConvTranspose3d(stride=2), ReLU())
    """


@stage()
class LeakyReLU(Stage):
    """x where x > 0, else negative_slope * x.

    Parameters
    ----------
    negative_slope : float, default 0.01
        The slope below 0.

    Raises
    ------
    convt3d.ArgumentError
        A value outside its range.
    convt3d.ArgumentTypeError
        A value of another kind, or an unknown parameter.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.LeakyReLU(0.2)
    LeakyReLU(negative_slope=0.2)
    """

    negative_slope: float = 0.01

    def __post_init__(self) -> None:
        self._set(negative_slope=real(self.name, "negative_slope", self.negative_slope))


@stage()
class PReLU(Stage):
    """x where x > 0, else weight * x; the weight given at the call has one number, or one for each channel.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Pipeline(convt3d.ConvTranspose3d(), convt3d.PReLU()).operand_names
    ('weight', 'prelu_weight')
    """

    def operands(self) -> tuple[Operand, ...]:
        return (Operand("weight", "slope", number=True),)


@stage()
class Sigmoid(Stage):
    """1 / (1 + exp(-x)).

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2), convt3d.Sigmoid())
    Pipeline(ConvTranspose3d(stride=2), Sigmoid())
    """


@stage()
class Tanh(Stage):
    """tanh(x).

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2), convt3d.Tanh())
    Pipeline(ConvTranspose3d(stride=2), Tanh())
    """


@stage()
class SiLU(Stage):
    """x * sigmoid(x).

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2), convt3d.SiLU())
    Pipeline(ConvTranspose3d(stride=2), SiLU())
    """


@stage()
class HardSwish(Stage):
    """x * clamp(x + 3, 0, 6) / 6.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2), convt3d.HardSwish())
    Pipeline(ConvTranspose3d(stride=2), HardSwish())
    """


@stage()
class HardTanh(Stage):
    """x clamped to [min_val, max_val]; NaN travels.

    Parameters
    ----------
    min_val : float, default -1.0
        Lower bound.
    max_val : float, default 1.0
        Upper bound, not below `min_val`.

    Raises
    ------
    convt3d.ArgumentError
        A value outside its range.
    convt3d.ArgumentTypeError
        A value of another kind, or an unknown parameter.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.HardTanh(0.0, 6.0)
    HardTanh(min_val=0.0, max_val=6.0)
    """

    min_val: float = -1.0
    max_val: float = 1.0

    def __post_init__(self) -> None:
        low = real(self.name, "min_val", self.min_val)
        high = real(self.name, "max_val", self.max_val)
        self._set(min_val=low, max_val=high)
        if low > high:
            raise ArgumentError(
                self.name, "min_val, max_val", (low, high), "min_val must not be greater than max_val", "Swap them"
            )


@stage()
class Mish(Stage):
    """x * tanh(softplus(x)).

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2), convt3d.Mish())
    Pipeline(ConvTranspose3d(stride=2), Mish())
    """


@stage()
class Softplus(Stage):
    """log(1 + exp(beta * x)) / beta, and x itself where beta * x > threshold.

    Parameters
    ----------
    beta : float, default 1.0
        Between 2^-100 and 2^100 in size.
    threshold : float, default 20.0
        Where the straight line begins.

    Raises
    ------
    convt3d.ArgumentError
        A value outside its range.
    convt3d.ArgumentTypeError
        A value of another kind, or an unknown parameter.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Softplus(beta=2.0)
    Softplus(beta=2.0)
    """

    beta: float = 1.0
    threshold: float = 20.0

    def __post_init__(self) -> None:
        beta = real(self.name, "beta", self.beta)
        self._set(beta=beta, threshold=real(self.name, "threshold", self.threshold))
        if not 2.0**-100 <= abs(beta) <= 2.0**100:
            raise ArgumentError(self.name, "beta", beta, "must be between 2^-100 and 2^100 in size", "Write 1.0, say")


@stage()
class Exp(Stage):
    """exp(x).

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2), convt3d.Exp())
    Pipeline(ConvTranspose3d(stride=2), Exp())
    """


@stage()
class Log(Stage):
    """log(x); NaN where x < 0.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2), convt3d.Log())
    Pipeline(ConvTranspose3d(stride=2), Log())
    """
