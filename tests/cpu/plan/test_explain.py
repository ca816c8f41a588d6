"""An explanation names the stages, steps and end of every sweep, and its figures are those of the run."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from helpers.chains import Chain, chains
from hypothesis import given

from convt3d import (
    GELU,
    Add,
    AvgPool3d,
    BatchNorm,
    Clamp,
    Conv3d,
    ConvTranspose3d,
    Exp,
    GroupNorm,
    InstanceNorm,
    Keep,
    LayerNorm,
    MaxPool3d,
    Multiply,
    Pipeline,
    Recall,
    ReLU,
    Sigmoid,
    Softmax,
    Subtract,
    Sum,
    num_threads,
)
from convt3d.cpu.plan.describe import describe
from convt3d.cpu.plan.explain import explain, scratch_of_all, tiles
from convt3d.cpu.plan.plan import Plan, make_plan
from convt3d.cpu.plan.roofline import Load, Rates, assumed_rates, caller_bytes, loads, packed_weights, tile_statistics
from convt3d.cpu.runtime.packing import pack
from convt3d.cpu.runtime.ready import bindings
from convt3d.spec.dtypes import DTYPES

X, W = (2, 3, 4, 5, 6), (3, 4, 3, 2, 3)  # by stride 2: (2, 4, 9, 10, 13)
VALUE = 2 * 4 * 9 * 10 * 13
RATES = Rates(100e9, 10e9, "given")


def plan_of(*stages: Any, dtype: str = "float32", x: Any = X, w: Any = W) -> Plan:
    pipe = Pipeline(*stages)
    return make_plan(pipe, x, pipe.operand_shapes(x, w), DTYPES[dtype])


# --- passes in words --------------------------------------------------------------------------------------------------

SHARED = [
    pytest.param(
        (AvgPool3d(2), ConvTranspose3d(stride=2), Clamp(0.0, 1.0), Softmax("spatial"), Multiply("channel")),
        [("AvgPool3d", "ConvTranspose3d", "Clamp", "Softmax (statistics)"), ("Softmax (applied)",)],
        ["Softmax over space needs all voxels of a channel: statistics of tiles ("],
        id="softmax over space",
    ),
    pytest.param(
        (ConvTranspose3d(stride=2), Keep("y"), Softmax("spatial"), Exp(), Multiply("y")),
        [("ConvTranspose3d", "Softmax (statistics)"), ("Softmax (applied)", "Exp", "Multiply")],
        ["Softmax over space"],
        id="an exponential after that of the softmax; a kept value",
    ),
    pytest.param(
        (ConvTranspose3d(stride=2), Keep("k"), ReLU(), Add("k"), GroupNorm(2), Sum("spatial"), Add(1.0)),
        [
            ("ConvTranspose3d", "Keep", "ReLU", "Add", "GroupNorm (statistics)"),
            ("GroupNorm (applied)", "Sum"),
            ("Add",),
        ],
        ["all voxels of a group of channels", "then sweep 3 starts from the result"],
        id="norm, then reduction",
    ),
    pytest.param(
        (ConvTranspose3d(stride=2), InstanceNorm(), InstanceNorm()),
        [
            ("ConvTranspose3d", "InstanceNorm (statistics)"),
            ("InstanceNorm (applied)", "InstanceNorm (statistics)"),
            ("InstanceNorm (applied)",),
        ],
        ["InstanceNorm over space", "then sweep 3 applies them"],
        id="one norm after another",
    ),
    pytest.param(
        (ConvTranspose3d(stride=2), LayerNorm("width"), MaxPool3d(2)),
        [("ConvTranspose3d", "LayerNorm"), ("MaxPool3d",)],
        ["LayerNorm over width needs whole rows, and sweep 2 reads windows of them"],
        id="windows of normed rows",
    ),
    pytest.param(
        (LayerNorm("width"), ReLU(), LayerNorm("width"), ConvTranspose3d(stride=2)),
        [("LayerNorm", "ReLU", "LayerNorm"), ("ConvTranspose3d",)],
        ["LayerNorm over width needs whole rows, and sweep 2 reads windows of them"],
        id="windows of rows that are normed twice",
    ),
    pytest.param(
        (ConvTranspose3d(stride=2), Keep("y"), Sum(), Subtract("y")),
        [("ConvTranspose3d",), ("Sum",), ("Subtract",)],
        ["is kept", "sweep 3 repeats the value from 2x1x9x10x13 to 2x4x9x10x13"],
        id="a value repeated to a larger one",
    ),
    pytest.param(
        (ConvTranspose3d(stride=2), ReLU(), ReLU(), Add("tensor"), Add("tensor")),
        [("ConvTranspose3d", "ReLU", "ReLU", "Add", "Add")],
        [],
        id="stages of one kind are all named",
    ),
]


@pytest.mark.parametrize(("stages", "shared", "ends"), SHARED)
def test_stages_and_ends_of_passes(stages: Any, shared: Any, ends: Any) -> None:
    plan = plan_of(*stages)
    accounts = describe(plan)
    assert [account.stages for account in accounts] == shared
    for account, end in zip(accounts, [*ends, "the output is complete"], strict=True):
        assert end in account.ends
    text = explain(plan)
    for number, (account, one) in enumerate(zip(accounts, plan.sweeps, strict=True)):
        assert f"sweep {number + 1} of {len(shared)}: {one.structure.name}" in text
        assert all(words in text for words in (", ".join(account.stages), *account.steps, account.ends))


@given(chains())
def test_every_stage_that_runs_is_named_in_order(chain: Chain) -> None:
    shapes = tuple(operand.shape for operand in chain.operands)
    plan = make_plan(chain.pipeline, chain.x.shape, shapes, DTYPES["float32"])
    named = [name for account in describe(plan) for name in account.stages if not name.endswith("(applied)")]
    done = [name.removesuffix(" (statistics)") for name in named if name not in ("Keep", "Recall")]
    stages = plan.rewritten.pipeline.stages
    assert done == [stage.name for stage in stages if not isinstance(stage, (Keep, Recall))]
    assert explain(plan).count("\n  ends ") == len(plan.sweeps)


def test_steps_say_what_they_read_and_where_it_goes() -> None:
    plan = plan_of(ConvTranspose3d(stride=2), GELU(), Add("tensor"), Softmax("spatial"), Multiply("channel"), ReLU())
    first, second = describe(plan)
    box = "x".join(str(axis.longest(0, "read")) for axis in plan.sweeps[0].tiling.axes)
    assert first.steps == (
        f"load {box} voxels of the input",
        "put them into a slab, with zeros around them",
        "ConvTranspose3d(stride=2): phases 8, taps of a phase 1 to 4, channels of a tap 3",
        "GELU()",
        "put the phases together into rows",
        "Add(other='tensor') with add_other",
        "maximum and sum of exponentials, for each channel of the tile",
        "store in value 0 (in the output array)",
    )
    assert second.steps[1:] == (
        "Subtract(other='channel') with shift of Softmax",
        "Exp()",
        "Multiply(other='channel') with scale of Softmax",
        "ReLU()",
        "store in the output",
    )


def test_rewrites_are_named_once_each() -> None:
    plan = plan_of(ConvTranspose3d(stride=2), BatchNorm(), Sigmoid(), AvgPool3d(2))
    assert [name for name, _ in plan.rewrites()] == ["batch_norm_into_weights", "unread_outputs", "pool_over_phases"]
    text = explain(plan)
    assert "rewrite unread_outputs: 9x10x13 -> 8x10x12 of the convolution are computed" in text
    assert "rewrite pool_over_phases: every window of AvgPool3d(kernel_size=2, stride=2) holds each phase once" in text
    assert "runs:" in text
    assert "rewrite" not in explain(plan_of(ConvTranspose3d(stride=2)))


def test_a_kept_value_is_computed_as_a_whole() -> None:
    """It is stored between convolution and pool: no output is left out, and the pool reads rows, not phases."""
    used = (AvgPool3d(2), Keep("mean"), Recall("y"), MaxPool3d(2), Add("mean"))
    plan = plan_of(ConvTranspose3d(stride=2), Keep("y"), Sigmoid(), *used)
    assert plan.rewrites() == []
    assert (plan.reach, plan.phase_pool) == ((9, 10, 13), None)
    later = (Keep("y"), Exp(), MaxPool3d(2), Keep("most"), Recall("y"), AvgPool3d(2), Subtract("most"))
    plan = plan_of(ConvTranspose3d(stride=2), MaxPool3d(2), *later)
    assert [name for name, _ in plan.rewrites()] == ["unread_outputs", "pool_over_phases"], "kept behind the pool"
    assert (plan.reach, plan.phase_pool) == ((8, 10, 12), 1), "as much as the whole of the kept value takes"


def test_register_tile_and_slab_only_where_there_is_a_convolution() -> None:
    plan = plan_of(ConvTranspose3d(stride=2), Softmax("spatial"))
    conv, apply = plan.sweeps
    tile = conv.register_tile
    assert tile is not None
    assert conv.tiling.slab is not None
    assert apply.register_tile is None
    text = explain(plan)
    assert f"registers {tile.rows} rows (output channels) x {tile.columns} columns" in text
    assert f"pitch {conv.tiling.slab.pitch};" in text
    assert text.count("registers ") == text.count("slab   ") == 1


# --- figures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "item", "number"), [("float32", 4, 4), ("float64", 8, 8), ("bfloat16", 2, 4)])
def test_bytes_of_passes(dtype: str, item: int, number: int) -> None:
    plan = plan_of(ConvTranspose3d(stride=2, bias=True), GELU(), Softmax("spatial"), Add("tensor"), dtype=dtype)
    assert caller_bytes(plan) == {
        "input": prod(X) * item,
        "weights": prod(W) * item,
        "operands": (4 + VALUE) * item,
        "output": VALUE * item,
    }
    first, second = loads(plan)
    assert first == Load(plan.work.needed, (prod(X) + prod(W) + 4) * item, VALUE * number)
    statistics = 2 * 4 * number  # shift and scale are two of them; one name, counted once each
    assert second == Load(0, VALUE * number + VALUE * item + 2 * statistics, VALUE * item)
    assert tile_statistics(plan) == prod(plan.sweeps[0].tiling.counts) * 2 * 4 * 2 * number


def test_a_repeated_value_and_the_input_count_with_their_own_size() -> None:
    plan = plan_of(ConvTranspose3d(), Keep("y"), Sum(), Subtract("y"), Add("x"), w=(3, 3, 1, 1, 1))
    assert loads(plan)[-1].read == (prod(X) // 3 + prod(X) + prod(X)) * 4


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_packed_weights_are_as_large_as_predicted(groups: int, dtype: str) -> None:
    w = (3, 7, 5, 2, 3)
    plan = plan_of(ConvTranspose3d(stride=(2, 3, 1), groups=groups, dilation=(2, 1, 1)), dtype=dtype, w=w)
    layout = bindings(plan)[0].weights
    assert layout is not None
    assert packed_weights(plan) == pack(np.zeros(w), layout)[0].nbytes


def test_scratch_of_all_threads_is_of_those_that_find_a_tile() -> None:
    plan = plan_of(ConvTranspose3d(stride=2))
    count = tiles(plan, plan.sweeps[0])
    assert count == bindings(plan)[0].items
    with num_threads(1):
        assert scratch_of_all(plan) == plan.scratch
        assert ", 1 thread\n" in explain(plan)
    with num_threads(1000):
        assert scratch_of_all(plan) == plan.scratch * count


# --- roofline ---------------------------------------------------------------------------------------------------------


def test_the_slower_side_binds() -> None:
    assert RATES.balance == 10.0
    below, above = Load(900, 60, 40), Load(1100, 60, 40)
    assert (below.intensity, below.binds(RATES)) == (9.0, "memory")
    assert (above.intensity, above.binds(RATES)) == (11.0, "arithmetic")
    assert above.seconds(RATES) == pytest.approx((1.1e-8, 1e-8))
    assert Load(0, 0, 0).intensity == 0.0


def test_assumed_rates_follow_type_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVT3D_ISA", "baseline")
    with num_threads(4):
        rates = assumed_rates(plan_of(ConvTranspose3d()))
        half = assumed_rates(plan_of(ConvTranspose3d(), dtype="float64"))
        assert assumed_rates(plan_of(ConvTranspose3d(), dtype="float16")) == rates
    assert rates.bytes == 4 * 10e9
    assert rates.flops == 2 * half.flops
    assert rates.source.startswith("assumed, ")
    assert rates.source.endswith("for each of 4 threads")


def test_given_rates_are_used_and_named() -> None:
    text = explain(plan_of(ConvTranspose3d(stride=2), Softmax("spatial")), RATES)
    assert "rates given: 100 GFLOP/s and 10.0 GB/s, balanced at 10.0 FLOP per byte" in text
    assert "assumed" not in text
    assert text.count("memory binds") == 2


@pytest.mark.parametrize("batch", [0, 1])
def test_any_batch_and_any_size_can_be_explained(batch: int) -> None:
    stages = (ConvTranspose3d(stride=2), GroupNorm(2), Sum("spatial"))
    assert "sweep 2 of 3" in explain(plan_of(*stages, x=(batch, *X[1:])))
    assert "sweep 2 of 3" in explain(plan_of(*stages, x=(batch, 3, 10**6, 10**3, 10**3)))


def test_samples_that_a_tile_convolves_together() -> None:
    pipe = Pipeline(Conv3d(padding=1))
    one, some = (pipe.explain((batch, 64, 3, 3, 3), (64, 64, 3, 3, 3)) for batch in (1, 6))
    assert "\n  samples   " not in one
    assert "\n  samples   " in some
    assert " beside each other in a tile\n" in some


def test_a_convolution_that_is_thrown_away() -> None:
    pipe = Pipeline(Conv3d(), Recall("x"), ReLU())
    assert "sweep 1 of 1: ct3d_f32_" in pipe.explain((3, 2, 5, 6, 7), (2, 2, 1, 1, 1))
