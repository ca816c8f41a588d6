"""Ends runs of `convt3d volume` by SIGKILL at random moments, and compares what is left with an undisturbed run.

    python tools/kill_volume.py --kills 100 --seed 7

Each run goes on where the one before was killed. It is killed while it starts, or within the box that comes after so
many of those that are left, both drawn. A result that is finished meanwhile is compared, byte for byte, and begun anew.
Exit code 1: one was different.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

PIPELINE = "Conv3d(padding=1) -> InstanceNorm() -> GELU() -> ConvTranspose3d(stride=2, padding=1) -> LayerNorm()"
SMALL_SHARDS = "import sys, convt3d.volume.grid as g; g.MOST_BYTES = 1 << 17; from convt3d.cli.main import main; "


def make_volume(folder: Path, size: int) -> None:
    import zarr

    rng = np.random.default_rng(5)
    x = rng.standard_normal((2, 4, size, size, size), dtype=np.float32)
    array = zarr.create_array(str(folder / "in.zarr"), shape=x.shape, chunks=(1, 4, 16, 16, 16), dtype="f4")
    array[...] = x
    first, second = rng.standard_normal((2, 4, 4, 3, 3, 3), dtype=np.float32)
    np.savez(folder / "w.npz", weight=first, weight_2=second)


def start(folder: Path, name: str, told: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    arguments = ["volume", str(folder / "in.zarr"), str(folder / name), "--pipeline", PIPELINE]
    arguments += ["--weights", str(folder / "w.npz"), "--chunks", "16", "--json"]
    code = SMALL_SHARDS + f"sys.exit(main({arguments!r}))"
    return subprocess.Popen([sys.executable, "-c", code], stdout=told)


def content(path: Path) -> dict[str, str]:
    """Every file of a result, by its checksum."""
    files = (each for each in sorted(path.rglob("*")) if each.is_file())
    return {each.relative_to(path).as_posix(): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}


def entered(journal: Path) -> int:
    """Boxes and statistics in the journal, whose first line is neither; a run that ends removes it."""
    try:
        return max(journal.read_bytes().count(b"\n") - 1, 0)
    except FileNotFoundError:
        return 0


def undisturbed(folder: Path, name: str) -> tuple[float, float, int]:
    """Seconds that a run takes until its first box is finished, and for each box from there on; and its boxes."""
    begun = time.monotonic()
    process = start(folder, name, subprocess.PIPE)
    while process.poll() is None and not entered(folder / f"{name}.journal"):
        time.sleep(0.01)
    first = time.monotonic() - begun
    told, _ = process.communicate()
    if process.returncode:
        raise SystemExit("the undisturbed run failed")
    boxes = json.loads(told)["boxes"]
    return first, (time.monotonic() - begun - first) / boxes, boxes


def killed_in_time(process: subprocess.Popen[bytes], journal: Path, wanted: int, seconds: float) -> bool:
    """Kills a run so many seconds after its journal has the wanted boxes; False: it ended before."""
    while entered(journal) < wanted:
        if process.poll() is not None:
            return False
        time.sleep(0.001)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True
    return False


def run(folder: Path, kills: int, seed: int, size: int = 48) -> tuple[int, int, int]:
    """Kills so many runs: how many had computed something, how many results were finished meanwhile, how many of these
    were wrong."""
    make_volume(folder, size)
    first, each, boxes = undisturbed(folder, "whole.zarr")
    expected = content(folder / "whole.zarr")
    rng = random.Random(seed)
    killed = working = finished = wrong = 0
    target = folder / "killed.zarr"
    journal = target.with_name(target.name + ".journal")
    while killed < kills or not finished:
        before = entered(journal)
        ahead = rng.randrange(boxes + 1 - min(before, boxes))  # a line that was cut short counts, too
        process = start(folder, target.name)
        wanted = before + ahead if ahead else 0
        if killed < kills and killed_in_time(process, journal, wanted, rng.uniform(0, each if ahead else first)):
            killed += 1
            working += entered(journal) > before
            continue
        if code := process.wait():
            raise SystemExit(f"a run failed with exit code {code} after {killed} kills")
        finished += 1
        found = content(target)
        if found != expected:
            wrong += 1
            print(f"after {killed} kills: {sorted(set(found.items()) ^ set(expected.items()))[:4]}", file=sys.stderr)
        if journal.exists():
            wrong += 1
        if killed < kills:
            shutil.rmtree(target)
    return working, finished, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        working, finished, wrong = run(Path(folder), args.kills, args.seed)
    print(
        f"{args.kills} kills, {working} after new boxes; "
        f"{finished} finished results, {wrong} of them not those of an undisturbed run"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
