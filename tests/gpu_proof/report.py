"""The compile report: the GPU kernels of the five operators, compiled for each generation without a GPU.

A row holds facts of machine code; occupancy and roofline times follow from them and from data sheets. `faults` says
what must not be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from convt3d.gpu.config import Config
from convt3d.gpu.pieces import FilledName
from convt3d.plan.names import INPUT, ArrayName, CallerName, OperandName
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.problems import PROBLEMS
from convt3d.spec.work import count
from convt3d.units import amount, duration

from .amd import AmdRow, amd_table
from .compile import Facts, Launch, compile_launch, launches
from .jobs import ARITHMETIC, Job
from .limits import DEVICES, GENERATIONS, WARP, Device, Occupancy, occupancy

TENSOR_CORES = {80: "mma", 90: "wgmma", 100: "tcgen05"}
LEAST_POSITIONS = {80: 16, 90: 64, 100: 64}  # of a tile that the newer instructions take; mma takes smaller ones
LEAST_WIDE = 0.6  # of a dot's tiles: weights of few channels are loaded in 64 bits


@dataclass(frozen=True)
class Row:
    """One kernel in machine code."""

    job: Job
    kernel: str
    kind: str  # dot, plain, load, guard, finish
    config: Config | None
    facts: Facts

    @property
    def occupancy(self) -> Occupancy:
        facts, generation = self.facts, GENERATIONS[self.job.generation]
        return occupancy(generation, facts.warps, facts.registers, facts.shared, facts.tensor_columns)

    @property
    def tile(self) -> str:
        if self.config is None:
            return ""
        sizes = f"{self.config.positions}x{self.config.channels}"
        return f"{sizes}x{self.config.inputs}" if self.kind == "dot" else sizes


def rows_of(job: Job) -> list[Row]:
    """Compiled; of a numbered configuration only what neither the heuristic nor a smaller number takes."""
    plan = job.plan()
    others = [] if job.choice is None else [replace(job, choice=at).plan() for at in (None, *range(job.choice))]
    found = []
    for launch in launches(plan, job.channels_last):
        step = launch.step
        if any(other.steps[plan.steps.index(step)].tile == step.tile for other in others):
            continue
        name = launch.text.name.split("_", 3)[3]
        found.append(Row(job, name, step.label, step.tile, compile_launch(launch, job.generation)))
    return found


def faults(row: Row) -> list[str]:
    """What must not be: spills, a block that does not fit, idle tensor cores, tiles loaded in small pieces."""
    found = []
    if row.facts.spills:
        found.append(f"{row.facts.spills} spills")
    if row.occupancy.blocks < 1:
        found.append(f"no block fits: {row.occupancy.limit}")
    if row.kind != "dot" or row.config is None:
        return found
    newest = row.config.positions >= LEAST_POSITIONS[row.job.generation] and row.job.arithmetic != "float64"
    wanted = (TENSOR_CORES[row.job.generation] if newest else "mma",) if row.job.arithmetic != "ieee" else ()
    if row.facts.tensor_kinds != wanted:
        found.append(f"tensor cores: {row.facts.tensor_kinds or 'none'} instead of {wanted or 'none'}")
    if row.job.name in PROBLEMS and _fills_loads(row) and row.facts.wide_loads < LEAST_WIDE:
        found.append(f"only {row.facts.wide_loads:.0%} of a tile in 128-bit loads")
    return found


def _fills_loads(row: Row) -> bool:
    """Whether a tile of the input has 128 bits for each thread. (Further pipelines add tensors, loaded as they lie.)"""
    dtype, _ = ARITHMETIC[row.job.arithmetic]
    tile = 0 if row.config is None else row.config.positions * row.config.inputs
    return tile * DTYPES[dtype].itemsize >= 16 * WARP * row.facts.warps


# --- memory and roofline ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Traffic:
    """Bytes of device memory: the least there could be, those that kernels move, those of memory beyond the call's."""

    least: int
    moved: int
    extra: int
    flop: int


def traffic(job: Job) -> Traffic:
    """An array counts once for each kernel that touches it: neighbours find in a cache what they share. Where samples
    are taken in turn, what is read again is found in the second level, and comes to memory once."""
    plan = job.plan()
    done = launches(plan)
    size = plan.dtype.itemsize
    shapes = plan.trace.values[0], plan.trace.output, *plan.trace.operand_shapes
    own: dict[ArrayName, int] = {}
    moved, cached = 0, in_turn(job)
    for launch in done:
        if launch.step.label == "guard":
            continue
        touched = {name: array for name, array in launch.arrays.items() if not cached or name not in own}
        moved += sum(map(_bytes, touched.values())) + (0 if cached else _read_again(launch))
        made = [name for name in launch.arrays if not isinstance(name, (OperandName, FilledName)) and name != INPUT]
        own |= {name: _bytes(launch.arrays[name]) for name in made}
    convolutions = sum(step.piece.conv is not None and not step.guarded for step in plan.kernels)
    needed = count(plan.asked, plan.trace).needed
    extra = sum(size for name, size in own.items() if not isinstance(name, CallerName))
    return Traffic(size * sum(map(prod, shapes)), moved, extra, convolutions * needed)


def in_turn(job: Job) -> bool:
    """Whether a data sheet's GPU of the job's generation takes samples one after the other."""
    plan = job.plan()
    cache = next(device.cache for device in DEVICES if device.generation.capability == job.generation)
    return plan.samples_in(cache) < plan.trace.values[0][0]


def _bytes(array: object) -> int:
    return int(array.numel() * array.element_size())  # type: ignore[attr-defined]


def _read_again(launch: Launch) -> int:
    """A kernel that reads the array it writes moves it twice."""
    pointers = list(launch.text.pointers.values())
    return sum(_bytes(launch.arrays[name]) for name in set(pointers) if pointers.count(name) > 1)


# --- as text ----------------------------------------------------------------------------------------------------------

HEAD = """\
# GPU kernels: compile report

Written by `make gpu-report` with triton {version}; compiled, never run. The kernels of the five operators at their
benchmark shapes, for every type and generation, in the configuration that the heuristic takes, with the arguments of a
launch. `make test-gpu-compile` compiles the other configurations as well, and those of a dozen further pipelines.

- **tile**: positions x output channels (x input channels of one step). **registers** of a thread; none is spilled.
- **tensor cores**: instructions of the PTX. float32 is three bfloat16 numbers for each factor;
  ieee, which has none by design, and tf32 are float32 on request.
- **128-bit**: the share of a tile's bytes that 128-bit loads bring, as the code is written.
- **blocks**: how many share a multiprocessor, computed from registers, shared memory, tensor memory and warps; beside
  it the share of its warps they fill, and what keeps a further block out.
"""

COLUMNS = (
    *("kernel", "type", "sm", "tile", "warps, stages"),
    *("registers", "spills", "shared", "tensor cores", "128-bit", "blocks"),
)

ESTIMATE = """\
## Memory and time: an estimate

**Nothing here was measured.** The least that must be moved is input, weights, operands and output once. What the
kernels move counts an array once for each kernel that touches it, the channels-last copy of the input and the packed
weights included; extra is memory beyond the call's own arrays. Both are the A100's. Where a GPU takes samples in turn,
what is read again is found in L2 and counts once in its time. A time is the larger of FLOP over the peak rate and bytes
over the peak bandwidth, of the data sheet, without sparsity: a bound that no kernel reaches.

{sources}

| operator | type | least | moved | | extra | GFLOP | {devices} |
|---|---|---|---|---|---|---|{rules}|
"""


def report(rows: Sequence[Row], amd: Sequence[AmdRow], version: str) -> str:
    return "\n".join([HEAD.format(version=version), *_compiled(rows), *amd_table(amd), *_estimated()])


def _compiled(rows: Sequence[Row]) -> Iterator[str]:
    for slug in PROBLEMS:
        yield f"## {slug}\n"
        yield "| " + " | ".join(COLUMNS) + " |"
        yield "|" + "---|" * len(COLUMNS)
        order = {kind: number for number, kind in enumerate(ARITHMETIC)}
        own = [row for row in rows if row.job.name == slug]
        for row in sorted(own, key=lambda row: (order[row.job.arithmetic], row.job.generation, row.kernel, row.tile)):
            yield line(row)
        yield ""


def line(row: Row) -> str:
    """A row of the table."""
    facts, held = row.facts, row.occupancy
    stages = "" if row.config is None else f", {row.config.stages}"
    cells = [
        f"{row.kernel} ({row.kind})",
        row.job.arithmetic,
        str(row.job.generation),
        row.tile,
        f"{facts.warps}{stages}",
        str(facts.registers),
        str(facts.spills),
        amount(facts.shared),
        ", ".join(facts.tensor_kinds),
        f"{facts.wide_loads:.0%}",
        f"{held.blocks}, {held.share:.0%}, {held.limit}",
    ]
    return "| " + " | ".join(cells) + " |"


def _estimated() -> Iterator[str]:
    sources = "\n".join(f"- {device.name}: {_rates(device)} ({device.source})." for device in DEVICES)
    devices = " | ".join(device.name for device in DEVICES)
    yield ESTIMATE.format(sources=sources, devices=devices, rules="|".join("---" for _ in DEVICES)).rstrip()
    for slug in PROBLEMS:
        for kind in ARITHMETIC:
            found = traffic(Job(slug, kind, DEVICES[0].generation.capability))
            times = [_time(traffic(Job(slug, kind, one.generation.capability)), kind, one) for one in DEVICES]
            sizes = [amount(found.least), amount(found.moved), f"{found.moved / found.least:.2f}x", amount(found.extra)]
            yield "| " + " | ".join([slug, kind, *sizes, f"{found.flop / 1e9:.0f}", *times]) + " |"


def _time(found: Traffic, kind: str, device: Device) -> str:
    arithmetic, memory = device.seconds(found.flop, kind, found.moved)
    return f"{duration(max(arithmetic, memory))} ({'arithmetic' if arithmetic > memory else 'memory'})"


def _rates(device: Device) -> str:
    kinds = ("float64", "ieee", "tf32", "float16")
    rates = ", ".join(f"{kind} {device.flops[kind] / 1e12:g}" for kind in kinds)
    return f"TFLOP/s {rates}; {device.bytes / 1e12:g} TB/s"
