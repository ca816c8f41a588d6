"""Times calls of convt3d.jax beside other ways to compute the same: the table and the figures of docs/jax.md.

Each way has a process of its own, since a record made for one would serve the others; they take turns.

python tools/jax_speed.py --turns 2
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import convt3d.jax
from convt3d.jax import calls
from convt3d.jax.formulas import jax_function
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.text import read_stages

LAYERS = {
    "ConvTranspose3d(stride=2)": ((1, 4, 2, 2, 2), (4, 4, 2, 2, 2)),
    "ConvTranspose3d(stride=2) -> ReLU()": ((1, 16, 8, 8, 8), (16, 16, 3, 3, 3)),
    "ConvTranspose3d(stride=2) -> LayerNorm() -> GELU()": ((1, 64, 16, 16, 16), (64, 32, 3, 3, 3)),
}
WAYS = ("jit", "record", "through Python", "pure_callback", "XLA's own")
OURS = WAYS[1:3]
BUSY = "ConvTranspose3d(stride=2) -> ReLU()"  # also timed beside a thread that runs Python all the time
CALLS = 20  # of a compiled loop there
SECONDS, MOST = 0.4, 300  # of one median


def function(way: str, pipeline: Pipeline, x: Any, w: Any) -> Callable[[Any, Any], Any]:
    if way == "jit":
        return lambda x, w: x + 1
    if way == "XLA's own":
        formula = jax_function(pipeline)
        return lambda x, w: formula(x, [w])
    if way == "pure_callback":
        shape = jax.ShapeDtypeStruct(pipeline.trace(x.shape, (w.shape,)).output, x.dtype)
        ours = convt3d.Pipeline(*pipeline.stages)
        return lambda x, w: jax.pure_callback(lambda x, w: ours(np.asarray(x), np.asarray(w)), shape, x, w)
    return lambda x, w: convt3d.jax.pipeline(x, [w], pipeline)


def repeated(own: Callable[[Any, Any], Any]) -> Any:
    """A compiled loop of calls, each of which needs the one before."""

    def step(x: Any, w: Any) -> Any:
        return x + own(x, w)[0, 0, 0, 0, 0]

    return jax.jit(lambda x, w: jax.lax.scan(lambda x, _: (step(x, w), None), x, length=CALLS))


def timed(call: Callable[[], Any]) -> float:
    """Microseconds; the first calls, which compile and record, do not count."""
    taken: list[float] = []
    for turn in range(MOST):
        start = time.perf_counter()
        jax.block_until_ready(call())
        taken.append(time.perf_counter() - start)
        if turn > 8 and sum(taken[5:]) > SECONDS:
            break
    return 1e6 * median(taken[5:])


@contextmanager
def busy() -> Iterator[None]:
    ended = threading.Event()

    def spin() -> None:
        while not ended.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    yield
    ended.set()
    thread.join()


def one(way: str) -> None:
    """Prints the times of a way, layer by layer, and of the busy case, as JSON."""
    if way == "through Python":
        calls._MOST_COMPARED = -1  # so that nothing is recorded
    rng, found = np.random.default_rng(0), []
    for text, shapes in LAYERS.items():
        x, w = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes)
        own = function(way, Pipeline(*read_stages(text)), x, w)
        found.append(timed(partial(jax.jit(own), x, w)))
        if text == BUSY and way in OURS:
            loop = partial(repeated(own), x, w)
            jax.block_until_ready([loop() for _ in range(3)])
            with busy():
                beside = timed(loop) / CALLS
    print(json.dumps([*found, *([beside] if way in OURS else [])]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--way", choices=WAYS, help="only this one, in this process")
    args = parser.parse_args()
    if args.way:
        return one(args.way)
    taken: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for _ in range(args.turns):
        for way in WAYS:
            done = subprocess.run([sys.executable, __file__, "--way", way], capture_output=True, text=True, check=True)
            taken[way].append(json.loads(done.stdout))
    medians = {way: [median(each) for each in zip(*rows, strict=True)] for way, rows in taken.items()}
    print(f"| | {' | '.join(WAYS)} |")
    for at, text in enumerate(LAYERS):
        print(f"| {text} | {' | '.join(f'{medians[way][at]:,.0f}' for way in WAYS)} |")
    print(f"beside a busy thread: {', '.join(f'{way} {medians[way][-1]:,.0f}' for way in OURS)}")


if __name__ == "__main__":
    main()
