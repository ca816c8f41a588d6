"""LLVM's facts of the CPU are found on disk, and only for the same CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import convt3d
from convt3d.cpu.plan import host
from convt3d.cpu.plan.host import cpu_identity, llvm_host

X86 = """\
processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: some processor
cpu MHz\t\t: 2600.123
flags\t\t: fpu sse2 avx2

processor\t: 1
flags\t\t: another core
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "cpuinfo"
    path.write_text(text)
    return path


def test_the_identity_is_the_first_cores_without_what_varies(tmp_path: Path) -> None:
    identity = cpu_identity(write(tmp_path, X86))
    assert identity is not None
    assert "fpu sse2 avx2" in identity
    assert "MHz" not in identity
    assert "another core" not in identity
    assert cpu_identity(write(tmp_path, X86.replace("2600", "3100"))) == identity
    assert cpu_identity(write(tmp_path, X86.replace("sse2 avx2", "sse2"))) != identity


def test_without_features_there_is_no_identity(tmp_path: Path) -> None:
    assert cpu_identity(write(tmp_path, "processor: 0\nmodel name: some processor\n\n")) is None
    assert cpu_identity(tmp_path / "absent") is None


def test_llvm_is_asked_once_for_each_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONVT3D_CACHE_DIR", str(tmp_path))
    asked: list[str] = []
    monkeypatch.setattr(host, "_ask_llvm", lambda: asked.append("x") or (f"cpu{len(asked)}", {"avx2": True}))
    for identity, name in (("one", "cpu1"), ("one", "cpu1"), ("two", "cpu2"), (None, "cpu3"), (None, "cpu4")):
        monkeypatch.setattr(host, "cpu_identity", lambda identity=identity: identity)
        assert llvm_host() == (name, {"avx2": True})


@pytest.mark.skipif(cpu_identity() is None, reason="the system does not name the CPU's features")
def test_a_warm_first_call_does_not_load_llvm(tmp_path: Path) -> None:
    code = (
        "import sys, numpy, convt3d\n"
        "x, w = numpy.ones((1, 4, 3, 3, 3), 'f'), numpy.ones((4, 4, 3, 3, 3), 'f')\n"
        "y = convt3d.conv_transpose3d(x, w, stride=2)\n"
        "print('llvmlite.binding' in sys.modules, float(y.sum()))"
    )
    source = Path(convt3d.__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONPATH": str(source), "CONVT3D_CACHE_DIR": str(tmp_path / "cache")}

    def call() -> list[str]:
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert call() == ["True", "11664.0"]
    assert call() == ["False", "11664.0"]
