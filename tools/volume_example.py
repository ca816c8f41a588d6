"""Times a convolution of a zarr volume on disk, by `convt3d volume` and by dask's threads, and compares the bytes.

    python tools/volume_example.py --folder /tmp/volume --voxels 320

With the defaults 4.2 GB of input, 32 channels of float32 that are not compressed, and as much of a result. Prints one
JSON document; the folder is removed at the end. What the system keeps of the input in its memory is not dropped before.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

PIPELINE = "Conv3d(padding=1, bias=True) -> ReLU()"
BY_DASK = """
import sys, dask.array as da, numpy as np, convt3d, convt3d.dask, zarr
folder, w = sys.argv[1], np.load(sys.argv[1] + "/w.npz")
pipe = convt3d.Pipeline(convt3d.Conv3d(padding=1, bias=True), convt3d.ReLU())
y = pipe(da.from_zarr(folder + "/in.zarr"), w["weight"], w["bias"])
y.to_zarr(folder + "/dask.zarr")
"""


def make(folder: Path, channels: int, voxels: int) -> None:
    import zarr

    rng = np.random.default_rng(0)
    shape, chunk = (channels, voxels, voxels, voxels), (channels, 64, 80, 160)
    array = zarr.create_array(str(folder / "in.zarr"), shape=shape, chunks=chunk, dtype="f4", compressors=None)
    for start in range(0, voxels, 64):
        array[:, start : start + 64] = rng.standard_normal(array[:, start : start + 64].shape, dtype=np.float32)
    weight = rng.standard_normal((channels, channels, 3, 3, 3), dtype=np.float32)
    np.savez(folder / "w.npz", weight=weight, bias=rng.standard_normal(channels, dtype=np.float32))


def timed(command: list[str]) -> tuple[float, float]:
    """Seconds, and gigabytes that the process, as the largest so far, had in memory."""
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9


def equal(folder: Path) -> bool:
    import zarr

    a, b = (zarr.open_array(str(folder / name), mode="r") for name in ("out.zarr", "dask.zarr"))
    return all(a[:, d : d + 64].tobytes() == b[:, d : d + 64].tobytes() for d in range(0, a.shape[1], 64))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--voxels", type=int, default=320)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--only", choices=["make", "run"], help="the input, or what comes after it, alone")
    args = parser.parse_args()
    if args.only != "run":
        args.folder.mkdir(parents=True)
        make(args.folder, args.channels, args.voxels)
    if args.only == "make":
        return 0
    size = 4 * args.channels * args.voxels**3 / 1e9
    command = ["volume", "in.zarr", "out.zarr", "--pipeline", PIPELINE, "--weights", "w.npz", "--memory", args.memory]
    paths = [str(args.folder / word) if word.endswith((".zarr", ".npz")) else word for word in command]
    document: dict[str, object] = {"gigabytes": size}
    for name, line in {
        "volume": [sys.executable, "-m", "convt3d", *paths],
        "dask": [sys.executable, "-c", BY_DASK, str(args.folder)],
    }.items():
        seconds, memory = timed(line)
        document[name] = {"seconds": seconds, "gigabytes_per_second": size / seconds, "gigabytes_of_memory": memory}
    document["equal"] = equal(args.folder)
    shutil.rmtree(args.folder)
    print(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
