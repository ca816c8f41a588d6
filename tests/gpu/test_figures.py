"""Figures of compiled kernels: a change that makes them worse is seen."""

from __future__ import annotations

import copy
from importlib.metadata import version
from math import prod
from typing import Any

import pytest
from gpu_proof.compile import launches, loop_of
from gpu_proof.figures import CHEAP, Expected, idle, name_of, recorded, recorded_jobs, work_of, worse
from gpu_proof.jobs import Job
from gpu_proof.l1 import reads, share
from gpu_proof.limits import DEVICES
from gpu_proof.report import traffic
from helpers.triton import need_triton, printed

import convt3d as ct
from convt3d.gpu.plan import gpu_plan
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.problems import PROBLEMS
from convt3d.spec.work import count

ALL = """
import json
from gpu_proof.figures import figures_of, name_of, recorded_jobs, rows
for job in recorded_jobs():
    if job.name == "{slug}":
        print(json.dumps([name_of(job), figures_of(job, rows(job))]))
"""
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


@pytest.mark.exhaustive
@pytest.mark.parametrize("slug", PROBLEMS)
def test_no_plan_of_an_operator_has_become_worse(slug: str) -> None:
    need_triton()
    if recorded()["triton"] != version("triton"):
        pytest.skip("recorded with another release of Triton")
    found = printed(ALL.format(slug=slug))
    assert len(found) == len(recorded_jobs()) // len(PROBLEMS)
    assert [(name, list(worse(now, recorded()["plans"][name]))) for name, now in found] == [(n, []) for n, _ in found]


@pytest.mark.parametrize("job", recorded_jobs(), ids=name_of)
def test_no_plan_moves_more_bytes_or_launches_more(job: Job) -> None:
    """Known without a compilation."""
    need_triton()
    then, plan = recorded()["plans"][name_of(job)], job.plan()
    assert traffic(job).moved <= then["bytes"]
    names = {launch.text.name.split("_", 3)[3] for launch in launches(plan) if launch.step.label != "guard"}
    assert names == set(then["kernels"])


def test_programs_that_do_not_come_out_even_leave_processors_idle() -> None:
    assert idle(108, 108) == idle(216, 108) == 1
    assert idle(256, 108) == 3 * 108 / 256
    assert idle(1, 132) == 132


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
    assert not list(worse(now, then))
    now = {"bytes": 101, "kernels": {"conv": {"loop": 106, "registers": 100, "spills": 1}, "new": {"loop": 7}}}
    assert list(worse(now, then)) == [
        "moves 101 bytes instead of 100",
        "launches 2 kernels instead of 1",
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
    def range_of(arithmetic: float, memory: float, cached: tuple[float, float], issue: float) -> tuple[float, float]:
        return Expected(arithmetic, memory, cached, issue, (0.75, 0.5)).range

    assert range_of(1.0, 9.0, (1.0, 1.0), 5.0) == range_of(1.0, 5.0, (1.0, 1.0), 9.0) == (9.0 / 0.9, 9.0 / 0.6)
    assert range_of(9.0, 1.0, (1.0, 1.0), 5.0) == (12.0, 18.0)
    assert range_of(0.0, 0.0, (0.9, 6.0), 0.0) == (0.9 / 0.9, 6.0 / 0.6)  # nobody knows what the first level has


@pytest.mark.parametrize("stage", [ct.ConvTranspose3d(stride=2), ct.Conv3d()], ids=lambda stage: stage.name)
def test_work_is_what_tiles_compute(stage: Any) -> None:
    """Exact where each output has as many taps and tiles are full; channels that fill a tile up are counted, too."""
    transposed = isinstance(stage, ct.ConvTranspose3d)
    for channels in (64, 48):
        kernel = (32, channels, 2, 2, 2) if transposed else (channels, 32, 1, 1, 1)
        plan = gpu_plan(Pipeline(stage), (2, 32, 8, 8, 16), (kernel,), DTYPES["float16"], 90)
        (dot,) = (each for each in plan.kernels if each.kind == "dot")
        needed = count(plan.asked, plan.trace).needed
        work = work_of(dot)
        assert work.flop * channels == needed * 64
        assert work.steps == work.rows  # one tap along the width


def test_taps_along_the_width_are_rows() -> None:
    plan = gpu_plan(Pipeline(ct.ConvTranspose3d()), (1, 64, 4, 4, 4), ((64, 64, 2, 3, 5),), DTYPES["float16"], 80)
    (dot,) = (each for each in plan.kernels if each.kind == "dot")
    work = work_of(dot)
    assert work.steps == 5 * work.rows == dot.programs * 2 * 3 * 5 * (64 // dot.config.inputs)


@pytest.mark.parametrize(
    ("stages", "kernel"),
    [
        ([ct.ConvTranspose3d(stride=(2, 1, 3), padding=(1, 0, 2), groups=2)], (32, 8, 3, 2, 5)),
        ([ct.ConvTranspose3d(stride=2), ct.MaxPool3d(2)], (32, 16, 3, 3, 3)),
        ([ct.Conv3d(stride=2, padding=1)], (16, 32, 3, 3, 3)),
    ],
    ids=["phases and groups", "pool", "forward"],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_simulated_reads_are_those_of_the_kernel(stages: list[Any], kernel: tuple[int, ...], dtype: str) -> None:
    """As many as blocks of products, in each part, all of them in memory. A cache for all asks for each sector once."""
    plan = gpu_plan(Pipeline(*stages), (2, 32, 5, 6, 7), (kernel,), DTYPES[dtype], 80)
    (dot,) = (each for each in plan.kernels if each.kind == "dot")
    found = [at for program in range(dot.programs) for at in reads(dot, program, 2)]
    memory = dot.memory
    assert len(found) == memory.parts * work_of(dot).steps
    space = memory.sizes(dot.piece.shape[2:])
    last = 2 * dot.piece.shape[0] * prod(space) * memory.row
    assert min(int(at.min()) for at in found) >= 0
    assert max(int(at.max()) for at in found) + 2 * dot.config.inputs <= last
    some = share(dot, DEVICES[0], 1, 1 << 40)[0], share(dot, DEVICES[0], 1, 0)[0]
    assert 0 < some[0] < some[1] == 1


def test_what_is_read_again_comes_out_of_the_cache_where_samples_are_taken_in_turn() -> None:
    """On the H100: there a sample of softmax fits, on the A100 none does."""
    need_triton()
    slug = "conv-transpose3d-avgpool-clamp-softmax-multiply"
    moved = [traffic(Job(slug, "float32", generation)).moved for generation in (80, 90)]
    value = 4 * prod(PROBLEMS[slug].shapes(PROBLEMS[slug].benchmark)["output"])
    assert moved[0] - moved[1] >= 2 * value
