"""Plans of gradients: schemes that are identities, bounded memory and chains, and tables that fit together."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import prod

import numpy as np
import pytest
from cpu.steps.test_program import ARM, arm
from golden.golden import fixed_machine
from helpers.gradients import drawn, drawn_plan
from hypothesis import given, settings
from hypothesis import strategies as st

from convt3d.cpu.gradient import choose
from convt3d.cpu.gradient.choose import make_gradient_plan
from convt3d.cpu.gradient.code import CALL_SETS, emit_gradient, plan_sets
from convt3d.cpu.gradient.pieces import axis_pieces, can_pair, matrices
from convt3d.cpu.gradient.plan import POSITIONS, WINDOW, Slab
from convt3d.cpu.gradient.problem import Problem
from convt3d.cpu.gradient.run import plan_words
from convt3d.cpu.gradient.tables import channel_tables, part_table, tap_table
from convt3d.cpu.plan.machine import machine
from convt3d.cpu.runtime.build import compile_ir
from convt3d.cpu.runtime.elf import undefined_symbols
from convt3d.cpu.words import places
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.shapes import TransposedAxis

ISAS = ("avx512", "avx2", "baseline")


def problem(
    small: tuple[int, ...], large: int, kernel: int = 3, stride: int = 1, groups: int = 1, dtype: str = "float32"
) -> Problem:
    sizes = [(size - 1) * stride + kernel for size in small[2:]]
    triples = [(value,) * 3 for value in (kernel, stride, 0, 1)]
    return Problem(small, (small[0], large, *sizes), *triples, groups, DTYPES[dtype])  # type: ignore[arg-type]


PROBLEMS = {
    "few channels": problem((2, 32, 48, 48, 48), 1),
    "many channels": problem((2, 128, 16, 16, 16), 128),
    "few positions": problem((1, 320, 4, 4, 4), 320),
    "many positions": problem((4, 32, 128, 128, 128), 32),
    "long rows": problem((1, 3, 1, 2, 100_000), 5),
    "large kernel": problem((1, 4, 3, 3, 3), 4, kernel=15),
    "stride": problem((2, 64, 16, 16, 16), 64, kernel=4, stride=2),
    "depthwise": problem((2, 512, 16, 16, 16), 512, groups=512),
    "groups": problem((2, 96, 16, 16, 16), 64, groups=4),
    "float64": problem((2, 40, 20, 20, 20), 24, dtype="float64"),
}


# --- Winograd's method ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taps", [1, 2, 3])
@pytest.mark.parametrize("point", [1, -1])
def test_schemes_are_identities(taps: int, point: int) -> None:
    """For a basis, which is all of it, since both sides are bilinear; and matrices hold 0, 1, -1 (and halves in A)."""
    own = matrices(taps, point)
    pace, count = len(own.small[0]), len(own.large[0])
    assert count == taps + pace - 1
    for i, j in product(range(pace), range(count)):
        small, large = [[Fraction(int(n == at)) for n in range(size)] for at, size in ((i, pace), (j, count))]
        products = [
            sum(a * x for a, x in zip(g, small, strict=True)) * sum(a * x for a, x in zip(b, large, strict=True))
            for g, b in zip(own.small, own.large, strict=True)
        ]
        for tap, row in enumerate(own.taps):
            assert sum(a * x for a, x in zip(row, products, strict=True)) == int(tap + i == j)
    assert {abs(value) for matrix in (own.small, own.large) for row in matrix for value in row} <= {0, 1}
    assert {abs(value) for row in own.taps for value in row} <= {0, 1, Fraction(1, 2)}


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_pieces_hold_every_tap_once(kernel: int, stride: int, dilation: int, paired: bool) -> None:
    axis = TransposedAxis(7, kernel, stride, 1, 0, dilation)
    pieces = axis_pieces(axis, paired)
    assert sorted(tap for piece in pieces for tap in piece.taps) == list(range(kernel))
    assert all(len(piece.taps) <= (3 if paired else 1) for piece in pieces)
    apart = {(b - a) * dilation for piece in pieces for a, b in zip(piece.taps, piece.taps[1:], strict=False)}
    if paired and can_pair(axis):  # neighbours of a piece meet places one stride apart
        assert apart == {stride}


# --- what is bounded --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_memory_and_chains_are_bounded(name: str, isa: str) -> None:
    host = fixed_machine(isa)
    for algorithm in ("auto", "direct", "exact"):
        plan = make_gradient_plan(PROBLEMS[name], host, algorithm)
        sums = plan.rooms[2].length * plan.item
        assert sums <= choose._SUMS
        slack = (2 * plan.lanes + 2) * max(plan.small.pitch, plan.large.pitch, plan.lanes) * plan.item
        assert plan.scratch - sums <= 1.3 * choose._SCRATCH * host.l2 + slack
        assert plan.partials <= max(choose._PARTIALS, plan.all_sums * plan.item)
        if plan.method is None:
            assert plan.tile[0] * prod(plan.box) <= max(POSITIONS, plan.tile[0] * plan.tile[3])
        else:
            assert plan.steps <= POSITIONS
        windows = -(-plan.tiles // plan.chunks) / plan.window
        assert windows <= WINDOW + 1 or plan.partials > choose._PARTIALS // 2


def test_plans_do_not_depend_on_threads() -> None:
    host = fixed_machine("avx512")
    for one in PROBLEMS.values():
        assert make_gradient_plan(one, host) == make_gradient_plan(one, replace(host, threads=77))


@pytest.mark.parametrize("sizes", [(8, 3, 1, 1), (4, 2, 5, 1), (3, 4, 1, 50), (1, 1, 9, 9)])
def test_a_slab_has_a_place_for_every_pair(sizes: tuple[int, int, int, int]) -> None:
    """Places of the same index of the large array may be several, one place never holds two."""
    slab, (tile, taps, stride, dilation) = Slab(*sizes), sizes
    found: dict[int, int] = {}
    for position, tap in product(range(tile), range(taps)):
        place = position * slab.position_step + tap * slab.tap_step
        assert 0 <= place < slab.places
        assert found.setdefault(place, position * stride + tap * dilation) == position * stride + tap * dilation
    assert slab.places <= tile * taps


# --- tables and code --------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_parts_make_up_the_result(seed: int) -> None:
    """Each number of the result belongs to one part, lane, row and tap; the sums of parts do not overlap."""
    rng = np.random.default_rng(seed)
    draw = drawn(rng, "float32", laid=False)
    plan = drawn_plan(rng, draw.problem)
    parts, r = part_table(plan), plan.registers
    assert len(parts) == plan.part_count
    begin, length = parts[:, -2], parts[:, -1]
    assert begin[0] == 0
    assert (begin[1:] == begin[:-1] + length[:-1]).all()
    assert begin[-1] + length[-1] == plan.all_sums
    assert length.max() <= plan.rooms[2].length
    small, large = channel_tables(plan, True), channel_tables(plan, False)
    numbers, vectors = (large, small) if r.lanes_along == "small" else (small, large)
    seen = np.zeros(prod(draw.result), int)
    for number, number_count, vector, vector_count, row, groups, taps, tap, *_ in parts:
        assert groups == -(-taps // r.taps)
        assert len(tap_table(plan)) >= row + taps
        for v in range(vector, vector + vector_count):
            own = range(number, number + number_count)
            if r.by_group:  # each vector has blocks of its own
                size = number_count // vector_count
                own = range(number + (v - vector) * size, number + (v - vector + 1) * size)
            for n, column in product(own, range(r.columns)):
                at = v * r.columns + column
                along = vectors[2][at, : vectors[1][at]]
                if r.by_group:
                    of_rows = [numbers[2][n * r.rows + i, 0] for i in range(r.rows) if numbers[1][n * r.rows + i]]
                else:
                    of_rows = list(numbers[2][n, : numbers[1][n]])
                for place, k in product(of_rows, range(tap, tap + taps)):
                    seen[place + along + k] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["few channels", "many channels", "stride", "depthwise"])
def test_code_for_arm(name: str, dtype: str) -> None:
    """Nothing runs here: the code must be complete, without library calls."""
    host = arm()
    plan = make_gradient_plan(replace(PROBLEMS[name], dtype=DTYPES[dtype]), host)
    build = compile_ir(str(emit_gradient(plan.structure, host).module), ARM)
    assert build.object_code[18:20] == b"\xb7\x00"  # ELF machine number of AArch64
    assert not undefined_symbols(build.object_code)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_code_calls_no_library(isa: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVT3D_ISA", isa if machine().isa == "avx512" else "")
    for name in ("many channels", "depthwise"):
        plan = make_gradient_plan(replace(PROBLEMS[name], dtype=DTYPES[dtype]), machine())
        build = compile_ir(str(emit_gradient(plan.structure, machine()).module))
        assert not undefined_symbols(build.object_code)


@pytest.mark.parametrize("checked", [False, True])
def test_plans_fill_the_words_that_the_code_reads(checked: bool) -> None:
    for one, algorithm in product(PROBLEMS.values(), ("auto", "exact")):
        plan = make_gradient_plan(one, replace(fixed_machine("avx512"), check_bounds=checked), algorithm)
        sets = plan_words(plan)
        assert [type(words) for words in sets] == plan_sets(plan.structure)
        numbers = [number for words in sets for number in words.numbers(checked)]
        assert len(numbers) == places(plan_sets(plan.structure), checked)[-1]
        assert all(type(number) is int for number in numbers)
    assert len(CALL_SETS) == 4
