"""AMD: kernels compile without spills, use matrix instructions and fit the shared memory; no bound on registers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gpu_proof.amd import amd_jobs, further_amd_jobs
from gpu_proof.jobs import FURTHER, Job
from helpers.triton import printed

from convt3d.gpu.config import AMD, generation_of
from convt3d.spec.problems import PROBLEMS

NORM = "conv-transpose3d-layernorm-gelu-scaling"
CODE = """
import json
from gpu_proof.amd import amd_rows
from gpu_proof.jobs import Job
for job, architecture in json.loads({wanted!r}):
    for row in amd_rows(Job(*job), architecture):
        print(json.dumps([job, row.line(), row.kind, row.faults()]))
"""


def compiled(wanted: list[tuple[Job, str]]) -> list[Any]:
    jobs = [[[job.name, job.arithmetic, job.generation], architecture] for job, architecture in wanted]
    return printed(CODE.format(wanted=json.dumps(jobs)))


def assert_faultless(rows: list[Any]) -> None:
    assert "dot" in {kind for _, _, kind, _ in rows}
    assert [(job, line, faults) for job, line, _, faults in rows if faults] == []


def test_architectures_have_a_generation_of_their_own() -> None:
    assert {name: generation_of(name) for name in AMD} == AMD
    assert max(AMD.values()) < 80  # where NVIDIA's begin


def test_some_kernels_compile() -> None:
    """Both kinds of instructions, and both numbers of threads in a warp."""
    assert_faultless(compiled([(Job(NORM, "float32", 9), "gfx942"), (Job(NORM, "float16", 11), "gfx1100")]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("slug", PROBLEMS)
def test_all_kernels_compile(slug: str) -> None:
    assert_faultless(compiled(amd_jobs([slug])))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FURTHER)
def test_further_pipelines_compile(name: str) -> None:
    rows = compiled([one for one in further_amd_jobs() if one[0].name == name])
    assert [(job, line, faults) for job, line, _, faults in rows if faults] == []
