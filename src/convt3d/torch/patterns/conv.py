"""The two convolutions, at which pipelines start."""

from __future__ import annotations

from typing import Any

from ...spec import stages as s
from .base import STARTS, Given, Start, outer, triple


def _conv_operands(weight: Any, bias: Any) -> tuple[Given, ...]:
    return tuple(Given(outer(each).node) for each in (weight, bias) if each is not None)


def _conv3d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: Any = 1
) -> Start:
    padding = padding if isinstance(padding, str) else triple(padding)
    sizes = {"stride": triple(stride), "padding": padding, "dilation": triple(dilation), "groups": groups}
    return Start(s.Conv3d(**sizes, bias=bias is not None), input, _conv_operands(weight, bias))


def _conv_transpose3d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: Any = 1,
    dilation: Any = 1,
) -> Start:
    sizes = {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation}
    plain = {name: triple(value) for name, value in sizes.items()}
    return Start(s.ConvTranspose3d(**plain, groups=groups, bias=bias is not None), input, _conv_operands(weight, bias))


STARTS |= {"conv3d": _conv3d, "conv_transpose3d": _conv_transpose3d}
