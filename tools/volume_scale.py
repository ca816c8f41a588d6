"""Times a pipeline on dask: in memory, and on clusters of 1, 2 and 4 workers of one thread each, in turns.

    python tools/volume_scale.py --voxels 256 --rounds 3 --workers 2

The input, at least 2 GB with the defaults, lies in the workers' memory; chunks of the result are dropped when they are
done, as a store would. Prints one JSON document: seconds of each round, and rates of the result.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, wait

import convt3d
import convt3d.dask

PIPE = convt3d.Pipeline(convt3d.Conv3d(padding=1, bias=True), convt3d.ReLU())


def corner(block: Any) -> Any:
    return block[..., :1, :1, :1].copy()  # a view would hold all of it


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--voxels", type=int, default=256, help="along each axis")
    parser.add_argument("--chunk", type=int, nargs=3, default=(128, 128, 128))
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4])
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    w = rng.standard_normal((args.channels, args.channels, 3, 3, 3), dtype=np.float32)
    bias = rng.standard_normal(args.channels, dtype=np.float32)
    shape = (1, args.channels, args.voxels, args.voxels, args.voxels)
    size = 4 * np.prod(shape, dtype=float)
    seconds: dict[str, list[float]] = {"memory": [], **{str(n): [] for n in args.workers}}

    def in_memory() -> None:
        x = rng.standard_normal(shape, dtype=np.float32)
        y = np.empty(shape, np.float32)
        PIPE(x, w, bias, out=y)  # compiles
        for _ in range(args.rounds):
            begun = time.perf_counter()
            PIPE(x, w, bias, out=y)
            seconds["memory"].append(time.perf_counter() - begun)

    def on_cluster(workers: int) -> None:
        with (
            LocalCluster(n_workers=workers, threads_per_worker=1, memory_limit=0, dashboard_address=":0") as cluster,
            Client(cluster) as client,
        ):
            chunks = (1, args.channels, *args.chunk)
            generator = da.random.default_rng(1)
            x = generator.standard_normal(shape, dtype=np.float32, chunks=chunks).persist()
            wait(x)
            y = PIPE(x, w, bias).map_blocks(corner, chunks=(1, args.channels, 1, 1, 1), dtype=np.float32)
            client.compute(y).result()  # compiles
            for _ in range(args.rounds):
                begun = time.perf_counter()
                client.compute(y).result()
                seconds[str(workers)].append(time.perf_counter() - begun)

    in_memory()
    for workers in args.workers:
        on_cluster(workers)
    medians = {name: statistics.median(each) for name, each in seconds.items() if each}
    rates = {name: size / median / 1e6 for name, median in medians.items()}
    shares = {name: rate / rates["memory"] for name, rate in rates.items()}
    document = {"gigabytes": size / 1e9, "seconds": seconds, "megabytes_per_second": rates, "share": shares}
    print(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    with dask.config.set({"distributed.comm.timeouts.connect": "60s"}):
        sys.exit(main())
