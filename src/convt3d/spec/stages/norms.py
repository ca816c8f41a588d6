"""Normalisations: over channels, groups of them, or the voxels of a channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Any, ClassVar

from ...errors import ShapeError
from ..checks import flag, integer, one_of, real
from ..shapes import Box, Shape
from ..stage import CHANNELS, SPATIAL, Operand, Stage, coupled_box, stage, whole
from .reductions import Along


@stage()
class LayerNorm(Along):
    """(x - mean) / sqrt(var + eps) over each voxel's channels, or along each row; biased variance.

    Parameters
    ----------
    over : str, default 'channels'
        "channels", or "width" for rows.
    eps : float, default 1e-05
        Added to the variance; at least 0.
    affine : bool, default False
        Whether the call takes a weight and a bias: (C,), or (W,) along rows.

    Raises
    ------
    convt3d.ArgumentError
        A value outside its range.
    convt3d.ArgumentTypeError
        A value of another kind, or an unknown parameter.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Pipeline(convt3d.ConvTranspose3d(), convt3d.LayerNorm(affine=True)).operand_names
    ('weight', 'layernorm_weight', 'layernorm_bias')
    """

    eps: float = 1e-5
    affine: bool = False

    def __post_init__(self) -> None:
        self._set(
            over=one_of(self.name, "over", self.over, ("channels", "width")),
            eps=real(self.name, "eps", self.eps, minimum=0.0),
            affine=flag(self.name, "affine", self.affine),
        )

    def operands(self) -> tuple[Operand, ...]:
        return _affine(self.affine, "channel" if self.over == "channels" else "width")


def _affine(affine: bool, kind: Any = "channel") -> tuple[Operand, ...]:
    return (Operand("weight", kind), Operand("bias", kind)) if affine else ()


@stage()
class GroupNorm(Stage):
    """Normalises groups of channels of a sample together with all their voxels; biased variance.

    Parameters
    ----------
    num_groups : int
        Divides the channels.
    eps : float, default 1e-05
        Added to the variance; at least 0.
    affine : bool, default False
        Whether the call takes a weight and a bias (C,).

    Raises
    ------
    convt3d.ArgumentError
        A value outside its range.
    convt3d.ArgumentTypeError
        A value of another kind, or an unknown parameter.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.GroupNorm(4, affine=True)
    GroupNorm(num_groups=4, affine=True)
    """

    num_groups: int
    _: KW_ONLY
    eps: float = 1e-5
    affine: bool = False

    couples: ClassVar[frozenset[str]] = CHANNELS | SPATIAL

    def __post_init__(self) -> None:
        self._set(
            num_groups=integer(self.name, "num_groups", self.num_groups, 1),
            eps=real(self.name, "eps", self.eps, minimum=0.0),
            affine=flag(self.name, "affine", self.affine),
        )

    def operands(self) -> tuple[Operand, ...]:
        return _affine(self.affine)

    def out_shape(self, shape: Shape, operands: Sequence[tuple[int, ...]]) -> Shape:
        if shape[1] % self.num_groups:
            raise ShapeError(
                self.name, "num_groups", self.num_groups, f"must divide the {shape[1]} channels", "Choose a divisor"
            )
        return shape

    def reads(self, box: Box, shape: Shape, operands: Sequence[tuple[int, ...]]) -> Box:
        return whole(shape)


@stage(kw_only=True)
class InstanceNorm(Stage):
    """Normalises each channel of each sample over its voxels; biased variance.

    Parameters
    ----------
    eps : float, default 1e-05
        Added to the variance; at least 0.
    affine : bool, default False
        Whether the call takes a weight and a bias (C,).

    Raises
    ------
    convt3d.ArgumentError
        A value outside its range.
    convt3d.ArgumentTypeError
        A value of another kind, or an unknown parameter.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Pipeline(convt3d.ConvTranspose3d(), convt3d.InstanceNorm(affine=True)).operand_names
    ('weight', 'instancenorm_weight', 'instancenorm_bias')
    """

    eps: float = 1e-5
    affine: bool = False

    couples: ClassVar[frozenset[str]] = SPATIAL

    def __post_init__(self) -> None:
        self._set(eps=real(self.name, "eps", self.eps, minimum=0.0), affine=flag(self.name, "affine", self.affine))

    def operands(self) -> tuple[Operand, ...]:
        return _affine(self.affine)

    def reads(self, box: Box, shape: Shape, operands: Sequence[tuple[int, ...]]) -> Box:
        return coupled_box("spatial", box, shape)


@stage(kw_only=True)
class BatchNorm(Stage):
    """Batch normalisation in inference: (x - running_mean) / sqrt(running_var + eps), then weight and bias.

    Parameters
    ----------
    eps : float, default 1e-05
        Added to the variance; at least 0.
    affine : bool, default False
        Whether the call takes a weight and a bias (C,) after running_mean and running_var (C,).

    Raises
    ------
    convt3d.ArgumentError
        A value outside its range.
    convt3d.ArgumentTypeError
        A value of another kind, or an unknown parameter.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.Pipeline(convt3d.ConvTranspose3d(), convt3d.BatchNorm()).operand_names
    ('weight', 'batchnorm_running_mean', 'batchnorm_running_var')
    """

    eps: float = 1e-5
    affine: bool = False

    def __post_init__(self) -> None:
        self._set(eps=real(self.name, "eps", self.eps, minimum=0.0), affine=flag(self.name, "affine", self.affine))

    def operands(self) -> tuple[Operand, ...]:
        return (Operand("running_mean", "channel"), Operand("running_var", "channel"), *_affine(self.affine))
