"""Gradients through the stages behind a convolution: every kernel against autograd in float64, whatever the layout,
type, instruction set, tiles and number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from cpu.steps.test_program import ARM, arm
from helpers.draws import relaid
from helpers.guard import Fence, fenced_like, untouched_gaps
from helpers.tilings import poisoned

torch = pytest.importorskip("torch")

from convt3d.cpu.code.tile import emit  # noqa: E402
from convt3d.cpu.plan import tail_plan as planning  # noqa: E402
from convt3d.cpu.plan.choice import Choice  # noqa: E402
from convt3d.cpu.plan.cores import num_threads  # noqa: E402
from convt3d.cpu.plan.machine import machine  # noqa: E402
from convt3d.cpu.plan.tail_plan import make_tail_plan  # noqa: E402
from convt3d.cpu.plan.tiles import Tilings  # noqa: E402
from convt3d.cpu.runtime import execute as execution  # noqa: E402
from convt3d.cpu.runtime.build import compile_ir  # noqa: E402
from convt3d.cpu.runtime.elf import undefined_symbols  # noqa: E402
from convt3d.cpu.runtime.tails import Given, run_tail  # noqa: E402
from convt3d.cpu.steps.lowering import steps_of  # noqa: E402
from convt3d.plan.tail_ways import Segment  # noqa: E402
from convt3d.spec.dtypes import DTYPES  # noqa: E402
from convt3d.spec.pipeline import Pipeline  # noqa: E402
from convt3d.spec.text import read_stages  # noqa: E402
from convt3d.torch.stock import STOCK, values  # noqa: E402

ISAS = ["avx512", "avx2", "baseline"] if machine().isa == "avx512" else [machine().isa]
# Of the largest gradient: sums and functions run in float32 (float64 for float64), results are rounded to storage.
TOLERANCE = {"float32": 4e-6, "float64": 1e-13, "float16": 1e-3, "bfloat16": 8e-3}
CHAINS = [
    "GELU() -> Multiply(0.7)",
    "LayerNorm(affine=True) -> GELU('tanh') -> Multiply('channel')",
    "Add(0.5) -> LayerNorm() -> SiLU()",
    "InstanceNorm(affine=True) -> LeakyReLU(0.1)",
    "GroupNorm(2, affine=True) -> Mish() -> Add('channel')",
    "GroupNorm(3) -> InstanceNorm() -> PReLU()",
    "BatchNorm(affine=True) -> ReLU()",
    "Clamp(-0.3, 0.4) -> Softmax('spatial') -> Multiply('channel')",
    "Tanh() -> Softmax()",
    "Sigmoid() -> Divide('channel') -> HardSwish() -> Subtract('channel', reverse=True)",
    "Exp() -> Divide(2.0, reverse=True) -> Softplus(2.0, 3.0) -> HardTanh(0.2, 0.9)",
    "Exp() -> Add(1.0) -> Log() -> Subtract(0.25)",
    "Add('tensor') -> SiLU() -> Multiply('tensor')",
    "Keep('y') -> Sigmoid() -> Multiply('y')",
    "Keep('v1') -> InstanceNorm() -> Add('v1') -> Exp() -> Keep('_z') -> GELU() -> Divide('_z') -> Subtract('v1')",
    "Exp() -> Keep('y') -> Tanh() -> Keep('z') -> Recall('y') -> Sigmoid() -> Divide('y', True) -> Multiply('z')",
    "Divide('channel', reverse=True) -> Tanh() -> Divide('tensor', reverse=True)",
    "GELU() -> Max()",
    "Tanh() -> Multiply('channel') -> Max('spatial')",
    "LayerNorm() -> LogSumExp()",
    "LogSumExp('spatial')",
    "SiLU() -> Mean('height')",
    "Sigmoid() -> Sum('spatial')",
    "Multiply('channel') -> Sum()",
]
POOLED = [
    "GELU() -> AvgPool3d(2)",
    "InstanceNorm(affine=True) -> LeakyReLU() -> AvgPool3d((1, 2, 3), (1, 2, 3))",
    "SiLU() -> AvgPool3d(3, 2, 1, ceil_mode=True, count_include_pad=False)",
    "AvgPool3d((2, 1, 3), (1, 2, 5), divisor_override=5)",
    "LayerNorm() -> SiLU() -> MaxPool3d(2)",
    "Multiply('channel') -> MaxPool3d((3, 2, 3), (2, 1, 1), 1)",
]
SHAPES = [(2, 6, 3, 5, 7), (1, 6, 1, 3, 37), (3, 6, 2, 1, 11)]


class Case:
    """A chain of stages on one value, with stored arrays of any layout."""

    def __init__(self, chain: str, shape: tuple[int, ...], dtype: str, seed: int) -> None:
        rng, self.kind = np.random.default_rng(seed), DTYPES[dtype]
        self.rng, self.shape = rng, shape
        self.pipeline = Pipeline(*read_stages(f"Conv3d() -> {chain}"))
        self.kernel = self.kind.narrow(rng.standard_normal((shape[1], shape[1], 1, 1, 1)))
        kinds = {"slope": (1,), "tensor": shape, "channel": (shape[1],)}
        vectors = [kinds[slot.operand.kind] for slot in self.pipeline.slots[1:]]
        self.vectors = [self.kind.narrow(rng.uniform(0.5, 1.5, size)) for size in vectors]
        self.wanted = [slot.operand.kind != "tensor" for slot in self.pipeline.slots]
        result = self.pipeline.trace(shape, [self.kernel.shape, *vectors]).output
        self.value, self.gradient = (self.kind.narrow(rng.standard_normal(size)) for size in (shape, result))

    def plan(self, in_place: bool = False) -> Any:
        operands = [self.kernel.shape, *(vector.shape for vector in self.vectors)]
        segment = Segment(1, 1, len(self.pipeline.stages))
        return make_tail_plan(self.pipeline, self.shape, operands, self.kind, segment, self.wanted, in_place)

    def run(self, out: Any, value: Any = None, gradient: Any = None) -> dict[int, list[Any]]:
        value, gradient = (
            own if own is not None else mine for own, mine in ((value, self.value), (gradient, self.gradient))
        )
        return run_tail(self.plan(out is value), Given(value), gradient, [self.kernel, *self.vectors], out)

    def empty(self) -> Any:
        out = np.empty(self.shape, self.kind.storage)
        out[...] = self.kind.narrow(np.array(np.nan))
        return out

    def truth(self) -> tuple[Any, list[Any]]:
        """Gradients of the value and of all vectors, by autograd in float64."""
        value, gradient = (torch.from_numpy(self.kind.widen(each)) for each in (self.value, self.gradient))
        own = [torch.from_numpy(self.kind.widen(each)) for each in self.vectors]
        leaves = [value, *own]
        for leaf, name in zip(leaves, ["", *(slot.operand.role for slot in self.pipeline.slots[1:])], strict=True):
            leaf.requires_grad_(not name.startswith("running_"))
        count = len(self.pipeline.stages)
        result = values(self.pipeline, value, [None, *own], {count}, known=(1, value))[count]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        found = iter(torch.autograd.grad(result, wanted, gradient))
        grads = [next(found).numpy() if leaf.requires_grad else None for leaf in leaves]
        return grads[0], grads[1:]

    def check(self, out: Any, note: str = "") -> None:
        truth, _ = self.truth()
        error = np.abs(self.kind.widen(out) - truth).max() / max(1.0, np.abs(truth).max())
        assert error <= TOLERANCE[self.kind.name], f"{note}{self.pipeline} {self.shape}: error {error:.3g}"


@contextmanager
def drawn_tiles(rng: np.random.Generator) -> Iterator[None]:
    """Tiles of any size; scratch memory is poisoned."""

    def choose(sweep: Any, where: Any, options: Any) -> Choice:
        steps = steps_of(sweep, where)
        tile = tuple(int(rng.integers(1, size + 1)) for size in sweep.result[2:])
        return Choice(where, steps, Tilings(sweep, steps, where).of(tile))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "choose_method", choose)
        patch.setattr(execution, "shared_scratch", poisoned)
        planning._make.cache_clear()
        try:
            yield
        finally:
            planning._make.cache_clear()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_chains(isa: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of any layout between unreadable pages, tiles of any size. 16-bit types, which are float32 between loads
    and stores, take each chain on one of the instruction sets."""
    monkeypatch.setenv("CONVT3D_ISA", isa)
    for number, chain in enumerate((*CHAINS, *POOLED)):
        if dtype in ("float16", "bfloat16") and number % len(ISAS) != ISAS.index(isa):
            continue
        shape = SHAPES[number % 3 if chain in CHAINS else 0]  # windows need some room
        case, fences = Case(chain, shape, dtype, number), list[Fence]()
        value, gradient = (
            fenced_like(relaid(case.rng, each), bool(number % 2), fences) for each in (case.value, case.gradient)
        )
        out = fenced_like(relaid(case.rng, case.empty()), bool(number % 2), fences)
        fence = fences[-1]
        with drawn_tiles(case.rng):
            case.run(out, value, gradient)
        case.check(out, f"seed {number}: ")
        assert untouched_gaps(out, fence)
        for one in fences:
            one.free()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_accesses_are_inside(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVT3D_CHECK_BOUNDS", "1")
    for number, chain in enumerate((*CHAINS, *POOLED)):
        case = Case(chain, SHAPES[number % 3 if chain in CHAINS else 0], dtype, number)
        out = case.empty()
        case.run(out)
        case.check(out)


@pytest.mark.parametrize("chain", [*CHAINS, *POOLED])
def test_sums_for_operands_and_results_in_place(chain: str) -> None:
    """Sums are over all voxels and samples; written over the value, the gradient is the same."""
    case = Case(chain, (2, 6, 5, 7, 19), "float64", 1)
    out = case.empty()
    sums = case.run(out)
    _, truth = case.truth()
    for index, stage in enumerate(case.pipeline.stages):
        own = [
            (slot.operand.role, grad)
            for slot, grad in zip(case.pipeline.slots[1:], truth, strict=True)
            if slot.stage == index
        ]
        for role, grad in own:
            if (
                role.startswith("running_")
                or index not in sums
                or stage.name in ("Divide", "BatchNorm", "Subtract", "PReLU")
            ):
                continue  # these are made from the sums by torch/tails.py
            at = 1 if role == "bias" else 0
            np.testing.assert_allclose(sums[index][at], grad, rtol=1e-10, atol=1e-10)
    again = case.value.copy()
    same = case.run(again, again)
    np.testing.assert_array_equal(again, out)
    for index, own in sums.items():
        np.testing.assert_array_equal(same[index], own)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    for chain in (*CHAINS[1:9:2], *CHAINS[18:22], *POOLED):
        case, bits = Case(chain, (2, 6, 19, 40, 31), "float32", 2), set()
        for count in (1, 2, 5):
            with num_threads(count):
                out = case.empty()
                sums = case.run(out)
                bits.add(out.tobytes() + b"".join(each.tobytes() for own in sums.values() for each in own))
        assert len(bits) == 1


POOLS = [
    "MaxPool3d(2)",
    "MaxPool3d(3, 2, 1)",
    "MaxPool3d((1, 3, 2), 1)",
    "MaxPool3d(2, ceil_mode=True)",
    "Max()",
    "Max('spatial')",
]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("before", ["", "AvgPool3d((1, 2, 1), 1) -> "])
def test_equal_largest_values_nan_and_infinities(
    isa: str, dtype: str, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient goes where PyTorch's goes, also behind a pool that is computed again."""
    monkeypatch.setenv("CONVT3D_ISA", isa)
    kind, rng = DTYPES[dtype], np.random.default_rng(0)
    for pool in POOLS:
        pipeline = Pipeline(*read_stages(f"Conv3d() -> {before}{pool}"))
        wide = rng.integers(-1, 2, (2, 3, 5, 6, 19)).astype(np.float64)
        if pool != "Max('spatial')":  # which has one NaN everywhere then
            wide[rng.random(wide.shape) < 0.02] = np.nan
        wide[0, 0, :3] = -np.inf
        count = len(pipeline.stages)
        trace = pipeline.trace(wide.shape, [(3, 3, 1, 1, 1)])
        gradient = rng.integers(-4, 5, trace.output).astype(np.float64)
        with drawn_tiles(rng):
            segment = Segment(1, count - 1, count)
            plan = make_tail_plan(pipeline, wide.shape, [(3, 3, 1, 1, 1)], kind, segment, [False])
            out = kind.narrow(np.full(trace.values[-2], np.nan))
            stored = relaid(rng, kind.narrow(wide)), relaid(rng, kind.narrow(gradient))
            run_tail(plan, Given(stored[0]), stored[1], [np.zeros((3, 3, 1, 1, 1), kind.storage)], out)
        entering = torch.from_numpy(wide)
        for stage in pipeline.stages[1:-1]:
            entering = STOCK[type(stage)](stage, entering)
        entering.requires_grad_()
        last = pipeline.stages[-1]
        (truth,) = torch.autograd.grad(STOCK[type(last)](last, entering), entering, torch.from_numpy(gradient))
        np.testing.assert_allclose(kind.widen(out), truth.numpy(), rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_code_for_arm(dtype: str) -> None:
    for number, chain in enumerate((*CHAINS[:8], *POOLED[3:5])):
        for planned in Case(chain, SHAPES[0], dtype, number).plan().sweeps:
            build = compile_ir(emit(planned.structure, arm()), ARM)
            assert not undefined_symbols(build.object_code)
