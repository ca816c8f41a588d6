"""The compile report: what counts as a fault, what is counted, and that the committed one is what compiles here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import astuple, replace
from importlib.metadata import version
from pathlib import Path

import pytest
from gpu_proof import report as gpu_report
from gpu_proof.compile import Facts
from gpu_proof.figures import name_of, recorded, recorded_jobs
from gpu_proof.jobs import FURTHER, Job, channels_last, further_jobs, jobs, tuned
from gpu_proof.report import Row
from helpers.triton import compiling_environment, need_triton

from convt3d.gpu.config import GENERATIONS, Config
from convt3d.spec.problems import PROBLEMS

ROOT = Path(__file__).resolve().parents[2]
REPORT = (ROOT / "docs" / "gpu_report.md").read_text(encoding="utf-8")
NORM = "conv-transpose3d-layernorm-gelu-scaling"
TUNED = ("float32", "float16")  # each further type would take minutes
WGMMA = {"wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16": 2}
GOOD = Row(
    Job(NORM, "float16", 90),
    "conv",
    "dot",
    Config(128, 64, 32, 8, 4),
    Facts(96, 0, 49152, 0, WGMMA, {128: 9}, {}, 1000, 8),
)


def changed(**facts: object) -> Row:
    return replace(GOOD, facts=replace(GOOD.facts, **facts))


def test_a_good_kernel_has_no_fault() -> None:
    assert gpu_report.faults(GOOD) == []
    assert gpu_report.line(GOOD).endswith("| 128x64x32 | 8, 4 | 96 | 0 | 48 KiB | wgmma | 100% | 2, 25%, registers |")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        pytest.param(changed(spills=3), "3 spills", id="spills"),
        pytest.param(changed(shared=300 * 1024), "no block fits: shared memory", id="too-much-shared-memory"),
        pytest.param(changed(tensor={}), "tensor cores: none", id="no-tensor-cores"),
        pytest.param(changed(tensor={"mma.sync.x": 4}), "tensor cores: ('mma',)", id="those-of-an-older-generation"),
        pytest.param(changed(loads={32: 36}), "only 0% of a tile", id="narrow-loads"),
        pytest.param(
            replace(GOOD, job=Job(NORM, "ieee", 90)), "instead of none", id="tensor-cores-where-ieee-is-asked-for"
        ),
    ],
)
def test_faults_are_told(row: Row, words: str) -> None:
    (fault,) = gpu_report.faults(row)
    assert words in fault


def test_a_tile_too_small_for_128_bits_of_each_thread_is_loaded_in_64() -> None:
    small = replace(changed(loads={64: 9}, tensor={"mma.sync.x": 4}, warps=4), config=Config(32, 32, 16, 4, 3))
    assert gpu_report.faults(small) == []
    assert gpu_report.faults(replace(small, config=replace(small.config, inputs=32))) != []


def test_every_problem_type_and_generation_is_compiled() -> None:
    reported = jobs()
    assert len(reported) == len(set(reported)) == len(PROBLEMS) * 6 * 3
    for job in reported:  # and is in the report, by its type and generation
        section = REPORT.partition(f"## {job.name}\n")[2].partition("\n## ")[0]
        assert f" | {job.arithmetic} | {job.generation} | " in section


def reported(job: Job) -> dict[str, list[str]]:
    """Cells of its kernels, by their names: kind, type, generation, tile, warps and stages, registers, spills."""
    section = REPORT.partition(f"## {job.name}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| ")]
    return {row[0].partition(" ")[0]: row for row in rows if row[1:3] == [job.arithmetic, str(job.generation)]}


@pytest.mark.parametrize("slug", PROBLEMS)
def test_tiles_of_the_report_are_those_that_are_taken(slug: str) -> None:
    """`make gpu-report` was run after the last change of them."""
    for job in jobs():
        for kernel in job.plan().kernels if job.name == slug else ():
            tile, row = kernel.config, reported(job)["_".join(kernel.names)]
            sizes = f"{tile.positions}x{tile.channels}" + (f"x{tile.inputs}" if kernel.kind == "dot" else "")
            told = row[3] if not kernel.guarded else row[3].removesuffix(f"x{tile.inputs}")
            assert (told, row[4]) == (sizes, f"{tile.warps}, {tile.stages}"), (job, kernel.names)


@pytest.mark.parametrize("job", recorded_jobs(), ids=name_of)
def test_the_report_and_the_figures_are_of_one_state(job: Job) -> None:
    rows = reported(job)
    for name, figures in recorded()["plans"][name_of(job)]["kernels"].items():
        assert rows[name][5:7] == [str(figures["registers"]), str(figures["spills"])], name


def test_bytes_of_the_plain_convolution() -> None:
    """(8, 48, 96^3) to (8, 24, 98^3) in float16: input and output once at least; the copy of the input beside that."""
    pytest.importorskip("torch")
    pytest.importorskip("triton", "3.4")
    found = gpu_report.traffic(Job("conv-transpose-3d-asym-input-sq-kernel", "float16", 80))
    x, y, w = 8 * 48 * 96**3 * 2, 8 * 24 * 98**3 * 2, 48 * 24 * 27 * 2
    packed, flag, copy = 48 * 32 * 27 * 2, 4, 8 * 48 * 100**3 * 2  # with a halo of two voxels
    seen = 8 * 48 * 98**3 * 2  # of it, from its first voxel on
    assert found.least == x + y + w
    assert found.moved == x + copy + seen + w + 2 * packed + 2 * flag + y
    assert found.extra == copy + packed + flag


COMPILE = """
import json, sys
from gpu_proof.jobs import Job
from gpu_proof.report import faults, line, rows_of
for job in json.loads(sys.argv[1]):
    for row in rows_of(Job(*job)):
        print(json.dumps([job, line(row), faults(row)]))
"""
Compiled = tuple[Job, str, list[str]]  # a kernel's line in the report, and its faults


def compiled(*wanted: Job) -> list[Compiled]:
    """The kernels of these plans, from a process without Triton's interpreter."""
    need_triton()
    environment = compiling_environment()
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, json.dumps([astuple(job) for job in wanted])],
        env={**environment, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests")))},
        capture_output=True,
        text=True,
        timeout=6000,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [(Job(*job), line, faults) for job, line, faults in found]


def assert_faultless(rows: list[Compiled]) -> None:
    assert rows
    assert [(job, line, faults) for job, line, faults in rows if faults] == []


def assert_reported(rows: list[Compiled]) -> None:
    if f"with triton {version('triton')};" in REPORT:  # another one may use other registers
        assert [line for job, line, _ in rows if job in jobs() and line not in REPORT] == []


def test_some_kernels_compile_as_reported() -> None:
    rows = compiled(Job(NORM, "float16", 80), Job(NORM, "bfloat16", 90), Job(NORM, "float16", 100))
    assert_faultless(rows)
    assert_reported(rows)


def test_configurations_are_compiled_once() -> None:
    """The heuristic's is among the numbered ones."""
    usual = Job(NORM, "float16", 80)
    first, *rest = tuned(usual)
    assert [kernel.config for kernel in first.plan().kernels] == [kernel.config for kernel in usual.plan().kernels]
    assert compiled(usual, first) == compiled(usual)
    assert {job.plan().kernels[0].config for job in rest}.isdisjoint({usual.plan().kernels[0].config})


@pytest.mark.exhaustive
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("slug", PROBLEMS)
def test_all_configurations_compile_and_the_usual_as_reported(slug: str, generation: int) -> None:
    usual = [job for job in jobs() if (job.name, job.generation) == (slug, generation)]
    last = [channels_last(job) for job in usual if job.arithmetic in TUNED]
    rows = compiled(*usual, *last, *(other for job in usual for other in tuned(job)))
    assert_faultless(rows)
    assert_reported(rows)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FURTHER)
def test_all_configurations_of_further_pipelines_compile(name: str) -> None:
    usual = [job for job in further_jobs() if job.name == name]
    some = [job for job in usual if job.arithmetic in TUNED]
    last = [channels_last(job) for job in some]
    assert_faultless(compiled(*usual, *last, *(other for job in some for other in tuned(job))))
