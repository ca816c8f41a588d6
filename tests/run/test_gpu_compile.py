"""What is read from machine code for GPUs: it tells spills, tensor cores and narrow loads from their absence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from helpers.triton import compiling_environment, need_triton

from convt3d.plan.gpu_limits import GENERATIONS

ROOT = Path(__file__).resolve().parents[2]
HEAD = """
import dataclasses, json
from helpers.kernels_gpu import product, scaled
from convt3d.run.gpu_compile import compile_kernel
OPTIONS = {"num_stages": 2, "enable_fp_fusion": True}
def show(facts):
    print(json.dumps({**dataclasses.asdict(facts), "kinds": facts.tensor_kinds, "wide": facts.wide_loads}))
def product_facts(generation, kind, tile, warps, aligned):
    types = {"a": kind, "b": kind, "c": "*fp32", "pitch": "i32", "depth": "i32"}
    constants = dict(zip(("POSITIONS", "CHANNELS", "INNER"), tile))
    return compile_kernel(product, generation, types, constants, frozenset(aligned), {**OPTIONS, "num_warps": warps})
def scaled_facts(aligned):
    types = dict.fromkeys(("x", "y", "factor"), "*fp32")
    return compile_kernel(scaled, 80, types, {"SIZE": 1024}, frozenset(aligned), {**OPTIONS, "num_warps": 4})
"""
ALL = ("a", "b", "c", "pitch")


def facts(*calls: str) -> list[dict[str, Any]]:
    """Of a process of its own: where Triton was imported to interpret, it cannot compile."""
    need_triton()
    environment = compiling_environment()
    environment["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}"
    done = subprocess.run(
        [sys.executable, "-c", HEAD + "\n".join(f"show({call})" for call in calls)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_tensor_cores_of_each_generation() -> None:
    """float16 meets them; float32 by the IEEE rules must not."""
    halves = facts(*(f"product_facts({one}, '*fp16', (128, 64, 32), 8, {ALL})" for one in GENERATIONS))
    assert [one["kinds"] for one in halves] == [["mma"], ["wgmma"], ["tcgen05"]]
    assert [one["tensor_columns"] > 0 for one in halves] == [False, False, True]
    assert all(one["spills"] == 0 and one["wide"] == 1.0 and one["shared"] > 0 for one in halves)
    (single,) = facts(f"product_facts(80, '*fp32', (64, 64, 16), 8, {ALL})")
    assert single["kinds"] == []


def test_spills_are_seen() -> None:
    """256 accumulators of a thread do not fit its 255 registers."""
    (crowded,) = facts(f"product_facts(80, '*fp16', (256, 128, 32), 4, {ALL})")
    assert crowded["registers"] == 255
    assert crowded["spills"] > 0


def test_narrow_loads_are_seen() -> None:
    """Without a word about alignment nothing may be loaded in 16 bytes; a scalar counts as no tile."""
    aligned, unknown = facts("scaled_facts(('x', 'y', 'factor'))", "scaled_facts(('y',))")
    assert (aligned["loads"], aligned["wide"]) == ({"128": 2}, 1.0)  # 1024 numbers, 128 threads
    assert (unknown["loads"], unknown["wide"]) == ({"32": 8}, 0.0)
    assert aligned["stores"] == unknown["stores"] == {"128": 2}
