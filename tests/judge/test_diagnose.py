"""What is said about wrong values leads to the bug, and no further case contradicts it."""

from __future__ import annotations

import pytest
from helpers import kernels_c, kernels_python, kernels_triton
from helpers.triton import need_triton

from convt3d.cpu.plan.cores import get_num_threads
from convt3d.judge.check import Options
from convt3d.judge.diagnose import diagnose, place, where
from convt3d.judge.languages import compiler_of
from convt3d.judge.repeat import thread_counts
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.problems import PROBLEMS

CONV = "conv-transpose-3d-asym-input-sq-kernel"
MAXES = "conv-transpose3d-max-max-sum"
NORM = "conv-transpose3d-layernorm-gelu-scaling"


HONEST = kernels_python.solution(CONV, kernels_python.NUMPY)


def examined(judge, slug: str, bug: str, case: str):
    honest = kernels_python.solution(slug, kernels_python.NUMPY)
    options = Options(DTYPES["float32"])
    return judge(
        f"{honest}\nhonest = solution\n{bug}\n",
        slug,
        cases=(case,),
        again=20,
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
    bug = f"def solution(*a):\n    honest(*a)\n    {bug}"
    failure = judge(f"{HONEST}\nhonest = solution\n{bug}\n", CONV, cases=(case,)).failure
    assert words in where(failure.trial, failure.wrong)


def test_where_holds_for_other_data_too(judge) -> None:
    """A bug that moves with the data: what is said must be true of all the data that were tried."""
    bug = "def solution(*a):\n    honest(*a)\n    a[2][:, abs(int(a[0].flat[0] * 1000)) % a[5]] += 1"
    found = examined(judge, CONV, bug, "prime-sizes").verdict
    assert not any(text.endswith("of 13") and text.count(",") == 0 for text in found.figures["where"]), found.figures


def test_first_bad_voxel(judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convt3d.judge.diagnose._pattern", lambda program, failure, options: ("", {}, failure.wrong))
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


CALLS = "calls = []\ndef solution(*a):\n    calls.append(1)\n    honest(*a)\n    if {}: a[2][...] = 0"


@pytest.mark.parametrize(
    "when",
    [
        pytest.param("len(calls) == 3", id="once only"),
        pytest.param("len(calls) == 5", id="after every case has passed once"),
        pytest.param("len(calls) % 3 == 0", id="every third time"),
    ],
)
def test_what_differs_from_run_to_run_has_no_other_pattern(judge, when: str) -> None:
    found = examined(judge, CONV, CALLS.format(when), "sample").verdict
    assert found.word == "wrong values"
    assert "it differs from run to run" in found.reason
    assert found.figures["pattern"].startswith("none: it differs from run to run")
    assert {run["right"] for run in found.figures["runs"]} == {True, False}


def test_a_result_that_depends_on_earlier_calls(judge) -> None:
    found = examined(judge, CONV, CALLS.format("len(calls) > 2"), "sample").verdict
    assert found.figures["pattern"] == "none: in a fresh process the same case is right; it depends on earlier calls"


def test_wrong_by_ever_other_amounts(judge) -> None:
    bug = "calls = []\ndef solution(*a):\n    calls.append(1)\n    honest(*a)\n    a[2][..., 0] += len(calls)"
    found = examined(judge, CONV, bug, "sample").verdict
    assert "it differs from run to run: right in 0 of " in found.reason
    assert "and wrong by ever other amounts" in found.reason
    assert found.figures["where"] == ["not the same in every run"]


def test_a_result_that_depends_on_the_data(judge) -> None:
    bug = "def solution(*a):\n    honest(*a)\n    if a[0].flat[0] < 0: a[2][...] = 0"
    found = [examined(judge, CONV, bug, name).verdict for name in ("sample", "two-groups", "prime-sizes")]
    told = [one.figures["pattern"] for one in found if not one.passed]
    assert told
    assert any(text.startswith("none: it depends on the data, ") for text in told)


def test_a_result_that_depends_on_the_number_of_threads(judge) -> None:
    """What is left over when the work is dealt out: right for as many threads as cores, wrong for others."""
    if compiler_of("c") is None:
        pytest.skip("no C compiler on this machine")
    bug = "    free(x);\n    if (omp_get_max_threads() % USUAL) output[0] += 1;\n".replace(
        "USUAL", str(get_num_threads())
    )
    text = "#include <omp.h>\n" + kernels_c.source(CONV, "c").replace("    free(x);\n", bug)
    if get_num_threads() == 1:
        text = text.replace("% 1)", "> 1)")
    found = judge(text, CONV, ".c", cases=("sample",), again=20).verdict
    if found.word == "compile error":
        pytest.skip("no OpenMP here")
    assert found.word == "wrong values"
    assert "it depends on the number of threads: right in" in found.reason


def test_native_code_may_take_its_number_of_threads_for_good(judge) -> None:
    """Such as for buffers it keeps: each process sees one number only."""
    if compiler_of("c") is None:
        pytest.skip("no C compiler on this machine")
    taken = "    static int taken;\n    if (!taken) taken = omp_get_max_threads();\n"
    bug = f"{taken}    if (taken != omp_get_max_threads()) abort();\n    free(x);\n"
    judgement = judge(
        "#include <omp.h>\n" + kernels_c.source(CONV, "c").replace("    free(x);\n", bug), CONV, ".c", again=20
    )
    if judgement.verdict.word == "compile error":
        pytest.skip("no OpenMP here")
    assert judgement.verdict.passed, judgement.verdict
    assert len(judgement.threads) == len(thread_counts()) > 1
    assert all(result.runs >= len(thread_counts()) for result in judgement.results)


def test_a_grid_whose_programs_need_an_order(judge) -> None:
    """Program 0 clears the output and the others add to it: right only as long as it comes first."""
    need_triton()
    pytest.importorskip("torch")
    text = kernels_triton.solution(CONV) + ORDERED
    found = judge(text, CONV, cases=("sample",), limit=60, again=20).verdict
    assert found.word == "wrong values"
    assert "it depends on the number of threads" in found.reason


ORDERED = """
honest = solution
@triton.jit
def clear_then_add(output, total, voxels, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    here = at < voxels
    if tl.program_id(0) == 0:
        tl.store(output + at, tl.zeros((BLOCK,), tl.float32), mask=here)
    else:
        tl.store(output + at, tl.load(output + at, mask=here) + tl.load(total + at, mask=here), mask=here)
def solution(*args):
    total = args[2].clone()
    honest(*args[:2], total, *args[3:])
    clear_then_add[(2,)](args[2], total, total.numel(), BLOCK=triton.next_power_of_2(total.numel()))
"""
