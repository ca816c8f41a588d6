"""Who takes part: convt3d and its peers, by name. A library is imported when its contender is asked for."""

from __future__ import annotations

from importlib import import_module

from ...errors import ArgumentError
from .base import Absent, Contender

# Name -> module here whose `contender(name)` makes it. Ours come first; names of ours begin with "convt3d".
MODULES = {
    "convt3d": "own",
    "convt3d-direct": "own",
    "convt3d-prepared": "own",
    "torch": "eager",
    "torch-channels-last": "eager",
    "torch-compile": "compiled",
    "torch-kept": "kept",
    "torch-channels-last-kept": "kept",
    "torch-compile-kept": "kept",
    "onnxruntime": "onnx_runtime",
    "openvino": "open_vino",
    "jax": "xla",
}
TRAINED = ("convt3d", "torch", "torch-channels-last", "torch-kept", "torch-channels-last-kept")  # know gradients too
BRINGS_THEM = "pip install '.[bench]' in a checkout brings what is missing"
PACKAGES = ("convt3d", "numpy", "llvmlite", "torch", "onnx", "onnxruntime", "openvino", "jax", "jaxlib")


def find_contender(name: str) -> Contender:
    if name not in MODULES:
        rule = f"must be one of {', '.join(MODULES)}"
        raise ArgumentError("bench", "--peer", name, rule, "Choose one of them")
    try:
        made: Contender = import_module(f".{MODULES[name]}", __package__).contender(name)
    except ModuleNotFoundError as missing:
        return Absent(f"{missing.name} is not installed; {BRINGS_THEM}")
    return made
