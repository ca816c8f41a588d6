"""Every stage has a meaning and a way into a sweep; sweeps end only where all voxels of a channel are needed."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.draws import drawn

import convt3d as ct
from convt3d.cpu.plan.explain import explain
from convt3d.cpu.plan.plan import Plan, make_plan
from convt3d.plan.names import INPUT, OUTPUT, ArrayName, OperandName
from convt3d.plan.sweeps import Chain, Conv, Pool, Reduce, RowNorm
from convt3d.spec.dtypes import DTYPES

X, W = (2, 3, 4, 5, 6), (3, 4, 3, 2, 3)


def plan_of(*stages: object, x: tuple[int, ...] = X, dtype: str = "float32") -> Plan:
    pipeline = ct.Pipeline(ct.ConvTranspose3d(stride=2), *stages)
    return make_plan(pipeline, x, pipeline.operand_shapes(x, W), DTYPES[dtype])


GATE = (ct.Keep("y"), ct.Tanh(), ct.Keep("t"), ct.Recall("y"), ct.Sigmoid(), ct.Multiply("t"))


@pytest.mark.parametrize(
    ("stages", "passes"),
    [
        pytest.param((), 1, id="convolution alone"),
        pytest.param((ct.LayerNorm(), ct.GELU(), ct.Multiply(2.0)), 1, id="channels are vertical in a tile"),
        pytest.param((ct.MaxPool3d(2), ct.AvgPool3d(2), ct.Sum()), 1, id="pools read a larger box"),
        pytest.param((ct.LayerNorm("width"), ct.ReLU()), 1, id="rows are whole"),
        pytest.param((ct.Softmax("spatial"),), 2, id="softmax needs all voxels first"),
        pytest.param((ct.InstanceNorm(), ct.ReLU(), ct.GroupNorm(2)), 3, id="each norm needs all voxels"),
        pytest.param((ct.Mean("spatial"), ct.GELU()), 2, id="a reduction is a new, small value"),
        pytest.param((ct.LayerNorm("width"), ct.MaxPool3d(2)), 2, id="a window reads parts of rows"),
        pytest.param((ct.Keep("a"), ct.GELU(), ct.Multiply("a")), 1, id="kept in registers and cache"),
        pytest.param((ct.Keep("a"), ct.LayerNorm("width"), ct.Add("a")), 2, id="kept across rows: stored"),
        pytest.param(
            (ct.Keep("a"), ct.Mean("spatial"), ct.Subtract("a", reverse=True)),
            2,
            id="centred by hand: the mean is taken while the value is stored",
        ),
        pytest.param(
            (ct.Keep("a"), ct.Mean("spatial"), ct.Keep("m"), ct.Recall("a"), ct.Subtract("m")), 2, id="said with Recall"
        ),
        pytest.param((ct.Keep("a"), ct.InstanceNorm(), ct.Add("a")), 2, id="a norm of a kept value"),
        pytest.param((*GATE, ct.ReLU()), 1, id="both ways of a value stay in the tile"),
        pytest.param((ct.Mean("spatial"), *GATE, ct.ReLU()), 2, id="and so they do in a later sweep"),
        pytest.param((ct.Keep("a"), ct.Keep("b"), ct.Add("a"), ct.Multiply("b")), 1, id="two kept, both local"),
    ],
)
def test_passes(stages: tuple[object, ...], passes: int) -> None:
    """Each sweep walks over the whole volume: one more costs a trip to memory."""
    plan = plan_of(*stages)
    assert len(plan.sweeps) == passes
    assert plan.sweeps[-1].sweep.dest == OUTPUT


def test_passes_hand_over_without_a_gap() -> None:
    """Each sweep starts from the input or from what an earlier sweep or its statistics have left."""
    for seed in range(150):
        case = drawn(np.random.default_rng(seed), "float32")
        plan = make_plan(case.pipeline, case.x.shape, tuple(a.shape for a in case.operands), case.dtype)
        known: set[ArrayName | None] = {INPUT}
        for one in plan.sweeps:
            steps = one.sweep
            assert steps.source in known
            for op in steps.ops:
                for link in op.links if isinstance(op, Chain) else [op] if isinstance(op, RowNorm) else []:
                    for name in link.arrays:
                        assert isinstance(name, OperandName) or name.made in known, (case, name)
            assert sum(isinstance(op, Reduce) for op in steps.ops) == (steps.finish is not None)
            known |= {steps.dest, steps.finish.result if steps.finish else None}
        assert sum(isinstance(op, Conv) for one in plan.sweeps for op in one.sweep.ops) == 1


def test_the_output_array_serves_as_storage_only_where_it_is_safe() -> None:
    """An aliased value has the output's shape and type, is read by the next sweep only, and voxel by voxel."""
    found = 0
    for seed in range(400):
        case = drawn(np.random.default_rng(seed), ("float32", "float64", "float16")[seed % 3])
        plan = make_plan(case.pipeline, case.x.shape, tuple(a.shape for a in case.operands), case.dtype)
        for name in plan.aliases:
            found += 1
            assert case.dtype.name == case.dtype.accumulate
            at = next(i for i, one in enumerate(plan.sweeps) if one.sweep.dest == name)
            assert plan.sweeps[at].sweep.result == plan.trace.output
            reader = plan.sweeps[at + 1].sweep
            assert reader.source == name
            assert reader.shape == plan.trace.output
            assert not any(isinstance(op, (Conv, Pool)) for op in reader.ops)
            others = [one.sweep for i, one in enumerate(plan.sweeps) if i != at + 1]
            assert all(one.source != name for one in others)
            links = [link for one in plan.sweeps for op in one.sweep.ops if isinstance(op, Chain) for link in op.links]
            assert all(name not in link.arrays for link in links)
    assert found > 10


@pytest.mark.parametrize(
    ("stages", "dtype", "aliased"),
    [
        pytest.param((ct.Softmax("spatial"),), "float32", 1, id="softmax in place"),
        pytest.param((ct.InstanceNorm(), ct.GroupNorm(2)), "float64", 2, id="one after the other"),
        pytest.param((ct.Softmax("spatial"),), "float16", 0, id="values are wider than the output"),
        pytest.param((ct.Softmax("spatial"), ct.MaxPool3d(2)), "float32", 0, id="the output is smaller"),
        pytest.param((ct.Softmax("spatial"), ct.MaxPool3d(1)), "float32", 0, id="a pool reads other voxels"),
        pytest.param((ct.Keep("a"), ct.Softmax("spatial"), ct.Add("a")), "float32", 0, id="kept: it is read again"),
        pytest.param(
            (ct.Keep("a"), ct.LayerNorm("width"), ct.Keep("b"), ct.Recall("a"), ct.InstanceNorm(), ct.Add("b")),
            "float32",
            1,
            id="recalled: what comes between would overwrite it",
        ),
        pytest.param((ct.InstanceNorm(), ct.Keep("a"), ct.Max(), ct.Multiply("a")), "float32", 1, id="kept after"),
    ],
)
def test_aliases(stages: tuple[object, ...], dtype: str, aliased: int) -> None:
    """Known cases, so that the property above is not true for want of aliases."""
    assert len(plan_of(*stages, dtype=dtype).aliases) == aliased


def test_a_plan_is_printable() -> None:
    """repr and explain are what a bug report holds; neither may need an array."""
    for seed in range(20):
        case = drawn(np.random.default_rng(seed), "float32")
        plan = make_plan(case.pipeline, case.x.shape, tuple(a.shape for a in case.operands), case.dtype)
        assert "ct3d_f32_" in plan.sweeps[0].structure.name
        assert "sweeps=" in repr(plan)
        assert "scratch" in explain(plan)
