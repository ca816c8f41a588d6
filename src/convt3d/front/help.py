"""What help() says of the operators, in numpydoc's form, made from their declaration."""

from __future__ import annotations

from collections.abc import Iterable

from ..spec.operators import Argument, Operator

_TRIPLE = "int or (int, int, int)"
_WORDS = {
    "triple": _TRIPLE,
    "window": _TRIPLE,
    "padding": 'int, (int, int, int), "same" or "valid"',
    "integer": "int",
    "real": "float",
}
_OUT = Argument("out", "tensor", "Takes the result in the place of a new array, and is returned.", None, True)
_ALGORITHM = Argument(
    "algorithm",
    "word",
    '"auto" takes the faster of "direct" (products summed one by one) and "winograd" (Winograd\'s method).',
    "auto",
)
_PRECISION = Argument(
    "precision", "word", '"full" rounds no worse than direct summation; "fast" may, some ten times.', "full"
)
_ERRORS = {
    "ShapeError": "Sizes that do not fit together.",
    "DTypeError": "A type that is unknown here, or tensors of different types.",
    "ArgumentError": "A parameter outside its range.",
    "ArgumentTypeError": "An argument of the wrong kind, an unknown one, or one too many.",
}
_OUT_ERRORS = {
    "OutputError": "An `out` that cannot take the result.",
    "AllocationError": "Memory for the result or for scratch could not be had.",
}


def array_help(operator: Operator) -> str:
    """Of the function on arrays."""
    placed = [each for each in operator.arguments if not each.by_name]
    arguments = [*placed, _OUT, *operator.arguments[len(placed) :], _ALGORITHM, _PRECISION]
    return _help(operator, "array", arguments, "of the kind and type of `input`", {**_ERRORS, **_OUT_ERRORS}, _NUMPY)


def tensor_help(operator: Operator) -> str:
    """Of the function on tensors."""
    result = "on the device and of the type of `input`; gradients are recorded"
    return _help(operator, "Tensor", operator.arguments, result, _ERRORS, _TORCH)


def jax_help(operator: Operator) -> str:
    """Of the function on JAX arrays."""
    return _help(
        operator, "Array", operator.arguments, "of the type of `input`; it can be differentiated", _ERRORS, _JAX
    )


def module_help(operator: Operator, name: str) -> str:
    """Of the module."""
    affine = Argument("elementwise_affine", "word", "Whether the norm has a weight and a bias to learn.", False)
    scale = "scale" in operator.tensors
    has = ["weight, bias : Parameter", "    As of the layer of PyTorch."]
    has += ["scale : Parameter", "    (1, Cout, 1, 1, 1), ones at first."] if scale else []
    norm = "norm_weight" in operator.tensors
    has += ["norm_weight, norm_bias : Parameter or None", "    (Cout,), with elementwise_affine."] if norm else []
    return _sections(
        f"{operator.summary[0].upper()}{operator.summary[1:]}\n\n"
        "A `torch.nn.ConvTranspose3d` by its constructor, its parameters and its state_dict, with a fused tail.",
        Parameters=[
            "*conv, **named : Any",
            "    Of the convolution, as `torch.nn.ConvTranspose3d` takes them.",
            *(line for each in [*operator.tail, *([affine] if norm else [])] for line in parameter(each, "Tensor")),
        ],
        Attributes=has,
        Raises=_raised(_ERRORS),
        Examples=[
            ">>> import torch, convt3d.torch",
            f">>> layer = convt3d.torch.{name}(8, 4, 3, stride=2)",
            ">>> layer(torch.ones(2, 8, 6, 6, 6)).shape[:2]",
            f"torch.Size([2, {1 if '(B, 1' in operator.result else 4}])",
        ],
    )


_NUMPY = (
    ">>> import convt3d",
    ">>> from numpy import float32, ones",
    '>>> kind = {"dtype": float32}',
    ">>> convt3d.",
)
_TORCH = (
    ">>> import convt3d.torch",
    ">>> from torch import float32, ones",
    '>>> kind = {"dtype": float32}',
    ">>> convt3d.torch.",
)
_JAX = (
    ">>> import convt3d.jax",
    ">>> from jax.numpy import float32, ones",
    '>>> kind = {"dtype": float32}',
    ">>> convt3d.jax.",
)


def _help(
    operator: Operator,
    tensor: str,
    arguments: Iterable[Argument],
    result: str,
    errors: dict[str, str],
    example: tuple[str, ...],
) -> str:
    *imports, call = example
    more, shape = operator.example
    weight = (4, 8, 3, 3, 3) if "(Cout, Cin" in operator.arguments[1].text else (8, 4, 3, 3, 3)
    sizes, _, rule = operator.result.partition("; ")
    return _sections(
        operator.summary,
        Parameters=[line for each in arguments for line in parameter(each, tensor)],
        Returns=[f"{tensor} {sizes}", f"    A new one, {result}.", *([f"    {rule}."] if rule else [])],
        Raises=_raised(errors),
        Examples=[
            *imports,
            f">>> input, weight = ones((2, 8, 3, 4, 5), **kind), ones({weight}, **kind)",
            f">>> tuple({call.removeprefix('>>> ')}{operator.name}(input, weight, {more}).shape)",
            str(shape),
        ],
    )


def _sections(summary: str, **sections: list[str]) -> str:
    lines = [summary, ""]
    for name, text in sections.items():
        lines += [name, "-" * len(name), *text, ""]
    return "\n".join(lines)


def _raised(errors: dict[str, str]) -> list[str]:
    return [line for name, text in errors.items() for line in (f"convt3d.{name}", f"    {text}")]


def parameter(each: Argument, tensor: str) -> tuple[str, str]:
    """The two lines of a parameter."""
    kind = tensor if each.kind == "tensor" else _WORDS.get(each.kind, "str")
    kind = "bool" if isinstance(each.default, bool) else kind
    kind += " or None" if each.optional and each.kind != "tensor" else ""
    ending = "" if each.required else ", optional" if each.default is None else f", default {each.default!r}"
    return f"{each.name} : {kind}{ending}", f"    {each.text}"
