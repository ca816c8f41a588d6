"""The five build steps, on a register-tile kernel like those that convt3d emits."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from helpers.microkernel import tile

from convt3d.cpu.plan.machine import machine
from convt3d.cpu.runtime.build import RECIPES, STEPS, Code, Target, compile_ir, load
from convt3d.cpu.runtime.elf import undefined_symbols
from convt3d.errors import BuildError

ARGUMENTS = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
TO_BFLOAT = """
define void @narrow(ptr %p) {
  %wide = load float, ptr %p
  %low = fptrunc float %wide to bfloat
  store bfloat %low, ptr %p
  ret void
}
"""
has_avx512 = pytest.mark.skipif(machine().isa != "avx512", reason="needs AVX-512")


def tile_of(isa: str) -> tuple[int, int, int]:
    return {"avx512": (14, 2, 16), "avx2": (6, 2, 8), "baseline": (4, 2, 4), "neon": (8, 2, 4)}[isa]


def check_values(code: Code, rows: int, vectors: int, lanes: int, depth: int = 37) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((depth, rows), np.float32)
    b = rng.standard_normal((depth, vectors * lanes), np.float32)
    c = np.ones((rows, vectors * lanes), np.float32)
    code.function("tile", *ARGUMENTS)(a.ctypes.data, b.ctypes.data, c.ctypes.data, depth, 2)
    np.testing.assert_allclose(c, 1 + 2 * (a.T.astype(float) @ b), rtol=1e-4, atol=1e-4)


def test_the_recipe_is_an_ordered_list_of_named_steps():
    assert [name for name, _ in STEPS] == ["parse", "verify", "optimise", "emit", "load"]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("isa", ["", "avx2", "baseline"])
def test_kernel_is_right_on_every_instruction_set(monkeypatch, isa, recipe):
    monkeypatch.setenv("CONVT3D_ISA", "" if machine().isa == "neon" else isa)
    shape = tile_of(machine().isa)
    build = compile_ir(tile(*shape), recipe=recipe)
    assert list(build.seconds) == ["parse", "verify", "optimise", "emit"]
    check_values(load(build.object_code, ["tile"]), *shape)


@has_avx512
@pytest.mark.parametrize("recipe", RECIPES)
def test_14x2_tile_has_no_spill_and_uses_64_byte_registers(recipe):
    dumps: dict[str, str] = {}
    compile_ir(tile(14, 2, 16), recipe=recipe, dumps=dumps)
    assert list(dumps) == ["parse", "optimise", "emit"]
    assert dumps["emit"].count("vfmadd") == 28
    assert "zmm31" in dumps["emit"] or "zmm29" in dumps["emit"]
    assert "rsp" not in dumps["emit"]
    assert not re.search(r"\bymm", dumps["emit"])


@has_avx512
@pytest.mark.parametrize(("rows", "vectors"), [(14, 2), (12, 2), (9, 3)])
def test_scheduling_barrier_keeps_a_long_unrolled_block_free_of_spills(rows, vectors):
    """Without it LLVM's scheduler may hoist loads in long blocks until accumulators spill: 12x2 at half the speed."""
    dumps: dict[str, str] = {}
    build = compile_ir(tile(rows, vectors, 16, taps=27, barrier=True), dumps=dumps)
    assert dumps["emit"].count("vfmadd") == 27 * rows * vectors
    assert not re.findall(r"zmm.*rsp|rsp.*zmm", dumps["emit"])
    check_values(load(build.object_code, ["tile"]), rows, vectors, 16, depth=54)


@pytest.mark.skipif(machine().isa == "neon", reason="x86")
def test_forced_avx2_emits_no_wider_register_and_6x2_does_not_spill(monkeypatch):
    monkeypatch.setenv("CONVT3D_ISA", "avx2")
    dumps: dict[str, str] = {}
    compile_ir(tile(6, 2, 8), dumps=dumps)
    assert "zmm" not in dumps["emit"]
    assert "{%k" not in dumps["emit"]
    assert not re.search(r"[xyz]mm(1[6-9]|2\d|3[01])\b", dumps["emit"])
    assert "rsp" not in dumps["emit"]


def test_cross_compiled_object_for_aarch64():
    dumps: dict[str, str] = {}
    target = Target.cross("aarch64-unknown-linux-gnu", features="+neon")
    build = compile_ir(tile(8, 2, 4), target, dumps=dumps)
    assert build.object_code[18:20] == b"\xb7\x00"  # ELF machine number of AArch64
    assert "fmla" in dumps["emit"]
    assert not undefined_symbols(build.object_code)


@pytest.mark.parametrize(
    ("ir", "step"),
    [
        ("nonsense", "parse"),
        ("define i32 @f() {\n  %x = add i32 %y, 1\n  %y = add i32 %x, 1\n  ret i32 %y\n}", "verify"),
    ],
)
def test_bad_ir_names_the_step(ir, step):
    with pytest.raises(BuildError, match=f"build: step {step} = "):
        compile_ir(ir)


def test_unknown_recipe_is_refused():
    with pytest.raises(BuildError, match=r"recipe = 'O9': is not known\. Use one of quick, full"):
        compile_ir(tile(2, 2, 4), recipe="O9")


@pytest.mark.skipif(not sys.platform.startswith("linux") or machine().isa == "neon", reason="ELF, x86")
def test_missing_runtime_function_is_an_error_not_an_abort():
    code = compile_ir(TO_BFLOAT, Target("x86-64-v3", "")).object_code
    assert undefined_symbols(code) == ["__truncsfbf2"]
    with pytest.raises(BuildError, match="__truncsfbf2, which this process does not have"):
        load(code, ["narrow"])


def test_absent_function_is_an_error():
    code = compile_ir(tile(2, 2, 4)).object_code
    with pytest.raises(BuildError, match="does not define other"):
        load(code, ["other"])


def test_a_function_keeps_its_code_alive():
    shape = tile_of(machine().isa)
    function = load(compile_ir(tile(*shape)).object_code, ["tile"]).function("tile", *ARGUMENTS)
    gc.collect()
    a = np.ones(64, np.float32)
    c = np.zeros((shape[0], shape[1] * shape[2]), np.float32)
    function(a.ctypes.data, a.ctypes.data, c.ctypes.data, 1, 1)
    assert (c == 1).all()


def test_builds_in_several_threads():
    shape = tile_of(machine().isa)
    failures = []

    def work() -> None:
        try:
            for _ in range(3):
                check_values(load(compile_ir(tile(*shape)).object_code, ["tile"]), *shape)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork_during_a_build_leaves_a_child_that_can_build():
    script = """
import os, sys, threading, time
from convt3d.cpu.runtime.build import compile_ir, load
from helpers.microkernel import tile
compile_ir(tile(2, 2, 4))
stop = False
def busy():
    while not stop: compile_ir(tile(6, 2, 8)); time.sleep(0.001)
other = threading.Thread(target=busy); other.start()
codes = []
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        load(compile_ir(tile(2, 2, 4)).object_code, ["tile"]); os._exit(7)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
stop = True; other.join(); print(codes)
"""
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout.strip() == "[7, 7, 7, 7, 7]", done.stderr
