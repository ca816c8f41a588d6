"""Every way judges have been fooled, as a kernel that must fail with the right word."""

from __future__ import annotations

import os

import pytest
from helpers import kernels_c, kernels_python

import convt3d
from convt3d.judge import verdict as words
from convt3d.judge.languages import compiler_of

CONV = "conv-transpose-3d-asym-input-sq-kernel"
MAXES = "conv-transpose3d-max-max-sum"
SOFTMAX = "conv-transpose3d-avgpool-clamp-softmax-multiply"
NORM = "conv-transpose3d-layernorm-gelu-scaling"

FEW = ("sample", "unequal-everything", "two-groups")

HONEST = kernels_python.solution(CONV, kernels_python.NUMPY) + "\nhonest = solution\n"

# name -> expected word, a piece of the reason, the cheating part that follows the honest kernel
TRICKS = {
    "returns without writing": (words.WRONG_VALUES, "none was written", "def solution(*args):\n    pass"),
    "leaves zeros": (words.WRONG_VALUES, "voxels are wrong", "def solution(*args):\n    args[2][...] = 0"),
    "leaves a constant": (
        words.WRONG_VALUES,
        "voxels are wrong",
        "def solution(*args):\n    args[2][...] = 1 / 131072",
    ),
    "writes half": (
        words.WRONG_VALUES,
        "were never written",
        "def solution(*args):\n    kept = args[2].copy()\n    honest(*args)\n    args[2][..., 1:] = kept[..., 1:]",
    ),
    "returns the result instead of writing it": (
        words.WRONG_VALUES,
        "solution returned a ndarray",
        "def solution(*args):\n    out = args[2].copy()\n    honest(*args[:2], out, *args[3:])\n    return out",
    ),
    "finds the answer in freed memory": (
        words.WRONG_VALUES,
        "",
        "def solution(*args):\n    args[2][...] = np.empty(args[2].shape, args[2].dtype)",
    ),
    "caches by pointer": (
        words.WRONG_VALUES,
        "the answer to an earlier call",
        "known = {}\ndef solution(*args):\n    key = args[0].ctypes.data, args[2].shape\n"
        "    if key not in known:\n        honest(*args)\n        known[key] = args[2].copy()\n    args[2][...] = known[key]",
    ),
    "writes only in the first call": (
        words.WRONG_VALUES,
        "none was written",
        "calls = []\ndef solution(*args):\n    calls.append(1)\n    if len(calls) == 1:\n        honest(*args)",
    ),
    "mutates its input": (
        words.INPUT_MUTATED,
        "it writes into an input: `input` at (0, 0, 0, 0, 0)",
        "def solution(*args):\n    honest(*args)\n    args[0][0, 0, 0, 0, 0] += 1",
    ),
    "mutates its input and restores it": (
        words.INPUT_MUTATED,
        "it writes into an input",
        "def solution(*args):\n    kept = args[0].copy()\n    args[0][...] *= 2\n    args[0][...] = kept\n    honest(*args)",
    ),
    "returns early and works on a thread": (
        words.WRONG_VALUES,
        "work was left to others",
        "import threading, time\ndef late(args):\n    time.sleep(0.05)\n    honest(*args)\n"
        "def solution(*args):\n    threading.Thread(target=late, args=(args,)).start()",
    ),
    "leaves the work to a process": (
        words.NOT_ALLOWED,
        "start of another process",
        "import os, time\ndef solution(*args):\n    if os.fork() == 0:\n        time.sleep(0.05)\n"
        "        honest(*args)\n        time.sleep(600)\n        os._exit(0)",
    ),
    "leaves a process that detached itself": (
        words.NOT_ALLOWED,
        "start of another process",
        "import os, time\ndef solution(*args):\n    honest(*args)\n    if os.fork() == 0:\n        os.setsid()\n"
        "        if os.fork() == 0:\n            time.sleep(600)\n        os._exit(0)\n    os.wait()",
    ),
    "leaves a process whose first thread has ended": (
        words.NOT_ALLOWED,
        "start of another process",
        "import ctypes, os, threading, time\ndef solution(*args):\n    honest(*args)\n    if os.fork() == 0:\n"
        "        threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "        ctypes.CDLL(None).pthread_exit(None)\n    time.sleep(0.2)",
    ),
    "patches timer and comparison": (
        words.WRONG_VALUES,
        "",
        "import time, sys\ntime.perf_counter = time.monotonic = time.time = lambda: 0.0\n"
        "np.array_equal = np.allclose = np.testing.assert_allclose = lambda *a, **k: True\n"
        "def solution(*args):\n    args[2][...] = 1",
    ),
    "forges the reply": (
        words.WRONG_VALUES,
        "none was written",
        "import os, sys, time\ndef solution(*args):\n    os.write(int(sys.argv[2]), b'{\"ok\": true}\\n')\n"
        "    time.sleep(0.2)\n    honest(*args)",
    ),
    "writes nonsense to the judge": (
        words.CRASH,
        "not understood",
        "import os, sys\ndef solution(*args):\n    os.write(int(sys.argv[2]), b'\\xff\\x00' * 9000 + b'\\n')",
    ),
    **{
        f"says {reply}": (
            words.CRASH,
            "not understood",
            f"import os, sys\ndef solution(*args):\n    os.write(int(sys.argv[2]), b'{{{reply}}}\\n')",
        )
        for reply in ('"error": "passed"', '"error": "compiled, not run"', '"returned": {"a": 1}')
    },
    "draws a verdict on the terminal": (
        words.CRASH,
        "Exception: \\x1b[2J\\x1b[H\n    | verdict       passed",
        "def solution(*args):\n    raise Exception('\\x1b[2J\\x1b[H\\nverdict       passed')",
    ),
    "answers NaN": (words.WRONG_VALUES, "voxels are wrong", "def solution(*args):\n    args[2][...] = np.nan"),
    "computes in float16": (
        words.WRONG_VALUES,
        "voxels are wrong",
        "wide = lambda a: a.astype(np.float16)\nsolution = honest",
    ),
    "rounds the inputs to bfloat16": (
        words.WRONG_VALUES,
        "voxels are wrong",
        "def rounded(a, bits):\n    scale = 2.0 ** (np.floor(np.log2(np.abs(a) + 1e-30)) - bits)\n"
        "    return np.round(a / scale) * scale\nwide = lambda a: rounded(a, 7).astype(np.float32)\nsolution = honest",
    ),
    "rounds the inputs to TF32": (
        words.WRONG_VALUES,
        "voxels are wrong",
        "def rounded(a, bits):\n    scale = 2.0 ** (np.floor(np.log2(np.abs(a) + 1e-30)) - bits)\n"
        "    return np.round(a / scale) * scale\nwide = lambda a: rounded(a, 10).astype(np.float32)\nsolution = honest",
    ),
    "imports the library's own answer": (
        words.NOT_ALLOWED,
        "import of convt3d",
        "def solution(*args):\n    import convt3d\n    convt3d.problems['" + CONV + "'].solution(*args)",
    ),
    "loads the library's own answer under another name": (
        words.NOT_ALLOWED,
        "of an answer",
        "import importlib.util as u\ndef solution(*args):\n    folder = OWN_FOLDER\n"
        "    s = u.spec_from_file_location('c3d', folder + '/__init__.py', submodule_search_locations=[folder])\n"
        "    s.loader.exec_module(u.module_from_spec(s))",
    ),
    "imports torch by another name": (
        words.NOT_ALLOWED,
        "torch",
        "import importlib\ndef solution(*args):\n    importlib.import_module('tor' + 'ch')",
    ),
    "names the judge's insides": (words.NOT_ALLOWED, "`_getframe`", "import sys\nframe = sys._getframe(1)"),
    "looks into the judge's module": (
        words.CRASH,
        "has no attribute 'forbid'",
        "module = __import__('__ma' + 'in__')\nmodule.forbid",
    ),
    "starts another program": (
        words.NOT_ALLOWED,
        "start of another process",
        "import subprocess, sys\ndef solution(*args):\n    subprocess.run([sys.executable, '-c', 'import torch'])",
    ),
    "ends the process": (words.CRASH, "exit", "import os\ndef solution(*args):\n    os._exit(0)"),
    "raises SystemExit": (words.CRASH, "ended the process", "import sys\ndef solution(*args):\n    sys.exit(0)"),
    "raises an exception": (words.CRASH, "ZeroDivisionError", "def solution(*args):\n    1 / 0"),
    "kills the judge": (
        words.WRONG_VALUES,
        "none was written",
        "import os, signal\ndef solution(*args):\n    pid = os.getppid()\n    for victim in (pid, 1):\n        try:\n"
        "            os.kill(victim, signal.SIGKILL)\n        except OSError:\n            pass",
    ),
    "cuts off the memory the judge reads": (
        words.WRONG_VALUES,
        "none was written",
        "import os\ndef solution(*args):\n    for fd in range(3, 64):\n        for size in (0, 2**30):\n            try:\n"
        "                if 'memfd' in os.readlink(f'/proc/self/fd/{fd}'): os.ftruncate(fd, size)\n"
        "            except OSError:\n                pass",
    ),
    "prints without end": (
        words.TIME_OUT,
        "no answer within 0.5 s",
        "import os\ndef solution(*args):\n    while True:\n        os.write(1, b'x' * 65536)",
    ),
    "hangs": (words.TIME_OUT, "no answer within 0.5 s", "def solution(*args):\n    while True: pass"),
    "hangs while it is loaded": (words.TIME_OUT, "no answer", "while True: pass"),
    "exhausts memory": (
        words.CRASH,
        "memory",
        "def solution(*args):\n    kept = []\n    while True: kept.append(np.ones(2**26))",
    ),
    "starts processes without end": (
        words.NOT_ALLOWED,
        "start of another process",
        "import os, time\ndef solution(*args):\n    for _ in range(200):\n        if os.fork() == 0:\n"
        "            time.sleep(600)\n    time.sleep(600)",
    ),
    "crashes": (
        words.CRASH,
        "SIGSEGV",
        "import ctypes\ndef solution(*args):\n    ctypes.string_at(0)",
    ),
    "is right only for stride 1": (words.WRONG_VALUES, "", "def solution(*a):\n    honest(*a[:12], 1, 1, 1, *a[15:])"),
    "ignores dilation": (
        words.WRONG_VALUES,
        "",
        "def solution(*a):\n    o = a[2]\n    honest(*a[:21], 1, 1, 1, a[24])",
    ),
    "has too few parameters": (words.WRONG_SIGNATURE, "solution takes 25", "def solution(a, b):\n    pass"),
    "has no solution": (words.WRONG_SIGNATURE, "neither", "del solution"),
    "is no Python": (words.COMPILE_ERROR, "SyntaxError", "def solution(:"),
}


# What is wrong in shape ends in an exception of numpy: as much a failure as wrong values.
EITHER = {"is right only for stride 1": words.CRASH, "ignores dilation": words.CRASH, "kills the judge": words.CRASH}


@pytest.mark.parametrize("name", TRICKS)
def test_trick_fails(judge, name: str) -> None:
    word, piece, cheat = TRICKS[name]
    slow = word == words.TIME_OUT
    text = f"{HONEST}\n{cheat}\n".replace("OWN_FOLDER", repr(os.path.dirname(convt3d.__file__)))
    judgement = judge(text, CONV, limit=0.5 if slow else 20, start=2 if slow else 60, memory=2**30, cases=FEW)
    found = judgement.verdict
    assert not found.passed
    assert found.word in (word, EITHER.get(name)), found
    if found.word == word:
        assert piece in found.reason, found


def test_the_honest_part_passes(judge) -> None:
    """Or the tricks above would fail for another reason."""
    assert judge(f"{HONEST}\nsolution = honest\n", CONV).verdict.passed


def test_float32_for_float64(judge) -> None:
    text = f"{HONEST}\nwide = lambda a: a.astype(np.float32)\nsolution = honest\n"
    assert judge(text, CONV, dtype="float64").verdict.word == words.WRONG_VALUES


def test_float16_sums_for_float16(judge) -> None:
    text = f"{HONEST}\nwide = lambda a: a\nsolution = honest\n"
    assert judge(text, CONV, dtype="float16").verdict.word == words.WRONG_VALUES


TF32 = """
def rounded(a, bits):
    scale = 2.0 ** (np.floor(np.log2(np.abs(a) + 1e-30)) - bits)
    return np.round(a / scale) * scale
wide = lambda a: rounded(a, 10).astype(np.float32)
"""


@pytest.mark.parametrize("slug", kernels_python.SLUGS)
def test_tf32_fails_through_the_stages_that_follow(judge, slug: str) -> None:
    """Inputs with ten bits behind the leading one, sums in float32."""
    judgement = judge(kernels_python.solution(slug, kernels_python.NUMPY) + TF32, slug, cases=("sample",))
    assert judgement.verdict.word == words.WRONG_VALUES
    assert judgement.verdict.figures["worst"] > 2


@pytest.mark.parametrize("slug", [SOFTMAX, NORM])
def test_zeros_fail_where_an_absolute_tolerance_would_pass_them(judge, slug: str) -> None:
    position = [p.name for p in __import__("convt3d").problems[slug].parameters].index("output")
    assert judge(f"def solution(*a):\n    a[{position}][...] = 0\n", slug).verdict.word == words.WRONG_VALUES


# --- torch ------------------------------------------------------------------------------------------------------------

TORCH_ANSWER = """\
import torch
def solution(x, w, out, B, Ci, Co, D, H, W, kd, kh, kw, sd, sh, sw, pd, ph, pw, od, oh, ow, dd, dh, dw, groups):
    f = torch.nn.functional.conv_transpose3d
    out.copy_(f(x, w, None, (sd, sh, sw), (pd, ph, pw), (od, oh, ow), groups, (dd, dh, dw)))
"""
ON_A_THREAD = (
    TORCH_ANSWER.replace("def solution", "def answer")
    + """\
import threading
def solution(*args):
    thread = threading.Thread(target=answer, args=args)
    thread.start()
    thread.join()
"""
)
SIGNATURE = TORCH_ANSWER.splitlines()[1] + "\n"
MKLDNN = (
    "import torch\n"
    + SIGNATURE
    + """\
    f = torch.ops.mkldnn._convolution_transpose_pointwise
    y = f(x, w, None, [0] * 3, [0] * 3, [sd, sh, sw], [dd, dh, dw], groups, "none", [], "")
    out.copy_(y[:, :, pd:pd + out.shape[2], ph:ph + out.shape[3], pw:pw + out.shape[4]])
"""
)
SPARSE = "import torch\n" + SIGNATURE + "    torch.sparse.mm(w.reshape(Ci, -1).t().to_sparse(), x[0].reshape(Ci, -1))\n"
TAKES_RULES_BACK = (
    TORCH_ANSWER
    + """\
for thing in __import__("g" + "c").get_objects():
    if type(thing).__name__ in ("Library", "_DispatchModule"):
        getattr(thing, "_des" + "troy", getattr(thing, "reset", None))()
"""
)
MODEL = """\
import torch
class ModelNew(torch.nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride, padding):
        super().__init__()
        self.conv = torch.nn.ConvTranspose3d(in_channels, out_channels, kernel_size, stride, padding)
    def forward(self, x):
        y = torch.nn.functional.max_pool3d(torch.nn.functional.max_pool3d(self.conv(x), 2), 3)
        return RESULT
"""
WHOLE = "y.sum(1, keepdim=True)"


@pytest.mark.parametrize(
    ("text", "slug", "allow", "word"),
    [
        pytest.param(MKLDNN, CONV, False, words.NOT_ALLOWED, id="torch answers by another operator"),
        pytest.param(SPARSE, CONV, False, words.NOT_ALLOWED, id="torch multiplies sparse matrices"),
        pytest.param(TAKES_RULES_BACK, CONV, False, words.NOT_ALLOWED, id="torch answers when the rules are gone"),
        pytest.param(TORCH_ANSWER, CONV, True, words.PASSED, id="torch may answer"),
        pytest.param(ON_A_THREAD, CONV, False, words.WRONG_VALUES, id="torch answers on a thread"),
        pytest.param(
            MODEL.replace("RESULT", WHOLE), MAXES, False, words.NOT_ALLOWED, id="a model that lets torch answer"
        ),
        pytest.param(MODEL.replace("RESULT", "y"), MAXES, True, words.WRONG_SHAPE, id="another shape"),
        pytest.param(MODEL.replace("RESULT", f"{WHOLE}.double()"), MAXES, True, words.WRONG_DTYPE, id="another type"),
        pytest.param(MODEL.replace(", padding)", ")", 1), MAXES, True, words.WRONG_SIGNATURE, id="another constructor"),
    ],
)
def test_torch(judge, text: str, slug: str, allow: bool, word: str) -> None:
    pytest.importorskip("torch")
    judgement = judge(text, slug, allow_torch=allow, cases=("sample", "unequal-everything"))
    assert judgement.verdict.word == word, judgement.verdict


# --- C ----------------------------------------------------------------------------------------------------------------

C_TRICKS = {
    "reads behind the input": (
        words.OUT_OF_BOUNDS,
        "it reads 1 element behind `input`",
        "volatile real far = input[batch_size * in_channels * depth * height * width]; (void)far;",
    ),
    "reads before the input": (
        words.OUT_OF_BOUNDS,
        "1 element before `input`",
        "volatile real far = input[-1]; (void)far;",
    ),
    "writes behind the output": (
        words.OUT_OF_BOUNDS,
        "it writes 1 element behind `output`",
        "((real*)output)[OUTPUT] = 1;",
    ),
    **{
        f"{'writes' if write else 'reads'} {far} elements {'behind' if far > 0 else 'before'} the {name}": (
            words.OUT_OF_BOUNDS,
            f"it {'writes' if write else 'reads'} {abs(far)} elements {'behind' if far > 0 else 'before'} `{name}`, which has ",
            f"volatile real* p = (volatile real*){name} + ({far if far < 0 else f'{size} + {far - 1}'}); {'*p = 1;' if write else '(void)*p;'}",
        )
        for name, size, far, write in (
            ("output", "OUTPUT", 2**18, True),
            ("output", "OUTPUT", 2**28, True),
            ("output", "OUTPUT", -(2**30), True),
            ("input", "batch_size * in_channels * depth * height * width", 2**31, False),
            ("kernel", "0", -(2**20), False),
        )
    },
    "writes before the output": (words.OUT_OF_BOUNDS, "before `output`", "output[-1] = 1;"),
    "mutates the kernel": (words.INPUT_MUTATED, "`kernel` at (0, 0, 0, 0, 0)", "((real*)kernel)[0] = 7;"),
    "mutates and restores": (
        words.INPUT_MUTATED,
        "writes into an input",
        "volatile real* k = (volatile real*)kernel; real kept = k[0]; k[0] = 7; k[0] = kept;",
    ),
    "divides by zero": (words.CRASH, "SIGFPE", "volatile size_t zero = 0; output[0] = (real)(batch_size / zero);"),
    "aborts": (words.CRASH, "SIGABRT", "abort();"),
    "exits": (words.CRASH, "exit code 0", "exit(0);"),
    "hangs": (words.TIME_OUT, "", "for (volatile int i = 0;; ++i);"),
}


@pytest.mark.parametrize("name", C_TRICKS)
def test_c_trick_fails(judge, name: str) -> None:
    if compiler_of("c") is None:
        pytest.skip("no C compiler on this machine")
    word, piece, line = C_TRICKS[name]
    total = "batch_size * out_channels * d.out * h.out * v.out"
    text = kernels_c.source(CONV, "c").replace("    free(x);\n", f"    free(x);\n    {line.replace('OUTPUT', total)}\n")
    judgement = judge(text, CONV, ".c", limit=0.5 if word == words.TIME_OUT else 20, cases=FEW)
    assert judgement.verdict.word == word, judgement.verdict
    assert piece in judgement.verdict.reason


@pytest.mark.parametrize(
    ("change", "suffix", "word"),
    [
        pytest.param(("size_t groups)", "size_t groups, size_t more)"), ".c", words.WRONG_SIGNATURE, id="one more"),
        pytest.param(("const real* input", "const double* input"), ".c", words.WRONG_SIGNATURE, id="another type"),
        pytest.param(("void solution", "void resolution"), ".c", words.WRONG_SIGNATURE, id="another name"),
        pytest.param(("void solution", "void solution"), ".cpp", words.WRONG_SIGNATURE, id="no extern C"),
        pytest.param(("sum_t sum = 0;", "sum_t sum = ;"), ".c", words.COMPILE_ERROR, id="no C"),
    ],
)
def test_c_that_cannot_be_called(judge, change: tuple[str, str], suffix: str, word: str) -> None:
    if compiler_of("cpp" if suffix == ".cpp" else "c") is None:
        pytest.skip("no compiler on this machine")
    judgement = judge(kernels_c.source(CONV, "c").replace(*change), CONV, suffix)
    assert judgement.verdict.word == word, judgement.verdict


def test_a_library_that_loads_torch(judge) -> None:
    torch = pytest.importorskip("torch")
    if compiler_of("c") is None:
        pytest.skip("no C compiler on this machine")
    from pathlib import Path

    (library,) = Path(torch.__file__).parent.glob("lib/libtorch_cpu.*")
    load = f'dlopen("{library}", RTLD_NOW);'
    text = "#include <dlfcn.h>\n" + kernels_c.source(CONV, "c").replace("    free(x);\n", f"    free(x);\n    {load}\n")
    judgement = judge(text, CONV, ".c")
    assert judgement.verdict.word == words.NOT_ALLOWED
    assert "libtorch" in judgement.verdict.reason
