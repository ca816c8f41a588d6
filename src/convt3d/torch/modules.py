"""Modules: `Conv3d` and `ConvTranspose3d` in the place of PyTorch's, and one for each fused operator.

Each is PyTorch's by its constructor, its parameters and its state_dict, so weights go either way.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import nn

from ..front.help import module_help
from ..spec.operators import OPERATORS
from . import functions, prepared
from .convolutions import small
from .direct import plain, plain_thread
from .recorded import recording
from .stock import Tensor


class _Arguments(NamedTuple):
    """Of an operator, in a module: tensors are parameters, all others are attributes."""

    operator: str
    names: tuple[str, ...]  # in the order of a call, without the input
    named: tuple[str, ...]  # tensors, then all others
    tensors: Callable[[Any], tuple[Any, ...]]
    others: Callable[[Any], tuple[Any, ...]]


def _arguments(operator: str) -> _Arguments:
    declared = OPERATORS[operator]
    names = declared.names[1:]
    tensors = tuple(name for name in names if name in declared.tensors)
    others = tuple(name for name in names if name not in tensors)
    return _Arguments(operator, names, tensors + others, itemgetter(*tensors), itemgetter(*others))


_FORWARD, _TRANSPOSED = _arguments("conv3d"), _arguments("conv_transpose3d")


def _prepared(module: nn.Module, own: _Arguments, input: Tensor) -> Tensor | None:
    """The result by weights that the module owns, where it does."""
    try:
        tensors, others = own.tensors(module._parameters), own.others(module.__dict__)
    except KeyError:  # what is computed at each call, say
        return None

    def arguments() -> list[Any]:
        given = dict(zip(own.named, tensors + others, strict=True))
        return [given[name] for name in own.names]

    return prepared.run(module, 0, own.operator, input, tensors, others, arguments)


def _left_to_torch(module: Any, input: Tensor) -> bool:
    """Whether gradients are recorded, and the convolution has little to do."""
    if not torch.is_grad_enabled():
        return False
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    if weight is None or not (plain_thread() and plain(input) and plain(weight)):
        return False
    return recording(input, (weight, bias)) and small(module, input.shape, weight.shape)


class Conv3d(nn.Conv3d):  # type: ignore[misc]
    """`torch.nn.Conv3d`, computed by convt3d.

    Parameters
    ----------
    *args, **kwargs : Any
        As `torch.nn.Conv3d` takes them; parameters and state_dict are the same, too.

    Raises
    ------
    convt3d.Error
        At the call: sizes, types or parameters that do not fit.

    Examples
    --------
    >>> import torch, convt3d.torch
    >>> convt3d.torch.Conv3d(8, 4, 3, padding="same")(torch.ones(1, 8, 3, 4, 5)).shape
    torch.Size([1, 4, 3, 4, 5])
    """

    def forward(self, input: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            if _left_to_torch(self, input):
                return super()._conv_forward(input, self.weight, self.bias)
            result = _prepared(self, _FORWARD, input)
            if result is not None:
                return result
        return super().forward(input)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        conv = self.stride, self.padding, self.dilation, self.groups
        return functions.conv3d(input, weight, bias, *conv, padding_mode=self.padding_mode)


class LazyConv3d(nn.LazyConv3d, Conv3d):  # type: ignore[misc]
    """`torch.nn.LazyConv3d`: takes in_channels from its first input, and is a Conv3d from then on.

    Parameters
    ----------
    *args, **kwargs : Any
        As `torch.nn.LazyConv3d` takes them.

    Raises
    ------
    convt3d.Error
        At the call: sizes, types or parameters that do not fit.

    Examples
    --------
    >>> import torch, convt3d.torch
    >>> convt3d.torch.LazyConv3d(4, 2, stride=2)(torch.ones(1, 8, 4, 4, 6)).shape
    torch.Size([1, 4, 2, 2, 3])
    """

    cls_to_become = Conv3d


class ConvTranspose3d(nn.ConvTranspose3d):  # type: ignore[misc]
    """`torch.nn.ConvTranspose3d`, computed by convt3d.

    Parameters
    ----------
    *args, **kwargs : Any
        As `torch.nn.ConvTranspose3d` takes them; parameters and state_dict are the same, too.

    Raises
    ------
    convt3d.Error
        At the call: sizes, types or parameters that do not fit.

    Examples
    --------
    >>> import torch, convt3d.torch
    >>> convt3d.torch.ConvTranspose3d(8, 4, 3, stride=2)(torch.ones(1, 8, 3, 4, 5)).shape
    torch.Size([1, 4, 7, 9, 11])
    """

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        if output_size is None and not torch.compiler.is_compiling():
            if _left_to_torch(self, input):
                return super().forward(input)
            result = _prepared(self, _TRANSPOSED, input)
            if result is not None:
                return result
        output_padding = self._sized(input, output_size)
        conv = self.stride, self.padding, output_padding, self.groups, self.dilation
        return functions.conv_transpose3d(input, self.weight, self.bias, *conv)

    def _sized(self, input: Tensor, output_size: list[int] | None) -> Any:
        """output_padding, or the one that gives `output_size`."""
        if output_size is None:
            return self.output_padding
        geometry = self.stride, self.padding, self.kernel_size
        return self._output_padding(input, output_size, *geometry, 3, self.dilation)


class LazyConvTranspose3d(nn.LazyConvTranspose3d, ConvTranspose3d):  # type: ignore[misc]
    """`torch.nn.LazyConvTranspose3d`: takes in_channels from its first input, and is a ConvTranspose3d from then on.

    Parameters
    ----------
    *args, **kwargs : Any
        As `torch.nn.LazyConvTranspose3d` takes them.

    Raises
    ------
    convt3d.Error
        At the call: sizes, types or parameters that do not fit.

    Examples
    --------
    >>> import torch, convt3d.torch
    >>> convt3d.torch.LazyConvTranspose3d(4, 2, stride=2)(torch.ones(1, 8, 3, 4, 5)).shape
    torch.Size([1, 4, 6, 8, 10])
    """

    cls_to_become = ConvTranspose3d


class _Fused(ConvTranspose3d):
    """A convolution with a tail: the operator named by `operator`, whose arguments are attributes of the module.

    Numbers of the tail are parameters of the constructor, by name; tensors of the tail are parameters of the module: a
    `scale` of ones, and with `elementwise_affine` weight and bias of the norm."""

    operator: str
    tail: dict[str, Any]  # numbers and their defaults; the repr shows them beside the convolution
    own: _Arguments
    given: tuple[str, ...]  # arguments of the function that are attributes
    affine = False  # whether there is a norm, which may have a weight and a bias

    def __init_subclass__(cls) -> None:
        if "operator" not in vars(cls):
            return
        declared = OPERATORS[cls.operator]
        cls.tail = {each.name: each.default for each in declared.tail}
        cls.own = _arguments(cls.operator)
        cls.given = tuple(name for name in declared.names[1:] if name != "output_padding")
        cls.affine = "norm_weight" in cls.given
        own = cls.tail | ({"elementwise_affine": False} if cls.affine else {})
        conv = signature(nn.ConvTranspose3d).parameters.values()
        named = (Parameter(name, Parameter.KEYWORD_ONLY, default=default) for name, default in own.items())
        cls.__signature__ = Signature([*conv, *named])
        cls.__doc__ = module_help(declared, cls.__name__)

    def __init__(self, *conv: Any, **named: Any) -> None:
        tail = {name: named.pop(name, default) for name, default in self.tail.items()}
        affine = self.affine and named.pop("elementwise_affine", False)
        super().__init__(*conv, **named)
        for name, value in tail.items():
            setattr(self, name, value)
        like = {"device": self.weight.device, "dtype": self.weight.dtype}
        if self.affine:
            for name, fill in (("norm_weight", torch.ones), ("norm_bias", torch.zeros)):
                self.register_parameter(name, nn.Parameter(fill(self.out_channels, **like)) if affine else None)
        if "scale" in self.given:
            self.scale = nn.Parameter(torch.ones(1, self.out_channels, 1, 1, 1, **like))

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        if output_size is None and not torch.compiler.is_compiling():
            result = _prepared(self, self.own, input)
            if result is not None:
                return result
        before = input  # of the convolution
        if output_size is not None and "pool_kernel" in self.given:
            before = torch.nn.functional.avg_pool3d(input, self.pool_kernel)
        given = {name: getattr(self, name) for name in self.given}
        return getattr(functions, self.operator)(input, **given, output_padding=self._sized(before, output_size))

    def extra_repr(self) -> str:
        return ", ".join([super().extra_repr(), *(f"{name}={getattr(self, name)!r}" for name in self.tail)])


class ConvTranspose3dMaxMaxSum(_Fused):
    operator = "conv_transpose3d_max_max_sum"


class ConvTranspose3dSumLayerNormAvgPoolGELU(_Fused):
    operator = "conv_transpose3d_sum_layernorm_avgpool_gelu"


class ConvTranspose3dAvgPoolClampSoftmaxMultiply(_Fused):
    operator = "conv_transpose3d_avgpool_clamp_softmax_multiply"


class ConvTranspose3dLayerNormGELUScaling(_Fused):
    operator = "conv_transpose3d_layernorm_gelu_scaling"
