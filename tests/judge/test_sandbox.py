"""The sandbox and its memory: limits hold, zones and fences are where they should be, nothing gets out."""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

from convt3d.judge.arena import PAGE, SIDES, ZONE_BYTE, Arena, region_bytes, unwritten
from convt3d.judge.picture import as_png, as_text
from convt3d.judge.sandbox import Ended, Limits, Sandbox, TimedOut
from convt3d.judge.starter import LANGUAGES, file_name, starter
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.problems import PROBLEMS

linux = pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
FAST = Limits(seconds=5, start_seconds=20, memory=2**30)


def run(code: str, limits: Limits = FAST, **options) -> tuple[int, str]:
    with Sandbox([sys.executable, "-I", "-S", "-c", code], limits, **options) as box:
        return box.run(), box.text


def test_exit_code_and_output() -> None:
    code, text = run("import sys; print('so'); sys.stderr.write('and so'); sys.exit(7)")
    assert (code, sorted(text.splitlines())) == (7, ["and so", "so"])


def test_a_signal_is_no_exit_code() -> None:
    with pytest.raises(Ended) as ended:
        run("import os; os.abort()")
    assert ended.value.words() == "it was ended by SIGABRT"


def test_time_is_limited() -> None:
    with pytest.raises(TimedOut):
        run("while True: pass", Limits(start_seconds=0.5))


def test_memory_is_limited() -> None:
    assert "MemoryError" in run("bytearray(2**40)")[1]


@linux
def test_memory_of_many_processes_is_limited_together() -> None:
    code = "import os, time\nfor _ in range(4): os.fork() or [bytearray(b'x') * 2**28, time.sleep(60)]\ntime.sleep(60)"
    with pytest.raises(Ended) as ended:
        run(code, Limits(start_seconds=30, memory=2**29), may_exec=True)
    assert "GiB of memory" in ended.value.words() or "processes" in ended.value.words()


def test_only_the_end_of_a_flood_is_kept() -> None:
    text = run("import os\nfor i in range(1000): os.write(1, b'x' * 999 + b'\\n')\nos.write(1, b'the end')")[1]
    assert text.endswith("the end")
    assert len(text) < 20_000


def test_the_folder_goes_with_the_sandbox() -> None:
    with Sandbox([sys.executable, "-I", "-S", "-c", "open('left', 'w').write('x')"], FAST) as box:
        box.run()
        assert os.path.isdir(box.folder)
    assert not os.path.exists(box.folder)


def test_the_environment_of_the_caller_stays_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_CALLER", "1")
    assert run("import os; print('SECRET_OF_THE_CALLER' in os.environ)")[1] == "False"


@linux
def test_no_privileges() -> None:
    status = run("print(open('/proc/self/status').read())")[1]
    kept = {line.split(":")[0]: line.split(":")[1].strip() for line in status.splitlines() if ":" in line}
    assert int(kept["CapEff"], 16) == 0
    assert kept["NoNewPrivs"] == "1"


@linux
def test_no_other_program_and_no_signal_to_others() -> None:
    """Where the system has seccomp; elsewhere a killed keeper ends the judgement with a crash."""
    if "Seccomp:\t2" not in run("print(open('/proc/self/status').read())")[1]:
        pytest.skip("no seccomp here")
    code = "import os\ntry:\n    {}\nexcept PermissionError:\n    print('refused')"
    assert run(code.format("os.execv('/bin/sh', ['sh', '-c', 'echo started'])"))[1] == "refused"
    assert run(code.format(f"os.kill({os.getpid()}, 0)"))[1] == "refused"
    assert run(code.format("os.kill(os.getppid(), 9)"))[1] == "refused"
    assert run("import os; os.kill(os.getpid(), 0); print('itself')")[1] == "itself"
    assert run("import os; os.execv('/bin/sh', ['sh', '-c', 'echo started'])", may_exec=True)[1] == "started"


@linux
def test_files_outside_the_folder_cannot_be_written(tmp_path: Path) -> None:
    target = tmp_path / "outside"
    text = run(f"open({str(target)!r}, 'w')")[1]
    if target.exists():
        pytest.skip("no Landlock here: kernels in Python are still refused by the audit hook")
    assert "PermissionError" in text or "Read-only file system" in text


@linux
def test_what_is_worked_after_a_reply_is_known() -> None:
    """A program that answers at once and works on: it is stopped there and then, and its processor time is told."""
    ours, theirs = os.pipe()
    code = f"import os\nos.write({theirs}, b'done\\n')\nwhile True: pass"
    with Sandbox([sys.executable, "-I", "-S", "-c", code], FAST, fds=[theirs]) as box:
        assert box.read_reply(ours, 5)[0] == b"done"
        box.halt()
        assert box.stop() == 0
        used = box.processor_seconds()
        assert used > 0
        assert box.processor_seconds() == used
        box.resume()
        time.sleep(0.1)
        box.stop()
        assert box.processor_seconds() > used
    os.close(ours)
    os.close(theirs)


def test_an_end_that_is_told_together_with_the_start_is_not_waited_for() -> None:
    """A program may be over before anybody listens. What it replied by then counts."""
    ours, theirs = os.pipe()
    code = f"import os\nos.write({theirs}, b'done\\n')\nos._exit(3)"
    box = Sandbox([sys.executable, "-I", "-S", "-c", code], FAST, fds=[theirs])
    told = b""
    while b"status" not in told:
        told += os.read(box._news, 4096)
    at_once, all_told = os.pipe()
    os.write(all_told, told)
    os.dup2(at_once, box._news)
    with box:
        assert box.read_reply(ours, 5)[0] == b"done"
        with pytest.raises(Ended) as ended:
            box.read_reply(ours, 5)
        assert ended.value.words() == "it ended itself with exit code 3"
        assert box.run() == 3
    for fd in (ours, theirs, at_once, all_told):
        os.close(fd)


# --- memory -----------------------------------------------------------------------------------------------------------

SIZES = {"input": 120, "kernel": 48, "output": 5000}


@pytest.fixture
def arena() -> Arena:
    inputs = region_bytes(SIZES["input"]) + region_bytes(SIZES["kernel"])
    made = Arena(inputs, region_bytes(SIZES["output"]))
    yield made
    made.close()


@pytest.mark.parametrize("side", SIDES)
def test_arrays_touch_their_fence(arena: Arena, side: str) -> None:
    arena.lay(SIZES, side)
    for place in arena.places.values():
        edge = place.region[1] - PAGE - place.array[1] if side == "end" else place.array[0] - place.region[0] - PAGE
        assert edge == 0
    assert [region["name"] for region in arena.regions()] == list(SIZES)
    assert arena.damage(4) is None


@pytest.mark.parametrize("side", SIDES)
def test_an_address_names_the_array_it_is_near(arena: Arena, side: str) -> None:
    arena.lay(SIZES, side)
    base, slot = 10 * PAGE, 2**20 * PAGE
    for number, (region, size) in enumerate(zip(arena.regions(), SIZES.values(), strict=True)):
        start, name = base + number * slot + slot // 2 + region["array"], region["name"]
        for address, words in (
            (start - 1, f"1 element before `{name}`"),
            (start - 4001, f"1001 elements before `{name}`"),
            (start + size, f"1 element behind `{name}`"),
            (start + size + 2**30, f"{2**28 + 1} elements behind `{name}`"),
        ):
            assert arena.spot(address, base, slot, 4).words() == words
        assert arena.spot(start + size - 1, base, slot, 4).inside == size // 4 - 1
    assert arena.spot(0, base, slot, 4) is None
    assert arena.spot(base + 3 * slot, base, slot, 4) is None


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize(("step", "where"), [(-1, "before"), (0, "behind")])
def test_a_byte_in_a_zone_is_seen(arena: Arena, side: str, name: str, step: int, where: str) -> None:
    arena.lay(SIZES, side)
    place = arena.places[name]
    at = place.array[0] - 1 if step else place.array[1]
    arena.bytes[place.file][at] ^= 1
    assert arena.damage(4) == f"1 bytes {where} `{name}` were written, the nearest 1 elements away"


@pytest.mark.parametrize("dtype", DTYPES)
def test_output_starts_as_nan_that_nobody_computes(arena: Arena, dtype: str) -> None:
    kind = DTYPES[dtype]
    arena.lay(SIZES, "end")
    arena.clear_output(kind)
    output = arena.read_output(kind, (5000 // kind.itemsize,))
    assert np.isnan(kind.widen(output)).all()
    assert (output.view(f"u{kind.itemsize}") == unwritten(kind)).all()
    assert unwritten(kind) != kind.narrow(np.array(np.nan)).view(f"u{kind.itemsize}")


def test_zones_read_as_nan() -> None:
    for kind in DTYPES.values():
        raw = np.full(kind.itemsize, ZONE_BYTE, np.uint8).view(kind.storage)
        assert np.isnan(kind.widen(raw)).all()


@linux
def test_sealed_inputs_cannot_be_mapped_for_writing() -> None:
    arena = Arena(PAGE, PAGE, sealed=True)
    try:
        with pytest.raises(PermissionError):
            mmap.mmap(arena.fds[0], PAGE, mmap.MAP_SHARED, mmap.PROT_WRITE)
        arena.bytes[0][0] = 1  # the judge's own mapping goes on
    finally:
        arena.close()


def test_no_named_shared_memory(arena: Arena) -> None:
    assert all(os.fstat(fd).st_nlink == 0 for fd in arena.fds)


# --- pictures and starters --------------------------------------------------------------------------------------------


def test_picture_as_text() -> None:
    wrong = np.zeros((1, 2, 2, 2, 3), bool)
    wrong[0, 1, 1, 0, 2] = wrong[0, 1, 0, 1, 0] = True
    assert as_text(wrong, (0, 1, 0, 1, 0)).splitlines() == [
        "sample 0, channel 1: # wrong, . right",
        "d=0  d=1",
        "...  ..#",
        "#..  ...",
    ]


def test_a_large_picture_is_cut_and_says_so() -> None:
    lines = as_text(np.ones((1, 1, 40, 50, 300), bool), (0, 0, 20, 0, 0)).splitlines()
    assert lines[-1] == "(1 of 40 depths, 24 of 50 rows, 100 of 300 columns)"
    assert max(map(len, lines)) <= 120


def test_picture_as_png() -> None:
    """Decoded by hand: size, and one pixel of each kind."""
    wrong = np.zeros((1, 2, 2, 2, 3), bool)
    wrong[0, 1, 0, 1, 2] = True
    data = as_png(wrong, (0, 1, 0, 1, 2))
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(data):
        (length,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        chunks[kind] = data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + chunks[kind])
        at += 12 + length
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    assert (width, height) == (2 * 4 * 4, 2 * 3 * 4)
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    image = rows[:, 1:].reshape(height, width, 3)
    assert tuple(image[(3 + 1) * 4, 2 * 4]) == (200, 40, 40)
    assert tuple(image[0, 0]) == (214, 222, 214)
    assert tuple(image[2 * 4, 0]) == (255, 255, 255)


@pytest.mark.parametrize("slug", PROBLEMS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_starter_names_its_problem_and_all_parameters(slug: str, language: str) -> None:
    text = starter(PROBLEMS[slug], language)
    assert f"convt3d problem: {slug}\n" in text
    assert all(parameter.name in text for parameter in PROBLEMS[slug].parameters)
    if language in ("python", "triton"):
        compile(text, "starter", "exec")
    assert file_name(PROBLEMS[slug], language).startswith(slug.replace("-", "_"))


@pytest.mark.parametrize("slug", PROBLEMS)
@pytest.mark.parametrize("language", ["python", "c"])
def test_starter_runs_and_lacks_only_the_computation(judge, slug: str, language: str) -> None:
    """Zeros in every voxel: the sizes are right, the values are not."""
    from convt3d.judge.languages import compiler_of

    if language == "c" and compiler_of("c") is None:
        pytest.skip("no C compiler on this machine")
    suffix = {"python": ".py", "c": ".c"}[language]
    judgement = judge(starter(PROBLEMS[slug], language), slug, suffix, cases=("unequal-everything",))
    assert judgement.verdict.word == "wrong values"
    assert judgement.verdict.figures["never_written"] == 0
    assert not judgement.failure.output.any()
