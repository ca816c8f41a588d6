"""The judge against anything: garbage, signals, exits, loops, floods. It ends with a word, and leaves nothing.

The fixture `judge` compares processes, temporary folders and shared memory with what was there before.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from convt3d.errors import Error
from convt3d.judge.languages import compiler_of
from convt3d.judge.verdict import PASSED, WORDS

CONV = "conv-transpose-3d-asym-input-sq-kernel"

# Each may stand at the top of the file, in the call, or in both.
DEEDS = (
    "import os; os._exit(3)",
    "raise SystemExit(0)",
    "raise KeyboardInterrupt",
    "raise BaseException('x' * 100000)",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "import os; os.abort()",
    "import ctypes; ctypes.string_at(1)",
    "x = bytearray(2 ** 40)",
    "x = [bytearray(2 ** 27) for _ in range(100)]",
    "while True: pass",
    "import time; time.sleep(1000)",
    "import sys; sys.setrecursionlimit(10 ** 9); f = lambda n: f(n + 1); f(0)",
    "import os; os.closerange(0, 256)",
    "import os, shutil; shutil.rmtree(os.getcwd(), ignore_errors=True)",
    "import os; os.mkdir('locked'); open('locked/x', 'w').close(); os.chmod('locked', 0)",
    "import threading, time; threading.Thread(target=time.sleep, args=(1000,)).start()",
    "import os, time; os.fork() or time.sleep(1000)",
    "import os; [os.fork() for _ in range(8)]",
    "import os, time; os.setsid() if os.fork() == 0 else None; time.sleep(1000)",
    "import sys; sys.stdout.write('y' * 10 ** 7)",
    "import sys, os; os.write(int(sys.argv[2]), b'{' * 100000)",
    "import sys, os; os.write(int(sys.argv[2]), b'[]\\n' * 3)",
    "import sys; sys.modules.clear()",
    "import json, os; json.dumps = os.write = None",
    "import builtins; builtins.__dict__.clear()",
    "import gc, sys; [o.clear() for o in gc.get_objects() if isinstance(o, dict) and o is not globals()]",
    "open('../convt3d-judge-left-behind', 'w')",
    "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))",
    "import os; f = open('big', 'wb'); [f.write(bytes(2 ** 24)) for _ in range(64)]",
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()",
)
PLACES = ("top", "call", "both")


def text_of(deed: str, place: str) -> str:
    top = deed if place != "call" else ""
    body = deed if place != "top" else "pass"
    return f"{top}\ndef solution(*args):\n    {body}\n"


def verdict_of(judge, text: str | bytes, suffix: str, start: float = 4.0) -> str | None:
    """The word, or None for a file that is refused before it is judged, or is not there after `start` seconds."""
    try:
        found = judge(text, CONV, suffix, limit=0.5, start=start, memory=2**30, cases=("sample",)).verdict
    except Error:
        return None
    assert found.word in WORDS
    assert found.word != PASSED
    return found.word


@pytest.mark.parametrize("deed", DEEDS)
def test_deed_in_the_call(judge, deed: str) -> None:
    assert verdict_of(judge, text_of(deed, "call"), ".py", start=60.0)


GARBAGE = {
    "empty.py": b"",
    "binary.py": bytes(range(256)) * 8,
    "nul.py": b"def solution(*a):\n    \x00\n",
    "latin.py": "def solution(*a): 'é'".encode("latin-1"),
    "utf16.py": "def solution(*a): pass".encode("utf-16"),
    "deep.py": b"(" * 5000 + b")" * 5000,
    "string.py": b"solution = 'not callable'",
    "empty.so": b"",
    "text.so": b"this is no library",
    "elf.so": b"\x7fELF\x02\x01\x01" + bytes(200),
    "empty.c": b"",
    "binary.c": bytes(range(256)) * 8,
    "main.c": b"int main(void) { return 0; }",
    "endless.c": b'#include "/dev/zero"\n',
    "self.c": b"#include __FILE__\n",
    "bomb.cpp": b"template <int N> struct s { s<N + 1> a; }; s<0> x;",
    "garbage.cu": b"<<<>>>",
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage(judge, name: str) -> None:
    suffix = name[name.index(".") :]
    language = {".c": "c", ".cpp": "cpp"}.get(suffix)
    if language and compiler_of(language) is None:
        pytest.skip("no compiler on this machine")
    assert verdict_of(judge, GARBAGE[name], suffix)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kernel=st.one_of(
        st.binary(max_size=300).map(lambda data: (data, ".py")),
        st.binary(max_size=300).map(lambda data: (data, ".so")),
        st.builds(text_of, st.sampled_from(DEEDS), st.sampled_from(PLACES)).map(lambda text: (text, ".py")),
        st.lists(st.sampled_from(DEEDS), min_size=2, max_size=3).map(
            lambda deeds: (
                "def solution(*args):\n"
                + "\n".join(f"    try:\n        {d}\n    except BaseException: pass" for d in deeds),
                ".py",
            )
        ),
    )
)
def test_drawn(judge, kernel: tuple[str | bytes, str]) -> None:
    assert verdict_of(judge, *kernel)
