"""Every contender means what the pipeline means, stage by stage; those whose library is missing are skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.bench_rows import small_case

pytest.importorskip("torch")

from spec.stage_rows import ROWS, Row

from convt3d.bench.contenders import MODULES, find_contender
from convt3d.bench.contenders.base import Absent, NotInstalledError, UnsupportedError
from convt3d.bench.measure import judge
from convt3d.cpu.plan.cores import available_cores
from convt3d.errors import ArgumentError
from convt3d.front.verify import draw_sample
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.stages import Convolution, ConvTranspose3d, Keep
from convt3d.spec.text import write_pipeline

# Rows that make every voxel NaN or Inf, or whose special values a runtime may treat in its own way, are not timed.
FINITE = [row for row in ROWS if row.chains]
TRANSLATED = ("torch", "torch-channels-last", "onnxruntime", "openvino", "jax")


def judged(name: str, pipeline: str, dtype: str = "float32", **changes: Any) -> dict[str, Any]:
    contender = find_contender(name)
    if isinstance(contender, Absent):
        pytest.skip(contender.why)
    case = small_case(pipeline=pipeline, dtype=DTYPES[dtype], **{"threads": available_cores(), **changes})
    arrays = case.draw()
    sample = draw_sample(case.pipeline, arrays.x, arrays.operands, case.dtype, np.random.default_rng(0), voxels=1000)
    ready = contender.prepare(case, arrays)
    ready.run()
    result = ready.stored(ready.run())
    assert result.shape == case.pipeline.result_shape(case.plan.trace.output)
    return judge(name, case, sample, result)


def pipeline_of(row: Row) -> str:
    """A convolution before the stage; an Exp or a division meets moderate, non-zero values."""
    if isinstance(row.stage, Convolution):
        return write_pipeline(Pipeline(row.stage))
    label = row.stage.uses
    if label == "x":  # the input has another size than what a strided convolution makes of it
        return write_pipeline(Pipeline(ConvTranspose3d(stride=1, padding=1), row.stage))
    kept = [Keep("kept")] if label == "kept" else []
    return write_pipeline(Pipeline(ConvTranspose3d(stride=2, padding=1, output_padding=1), *kept, row.stage))


@pytest.mark.parametrize("name", TRANSLATED)
@pytest.mark.parametrize("row", FINITE, ids=lambda row: row.id)
def test_stages(name: str, row: Row) -> None:
    w = row.weight(6) or (6, 6, 3, 3, 3)
    try:
        found = judged(name, pipeline_of(row), x=(2, 6, 4, 5, 7), w=w)
    except UnsupportedError as reason:
        pytest.skip(str(reason))
    assert found["status"] == "ok", found


@pytest.mark.parametrize("name", ["convt3d", *TRANSLATED])
def test_dropped_axes(name: str) -> None:
    text = "ConvTranspose3d(stride=2, padding=1) -> Sum('depth', keepdim=False) -> Max('channels', False) -> Tanh()"
    assert judged(name, text, x=(2, 6, 4, 5, 7), w=(6, 6, 3, 3, 3))["status"] == "ok"


CHAIN = (
    "ConvTranspose3d(stride=2, padding=1, output_padding=1, bias=True) -> BatchNorm(affine=True) -> Add('tensor') -> "
    "ReLU() -> MaxPool3d(2)"
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in MODULES if name != "torch-compile" and not name.endswith("-kept")])
def test_chains_in_every_type(name: str, dtype: str) -> None:
    if name == "convt3d" and dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    try:
        found = judged(name, CHAIN, dtype)
    except UnsupportedError as reason:
        pytest.skip(str(reason))
    assert found["status"] == "ok", found


def test_torch_compile() -> None:
    """Weights are frozen, the skip is not: two calls with the same module give the meaning of both."""
    import shutil

    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own code
        assert judged("torch-compile", CHAIN)["status"] == "ok"


def test_jax_uses_all_cores_or_none() -> None:
    pytest.importorskip("jax")
    with pytest.raises(UnsupportedError, match="all"):
        judged("jax", CHAIN, threads=available_cores() + 1)


def test_unknown_and_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="must be one of convt3d, convt3d-direct, convt3d-prepared, torch"):
        find_contender("numpy")
    monkeypatch.setitem(MODULES, "jax", "no_such_module")
    absent = find_contender("jax")
    case = small_case()
    with pytest.raises(NotInstalledError, match=r"is not installed; pip install '\.\[bench\]'"):
        absent.prepare(case, case.draw())


LARGE = {"x": (1, 2, 64, 64, 64), "w": (2, 4, 2, 2, 2), "pipeline": "ConvTranspose3d(stride=2)"}  # 33 MiB


def test_kept_memory_lies_on_the_heap() -> None:
    """The same result, where glibc keeps what was freed; elsewhere a mapping of its own, which is given back."""
    torch = pytest.importorskip("torch")
    if not Path("/proc/self/maps").exists():
        pytest.skip("needs /proc")
    case = small_case(**LARGE)
    arrays = case.draw()
    plain, kept = (find_contender(name).prepare(case, arrays) for name in ("torch", "torch-kept"))
    with kept.around():
        found = kept.run()
        assert _on_heap(found.data_ptr())
    expected = plain.run()
    # Larger than what is free inside the heap, which may still serve a smaller one, with fresh pages.
    assert not _on_heap(torch.empty(64 << 20).data_ptr())
    np.testing.assert_array_equal(kept.stored(found), plain.stored(expected))


def _on_heap(address: int) -> bool:
    """Whether it lies in what the process holds by sbrk."""
    lines = (line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[heap]"))
    ranges = ([int(end, 16) for end in line.split()[0].split("-")] for line in lines)
    return any(low <= address < high for low, high in ranges)


def test_kept_memory_is_the_same_where_nothing_is_large() -> None:
    pytest.importorskip("torch")
    case = small_case()
    with pytest.raises(UnsupportedError, match="large enough"):
        find_contender("torch-kept").prepare(case, case.draw())


@pytest.mark.parametrize("name", ["convt3d", "onnxruntime", "openvino"])
def test_bound_memory_lives_as_long_as_the_run(name: str) -> None:
    """Runtimes that are given addresses must not outlive the arrays behind them."""
    contender = find_contender(name)
    if isinstance(contender, Absent):
        pytest.skip(contender.why)
    case = small_case(threads=available_cores(), x=(1, 8, 16, 16, 16))
    run = contender.prepare(case, case.draw()).run
    held = [np.full((1 << 16,), 7.0) for _ in range(64)]  # would take the place of arrays that are gone
    for _ in range(3):
        run()
    assert all((array == 7.0).all() for array in held)
