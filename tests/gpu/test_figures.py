"""Figures of compiled kernels: a change that makes them worse is seen."""

from __future__ import annotations

import copy
from importlib.metadata import version

import pytest
from gpu_proof.compile import loop_of
from gpu_proof.figures import CHEAP, Expected, name_of, recorded, recorded_jobs, worse
from helpers.triton import need_triton, printed

CODE = """
import json
from gpu_proof.figures import CHEAP, device_of, expected, figures_of, rows
found = rows(CHEAP)
print(json.dumps(figures_of(CHEAP, found)))
time = expected(CHEAP, found, device_of(CHEAP))
print(json.dumps([time.arithmetic, time.memory, time.issue, *time.range]))
"""


def test_a_plan_has_not_become_worse() -> None:
    """If this was meant, or is better: `make gpu-figures`."""
    need_triton()
    if recorded()["triton"] != version("triton"):
        pytest.skip("recorded with another release of Triton")
    now, time = printed(CODE)
    assert not list(worse(now, recorded()["plans"][name_of(CHEAP)]))
    assert time[3] > max(time[:3])
    assert time[4] > time[3]


def test_all_operators_are_recorded_without_spills() -> None:
    plans = recorded()["plans"]
    assert set(plans) == {name_of(job) for job in recorded_jobs()}
    kernels = [kernel for plan in plans.values() for kernel in plan["kernels"].values()]
    assert not any(kernel["spills"] for kernel in kernels)
    assert sum(kernel["loop"] > 0 for kernel in kernels) >= len(plans)


def test_what_is_worse_is_named() -> None:
    then = {"bytes": 100, "kernels": {"conv": {"loop": 100, "registers": 100, "spills": 0}}}
    now = copy.deepcopy(then)
    now["kernels"]["conv"] |= {"loop": 104, "registers": 96}
    now["kernels"]["new"] = {"loop": 7}
    assert not list(worse(now, then))
    now = {"bytes": 101, "kernels": {"conv": {"loop": 106, "registers": 100, "spills": 1}}}
    assert list(worse(now, then)) == [
        "moves 101 bytes instead of 100",
        "conv: loop 106 instead of 100",
        "conv: spills 1 instead of 0",
    ]


def test_the_loop_with_the_products_is_found() -> None:
    """Inside of another loop, and before one without products; a branch to itself ends the program."""
    lines = ["MOV R1, R2", ".L_x_1:", "IADD3 R1, R1, R2", ".L_x_2:", "FFMA R1, R2, R3, R4", "LDS R1, [R2]"]
    lines += [
        "@P0 BRA `(.L_x_2)",
        "@!P1 BRA `(.L_x_1)",
        ".L_x_3:",
        "MOV R1, R2",
        "@P0 BRA `(.L_x_3)",
        ".L_x_4:",
        "BRA `(.L_x_4)",
    ]
    code = "\n".join(line if line.startswith(".") else f"        /*0010*/  {line} ;" for line in lines)
    assert loop_of(code) == 3
    assert loop_of(code.replace("FFMA", "IMAD")) == 0


def test_the_tightest_bound_decides() -> None:
    assert Expected(1.0, 2.0, 0.5).range == Expected(0.1, 2.0, 2.0).range
