"""What is read from machine code for GPUs: it tells spills, tensor cores and narrow loads from their absence."""

from __future__ import annotations

from typing import Any

from gpu_proof.limits import GENERATIONS
from helpers.triton import printed

HEAD = """
import dataclasses, json, torch
from helpers.kernels_gpu import product, scaled
from gpu_proof.compile import compile_call
OPTIONS = {"num_stages": 2, "enable_fp_fusion": True}
def show(facts):
    print(json.dumps({**dataclasses.asdict(facts), "kinds": facts.tensor_kinds, "wide": facts.wide_loads}))
def product_facts(generation, kind, tile, warps):
    a, b, c = torch.empty(64, dtype=kind), torch.empty(64, dtype=kind), torch.empty(64)
    constants = dict(zip(("POSITIONS", "CHANNELS", "INNER"), tile))
    return compile_call(product, generation, a, b, c, 4096, 1000, num_warps=warps, **constants, **OPTIONS)
def scaled_facts(first):
    x, y, factor = torch.empty(2048)[first:], torch.empty(1024), torch.empty(1)
    return compile_call(scaled, 80, x, y, factor, SIZE=1024, num_warps=4, **OPTIONS)
"""


def facts(*calls: str) -> list[dict[str, Any]]:
    """What these calls of the functions above say."""
    return printed(HEAD + "\n".join(f"show({call})" for call in calls))


def test_tensor_cores_of_each_generation() -> None:
    """float16 meets them; float32 by the IEEE rules must not."""
    halves = facts(*(f"product_facts({one}, torch.float16, (128, 64, 32), 8)" for one in GENERATIONS))
    assert [one["kinds"] for one in halves] == [["mma"], ["wgmma"], ["tcgen05"]]
    assert [one["tensor_columns"] > 0 for one in halves] == [False, False, True]
    assert all(one["spills"] == 0 and one["wide"] == 1.0 and one["shared"] > 0 for one in halves)
    (single,) = facts("product_facts(80, torch.float32, (64, 64, 16), 8)")
    assert single["kinds"] == []


def test_spills_are_seen() -> None:
    """256 accumulators of a thread do not fit its 255 registers."""
    (crowded,) = facts("product_facts(80, torch.float16, (256, 128, 32), 4)")
    assert crowded["registers"] == 255
    assert crowded["spills"] > 0


def test_narrow_loads_are_seen() -> None:
    """What begins off a multiple of 16 bytes may not be loaded in 16 bytes; a scalar counts as no tile."""
    aligned, odd = facts("scaled_facts(0)", "scaled_facts(1)")
    assert (aligned["loads"], aligned["wide"]) == ({"128": 2}, 1.0)  # 1024 numbers, 128 threads
    assert (odd["loads"], odd["wide"]) == ({"32": 8}, 0.0)
    assert aligned["stores"] == odd["stores"] == {"128": 2}


WIDTHS = """
import json, convt3d as ct
from convt3d.gpu.plan import gpu_plan
from gpu_proof.compile import compile_launch, launches
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.pipeline import Pipeline
pipeline, x = Pipeline(ct.ReLU(), ct.ConvTranspose3d(stride=2, padding=1), ct.Add("tensor")), (4, 64, 16, 20, 24)
plan = gpu_plan(pipeline, x, pipeline.operand_shapes(x, (64, 64, 3, 3, 3)), DTYPES["float16"])
for last in (True, False):
    _, load, conv, guard = (compile_launch(launch, 80) for launch in launches(plan, channels_last=last))
    print(json.dumps([list(kinds) for kinds in (load.loads, load.stores, conv.loads, conv.stores, guard.stores)]))
"""


def test_channels_next_to_each_other_are_loaded_and_stored_in_128_bits() -> None:
    """By a kernel without convolution, by the convolution, and of a tensor that is added; else one number at a time,
    but for the convolution's input, which always has its channels last."""
    last, contiguous = printed(WIDTHS)
    assert last == [[128]] * 5
    assert [sorted(bits) for bits in contiguous] == [[16], [128], [16, 128], [16], [16]]


SEEN = """
import json, torch, triton
from convt3d.gpu.plan import gpu_plan
from gpu_proof import compile as gpu_compile
from convt3d.spec.dtypes import DTYPES
from convt3d import ConvTranspose3d
from convt3d.spec.pipeline import Pipeline
pipeline = Pipeline(ConvTranspose3d(stride=2, bias=True))
plan = gpu_plan(pipeline, (1, 16, 3, 4, 5), ((16, 16, 2, 2, 2), (16,)), DTYPES["float16"])
seen = []
gpu_compile._facts = lambda compiled: seen.append(compiled.src)
_, _, launch, _ = gpu_compile.launches(plan)  # weights are packed and the input copied before, the twin comes after
gpu_compile.compile_launch(launch, 80)
(source,) = seen
names = launch.function.arg_names
aligned = {names[at] for (at,), given in source.attrs.items() if ["tt.divisibility", 16] in given}
fixed = {names[at]: value for (at,), value in source.constants.items()}
left_alone = {one.name: one.do_not_specialize for one in launch.function.params}
print(json.dumps([source.signature, sorted(aligned), fixed, left_alone]))
"""


def test_what_a_launch_would_tell_the_compiler() -> None:
    """Pointers with their types, all of them aligned; a number is a constant if it is 1, and known to be a multiple of
    16 if it is one, unless the kernel asks for neither."""
    ((types, aligned, fixed, left_alone),) = printed(SEEN)
    assert [types[name] for name in ("x", "w", "y")] == ["*fp16"] * 3
    assert {"x", "w", "y", "x_w"} <= set(aligned)
    assert fixed["BLOCK_K"] == 16
    assert not [name for name in fixed if left_alone[name]]
