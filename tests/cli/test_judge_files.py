"""Files that cannot be judged: no problem, no library, no compiler. None of them gets a verdict."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from convt3d.judge.cuda import host_source
from convt3d.judge.languages import compiler_of, language_of, problem_of, source_text
from convt3d.judge.session import search_path

CONV = "conv-transpose-3d-asym-input-sq-kernel"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "kernels"


@pytest.mark.parametrize(
    ("name", "text", "piece"),
    [
        ("mine.f90", "", "must end in one of .py, .cu, .c"),
        ("mine.py", "def solution(*a): pass", "must be given, since FILE has no line"),
        ("mine.py", "# convt3d problem: nothing", "must be one of max-max-sum"),
        ("missing", None, "must be a file that can be read"),
    ],
)
def test_files_that_cannot_be_judged(run, tmp_path: Path, name: str, text: str | None, piece: str) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    for command in ("check", "sample", "bench"):
        code, out, err = run(command, path)
        assert (code, out) == (2, "")
        assert piece in err


def test_odd_names_and_encodings(run, tmp_path: Path) -> None:
    """A byte order mark, carriage returns, letters that a shell would take for its own."""
    if compiler_of("c") is None:
        pytest.skip("no compiler for C on this machine")
    folder = tmp_path / "a 'folder' \"of\" $HOME; é"
    folder.mkdir()
    path = folder / "-ünï (1) %s.C.c"
    text = (EXAMPLES / "max_max_sum.c").read_text()
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    code, out, _ = run("check", path, "--case", "sample")
    assert code == 0, out
    marked = tmp_path / "mine.py"
    marked.write_bytes(b"\xef\xbb\xbf" + f"# convt3d problem: {CONV}\nimport triton\n".encode())
    assert language_of(str(marked)) == "triton"
    cuda = tmp_path / "mine.cu"
    cuda.write_bytes(b"\xef\xbb\xbf// convt3d problem: " + CONV.encode())
    assert problem_of(str(cuda), None).slug == CONV
    assert "\ufeff" not in host_source(source_text(str(cuda)))


WITHOUT = [path for path in sys.path if "site-packages" not in path and "dist-packages" not in path]


@pytest.mark.parametrize(
    ("head", "dtype", "piece"),
    [
        ("", "float32", "needs numpy: ModuleNotFoundError: No module named 'numpy'"),
        ("import torch\n", "float32", "needs torch: ModuleNotFoundError: No module named 'torch'"),
        ("import triton\n", "float32", "needs torch and triton: ModuleNotFoundError: No module named 'torch'"),
        ("", "bfloat16", "needs numpy and ml_dtypes: "),
    ],
)
def test_a_missing_library_is_no_verdict(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, dtype: str, piece: str
) -> None:
    monkeypatch.setattr("convt3d.judge.session.search_path", lambda: WITHOUT)
    path = tmp_path / "mine.py"
    path.write_text(f"# convt3d problem: {CONV}\n{head}def solution(*args): pass\n")
    code, out, err = run("check", path, "--dtype", dtype)
    assert (code, out) == (2, "")
    assert piece in err


OTHER_TRITON = """\
__version__ = "3.5.1"

class Kernel:
    def __init__(self, function):
        pass
    def __getitem__(self, grid):
        return self.launch
    def launch(self, out, n):
        {launch}

jit = Kernel
"""


@pytest.mark.parametrize(
    ("launch", "piece"),
    [
        ("raise TypeError('only 0-dimensional arrays')", "(TypeError: only 0-dimensional arrays)"),
        ("out.fill_(7.0)", "(it counts [7.0, 7.0, 7.0])"),
    ],
)
def test_an_interpreter_that_cannot_count_is_no_verdict(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch: str, piece: str
) -> None:
    """That of triton 3.4 to 3.6 fails with numpy 2.4 in every kernel: it was called a crash of the kernel."""
    pytest.importorskip("torch")
    folder = tmp_path / "others" / "triton"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(OTHER_TRITON.format(launch=launch))
    (folder / "language.py").write_text("")
    search = [str(folder.parent), *search_path()]
    monkeypatch.setattr("convt3d.judge.session.search_path", lambda: search)
    path = tmp_path / "mine.py"
    path.write_text(f"# convt3d problem: {CONV}\nimport triton\ndef solution(*args): pass\n")
    for command in ("check", "sample", "bench"):
        code, out, err = run(command, path)
        assert (code, out) == (2, "")
        assert "with triton 3.5.1 and numpy " in err
        assert f"Triton's interpreter cannot run a kernel that only counts {piece}. Install" in err
        assert "docs/versions.md" in err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import a_module_nobody_has", (2, "imports a_module_nobody_has, which is not installed here")),
        ("import a_module_nobody_has.inside as a", (2, "imports a_module_nobody_has, which is not installed here")),
        ("raise ModuleNotFoundError('numpy', name='numpy')", (1, "crash")),
        ("__import__('a_module_' + 'nobody_has')", (1, "crash")),
        ("try:\n    import a_module_nobody_has\nexcept ImportError:\n    pass", (1, "none was written")),
    ],
)
def test_a_module_that_is_not_installed_is_no_verdict(
    run, tmp_path: Path, text: str, expected: tuple[int, str]
) -> None:
    """What the kernel says about it is believed only if it is so."""
    path = tmp_path / "mine.py"
    path.write_text(f"# convt3d problem: {CONV}\n{text}\ndef solution(*args): pass\n")
    code, out, err = run("sample", path)
    assert code == expected[0]
    assert expected[1] in out + err


@pytest.mark.parametrize(
    ("environment", "name", "piece"),
    [
        ({"PATH": ""}, "conv_transpose.cu", "needs a compiler of this machine (c++ or g++ or clang++)"),
        ({"CXX": "false"}, "conv_transpose.cu", "cannot compile a file with the types of float32 and nothing else"),
        (
            {"PATH": "", "CC": "cc-that-nobody-has"},
            "max_max_sum.c",
            "needs a compiler of this machine (cc or gcc or clang)",
        ),
        ({"CC": "false"}, "max_max_sum.c", "cannot compile a file with the types of float32 and nothing else"),
    ],
)
def test_a_missing_compiler_is_no_verdict(
    run, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], name: str, piece: str
) -> None:
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    code, out, err = run("check", EXAMPLES / name)
    assert (code, out) == (2, "")
    assert piece in err
