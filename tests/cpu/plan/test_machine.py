"""What the CPU offers is detected once; CONVT3D_ISA forces a lower instruction set, with no trace of the higher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from convt3d import ArgumentError, Error
from convt3d.cpu.plan import machine as module
from convt3d.cpu.plan.machine import LEVELS, cache_sizes, choose_level, host_level, machine, target_text

SOURCE = Path(module.__file__).resolve().parents[3]
AVX512, AVX2, BASELINE = LEVELS["x86_64"]
x86_only = pytest.mark.skipif(machine().isa == "neon", reason="x86 levels")


@pytest.fixture(autouse=True)
def _clean_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONVT3D_ISA", raising=False)


def test_host_is_detected_once_and_is_sane() -> None:
    """Plans are built on these numbers: a zero cache or an odd vector would go into every tile."""
    here = machine()
    assert here is machine()
    assert here.vector_bytes in (16, 32, 64)
    assert here.vector_registers in (16, 32)
    assert here.lanes(4) * 4 == here.vector_bytes
    assert 8 << 10 <= here.l1d <= here.l2
    assert here.threads >= 1
    assert hash(here)


@x86_only
@pytest.mark.parametrize(("isa", "width", "registers", "fma"), [("avx2", 32, 16, True), ("baseline", 16, 16, False)])
def test_forcing_a_lower_isa_turns_off_everything_above(
    monkeypatch: pytest.MonkeyPatch, isa: str, width: int, registers: int, fma: bool
) -> None:
    """Otherwise code tested here as AVX2 would die on a machine that has no more than AVX2."""
    best = machine()
    monkeypatch.setenv("CONVT3D_ISA", isa)
    if isa == "avx2" and best.isa == "baseline":
        pytest.skip("host has no AVX2")
    low = machine()
    assert (low.isa, low.vector_bytes, low.vector_registers) == (isa, width, registers)
    assert low.has("fma") is fma
    on = [word for word in low.features.split(",") if word.startswith("+")]
    assert not [word for word in on if word.startswith(("+avx512", "+amx", "+avx10"))]
    if isa == "baseline":
        assert not [word for word in on if word.startswith(("+avx", "+sse3", "+sse4", "+bmi"))]
    assert best.isa == isa or best != low


@x86_only
@pytest.mark.parametrize(
    ("word", "rule"), [("avx1024", "is not a known instruction set"), ("neon", "is not an instruction set of this CPU")]
)
def test_isa_errors_name_the_variable_the_value_and_the_choices(
    monkeypatch: pytest.MonkeyPatch, word: str, rule: str
) -> None:
    """The five parts of every error: where, what, received, rule, remedy."""
    monkeypatch.setenv("CONVT3D_ISA", word)
    with pytest.raises(ArgumentError) as caught:
        machine()
    error = caught.value
    assert (error.operator, error.argument, error.received, error.rule) == ("environment", "CONVT3D_ISA", word, rule)
    assert error.remedy.startswith("Set it to one of ")
    assert "baseline" in error.remedy


def test_levels_of_hosts_we_are_not() -> None:
    """AVX2-only and first-generation AVX-512 machines, and ARM, are not here to be tried."""
    without = dict.fromkeys(AVX2.features, True) | {"avx512f": False}
    partly = without | {"avx512f": True}  # the first AVX-512 machines lack the 32-byte forms
    assert host_level("x86_64", without) is AVX2
    assert host_level("x86_64", partly) is AVX2
    assert host_level("x86_64", {}) is BASELINE
    with pytest.raises(ArgumentError, match=r"not an instruction set of this CPU\. Set it to one of avx2, baseline,"):
        choose_level("x86_64", AVX2, "avx512")
    assert target_text(AVX2, AVX2, "haswell", without)[0] == "haswell"
    cpu, features = target_text(AVX2, AVX2, "knl", partly)
    assert cpu == "x86-64-v3"
    assert "-avx512f" in features.split(",")
    (neon,) = LEVELS["aarch64"]
    assert choose_level("aarch64", neon, "baseline") is neon
    assert target_text(neon, neon, "apple-m1", {"neon": True}) == ("apple-m1", "+neon")
    with pytest.raises(Error):
        choose_level("aarch64", neon, "avx2")


@x86_only
def test_intel_tuning_for_half_vectors_is_off() -> None:
    """LLVM would otherwise split 64-byte vectors on some Intel CPUs: half the registers, half the speed."""
    assert "-prefer-256-bit" in machine().features.split(",")


def test_cache_sizes_fall_back_without_sysfs(tmp_path: Path) -> None:
    """Containers may hide sysfs; a size of zero would make every tile one voxel."""
    assert all(size > 0 for size in cache_sizes(tmp_path)[:2])


def test_cache_sizes_from_sysfs(tmp_path: Path) -> None:
    """Instruction caches are not ours, units vary, and some machines have no third level."""
    cpu = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    for number, (level, kind, size) in enumerate([(1, "Data", "48K"), (1, "Instruction", "1K"), (2, "Unified", "2M")]):
        folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{number}"
        folder.mkdir(parents=True)
        for name, value in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{value}\n")
    assert cache_sizes(tmp_path) == (48 << 10, 2 << 20, 0)


def test_describe_is_plain_data() -> None:
    """It goes into bug reports and JSON."""
    facts = machine().describe()
    assert facts["isa"] == machine().isa
    assert facts["cpu"]
    assert {type(value) for value in facts.values()} <= {str, int, float, type(None)}


def test_import_does_not_load_llvm() -> None:
    """A program that only imports the package, or finds its kernels on disk, does not pay for a compiler."""
    code = (
        "import sys\n"
        "import convt3d.cpu.plan.machine, convt3d.cache\n"
        "from convt3d.cpu.runtime import build, memory, team\n"
        "print('llvmlite' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False\n"
