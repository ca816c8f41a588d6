"""The suite `networks`: whole networks, eager and compiled by others beside convt3d's backend, in turns.

Everyone's first result is compared with eager's before anyone is timed. A row has seconds of every round, those of the
first call, which for those who compile holds the compilation, and the memory that a later call needs.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from ..cpu.runtime.memory import free_scratch
from ..front.memory import PeakMemory
from ..torch.backend import optimize
from .contenders.base import NotInstalledError, Ready
from .networks import NETWORKS, Network
from .rounds import FULL, QUICK, play

OWN = "convt3d"
TOLERANCE = 1e-3  # share of the scale: networks of fifty layers, whose sums have other orders


def _called(model: Callable[..., Any], x: Any) -> Callable[[], Any]:
    def run() -> Any:
        with torch.no_grad():
            result = model(x)
        return result[0] if isinstance(result, (tuple, list)) else result

    return run


def _channels_last(model: Any, x: Any) -> Callable[[], Any]:
    layout = torch.channels_last_3d
    return _called(model.to(memory_format=layout), x.contiguous(memory_format=layout))


def _openvino(model: Any, x: Any) -> Callable[[], Any]:
    if importlib.util.find_spec("openvino") is None:
        raise NotInstalledError("pip install '.[bench]'")
    openvino = importlib.import_module("openvino")
    threads = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.compile_model(openvino.convert_model(model, example_input=x), "CPU", threads)
    return lambda: torch.from_numpy(compiled([x.numpy()])[0])


CONTENDERS: dict[str, Callable[[Any, Any], Callable[[], Any]]] = {
    "torch": _called,
    OWN: lambda model, x: _called(optimize(model), x),
    "torch-channels-last": _channels_last,
    "torch-compile": lambda model, x: _called(torch.compile(model), x),
    "openvino": _openvino,
}
NOT_QUICK = ("torch-compile", "openvino")


def measure_network(network: Network, names: Sequence[str], quick: bool, threads: int) -> dict[str, Any]:
    """A row: for every contender its status, and seconds if its result is eager's."""
    torch.set_num_threads(threads)
    torch._dynamo.reset()
    found: dict[str, dict[str, Any]] = {}
    if network.package and importlib.util.find_spec(network.package) is None:
        found = {name: {"status": "not installed", "note": network.package} for name in names}
        return {"suite": "networks", "name": network.name, "contenders": found}
    x = network.input(quick)
    expected = _called(network.build(), x)()
    ready: dict[str, Ready] = {}
    for name in names:
        try:
            begun = time.perf_counter()
            run = CONTENDERS[name](network.build(), x)
            got = run()
            first = time.perf_counter() - begun
        except NotInstalledError as reason:
            found[name] = {"status": reason.status, "note": str(reason)}
            continue
        except Exception as error:  # a peer may fail in any way: that is a finding, and the others go on
            found[name] = {"status": "failed", "note": f"{type(error).__name__}: {str(error).strip()[:200]}"}
            continue
        off = float((got - expected).abs().max() / expected.abs().max())
        found[name] = {"status": "ok" if off <= TOLERANCE else "wrong", "error": off, "first_seconds": first}
        if found[name]["status"] == "ok":
            found[name]["extra_bytes"] = _extra_memory(run)
            ready[name] = Ready(run, lambda tensor: tensor.numpy())
    played = play(ready, {}, _warm(ready), QUICK if quick else FULL)
    for name, seconds in played.seconds.items():
        found[name]["seconds"] = seconds
    shape = list(x.shape)
    return {
        "suite": "networks",
        "name": network.name,
        "x": shape,
        "threads": threads,
        "quick": quick,
        "foreign": played.foreign,
        "contenders": found,
    }


def _extra_memory(run: Callable[[], Any]) -> int | None:
    """Bytes that a call needs beyond weights, code and all that was freed before it; its result is among them."""
    gc.collect()
    free_scratch()
    with suppress(AttributeError, OSError):  # what glibc has kept of other calls
        ctypes.CDLL(None).malloc_trim(0)
    watch = PeakMemory()
    run()
    return watch.extra()


def _warm(ready: Mapping[str, Ready]) -> dict[str, float]:
    seconds = {}
    for name, one in ready.items():
        begun = time.perf_counter()
        one.run()
        seconds[name] = time.perf_counter() - begun
    return seconds


def chosen_networks(words: Sequence[str]) -> list[Network]:
    return [each for name, each in NETWORKS.items() if not words or any(word in name for word in words)]
