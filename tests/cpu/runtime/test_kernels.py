"""Kernels are compiled once for a structure: not again for another volume, batch, stride or number, nor next time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.draws import make

import convt3d as ct
from convt3d.cache import object_cache
from convt3d.cpu.plan.machine import machine
from convt3d.cpu.plan.plan import make_plan
from convt3d.cpu.runtime import kernels
from convt3d.cpu.runtime.compiled import Wanted, compile_together, loaded
from convt3d.cpu.runtime.ready import bindings
from convt3d.spec.dtypes import float32

SAME_STRUCTURE = (ct.LayerNorm(affine=True), ct.GELU(), ct.MaxPool3d(3, 2, 1), ct.InstanceNorm())


@pytest.fixture
def compiled() -> Callable[[], int]:
    start = kernels.compilations
    return lambda: kernels.compilations - start


@pytest.fixture
def _cold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing in memory and nothing on disk."""
    monkeypatch.setenv("CONVT3D_CACHE_DIR", str(tmp_path / "cache"))
    loaded.clear()


@pytest.mark.usefixtures("_cold")
def test_fifty_sizes_are_compiled_once(compiled: Callable[[], int]) -> None:
    """Volume and batch are numbers in a table: a server that meets a new size must not stop to compile."""
    pipeline = ct.Pipeline(ct.ConvTranspose3d(stride=(2, 2, 2), padding=1, output_padding=1), *SAME_STRUCTURE)
    rng = np.random.default_rng(0)
    make(pipeline, (2, 3, 4, 5, 6), (3, 5, 3, 3, 3)).check()
    first = compiled()
    assert first == 2  # one kernel for each pass
    for number in range(50):
        x = (int(rng.integers(1, 4)), 3, *(int(size) for size in rng.integers(1, 24, 3)))
        case = make(pipeline, x, (3, 5, 3, 3, 3), seed=number)
        if number % 5:
            case.run()
        else:
            case.check()
    assert compiled() == first


@pytest.mark.usefixtures("_cold")
def test_parameters_are_numbers_too(compiled: Callable[[], int]) -> None:
    """Padding, dilation, eps, slopes, kernel sizes, input channels and most strides come in tables; only where each
    position meets one input, code differs."""

    def run(stride: int, padding: int, dilation: int, slope: float, kernel: int, channels: int) -> None:
        conv = ct.ConvTranspose3d(
            stride=(stride, stride, 2), padding=padding, output_padding=0, groups=1, dilation=dilation, bias=True
        )
        pipeline = ct.Pipeline(conv, ct.LeakyReLU(slope), ct.LayerNorm(eps=slope), ct.Add(slope))
        make(pipeline, (1, channels, 4, 5, 6), (channels, 5, kernel, kernel, kernel)).check()

    run(2, 1, 1, 0.1, 3, 3)
    first = compiled()
    for parameters in [(3, 0, 2, 0.2, 2, 3), (1, 2, 1, 0.7, 4, 6), (5, 0, 1, 0.01, 3, 1)]:
        run(*parameters)
    assert compiled() == first


@pytest.mark.usefixtures("_cold")
@pytest.mark.parametrize("change", ["stages", "dtype", "isa"])
def test_what_the_code_depends_on_is_compiled_anew(
    change: str, compiled: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sharing too much would be worse than sharing too little."""
    pipeline, shapes = ct.Pipeline(ct.ConvTranspose3d(stride=2), ct.ReLU()), ((1, 2, 3, 4, 5), (2, 3, 2, 2, 2))
    make(pipeline, *shapes).check()
    before = compiled()
    if change == "isa":
        if machine().isa != "avx512":
            pytest.skip("no lower instruction set")
        monkeypatch.setenv("CONVT3D_ISA", "avx2")
    stages = (ct.ConvTranspose3d(stride=2), ct.Tanh() if change == "stages" else ct.ReLU())
    make(ct.Pipeline(*stages), *shapes, dtype="float64" if change == "dtype" else "float32").check()
    assert compiled() == before + 1


def test_the_next_process_finds_the_kernels_on_disk(tmp_path: Path) -> None:
    """It compiles nothing; and a damaged entry is compiled again instead of being loaded."""
    script = (
        "import numpy as np, convt3d; from convt3d.cpu.runtime import kernels\n"
        "x, w = np.ones((1, 2, 3, 4, 5), 'f'), np.ones((2, 2, 3, 3, 3), 'f')\n"
        "y = convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2), convt3d.Softmax('spatial'))(x, w)\n"
        "print(kernels.compilations, y.sum())"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CONVT3D_CACHE_DIR": str(tmp_path / "cache")}

    def run() -> str:
        command = [sys.executable, "-c", script]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    first, total = run().split()
    assert int(first) == 2
    assert run() == f"0 {total}"
    for entry in (tmp_path / "cache").glob("*.obj"):
        entry.write_bytes(entry.read_bytes()[:-8] + b"garbage!")
    assert int(run().split()[0]) >= 2
    assert run() == f"0 {total}"


@pytest.mark.usefixtures("_cold")
def test_kernels_of_several_plans_are_compiled_together(compiled: Callable[[], int]) -> None:
    """By threads, into the same objects as one after the other; calls find them, and a fork waits for them."""
    pipes = [ct.Pipeline(ct.ConvTranspose3d(stride=2), *SAME_STRUCTURE, stage) for stage in (ct.Mish(), ct.SiLU())]
    x, weight = (2, 3, 4, 5, 6), (3, 5, 3, 3, 3)
    plans = [make_plan(pipe, x, (weight, (5,), (5,)), float32) for pipe in pipes for _ in range(2)]
    kernels.compile_kernels(plans)
    together = compiled()
    assert together == 3  # the first sweep is the same
    cases = [make(pipe, x, weight) for pipe in pipes]
    for case in cases:
        case.check()
    assert compiled() == together
    kept = {path.name: path.read_bytes() for path in object_cache().directory.iterdir()}
    for path in object_cache().directory.iterdir():
        path.unlink()
    object_cache().clear()
    loaded.clear()
    bindings.cache_clear()
    cases[0].check()
    again = {path.name: path.read_bytes() for path in object_cache().directory.iterdir()}
    assert len(again) >= 2
    assert again.items() <= kept.items()


@pytest.mark.usefixtures("_cold")
def test_a_kernel_that_cannot_be_compiled_ends_all_of_them() -> None:
    host = machine()
    with pytest.raises(ct.Error, match="defect of convt3d"):
        compile_together(Wanted(f"broken {number}", lambda: "no text of LLVM", host, "broken") for number in range(3))
    make(ct.Pipeline(ct.ConvTranspose3d()), (1, 2, 3, 3, 3), (2, 2, 2, 2, 2)).check()  # nothing is locked
