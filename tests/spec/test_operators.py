"""Everything that follows from the declaration of the operators agrees with it."""

from __future__ import annotations

from inspect import Parameter, signature
from typing import Any

import numpy as np
import pytest

import convt3d
from convt3d.front import functions
from convt3d.spec.operators import OPERATORS, Operator
from convt3d.spec.problems import PROBLEMS

EVERY = [pytest.param(operator, id=name) for name, operator in OPERATORS.items()]
ANNOTATIONS = {
    "tensor": {"AnyArray", "Array", "Tensor"},
    "triple": {"Size"},
    "window": {"Size"},
    "padding": {"Padding"},
    "integer": {"int"},
    "real": {"float"},
    "word": {"str"},
}


def rows(parameters: Any) -> list[tuple[Any, ...]]:
    """Name, default, and whether it is given by name only."""
    return [(p.name, p.default, p.kind is Parameter.KEYWORD_ONLY) for p in parameters]


def declared(operator: Operator) -> list[tuple[Any, ...]]:
    return [(a.name, Parameter.empty if a.required else a.default, a.by_name) for a in operator.arguments]


def check_annotations(operator: Operator, function: Any) -> None:
    for argument in operator.arguments:
        kind, _, none = function.__annotations__[argument.name].partition(" | ")
        assert kind in ANNOTATIONS[argument.kind], argument.name
        assert bool(none) == argument.optional, argument.name


def fills(operator: Operator, function: Any) -> tuple[Any, ...]:
    """A call with a value of its own for each argument."""
    return function(**{name: name for name in operator.names})


@pytest.mark.parametrize("operator", EVERY)
def test_function_on_arrays(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    function = getattr(convt3d, operator.name)
    extra = {"out", "algorithm", "precision"}
    parameters = signature(function).parameters
    assert rows(p for p in parameters.values() if p.name not in extra) == declared(operator)
    assert extra <= set(parameters)
    check_annotations(operator, function)
    monkeypatch.setattr(functions, "_call", lambda name, out, options, *arguments: (name, *arguments))
    assert fills(operator, function) == (operator.name, *operator.names)


@pytest.mark.parametrize("operator", EVERY)
def test_function_on_tensors(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("convt3d.torch")
    function = getattr(torch, operator.name)
    assert rows(signature(function).parameters.values()) == declared(operator)
    check_annotations(operator, function)
    monkeypatch.setattr(torch.functions, "_call", lambda *arguments: arguments)
    assert fills(operator, function) == (operator.name, *operator.names)


def test_schemas() -> None:
    """As PyTorch reads them: names, types, defaults."""
    pytest.importorskip("convt3d.torch")
    import torch

    kinds = {
        "tensor": "Tensor",
        "triple": "List[int]",
        "window": "List[int]",
        "padding": "List[int]",
        "integer": "int",
        "real": "float",
        "word": "str",
    }
    for name, operator in OPERATORS.items():
        arguments = getattr(torch.ops.convt3d, name).default._schema.arguments
        for row, argument in zip(operator.arguments, arguments, strict=True):
            kind = f"Optional[{kinds[row.kind]}]" if row.optional else kinds[row.kind]
            assert (argument.name, str(argument.type)) == (row.name, kind)
            default = [row.default] * 3 if row.kind in ("triple", "window", "padding") else row.default
            assert argument.has_default_value() != row.required
            assert row.required or argument.default_value == default


@pytest.mark.parametrize("operator", EVERY)
def test_modules(operator: Operator) -> None:
    """Each fused operator is one module, whose constructor has the numbers of its tail."""
    torch = pytest.importorskip("convt3d.torch")
    classes = [kind for kind in vars(torch.modules).values() if isinstance(kind, type)]
    kinds = [kind for kind in classes if getattr(kind, "operator", None) == operator.name]
    if operator.name in ("conv3d", "conv_transpose3d"):
        assert kinds == []
        return
    (kind,) = kinds
    assert kind.__name__ in torch.__all__
    conv = set(signature(torch.ConvTranspose3d).parameters)
    own = {p.name: p.default for p in signature(kind).parameters.values() if p.name not in conv}
    affine = own.pop("elementwise_affine", None)
    assert (affine is not None) == ("norm_weight" in operator.tensors)
    assert own == {a.name: a.default for a in operator.arguments if a.kind != "tensor" and a.name not in conv}
    for name in own:
        assert f"{name}=" in repr(kind(2, 2, 3))


@pytest.mark.parametrize("operator", EVERY)
def test_problems(operator: Operator) -> None:
    """Each operator but conv3d is one problem, whose scalars and tensors are its arguments."""
    if operator.slug is None:
        assert operator.name == "conv3d"
        return
    problem = PROBLEMS[operator.slug]
    names = {"kernel": "weight", "conv_bias": "bias"}
    sizes = ("batch_size", "channels", "depth", "height", "width", "kernel_d", "kernel_h", "kernel_w", "output")
    for parameter in problem.parameters:
        name = names.get(parameter.name, parameter.name.removesuffix("_d").removesuffix("_h").removesuffix("_w"))
        assert parameter.name.endswith(sizes) or name in operator.names


@pytest.mark.parametrize("operator", EVERY)
def test_tensors_are_the_slots(operator: Operator) -> None:
    """With all of its tensors: those after the input, in the order in which the pipeline takes them."""
    given = {a.name: a.default if a.kind != "tensor" else object() for a in operator.arguments}
    pipeline, tensors = operator.lower([given[name] for name in operator.names])
    assert tensors == [given[name] for name in operator.tensors]
    named = [operator.renamed.get(slot, slot) for slot in pipeline.operand_names]
    assert named == list(operator.tensors)
    again, few = operator.lower([given[a.name] if a.required else a.default for a in operator.arguments])
    assert len(few) == len(again.slots) == sum(a.required and a.kind == "tensor" for a in operator.arguments) - 1


def test_a_pipeline_is_built_once_and_told_by_exact_values() -> None:
    operator = OPERATORS["conv_transpose3d_layernorm_gelu_scaling"]
    given = [a.default if a.kind != "tensor" else np.ones(1) for a in operator.arguments]
    at = operator.names.index("scaling_factor")
    built = [operator.lower([*given[:at], value, *given[at + 1 :]])[0] for value in (0.0, 0.0, -0.0)]
    assert built[0] is built[1]
    assert built[0] is not built[2]


@pytest.mark.parametrize("front", ["convt3d", "convt3d.torch"])
@pytest.mark.parametrize("operator", EVERY)
def test_unknown_arguments_are_told_the_nearest_name(operator: Operator, front: str) -> None:
    function = getattr(pytest.importorskip(front), operator.name)
    with pytest.raises(convt3d.ArgumentTypeError, match=r"strides = int: is unknown; .* Write stride\.") as caught:
        function(1, 2, strides=2)
    assert caught.value.operator == operator.name
