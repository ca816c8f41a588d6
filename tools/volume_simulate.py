"""Ten terabytes on a hundred workers, on paper: bytes, tasks, memory and time of a result computed by dask.

    python tools/volume_simulate.py --rate 640 --link 1000 --disk 500

Chunks go to workers in the order of the graph. A worker fetches what it needs of others' chunks, computes, and writes;
the scheduler handles so many tasks in a second. Rates are megabytes of the result in a second: of one worker as
tools/volume_scale.py measures it, of its network link, and of its share of the storage.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
from itertools import product
from math import prod

from convt3d import Conv3d, Pipeline, ReLU
from convt3d.dask.chunks import Strip, pieces, spans
from convt3d.front.boxes import Request, Take

CHANNELS = 32


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--terabytes", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--chunk", type=int, default=128)
    parser.add_argument("--rate", type=float, default=640.0)
    parser.add_argument("--link", type=float, default=1000.0)
    parser.add_argument("--disk", type=float, default=500.0)
    parser.add_argument("--tasks-per-second", type=float, default=2000.0)
    args = parser.parse_args()
    count = max(1, round((args.terabytes * 1e12 / (4 * CHANNELS)) ** (1 / 3) / args.chunk))
    size = count * args.chunk
    shape = (1, CHANNELS, size, size, size)
    chunks = ((1,), (CHANNELS,), *((args.chunk,) * count for _ in range(3)))
    kernel = (CHANNELS, CHANNELS, 3, 3, 3)
    boxes = Request(Pipeline(Conv3d(padding=1), ReLU()), shape, (kernel,), "float32").boxes
    chunk_bytes = 4 * CHANNELS * args.chunk**3
    # A chunk at each kind of place: how many strips of others' chunks it takes, and how many bytes they have.
    kinds: dict[tuple[bool, ...], tuple[int, int]] = {}
    spans_of = spans(chunks[2])
    free = [0.0] * args.workers
    tasks = moved = 0
    for at in product(range(count), repeat=3):
        ends = tuple(border for place in at for border in (place == 0, place == count - 1))
        if ends not in kinds:
            box = ((0, CHANNELS), *(spans_of[place] for place in at))
            part = boxes.part(box)  # type: ignore[arg-type]
            strips = [p.source for p in pieces(chunks, [Take(((0, 1),)), *part.reads]) if isinstance(p.source, Strip)]
            kinds[ends] = len(strips), 4 * sum(prod(strip.shape) for strip in strips)
        own, halo = kinds[ends]
        tasks += own + 2  # strips, the chunk that is read, the result
        moved += halo
        released = tasks / args.tasks_per_second
        start = max(heapq.heappop(free), released)
        seconds = chunk_bytes / 1e6 * (1 / args.rate + 2 / args.disk) + halo / 1e6 / args.link
        heapq.heappush(free, start + seconds)
    chunk_count = count**3
    ideal = chunk_count * chunk_bytes / 1e6 / args.rate / args.workers
    document = {
        "voxels": size,
        "terabytes": prod(shape) * 4 / 1e12,
        "chunks": chunk_count,
        "chunk_megabytes": chunk_bytes / 1e6,
        "tasks": tasks + 1,
        "gigabytes_between_workers": moved / 1e9,
        "megabytes_of_weights": 4 * prod(kernel) / 1e6 * args.workers,
        "gigabytes_of_memory_for_a_worker": 4 * chunk_bytes / 1e9,
        "seconds": max(free),
        "seconds_of_arithmetic": ideal,
        "seconds_of_the_scheduler": tasks / args.tasks_per_second,
    }
    print(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
