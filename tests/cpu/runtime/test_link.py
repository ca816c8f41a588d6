"""Object files in executable memory without LLVM's loader: the same code, the same results, no writable code."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from convt3d.cpu.plan.machine import machine
from convt3d.cpu.runtime import build
from convt3d.cpu.runtime.build import Target, compile_ir, load
from convt3d.cpu.runtime.link import link
from convt3d.errors import BuildError

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or machine().isa == "neon", reason="the linker serves x86-64 Linux"
)

# Two constant tables, a jump table, a call within the file and one to the C library.
SECTIONS = """
@table = private constant [4 x double] [double 2.0, double 3.0, double 5.0, double 7.0]
@zeros = private constant [3 x i64] zeroinitializer
declare double @ldexp(double, i32)
define internal double @pick(i64 %i) noinline {
  switch i64 %i, label %rest [ i64 0, label %a
                               i64 1, label %b
                               i64 2, label %c
                               i64 3, label %d
                               i64 4, label %e ]
a: ret double 10.0
b: ret double 21.0
c: ret double 32.5
d: ret double 43.0
e: ret double 54.25
rest: ret double 0.0
}
define void @work(ptr %out, i64 %i) {
  %at = getelementptr [4 x double], ptr @table, i64 0, i64 %i
  %x = load double, ptr %at
  %y = call double @pick(i64 %i)
  %zero = load i64, ptr getelementptr ([3 x i64], ptr @zeros, i64 0, i64 2)
  %z = sitofp i64 %zero to double
  %s = fadd double %x, %y
  %t = fadd double %s, %z
  %r = call double @ldexp(double %t, i32 3)
  store double %r, ptr %out
  ret void
}
"""


def results(code: build.Code) -> list[float]:
    function, out = code.function("work", ctypes.c_void_p, ctypes.c_int64), np.zeros(1)
    values = []
    for i in range(4):
        function(out.ctypes.data, i)
        values.append(float(out[0]))
    return values


def test_every_kind_of_section_is_linked():
    object_code = compile_ir(SECTIONS).object_code
    assert link(object_code, ["work"]) is not None
    assert results(load(object_code, ["work"])) == [96.0, 192.0, 300.0, 400.0]


def test_llvm_loads_the_same_code(monkeypatch):
    monkeypatch.setattr(build, "link", lambda *_: None)
    assert results(load(compile_ir(SECTIONS).object_code, ["work"])) == [96.0, 192.0, 300.0, 400.0]


@pytest.mark.parametrize("by_llvm", [False, True], ids=["linked", "LLVM"])
def test_memory_of_the_caller_by_its_name(monkeypatch, by_llvm):
    """An address that is given, and one that nobody gives."""
    text = """
@{name} = external global [0 x double]
define void @work(ptr %out, i64 %i) {{
  %at = getelementptr double, ptr @{name}, i64 %i
  %value = load double, ptr %at
  store double %value, ptr %out
  ret void
}}
"""
    if by_llvm:
        monkeypatch.setattr(build, "link", lambda *_: None)
    mine, name = np.array([1.0, 4.0, 9.0, 16.0]), f"mine_{by_llvm}".lower()
    object_code = compile_ir(text.format(name=name)).object_code
    assert results(load(object_code, ["work"], {name: mine.ctypes.data})) == mine.tolist()
    with pytest.raises(BuildError, match=f"the code calls {name}, which this process does not have"):
        load(object_code, ["work"])


def test_code_is_executable_and_not_writable_and_goes_with_its_owner():
    code = load(compile_ir(SECTIONS).object_code, ["work"])
    address = code.addresses["work"]

    def rights() -> str | None:
        for line in Path("/proc/self/maps").read_text().splitlines():
            low, high, mode = re.match(r"(\w+)-(\w+) (\S+)", line).groups()  # type: ignore[union-attr]
            if int(low, 16) <= address < int(high, 16):
                return mode
        return None

    assert rights() == "r-xp"
    del code
    gc.collect()
    assert rights() != "r-xp"


def test_variables_are_left_to_llvm():
    text = """
@count = internal global i64 5
define void @work(ptr %out, i64 %i) {
  %old = load i64, ptr @count
  %new = add i64 %old, %i
  store i64 %new, ptr @count
  %value = sitofp i64 %new to double
  store double %value, ptr %out
  ret void
}
"""
    object_code = compile_ir(text).object_code
    assert link(object_code, ["work"]) is None
    assert results(load(object_code, ["work"])) == [5.0, 6.0, 8.0, 11.0]


def test_other_relocations_and_formats_are_left_to_llvm():
    other = Target.cross("aarch64-unknown-linux-gnu", features="+neon")
    assert link(compile_ir(SECTIONS, other).object_code, ["work"]) is None
    near = Target.cross("x86_64-unknown-linux-gnu")  # position-independent: 32-bit distances
    assert link(compile_ir(SECTIONS, near).object_code, ["work"]) is None
    assert link(b"\xcf\xfa\xed\xfe" + bytes(100), ["work"]) is None


def test_a_kernel_found_on_disk_needs_no_compiler(tmp_path):
    """Only the host's features are asked of LLVM: nothing is compiled or loaded by it."""
    script = """
import numpy as np, convt3d
from convt3d.cpu.runtime import build, kernels
build._load_by_llvm = build._parse = None
y = convt3d.conv_transpose3d(np.ones((1, 2, 3, 3, 3), np.float32), np.ones((2, 2, 2, 2, 2), np.float32), stride=2)
print(kernels.compilations, float(y.sum()))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CONVT3D_CACHE_DIR": str(tmp_path / "cache")}

    def run(text: str) -> str:
        command = [sys.executable, "-c", text]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=600).stdout

    first = run(script.replace("build._load_by_llvm = build._parse = None", ""))
    assert first.split() == ["1", "864.0"]
    assert run(script).split() == ["0", "864.0"]
