"""What is said about wrong values leads to the bug."""

from __future__ import annotations

import pytest
from helpers import kernels_python

from convt3d.judge.check import Options
from convt3d.judge.diagnose import diagnose, place
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.problems import PROBLEMS

CONV = "conv-transpose-3d-asym-input-sq-kernel"
MAXES = "conv-transpose3d-max-max-sum"
NORM = "conv-transpose3d-layernorm-gelu-scaling"


def examined(judge, slug: str, bug: str, case: str):
    honest = kernels_python.solution(slug, kernels_python.NUMPY)
    options = Options(DTYPES["float32"])
    return judge(
        f"{honest}\nhonest = solution\n{bug}\n",
        slug,
        cases=(case,),
        examine=lambda program, failure: diagnose(program, failure, options),
    )


def swapped(first: str, second: str, slug: str = CONV) -> str:
    """A kernel that takes one parameter for another, and fits what it gets into the output."""
    names = [p.name for p in PROBLEMS[slug].parameters]
    i, j, out = names.index(first), names.index(second), names.index("output")
    return f"""
def solution(*args):
    args = list(args)
    args[{i}] = args[{j}]
    sizes = dict(zip({names!r}, args))
    reach = [(sizes[n] - 1) * sizes['stride_' + a] - 2 * sizes['padding_' + a] + sizes.get('dilation_' + a, 1)
             * (sizes['kernel_' + a] - 1) + sizes.get('output_padding_' + a, 0) + 1
             for n, a in (('depth', 'd'), ('height', 'h'), ('width', 'w'))]
    output = args[{out}]
    args[{out}] = np.zeros((*output.shape[:2], *reach), output.dtype)
    honest(*args)
    output[...] = 0
    fit = tuple(slice(0, min(a, b)) for a, b in zip(output.shape, args[{out}].shape))
    output[fit] = args[{out}][fit]
"""


@pytest.mark.parametrize(
    ("slug", "bug", "case", "pattern"),
    [
        pytest.param(CONV, swapped("stride_h", "stride_w"), "unequal-everything", "stride_h != stride_w", id="stride"),
        pytest.param(
            NORM,
            swapped("padding_d", "padding_h", NORM),
            "unequal-everything",
            "padding_",
            id="padding of another axis",
        ),
        pytest.param(
            CONV,
            "def solution(*a):\n    w = a[1].copy()\n    w[a[4] // a[24]:] = w[:1]\n    honest(a[0], w, *a[2:])",
            "two-groups",
            "groups > 1",
            id="groups",
        ),
        pytest.param(
            CONV,
            "def solution(*a):\n    honest(*a)\n    last = a[5] // 4 * 4\n    a[2][:, last:] = 0 if last else a[2]",
            "prime-sizes",
            "out_channels is no multiple of 4",
            id="channels left over from blocks of four",
        ),
        pytest.param(
            CONV,
            "def solution(*a):\n    honest(*a)\n    a[2][1:] = a[2][:1]",
            "unequal-everything",
            "batch_size > 1",
            id="only the first sample",
        ),
    ],
)
def test_pattern(judge, slug: str, bug: str, case: str, pattern: str) -> None:
    found = examined(judge, slug, bug, case).verdict
    assert found.word == "wrong values"
    assert pattern in found.figures["pattern"], found.figures
    smallest = found.figures["smallest_failing"]
    assert PROBLEMS[slug].shapes(smallest)


@pytest.mark.parametrize(
    ("bug", "case", "words"),
    [
        pytest.param("a[2][:, -3:] += 1", "prime-sizes", "wrong only in the last 3 of 13 channels", id="last channels"),
        pytest.param("a[2][..., -1] += 1", "prime-sizes", "wrong only in the last of 11 widths", id="last column"),
        pytest.param("a[2][:, 2:3] += 1", "prime-sizes", "wrong only in channels 2 of 13", id="one channel"),
        pytest.param(
            "a[2][:, :, :, (-a[16]) % a[13] :: a[13]] += 1",
            "unequal-everything",
            "wrong only in phase 0 of stride 3 along height",
            id="a phase",
        ),
        pytest.param("a[2][...] += 1", "prime-sizes", "wrong along every axis", id="everywhere"),
    ],
)
def test_where(judge, bug: str, case: str, words: str) -> None:
    found = examined(judge, CONV, f"def solution(*a):\n    honest(*a)\n    {bug}", case).verdict
    assert words in found.figures["where"], found.figures["where"]


def test_first_bad_voxel(judge) -> None:
    bug = "def solution(*a):\n    honest(*a)\n    a[2][0:1, 3:4, 2:3, 4:5, 5:6] = 8"
    judgement = examined(judge, CONV, bug, "prime-sizes")
    figures = judgement.verdict.figures
    assert figures["first_bad"] == (0, 3, 2, 4, 5)
    assert figures["got"] == 8
    assert figures["expected"] == pytest.approx(judgement.failure.trial.expected.values[0, 3, 2, 4, 5])
    assert figures["wrong"] == 1
    assert figures["worst"] > 1


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ((0, 0, 0, 0, 0), "low border of depth, low border of height, low border of width"),
        ((0, 0, 2, 3, 4), "inside"),
        ((0, 0, 4, 3, 4), "high border of depth"),
    ],
)
def test_place(index: tuple[int, ...], words: str) -> None:
    case = next(case for case in PROBLEMS[CONV].cases if case.name == "prime-sizes")
    assert place(PROBLEMS[CONV], case.values, index) == f"phase (0, 0, 0) of strides (1, 1, 1); {words}"


def test_place_of_a_pooled_voxel_is_a_window() -> None:
    case = next(case for case in PROBLEMS[MAXES].cases if case.name == "unequal-everything")
    assert place(PROBLEMS[MAXES], case.values, (0, 0, 0, 1, 0)).startswith("window [0, 6) x [6, 12) x [0, 6) of")


def test_a_fault_that_does_not_come_back_is_said_to_be_none(judge, tmp_path) -> None:
    """A kernel that fails once only: the same case passes in a fresh process."""
    flag = "import os\ncalls = []\ndef solution(*a):\n    calls.append(1)\n    honest(*a)\n    if len(calls) == 3: a[2][...] = 0"
    found = examined(judge, CONV, flag, "sample").verdict
    assert found.word == "wrong values"
    assert "not repeatable" in found.figures["pattern"]
