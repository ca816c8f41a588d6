"""`convt3d volume`: bits, memory, axes and scales, and runs that are ended."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import convt3d
from convt3d.cli import volume as volume_command
from convt3d.cli.main import main
from convt3d.cli.terminal import Progress
from convt3d.cli.volume import chunk_sizes, memory_size

zarr = pytest.importorskip("zarr")
from convt3d.volume import grid  # noqa: E402 - where zarr is installed
from convt3d.volume import run as volume_run  # noqa: E402
from convt3d.volume.journal import Journal, alone  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def small_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process holds what tests before have left; `--memory` counts what a program holds when it starts."""
    monkeypatch.setattr(volume_run, "status", lambda name: 200 << 20)


UPSAMPLE = "ConvTranspose3d(stride=2, padding=1, bias=True) -> LayerNorm() -> GELU()"


def pipe_of(text: str) -> convt3d.Pipeline:
    from convt3d.spec.text import read_stages

    return convt3d.Pipeline(*read_stages(text))


def prepared(folder: Path, text: str, x: Any, weight: tuple[int, ...], **attributes: Any) -> tuple[list[str], Any]:
    """The command's arguments, and the result in memory."""
    pipe = pipe_of(text)
    rng = np.random.default_rng(2)
    batched = x.reshape((1,) * (5 - x.ndim) + x.shape).astype(np.float32)
    shapes = pipe.operand_shapes(batched.shape, weight)
    own = {n: rng.standard_normal(s, dtype=np.float32) for n, s in zip(pipe.operand_names, shapes, strict=True)}
    np.savez(folder / "w.npz", **own)
    if attributes:
        group = zarr.create_group(str(folder / "in.zarr"), attributes=attributes)
        array = group.create_array("s0", shape=x.shape, chunks=tuple(min(8, n) for n in x.shape), dtype=x.dtype)
    else:
        array = zarr.create_array(
            str(folder / "in.zarr"), shape=x.shape, chunks=tuple(min(8, n) for n in x.shape), dtype=x.dtype
        )
    array[...] = x
    command = ["volume", str(folder / "in.zarr"), str(folder / "out.zarr"), "--pipeline", text]
    return [*command, "--weights", str(folder / "w.npz"), "--chunks", "8"], pipe(batched, **own)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "MOST_BYTES", 1 << 15)


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
def test_the_result_has_the_bits_of_the_one_in_memory(
    tmp_path: Path, algorithm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(1).standard_normal((2, 4, 13, 11, 17), dtype=np.float32)
    command, _ = prepared(tmp_path, UPSAMPLE, x, (4, 5, 3, 3, 3))
    assert main([*command, "--algorithm", algorithm, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["computed"] == told["boxes"] > 8
    with np.load(tmp_path / "w.npz") as own:
        expected = pipe_of(UPSAMPLE)(x, *own.values(), algorithm=algorithm)
    made = zarr.open_array(str(tmp_path / "out.zarr"))
    assert made.shards is not None
    assert made[...].tobytes() == expected.tobytes()
    assert made.attrs["convt3d"]["complete"] is True
    assert not (tmp_path / "out.zarr.journal").exists()
    assert main([*command, "--algorithm", algorithm, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["computed"] == 0


@pytest.mark.usefixtures("small_shards")
def test_statistics_over_space(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((4, 12, 11, 17), dtype=np.float32)
    text = "Conv3d(padding=1) -> InstanceNorm(affine=True) -> LeakyReLU()"
    command, expected = prepared(tmp_path, text, x, (3, 4, 3, 3, 3))
    assert main(command) == 0
    np.testing.assert_allclose(zarr.open_array(str(tmp_path / "out.zarr"))[...], expected[0], atol=1e-5)


IMAGE = {
    "name": "cells",
    "axes": [
        {"name": "z", "type": "space", "unit": "micrometer"},
        {"name": "y", "type": "space", "unit": "micrometer"},
        {"name": "x", "type": "space", "unit": "micrometer"},
    ],
    "datasets": [{"path": "s0", "coordinateTransformations": [{"type": "scale", "scale": [2.0, 0.5, 0.5]}]}],
}


@pytest.mark.parametrize("attributes", [{"ome": {"version": "0.5", "multiscales": [IMAGE]}}, {"multiscales": [IMAGE]}])
@pytest.mark.parametrize(
    ("text", "weight", "scale", "translation"),
    [
        ("ConvTranspose3d(stride=(1, 2, 2))", (1, 3, 1, 2, 2), [1.0, 2.0, 0.25, 0.25], [0.0, 0.0, -0.125, -0.125]),
        ("Conv3d(stride=2, padding=1)", (3, 1, 3, 3, 3), [1.0, 4.0, 1.0, 1.0], None),
        ("Conv3d(padding=1) -> MaxPool3d(2)", (3, 1, 3, 3, 3), [1.0, 4.0, 1.0, 1.0], [0.0, 1.0, 0.25, 0.25]),
    ],
    ids=["finer", "coarser", "pooled"],
)
def test_axes_and_scales_are_carried_over(
    tmp_path: Path, attributes: Any, text: str, weight: Any, scale: list[float], translation: Any
) -> None:
    """Of integers too: microscopes write them."""
    x = np.random.default_rng(1).integers(0, 999, (9, 10, 11), dtype=np.uint16)
    command, expected = prepared(tmp_path, text, x, weight, **attributes)
    assert main(command) == 0
    group = zarr.open_group(str(tmp_path / "out.zarr"), mode="r")
    (image,) = group.attrs["ome"]["multiscales"]
    assert [axis["name"] for axis in image["axes"]] == ["c", "z", "y", "x"]
    assert image["axes"][1] == IMAGE["axes"][0]
    (dataset,) = image["datasets"]
    found = {each["type"]: each[each["type"]] for each in dataset["coordinateTransformations"]}
    assert found["scale"] == scale
    assert found.get("translation") == translation
    assert group["0"][...].tobytes() == expected[0].tobytes()


@pytest.mark.parametrize("case", ["result", "chunks of the input"])
def test_memory_is_bounded(tmp_path: Path, case: str) -> None:
    """By a run of its own, since the peak is that of a process; of numbers that no codec makes smaller. The least that
    is asked for is enough."""
    size, whole, channels, chunks = (64, 32, 160, "32") if case == "result" else (128, 128, 4, "128,128,32")
    x = zarr.create_array(str(tmp_path / "in.zarr"), shape=(8, size, size, size), chunks=(8, *(whole,) * 3), dtype="f4")
    rng = np.random.default_rng(0)
    x[...] = rng.standard_normal(x.shape, np.float32)
    np.savez(tmp_path / "w.npz", weight=rng.standard_normal((channels, 8, 1, 1, 1), np.float32))
    command = ["volume", str(tmp_path / "in.zarr"), str(tmp_path / "out.zarr"), "--pipeline", "Conv3d()"]
    command += ["--weights", str(tmp_path / "w.npz"), "--chunks", chunks]
    refused = subprocess.run(_measured(*command, "--memory", "1MB"), capture_output=True, text=True)
    least = re.search(r"must be at least ([0-9.]+) MiB", refused.stderr)
    assert least
    limit = round(float(least[1]) + 2) << 20  # of two processes, each with its own beginning
    done = subprocess.run(_measured(*command, "--memory", str(limit)), capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) <= limit


def _measured(*command: str) -> list[str]:
    """The command in a process that tells its peak."""
    code = f"from convt3d.cli.main import main; code = main({command!r}); "
    code += "from convt3d.front.memory import status; print(status('VmHWM') or 0); raise SystemExit(code)"
    return [sys.executable, "-c", code]


def test_killed_runs_go_on(tmp_path: Path) -> None:
    """A few; `python tools/kill_volume.py` makes a hundred."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import kill_volume
    finally:
        sys.path.pop(0)
    _, finished, wrong = kill_volume.run(tmp_path, kills=3, seed=1, size=24)
    assert finished
    assert not wrong


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("damage", ["half a file", "another byte", "no file", "half a line", "a line in the middle"])
def test_what_is_not_whole_is_computed_again(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(1).standard_normal((4, 13, 11, 17), dtype=np.float32)
    command, _ = prepared(tmp_path, UPSAMPLE, x, (4, 5, 3, 3, 3))
    with monkeypatch.context() as ending:  # all but the last steps
        ending.setattr(Journal, "end", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main(command) == 130
    made, journal = tmp_path / "out.zarr", tmp_path / "out.zarr.journal"
    files = {path: path.read_bytes() for path in sorted(made.rglob("*")) if path.is_file()}
    array = zarr.open_array(str(made), mode="r+")
    array.attrs["convt3d"] = {**array.attrs["convt3d"], "complete": False}
    victim = next(path for path in files if path.parts[-6] == "c" or "c" in path.parts)
    if damage == "half a file":
        victim.write_bytes(files[victim][: len(files[victim]) // 2])
    elif damage == "another byte":
        victim.write_bytes(bytes([files[victim][0] ^ 1]) + files[victim][1:])
    elif damage == "no file":
        victim.unlink()
    elif damage == "a line in the middle":
        lines = journal.read_bytes().splitlines(keepends=True)
        lines[len(lines) // 2] = b"0" + lines[len(lines) // 2][1:-4] + b"\n"
        journal.write_bytes(b"".join(lines))
    else:
        journal.write_bytes(journal.read_bytes()[:-7])
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["computed"] == 1
    assert {path: path.read_bytes() for path in sorted(made.rglob("*")) if path.is_file()} == files


@pytest.mark.usefixtures("small_shards")
def test_a_full_disk_is_said_and_the_run_goes_on_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(1).standard_normal((4, 13, 11, 17), dtype=np.float32)
    command, expected = prepared(tmp_path, UPSAMPLE, x, (4, 5, 3, 3, 3))
    usual, calls = Journal.add, iter(range(99))

    def add(self: Journal, root: Path, name: str) -> None:
        if next(calls) == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        usual(self, root, name)

    monkeypatch.setattr(Journal, "add", add)
    assert main(command) == 2
    assert "cannot be written (No space left on device). Run the same command again" in capsys.readouterr().err
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kept"] == 5
    assert zarr.open_array(str(tmp_path / "out.zarr"))[...].tobytes() == expected[0].tobytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.zarr", "out.zarr", "w.npz"]


def test_one_run_at_a_time_and_only_of_the_same_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, _ = prepared(tmp_path, "Conv3d()", np.ones((4, 9, 9, 9), np.float32), (5, 4, 3, 3, 3))
    with alone(tmp_path / "out.zarr"):
        if sys.platform != "win32":
            assert main(command) == 2
            assert "is being written by another run" in capsys.readouterr().err
        assert main([*command, "--plan"]) == 0
    assert main(command) == 0
    chunk = next(path for path in (tmp_path / "in.zarr" / "c").rglob("*") if path.is_file())
    content = chunk.read_bytes()
    os.utime(chunk, ns=(0, 0))
    assert main(command) == 2
    assert "with these weights and this input" in capsys.readouterr().err
    chunk.write_bytes(content[: len(content) // 2])
    assert main([*command, "--overwrite"]) == 2
    assert "in.zarr': cannot be read" in capsys.readouterr().err


def test_only_volumes_are_overwritten_and_never_the_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, _ = prepared(tmp_path, "Conv3d()", np.ones((4, 9, 9, 9), np.float32), (5, 4, 3, 3, 3))
    letters = tmp_path / "letters"
    letters.mkdir()
    (letters / "a.txt").write_text("dear")
    (tmp_path / "file").write_text("dear")
    for target, words in {
        letters: "is no zarr volume",
        tmp_path / "file": "is no zarr volume",
        tmp_path: "nor hold it",
        tmp_path / "in.zarr": "must not be the input",
        tmp_path / "in.zarr" / "out.zarr": "nor lie in it",
    }.items():
        assert main([*command[:2], str(target), *command[3:], "--overwrite"]) == 2
        assert words in capsys.readouterr().err
    assert (letters / "a.txt").exists()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link.zarr").symlink_to(tmp_path / "elsewhere" / "out.zarr")
    for more in ([], ["--overwrite"]):
        assert main([*command[:2], str(tmp_path / "link.zarr"), *command[3:], *more]) == 0
    assert zarr.open_array(str(tmp_path / "elsewhere" / "out.zarr")).shape == (5, 7, 7, 7)


def test_time_left_is_that_of_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that goes on has most of its boxes at once, which took no time."""
    told: list[tuple[float, float]] = []
    monkeypatch.setattr(
        Progress, "begin", lambda self, text, done=0.0, until=1.0, seconds=None: told.append((done, until))
    )
    job = SimpleNamespace(chain=SimpleNamespace(output=(1,)), dtype=np.dtype("f4"), grid=range(10))
    job.run = lambda say: [say(done, 10, "boxes") for done in (8, 9, 10)]
    volume_command._run(job)  # type: ignore[arg-type]
    assert told[1:] == [(0.0, 0.5), (0.5, 1.0), (1.0, 1.0)]


def test_the_plan_says_what_comes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.zeros((4, 13, 11, 17), np.float32)
    command, _ = prepared(tmp_path, UPSAMPLE, x, (4, 5, 3, 3, 3))
    assert main([*command, "--plan"]) == 0
    shown = capsys.readouterr().out
    assert "czyx 5 x 25 x 21 x 33" in shown
    assert "in shards of" in shown
    assert main([*command, "--plan", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["output"]["shape"] == [5, 25, 21, 33]
    assert plan["bytes_read"] >= plan["input"]["bytes"]
    assert plan["seconds"] > 0
    assert not (tmp_path / "out.zarr").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--memory", "1KB"], "must be at least"),
        (["--pipeline", "Conv3d(padding=1)"], "holds bias, which the pipeline does not take"),
        (["--pipeline", "Conv3d(bias=True) -> Add('channel')"], "lacks add_other"),
        (["--pipeline", "Conv3d(bias=True) -> Relu()"], "Did you mean ReLU"),
        (["--weights", "nothing.npz"], "cannot be read as an .npz file"),
        (["--pipeline", "Conv3d(bias=True) -> Mean('spatial')"], "gives one number for each channel"),
    ],
    ids=["memory", "unknown", "missing", "text", "file", "no volume"],
)
def test_errors_say_what_to_do(
    tmp_path: Path, change: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, _ = prepared(tmp_path, "Conv3d(bias=True)", np.zeros((4, 9, 9, 9), np.float32), (5, 4, 3, 3, 3))
    assert main([*command, *change]) == 2
    assert words in capsys.readouterr().err


def test_what_is_there_is_not_overwritten_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, _ = prepared(tmp_path, "Conv3d()", np.ones((4, 9, 9, 9), np.float32), (5, 4, 3, 3, 3))
    zarr.create_array(str(tmp_path / "out.zarr"), shape=(3,), dtype="f4")
    assert main(command) == 2
    assert "Give --overwrite" in capsys.readouterr().err
    assert main([*command, "--overwrite"]) == 0
    assert main(["volume", str(tmp_path / "gone.zarr"), *command[2:]]) == 2
    assert "must be a zarr array or group" in capsys.readouterr().err
    zarr.create_group(str(tmp_path / "group.zarr"))
    assert main(["volume", str(tmp_path / "group.zarr"), *command[2:]]) == 2
    assert "without OME-NGFF multiscales" in capsys.readouterr().err
    zarr.create_array(str(tmp_path / "flat.zarr"), shape=(3, 3), dtype="f4")
    assert main(["volume", str(tmp_path / "flat.zarr"), *command[2:]]) == 2
    assert "in the order t, c, z, y, x" in capsys.readouterr().err


def test_sizes_as_people_write_them() -> None:
    assert memory_size("2GB") == 2 * 10**9
    assert memory_size("1.5 GiB") == 3 * 2**29
    assert memory_size("1e9") == 10**9
    assert chunk_sizes("64") == (64, 64, 64)
    assert chunk_sizes("8,16,32") == (8, 16, 32)
    for text in ("much", "2XB", ""):
        with pytest.raises(ValueError):  # noqa: PT011 - argparse words it
            memory_size(text)


BLOCK = "Conv3d(padding=1, bias=True) -> Keep('y') -> ReLU() -> Conv3d(stride=2, padding=1) -> GELU() -> "
BLOCK += "ConvTranspose3d(stride=2, padding=1, output_padding=(0, 1, 0)) -> Add('y')"


@pytest.mark.usefixtures("small_shards")
def test_several_convolutions_have_the_bits_of_the_ones_in_memory(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((2, 4, 13, 10, 17), dtype=np.float32)
    pipe = pipe_of(BLOCK)
    rng = np.random.default_rng(2)
    shapes = pipe.operand_shapes(x.shape, *[(4, 4, 3, 3, 3)] * 3)
    own = {n: rng.standard_normal(s, dtype=np.float32) for n, s in zip(pipe.operand_names, shapes, strict=True)}
    command = several(tmp_path, BLOCK, x, own)
    assert main([*command, "--plan"]) == 0
    assert main(command) == 0
    assert zarr.open_array(str(tmp_path / "out.zarr"))[...].tobytes() == pipe(x, **own).tobytes()


def several(folder: Path, text: str, x: Any, own: dict[str, Any]) -> list[str]:
    np.savez(folder / "w.npz", **own)
    zarr.create_array(str(folder / "in.zarr"), shape=x.shape, chunks=(1, *x.shape[1:]), dtype=x.dtype)[...] = x
    command = ["volume", str(folder / "in.zarr"), str(folder / "out.zarr"), "--pipeline", text]
    return [*command, "--weights", str(folder / "w.npz"), "--chunks", "8"]


@pytest.mark.usefixtures("small_shards")
def test_statistics_are_kept_by_a_run_that_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the result is that of an undisturbed run, byte for byte, whatever boxes a later one would choose."""
    x = np.random.default_rng(1).standard_normal((1, 4, 13, 10, 17), dtype=np.float32)
    text = "InstanceNorm() -> Conv3d(padding=1) -> ReLU() -> Conv3d(padding=1) -> GroupNorm(2) -> ReLU()"
    w = np.random.default_rng(2).standard_normal((4, 4, 3, 3, 3), dtype=np.float32)
    command = several(tmp_path, text, x, {"weight": w, "weight_2": w})
    whole = [str(tmp_path / "whole.zarr") if word.endswith("out.zarr") else word for word in command]
    assert main(whole) == 0
    walks: list[str] = []
    usual, calls = Journal.add, iter(range(99))

    def add(self: Journal, root: Path, name: str) -> None:
        if next(calls) == 2:
            raise KeyboardInterrupt
        usual(self, root, name)

    with monkeypatch.context() as ending:
        ending.setattr(Journal, "add", add)
        assert main(command) == 130
    kept = Journal.keep
    monkeypatch.setattr(Journal, "keep", lambda self, name, numbers: walks.append(name) or kept(self, name, numbers))
    monkeypatch.setattr(grid, "MOST_BYTES", 1 << 20)
    assert main(command) == 0
    assert not walks
    made, expected = (zarr.open_array(str(tmp_path / name))[...] for name in ("out.zarr", "whole.zarr"))
    assert made.tobytes() == expected.tobytes()
    np.testing.assert_allclose(made, pipe_of(text)(x, w, w), atol=1e-4)


def test_a_run_that_goes_on_needs_the_memory_it_was_begun_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, expected = prepared(tmp_path, "Conv3d()", np.ones((4, 34, 34, 34), np.float32), (64, 4, 3, 3, 3))
    command += ["--chunks", "16"]

    def ended(memory: str) -> int:
        with monkeypatch.context() as ending:
            ending.setattr(Journal, "end", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
            return main([*command, "--memory", memory])

    assert ended("2GB") == 130
    monkeypatch.setattr(volume_run.Job, "finished", lambda self: False)
    assert main([*command, "--memory", "1MB"]) == 2
    told = capsys.readouterr().err
    assert "the run that goes on began boxes that take as much. Give more memory, or begin anew" in told
    least = re.search(r"must be at least ([0-9.]+) MiB", told)
    assert least
    assert ended(f"{float(least[1]) + 1}MiB") == 130
    assert main([*command, "--memory", f"{float(least[1]) - 1}MiB", "--overwrite"]) == 0
    assert zarr.open_array(str(tmp_path / "out.zarr"))[...].tobytes() == expected[0].tobytes()


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (None, "the first of multiscales is no object"),
        ({"axes": list("zyx")}, "datasets is no list"),
        ({"axes": list("zyx"), "datasets": []}, "datasets is empty"),
        ({"axes": list("zyx"), "datasets": [{}]}, "the first of datasets has no path"),
        ({"axes": list("zyx"), "datasets": [{"path": "s9"}]}, "there is no array 's9'"),
        ({"axes": list("czyx"), "datasets": [{"path": "0"}]}, "there are 4 axes, and the array has 3"),
        ({"axes": [{}], "datasets": [{"path": "0"}]}, "an axis has no name"),
        (
            {"axes": list("zyx"), "datasets": [{"path": "0"}], "coordinateTransformations": [{"type": "scale"}]},
            "a scale is not a list of 3 numbers, one for each axis",
        ),
    ],
)
def test_metadata_that_are_not_as_they_should_be(
    tmp_path: Path, image: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, _ = prepared(tmp_path, "Conv3d()", np.ones((9, 9, 9), np.uint16), (5, 1, 3, 3, 3))
    group = zarr.create_group(str(tmp_path / "odd.zarr"), attributes={"multiscales": [image]}, zarr_format=2)
    group.create_array("0", shape=(9, 9, 9), dtype="u2")
    assert main(["volume", str(tmp_path / "odd.zarr"), *command[2:]]) == 2
    assert f"has OME-NGFF metadata that cannot be understood: {words}. Mend them" in capsys.readouterr().err


@pytest.mark.parametrize("axes", [{"axes": list("tczyx")}, {}], ids=["0.3", "0.2"])
def test_images_of_earlier_versions(tmp_path: Path, axes: Any) -> None:
    x = np.random.default_rng(1).integers(0, 999, (1, 1, 9, 10, 11), dtype=np.uint16)
    command, expected = prepared(
        tmp_path, "Conv3d()", x, (3, 1, 3, 3, 3), multiscales=[{**axes, "datasets": [{"path": "s0"}]}]
    )
    assert main(command) == 0
    group = zarr.open_group(str(tmp_path / "out.zarr"), mode="r")
    (image,) = group.attrs["ome"]["multiscales"]
    assert [axis["name"] for axis in image["axes"]] == list("tczyx")
    assert group["0"][...].tobytes() == expected.tobytes()


def test_an_empty_batch(tmp_path: Path) -> None:
    command, _ = prepared(tmp_path, "Conv3d()", np.ones((1, 1, 9, 9, 9), np.float32), (5, 1, 3, 3, 3))
    zarr.create_array(str(tmp_path / "none.zarr"), shape=(0, 1, 9, 9, 9), dtype="f4", chunks=(1, 1, 9, 9, 9))
    assert main(["volume", str(tmp_path / "none.zarr"), *command[2:]]) == 0
    assert main(["volume", str(tmp_path / "none.zarr"), *command[2:], "--plan"]) == 0
    assert zarr.open_array(str(tmp_path / "out.zarr")).shape == (0, 5, 7, 7, 7)
