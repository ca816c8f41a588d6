"""Words of a kernel's table: declared once, all filled, all read, and in the same places on both sides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
from golden.golden import PLANS, X, fixed_machine, operand_shapes

import convt3d as ct
from convt3d.cpu import words as declarations
from convt3d.cpu.code.tile import emit_kernel
from convt3d.cpu.gradient.bias_code import emit_bias
from convt3d.cpu.gradient.code import emit_gradient
from convt3d.cpu.gradient.pieces import Schemes
from convt3d.cpu.gradient.registers import Registers
from convt3d.cpu.gradient.structure import Structure
from convt3d.cpu.ir.pack import emit_pack
from convt3d.cpu.plan.choice import Options
from convt3d.cpu.plan.pieces import Pieces
from convt3d.cpu.plan.plan import Plan, _make_plan
from convt3d.cpu.plan.tail_plan import TailPlan, _make
from convt3d.cpu.plan.window import window_plan
from convt3d.cpu.runtime.bind import Binding
from convt3d.cpu.runtime.compare import emit_compare
from convt3d.cpu.steps.direct import DirectConvolution
from convt3d.cpu.words import Array, Buffer, Room, Size, Sizes, Words, layout, places, region
from convt3d.front.boxes import Request
from convt3d.plan.tail_ways import Segment
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.text import read_stages


def plans(checked: bool) -> Iterator[Plan]:
    for text, dtype, algorithm, isa in PLANS.values():
        pipeline, host = ct.Pipeline(*read_stages(text)), replace(fixed_machine(isa), check_bounds=checked)
        shapes = operand_shapes(pipeline)
        made = _make_plan(pipeline, X, shapes, DTYPES[dtype], Options(algorithm), True, host)
        yield made
        if text == "Conv3d(padding=1) -> ReLU()":
            yield made.masked
            pieces = Options("direct", outputs=(1, 1, 1), pieces=Pieces(True, 2, 4))
            yield _make_plan(pipeline, X, shapes, DTYPES[dtype], pieces, True, host)
    pipeline = ct.Pipeline(ct.Conv3d(padding=1), ct.ReLU(), ct.AvgPool3d(3))
    plain = Options("direct", outputs=(1, 1, 1), plain=True)  # as libraries for C have it
    yield _make_plan(pipeline, X, operand_shapes(pipeline), DTYPES["float32"], plain, False, host)


def tails(checked: bool) -> Iterator[TailPlan]:
    """Ways back of a gradient through stages."""
    host, shape, float32 = replace(fixed_machine("avx512"), check_bounds=checked), (2, 6, 3, 5, 7), DTYPES["float32"]
    for chain, segment in (
        ("InstanceNorm(affine=True) -> LeakyReLU() -> Multiply('channel')", Segment(1, 1, 4)),
        ("MaxPool3d(2)", Segment(1, 1, 2)),
        ("AvgPool3d(2)", Segment(1, 1, 2)),
    ):
        pipeline = ct.Pipeline(*read_stages(f"Conv3d() -> {chain}"))
        operands = ((6, 6, 1, 1, 1), *((6,) for _ in pipeline.slots[1:]))
        yield _make(pipeline, shape, operands, float32, segment, (True,) * len(operands), False, host)


def gradients(checked: bool) -> set[tuple[type[Words], str]]:
    """What kernels of gradients read."""
    host, rows = replace(fixed_machine("avx512"), check_bounds=checked), Registers("large", False, 8, 16, 2, 1, 1)
    schemes = Schemes(((1, 3), (3,), (3,)), 1)
    found = emit_bias("bias", "float32", host).used
    for structure in (
        Structure("float32", "avx512", rows, None),
        Structure("float32", "avx512", replace(rows, lanes_along="small"), schemes),
        Structure("float32", "avx512", replace(rows, rows=1, block=1, taps=9, rest=2), None),
    ):
        found |= emit_gradient(structure, host).used
    return found


def in_pieces() -> set[tuple[type[Words], str]]:
    """What kernels of inputs that lie in several pieces read."""
    pipeline, shapes = ct.Pipeline(ct.Conv3d(padding=1)), ((8, 4, 3, 3, 3),)
    boxes = Request(pipeline, (1, 4, 8, 8, 8), shapes, "float32", Options("winograd")).boxes
    window = boxes.part(((0, 8), (2, 6), (2, 6), (2, 6))).window
    assert window is not None
    plan = window_plan(boxes.plan, 1, window).of_strips
    assert plan is not None
    return emit_kernel(plan.sweeps[0].structure, plan.machine).used


def declared(base: type[Words] = Words) -> Iterator[type[Words]]:
    for words in base.__subclasses__():
        if words.__module__.startswith("convt3d.cpu."):
            yield words
        yield from declared(words)


def test_every_word_is_read_by_some_kernel() -> None:
    used: set[tuple[type[Words], str]] = set()
    for checked in (False, True):
        for plan in (*plans(checked), *tails(checked)):
            for one in plan.sweeps:
                used |= emit_kernel(one.structure, plan.machine).used
        used |= gradients(checked)
        used |= emit_pack(8, "float32", "float64", False, checked).used | emit_compare(checked).used
    used |= in_pieces()
    unread = [
        (words.__name__, field.name)
        for words in declared()
        for field in fields(words)
        if field.name in vars(words)["__annotations__"]
        and not any(issubclass(reader, words) and name == field.name for reader, name in used)
    ]
    assert unread == []


@pytest.mark.parametrize("checked", [False, True])
def test_steps_fill_what_they_declare(checked: bool) -> None:
    """The binder's words are as many as the emitter counts, whatever the kernel."""
    for plan in plans(checked):
        for one in plan.sweeps:
            binding = Binding(plan, one)
            numbers = [number for words in binding.sets for number in words.numbers(checked)]
            assert [type(words) for words in binding.sets] == one.structure.words
            assert len(numbers) == places(one.structure.words, checked)[-1]
            assert all(type(number) is int for number in numbers)


@dataclass(eq=False)
class Example(Words):
    size: Size
    buffer: Buffer
    array: Array
    three: Sizes


def test_a_word_that_is_not_filled_cannot_be_forgotten() -> None:
    with pytest.raises(TypeError, match="three"):
        Example(1, Room(2, 3, 4), np.zeros(1))  # type: ignore[call-arg]


def test_words_in_the_order_of_the_declaration() -> None:
    array = np.zeros((4, 3))[::2, ::-1]
    example = Example(7, Room(2, 3, 4), array, (8, 9, 10))
    assert example.numbers(False) == [7, 2, 3, array.ctypes.data, 8, 9, 10]
    assert example.numbers(True) == [7, 2, 3, 4, array.ctypes.data, *region(array), 8, 9, 10]
    assert [(field.name, field.at) for field in layout(Example, False)[0]] == [
        ("size", 0),
        ("buffer", 1),
        ("array", 3),
        ("three", 4),
    ]
    assert places([Example, Example], True) == (0, 10, 20)


def test_a_region_covers_what_strides_reach() -> None:
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    begin = whole.ctypes.data
    assert region(whole) == (begin, begin + 48)
    assert region(whole[::-1]) == (begin, begin + 48)
    assert region(whole[1:, 1:3]) == (begin + 20, begin + 44)
    assert region(whole[:0]) == (begin, begin)


def test_a_field_that_is_not_declared() -> None:
    class Nothing:
        def field(self, own: Words, name: str) -> Any:
            return {field.name: 0 for field in fields(own)}[name]

    reader = Example.read_by(Nothing())
    assert reader.size == 0
    with pytest.raises(KeyError, match="sise"):
        _ = reader.sise
    with pytest.raises(AttributeError, match="sise"):
        _ = Example(7, Room(2, 3, 4), np.zeros(1), (8, 9, 10)).sise
    assert declarations.Words in Example.__mro__


@pytest.mark.parametrize("wrong", ["missing", "in another order"])
def test_a_step_that_gives_other_words_than_it_declares(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel does not run: it would read addresses that nobody set."""
    honest = DirectConvolution.bind_call
    given = {"missing": lambda *both: both[:1], "in another order": lambda *both: both[::-1]}[wrong]
    monkeypatch.setattr(DirectConvolution, "bind_call", lambda self, call: given(*honest(self, call)))
    with pytest.raises(TypeError, match="steps declare"):
        ct.conv_transpose3d(np.ones((1, 2, 3, 3, 3)), np.ones((2, 2, 2, 2, 2)))
