"""Times a pipeline on dask: in memory, by dask's own threads, and on clusters of 1, 2 and 4 workers of one thread each.

    python tools/volume_scale.py --workers 1 2 4 --rounds 5
    python tools/volume_scale.py --workers 2 --deconvolution --chunk 64 64 64

The result has 2 GB with the defaults. The input lies in the workers' memory; chunks of the result are dropped when they
are done, as a store would. Each round also times the same in memory: machines become faster and slower in between.
Prints one JSON document: seconds of each round, rates of the result, and their share of the rate in memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, wait

import convt3d
import convt3d.dask
from convt3d.cpu.plan.cores import get_num_threads

CONVOLUTION = convt3d.Pipeline(convt3d.Conv3d(padding=1, bias=True), convt3d.ReLU())
DECONVOLUTION = convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2, padding=1, bias=True), convt3d.ReLU())


def corner(block: Any) -> Any:
    return block[..., :1, :1, :1].copy()  # a view would hold all of it


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--voxels", type=int, default=256, help="of the result, along each axis")
    parser.add_argument("--chunk", type=int, nargs=3, default=(128, 128, 128), help="of the input")
    parser.add_argument("--deconvolution", action="store_true", help="with stride 2 and a kernel of 4")
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4])
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    pipe, kernel, stride = (DECONVOLUTION, 4, 2) if args.deconvolution else (CONVOLUTION, 3, 1)
    w = rng.standard_normal((args.channels, args.channels, *(kernel,) * 3), dtype=np.float32)
    bias = rng.standard_normal(args.channels, dtype=np.float32)
    shape = (1, args.channels, *(args.voxels // stride,) * 3)
    chunks = (1, args.channels, *args.chunk)
    result = (1, args.channels, *(args.voxels,) * 3)
    size = 4 * np.prod(result, dtype=float)
    x, y = rng.standard_normal(shape, dtype=np.float32), np.empty(result, np.float32)
    seconds: dict[str, dict[str, list[float]]] = {}

    def timed(name: str, call: Callable[[], object]) -> None:
        calls = {"memory": lambda: pipe(x, w, bias, out=y), name: call}
        for run in calls.values():
            run()  # compiles
        seconds[name] = {each: [] for each in calls}
        for _ in range(args.rounds):
            for each, run in calls.items():
                begun = time.perf_counter()
                run()
                seconds[name][each].append(time.perf_counter() - begun)

    def lazily(x: da.Array) -> da.Array:
        return pipe(x, w, bias).map_blocks(corner, chunks=(1, args.channels, 1, 1, 1), dtype=np.float32)

    def on_cluster(workers: int) -> None:
        with (
            LocalCluster(n_workers=workers, threads_per_worker=1, memory_limit=0, dashboard_address=":0") as cluster,
            Client(cluster) as client,
        ):
            held = da.random.default_rng(1).standard_normal(shape, dtype=np.float32, chunks=chunks).persist()
            wait(held)
            later = lazily(held)
            timed(f"{workers} workers", lambda: client.compute(later).result())

    local = lazily(da.from_array(x, chunks=chunks))
    timed("threads", lambda: local.compute(scheduler="threads", num_workers=get_num_threads()))
    for workers in args.workers:
        on_cluster(workers)
    medians = {name: {each: statistics.median(own) for each, own in rows.items()} for name, rows in seconds.items()}
    rates = {name: {each: size / own / 1e6 for each, own in rows.items()} for name, rows in medians.items()}
    shares = {name: rows[name] / rows["memory"] for name, rows in rates.items()}
    document = {"gigabytes": size / 1e9, "seconds": seconds, "megabytes_per_second": rates, "share": shares}
    print(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    with dask.config.set({"distributed.comm.timeouts.connect": "60s"}):
        sys.exit(main())
