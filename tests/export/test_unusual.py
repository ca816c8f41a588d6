"""What is unusual: weights that are not finite, strides, empty batches, wrong arguments, forks and threads."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers.c_cases import PIPELINES, drawn
from helpers.c_library import Loaded, by_meaning, by_python
from helpers.c_runner import program, run_cases

from convt3d.export.library import FLAGS
from convt3d.judge.languages import compiler_of
from convt3d.spec.dtypes import DTYPES


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.exhaustive if name == "pools" else ()) for name in PIPELINES]
)  # whose kernels take longest to compile, and are needed nowhere else
@pytest.mark.parametrize("wild", [np.inf, np.nan])
def test_weights_that_are_not_finite(export, name: str, wild: float, rng: np.random.Generator) -> None:
    text, dtype = PIPELINES[name]
    exported = export(text, name, dtype)
    loaded, kind, pipeline = exported.load(), exported.dtype, exported.subject.pipeline
    groups = 2 * pipeline.conv.groups
    x = (2, groups, 5, 9, 11)
    shapes = pipeline.operand_shapes(x, (groups, groups // pipeline.conv.groups, 3, 2, 3))
    operands = [kind.narrow(rng.standard_normal(shape)) for shape in shapes]
    operands[0][0, 0, 0, 1, 2] = kind.narrow(np.array([wild]))[0]
    data = kind.narrow(rng.standard_normal(x))
    out = np.full(pipeline.trace(x, shapes).output, 7, kind.storage)
    assert loaded.run(data, operands, out, {}, workspace=True) == 0, loaded.message
    meant = by_meaning(pipeline, kind, data, operands).reshape(out.shape)
    assert not np.isfinite(meant).all()
    assert np.isfinite(meant).any()
    assert np.array_equal(np.isnan(kind.widen(out)), np.isnan(meant))
    expected = np.full_like(out, 3)
    by_python(pipeline, kind, data, operands, expected)
    assert out.tobytes() == expected.tobytes()


@pytest.fixture
def up(export) -> Loaded:
    return export("layernorm-gelu-scaling", "solved").load()


def some(up: Loaded, rng: np.random.Generator):  # type: ignore[no-untyped-def]
    case = drawn(up.subject, up.dtype, rng, 1)
    x, *operands, out = case.arrays
    assert up.subject.problem is not None
    return x, operands, out, case.values, up.subject.problem.pipeline(case.values)


def test_strides_of_every_kind(up: Loaded, rng: np.random.Generator) -> None:
    """Turned round, every second voxel, axes in another order; nothing around the output is touched."""
    for _ in range(6):
        x, operands, out, values, pipeline = some(up, rng)
        expected = out.copy()
        by_python(pipeline, up.dtype, x, operands, expected)
        room = np.full([2 * size + 1 for size in out.shape], 5, out.dtype)
        spread = room[tuple(slice(1, None, 2) for _ in out.shape)][:, :, ::-1]
        turned = np.ascontiguousarray(x[..., ::-1])[..., ::-1]
        weight = np.ascontiguousarray(operands[0].transpose(4, 3, 0, 1, 2)).transpose(2, 3, 4, 1, 0)
        assert up.run(turned, [weight], spread, values) == 0, up.message
        assert np.array_equal(spread, expected, equal_nan=True)
        spread[...] = 5
        assert (room == 5).all()


def test_an_empty_batch(up: Loaded, rng: np.random.Generator) -> None:
    x, operands, out, values, _ = some(up, rng)
    assert up.run(x[:0], operands, out[:0], values) == 0
    assert (out == 7).all()


def test_wrong_arguments_have_codes_and_words(up: Loaded, rng: np.random.Generator) -> None:
    x, operands, out, values, _ = some(up, rng)
    cases = [
        (1, "stride", {"stride_h": 0}, x, operands, out),
        (1, "padding", {"padding_w": -1}, x, operands, out),
        (1, "dilation" if "dilation_d" in values else "stride", {"stride_w": 2**40}, x, operands, out),
        (1, "output_padding", {"output_padding_d": 50}, x, operands, out),
        (2, "padding", {"padding_d": 1000}, x, operands, out),
        (2, "kernel", {}, x, [np.concatenate([operands[0]] * 2)], out),
        (2, "output", {}, x, operands, out[..., :0]),
        (2, "input", {}, x[:, :, :0], operands, out),
    ]
    for code, words, changes, one, weights, result in cases:
        assert up.run(one, weights, result, {**values, **changes}) == code, (words, up.message)
        assert words in up.message
        assert (result == 7).all()
    args = up.arguments(x, operands, out, values)
    args.input.data = None
    assert up.function("run")(ctypes.byref(args)) == 1
    assert "input" in up.message
    assert up.function("run")(None) == 1
    args = up.arguments(x, operands, out, values, threads=-1)
    assert up.function("run")(ctypes.byref(args)) == 1
    assert "threads" in up.message


def test_a_workspace_that_is_too_small(up: Loaded, rng: np.random.Generator) -> None:
    x, operands, out, values, _ = some(up, rng)
    args, size = up.arguments(x, operands, out, values), ctypes.c_size_t()
    assert up.function("workspace")(ctypes.byref(args), ctypes.byref(size)) == 0
    memory = np.full(size.value, 9, np.uint8)
    args.workspace, args.workspace_bytes = memory.ctypes.data, size.value // 2
    assert up.function("run")(ctypes.byref(args)) == 4
    assert "workspace" in up.message
    assert (memory[size.value // 2 :] == 9).all()


def test_addresses_and_strides_that_cannot_be(up: Loaded, rng: np.random.Generator) -> None:
    x, operands, out, values, _ = some(up, rng)
    run, shape = up.function("run"), (ctypes.c_int64 * 5)()
    for name in ("input", "kernel", "output"):
        args = up.arguments(x, operands, out, values)
        getattr(args, name).data += 1
        assert run(ctypes.byref(args)) == 1
        assert f"{name}: its address" in up.message
        args = up.arguments(x, operands, out, values)
        getattr(args, name).strides[3] = 2**61
        assert run(ctypes.byref(args)) == 1
        assert f"{name}: its strides" in up.message
    args = up.arguments(x, operands, out, values)
    assert up.function("workspace")(ctypes.byref(args), None) == 1
    assert up.function("output_shape")(ctypes.byref(args), None) == 1
    assert up.function("output_shape")(None, shape) == 1


def test_an_output_on_another_array(up: Loaded, rng: np.random.Generator) -> None:
    """Refused where it is sure; voxels of two arrays may lie between each other."""
    x, operands, out, values, pipeline = some(up, rng)
    run, room = up.function("run"), np.full(x.size + out.size, 7, x.dtype)
    for offset in (0, 1, x.size - 1, x.size):
        inside = room[: x.size].reshape(x.shape)
        inside[...] = x
        args = up.arguments(inside, operands, room[offset : offset + out.size].reshape(out.shape), values)
        assert run(ctypes.byref(args)) == (0 if offset == x.size else 1)
        if offset < x.size:
            assert "output: lies on input" in up.message
            assert np.array_equal(inside, x, equal_nan=True)
    both = np.full((*np.maximum(x.shape, out.shape), 2), 7, x.dtype)
    between = both[..., 1][tuple(map(slice, x.shape))]
    between[...] = x
    by_python(pipeline, up.dtype, x, operands, out)
    got = both[..., 0][tuple(map(slice, out.shape))]
    assert up.run(between, operands, got, values) == 0, up.message
    assert np.array_equal(got, out, equal_nan=True)


def test_sizes_that_no_memory_holds(export, up: Loaded, rng: np.random.Generator) -> None:
    """Products of sizes that are allowed one by one do not wrap around."""
    loaded, size = export("Conv3d(padding='same') -> Add('x')", "skip").load(), ctypes.c_size_t()
    x, w = np.zeros((1, 1, 1, 1, 1), np.float32), np.zeros((1, 1, 1, 1, 1), np.float32)
    args = loaded.arguments(x, [w], x, {})
    for axis in (2, 3, 4):
        args.input.shape[axis] = args.output.shape[axis] = 1 << 16
        args.weight.shape[axis] = 1 << 15
    assert loaded.function("workspace")(ctypes.byref(args), ctypes.byref(size)) == 3, size.value
    assert "memory" in loaded.message
    x, operands, _, values, _ = some(up, rng)
    args = up.arguments(x, operands, x, {**values, **{f"stride_{axis}": 1 << 30 for axis in "dhw"}})
    assert up.function("workspace")(ctypes.byref(args), ctypes.byref(size)) in (2, 3)


def test_threads_of_the_environment(up: Loaded, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    x, operands, out, values, _ = some(up, rng)
    for text, code in ((" 2 ", 0), ("0", 1), ("2048", 1), ("many", 1), ("", 0)):
        monkeypatch.setenv("CONVT3D_NUM_THREADS", text)
        assert up.run(x, operands, out, values) == code, text


def test_the_quota_of_a_container(export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As cpu/plan/cores.py reads it, of both versions of cgroups: seen by the memory that threads take."""
    monkeypatch.delenv("CONVT3D_NUM_THREADS", raising=False)
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    exported = export("layernorm-gelu-scaling", "solved")
    inside = tmp_path / "sys/fs/cgroup/cpu,cpuacct/a/b"
    inside.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    cgroups = {"0::/a/b\n": "cpu.max", "5:cpuacct,cpu:/a/b\n4:memory:/\n": ""}
    for number, (text, limit) in enumerate(cgroups.items()):
        (tmp_path / "proc/self/cgroup").write_text(text)
        if limit:
            (tmp_path / "sys/fs/cgroup/a").mkdir()
            (tmp_path / "sys/fs/cgroup/a/cpu.max").write_text("50000 100000\n")
        else:
            folder = tmp_path / "sys/fs/cgroup/cpu/a"
            folder.mkdir(parents=True)
            (folder / "cpu.cfs_quota_us").write_text("90000\n")
            (folder / "cpu.cfs_period_us").write_text("100000\n")
        path = tmp_path / f"limited{number}.so"
        command = [str(compiler_of("c")), *FLAGS, "-O0", f'-DC3D_ROOT="{tmp_path}"', f"-I{exported.folder}", "-shared"]
        sources = [str(exported.folder / "src/solved.c"), *map(str, (exported.folder / "src/kernels").iterdir())]
        subprocess.run([*command, *sources, "-o", str(path), "-lm"], check=True)
        loaded = Loaded(str(path), exported.subject, exported.dtype)
        x, operands, out, values = large(loaded, np.random.default_rng(0))
        sizes = []
        for threads in (0, 1, 2):
            args, size = loaded.arguments(x, operands, out, values, threads), ctypes.c_size_t()
            assert loaded.function("workspace")(ctypes.byref(args), ctypes.byref(size)) == 0
            sizes.append(size.value)
        assert sizes[0] == sizes[1] < sizes[2]


def _vector_before_a_wall(loaded: Loaded) -> None:
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    whole = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(None)
    assert libc.mprotect(ctypes.c_void_p(whole.ctypes.data + page), ctypes.c_size_t(page), 0) == 0
    vector = whole[page - 16 : page].view(np.float64)
    vector[:] = 1.0
    x, weight = np.ones((1, 40, 2, 3, 4)), np.ones((40, 1, 2, 2, 2))
    raise SystemExit(loaded.run(x, [weight, vector], np.zeros((1, 2, 1, 1, 1)), {}, threads=1))


def test_nothing_is_read_behind_a_vector(export) -> None:
    """One that is shorter than another value has channels."""
    loaded = export(
        "ConvTranspose3d(stride=(1, 2, 3), groups=2) -> Mean('spatial') -> Add('channel')", "average_mean", "float64"
    ).load()
    child = multiprocessing.get_context("fork").Process(target=_vector_before_a_wall, args=(loaded,))
    child.start()
    child.join(60)
    assert child.exitcode == 0


def test_values_that_must_be_equal(export, rng: np.random.Generator) -> None:
    """What Python would repeat along an axis of size 1 is refused, and never computed wrongly."""
    exported = export("Conv3d(padding='same') -> Add('x')", "skip")
    loaded, pipeline = exported.load(), exported.subject.pipeline
    for cin, code in ((3, 0), (1, 2)):
        x = rng.standard_normal((2, cin, 4, 5, 6)).astype(np.float32)
        weight = rng.standard_normal((3, cin, 2, 3, 1)).astype(np.float32)
        got, expected = (np.full((2, 3, 4, 5, 6), 7, np.float32) for _ in range(2))
        assert loaded.run(x, [weight], got, {}) == code, loaded.message
        if code == 0:
            by_python(pipeline, exported.dtype, x, [weight], expected)
        else:
            assert "must have the same" in loaded.message
        assert got.tobytes() == expected.tobytes()


def large(loaded: Loaded, rng: np.random.Generator):  # type: ignore[no-untyped-def]
    """Worth more than one thread."""
    problem = loaded.subject.problem
    assert problem is not None
    values = {**problem.benchmark, "batch_size": 2, "in_channels": 5, "out_channels": 7}
    arrays = {name: loaded.dtype.narrow(array) for name, array in problem.make_inputs(values, rng).items()}
    out = np.full(problem.shapes(values)["output"], 7, loaded.dtype.storage)
    return arrays["input"], [arrays["kernel"]], out, values


def test_threads_may_call_at_the_same_time(up: Loaded, rng: np.random.Generator) -> None:
    x, operands, expected, values = large(up, rng)
    assert up.run(x, operands, expected, values, threads=1) == 0
    results = [np.full_like(expected, 3) for _ in range(4)]
    threads = [threading.Thread(target=up.run, args=(x, operands, out, values, 3)) for out in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(out.tobytes() == expected.tobytes() for out in results)


def _in_child(loaded: Loaded, given: tuple, expected: bytes) -> None:  # type: ignore[type-arg]
    x, operands, out, values = given
    ok = loaded.run(x, operands, out, values, threads=2) == 0 and out.tobytes() == expected
    raise SystemExit(0 if ok else 1)


def test_a_forked_child_starts_threads_of_its_own(up: Loaded, rng: np.random.Generator) -> None:
    x, operands, out, values = large(up, rng)
    assert up.run(x, operands, out, values, threads=2) == 0
    given = x, operands, np.zeros_like(out), values
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(up, given, out.tobytes()))
    child.start()
    child.join(60)
    assert child.exitcode == 0


def test_solution_tells_an_error_and_returns(
    export, rng: np.random.Generator, capfd: pytest.CaptureFixture[str]
) -> None:
    loaded = export("layernorm-gelu-scaling", "solved").load()
    x, operands, out, values, _ = some(loaded, rng)
    given = [ctypes.c_void_p(array.ctypes.data) for array in (x, *operands, out)]
    numbers = [ctypes.c_double(v) if isinstance(v, float) else ctypes.c_size_t(v) for v in values.values()]
    loaded.library.solution.restype = None
    loaded.library.solution(*given, *numbers)
    assert not (out == 7).all()
    out[...] = 7
    wrong = [ctypes.c_size_t(0) if name == "stride_d" else one for name, one in zip(values, numbers, strict=True)]
    loaded.library.solution(*given, *wrong)
    assert "solved: stride" in capfd.readouterr().err
    assert (out == 7).all()
    assert DTYPES["float32"] is loaded.dtype


HOSTILE = """
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "solved.h"

typedef int (*run_fn)(const struct solved_args *);

int main(int count, char **words) {
    enum { TIMES = 3 };
    (void)count;
    for (int n = 0; n < TIMES; n++) { /* unloaded, while its threads live on, and loaded again */
        void *library = dlopen(words[1], RTLD_NOW);
        run_fn run = (run_fn)dlsym(library, "solved_run");
        float *memory = calloc(1 << 16, sizeof *memory);
        struct solved_args args;
        memset(&args, 0, sizeof args);
        if (!run || run(NULL) != SOLVED_ARGUMENT || run(&args) != SOLVED_ARGUMENT) /* nothing is given */
            return 2;
        int64_t x[5] = {2, 4, 6, 6, 6}, w[5] = {4, 4, 3, 3, 3}, y[5] = {2, 4, 8, 8, 8};
        args.input.data = (char *)memory + 1; /* on no number's own address */
        args.kernel.data = memory + (1 << 14);
        args.output.data = (char *)(memory + (1 << 15)) + 2;
        memcpy(args.input.shape, x, sizeof x);
        memcpy(args.kernel.shape, w, sizeof w);
        memcpy(args.output.shape, y, sizeof y);
        int64_t *one[] = {&args.stride_d, &args.stride_h, &args.stride_w};
        for (int at = 0; at < 3; at++)
            *one[at] = 1;
        args.threads = 2;
        args.scaling_factor = 1;
        errno = 77;
        if (run(&args) != SOLVED_ARGUMENT || errno != 77)
            return 3;
        args.input.data = memory;
        args.output.data = memory + (1 << 15);
        if (run(&args) != SOLVED_OK)
            return 4;
        args.workspace = memory;
        args.workspace_bytes = 1;
        if (run(&args) != SOLVED_WORKSPACE)
            return 5;
        args.workspace = NULL;
        memset(&args.kernel.shape, 0xff, sizeof w);
        if (run(&args) != SOLVED_SHAPE)
            return 6;
        memcpy(args.kernel.shape, w, sizeof w);
        args.input.shape[2] = INT64_MAX;
        if (run(&args) != SOLVED_SHAPE)
            return 7;
        free(memory);
        if (dlclose(library))
            return 8;
    }
    puts("survived");
    return 0;
}
"""


def test_hostile_use_gives_codes(export, tmp_path: Path) -> None:
    """A program that gives nothing, addresses between numbers, absurd shapes and a tiny workspace, and unloads it."""
    exported = export("layernorm-gelu-scaling", "solved")
    source, program = tmp_path / "hostile.c", tmp_path / "hostile"
    source.write_text(HOSTILE)
    command = [str(compiler_of("c")), "-Wall", "-Wextra", "-Werror", f"-I{exported.folder}", str(source)]
    built = subprocess.run([*command, "-o", str(program), "-ldl"], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(program), exported.path], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PIPELINES)
def test_sanitizers_find_nothing(export, name: str, rng: np.random.Generator, tmp_path: Path) -> None:
    """The run-time of a library, with checks of addresses, leaks, and what C leaves undefined."""
    text, dtype = PIPELINES[name]
    exported = export(text, name, dtype)
    (tmp_path / "runner.c").write_text(program(exported.subject))
    checks = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    sources = [str(tmp_path / "runner.c"), str(exported.folder / "src" / f"{name}.c")]
    kernels = map(str, (exported.folder / "src/kernels").iterdir())
    command = [str(compiler_of("c")), *FLAGS, *checks, f"-I{exported.folder}", *sources, *kernels]
    done = subprocess.run(
        [*command, "-lm", "-o", str(tmp_path / "runner")], capture_output=True, text=True, check=False
    )
    if "cannot find" in done.stderr:
        pytest.skip("needs the sanitizers of the C compiler")
    assert done.returncode == 0, done.stderr
    cases = [drawn(exported.subject, exported.dtype, rng, number, large=number % 2 == 1) for number in range(1, 13)]
    run_cases([str(tmp_path / "runner")], exported.subject, exported.dtype, cases)
