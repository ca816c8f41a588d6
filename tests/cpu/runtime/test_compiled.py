"""Build and cache together: the text is written once, the code is loaded from memory or disk after that."""

from __future__ import annotations

import os
import subprocess
import sys

from convt3d.cpu.runtime.compiled import compiled

IR = "define void @nothing() {\n  ret void\n}"


def test_second_time_the_text_is_not_even_written(monkeypatch, tmp_path):
    monkeypatch.setenv("CONVT3D_CACHE_DIR", str(tmp_path / "cache"))
    written: list[int] = []

    def write() -> str:
        written.append(1)
        return IR

    for _ in range(2):
        compiled("plan", write, ["nothing"]).function("nothing")()
    assert written == [1]
    script = (
        "from convt3d.cpu.runtime.compiled import compiled\n"
        "compiled('plan', lambda: 1 / 0, ['nothing']).function('nothing')(); print('loaded')"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "loaded", done.stderr
