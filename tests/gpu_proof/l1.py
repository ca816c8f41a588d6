"""How often the first level of a GPU's cache holds what a dot reads of its input: addresses of the programs that share
one multiprocessor, step by step, through a cache of lines of which the least recently used goes.

    cd tests && python -m gpu_proof.l1

Each multiprocessor gets every n-th program (n: their number), as many at a time as fit (occupancy of the recorded
figures), which take turns block of products by block of products. Weights pass the first level by, and stores are left
out, so the share is one from above.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from convt3d.gpu.geometry import GpuAxis
from convt3d.gpu.steps import GpuKernel
from convt3d.spec.problems import PROBLEMS

from .figures import KINDS, SMS, device_of, name_of, recorded
from .jobs import Job
from .limits import Device, occupancy

FIRST_LEVEL = {80: 192 * 1024, 90: 256 * 1024}  # bytes, of which shared memory is a part
SECTOR, LINE = 32, 128
PROCESSORS = range(8)  # neighbours, of whose programs the shares are
WAVES, STEPS = 3, 3_000  # programs of a place one after the other; blocks of products of each part, at most


def taps(axis: GpuAxis, output: int) -> list[int]:
    """The inputs, relative to position 0's, of the taps that meet this output, in the kernel's order."""
    met = [tap for tap in range(axis.kernel) if (output - tap * axis.dilation) % axis.stride == 0]
    return [(output - tap * axis.dilation) // axis.stride for tap in met]


def reads(kernel: GpuKernel, program: int, size: int) -> Iterator[NDArray[np.int64]]:
    """Of one program: the first byte of each position's channels in the convolution's input, for each step and part."""
    residue, block = program % kernel.residues, program // kernel.residues
    tile, rest = block // kernel.columns % kernel.tiles, block // kernel.columns // kernel.tiles
    n, group = divmod(rest, 1) if kernel.groups == 1 else (rest // kernel.groups, rest % kernel.groups)
    d, h, w = kernel.axes
    a = (residue // (h.pace * w.pace), residue // w.pace % h.pace, residue % w.pace)
    q = tile * kernel.config.positions + np.arange(kernel.config.positions)
    at = (np.minimum(q // (h.count * w.count), d.count - 1), q // w.count % h.count, q % w.count)
    memory, low = kernel.memory, kernel.memory.low
    sizes = memory.sizes(kernel.piece.shape[2:])
    strides = (sizes[1] * sizes[2], sizes[2], 1)
    row = n * sizes[0] * strides[0] + sum(
        (axis.step * one + low[number]) * strides[number]
        for number, (axis, one) in enumerate(zip(kernel.axes, at, strict=True))
    )
    first = group * memory.parts * memory.filled if kernel.groups > 1 else 0
    for member in product(*(range(axis.window) for axis in kernel.axes)):
        outputs = [
            (one * axis.jump + j) * axis.scale + axis.number("shift")
            for axis, one, j in zip(kernel.axes, a, member, strict=True)
        ]
        deep, high, wide = map(taps, kernel.axes, outputs)
        for i, j, block_at, k in product(deep, high, range(0, memory.filled, kernel.config.inputs), wide):
            for part in range(memory.parts):
                voxel = (row + i * strides[0] + j * strides[1] + k) * memory.row
                yield np.asarray((voxel + first + part * memory.filled + block_at) * size)


def share(kernel: GpuKernel, device: Device, together: int, room: int) -> tuple[float, float]:
    """Of the bytes that all taps read, those that come from the second level: simulated, and if all taps along the
    width but the first were found in the first level."""
    size = 2 if kernel.memory.parts > 1 else 4 if kernel.need.dtype.name == "float32" else kernel.need.dtype.itemsize
    asked = missed = 0
    for processor in PROCESSORS:  # residues are dealt out to them in turn
        one = _simulated(kernel, device.multiprocessors, processor, together, room, size)
        asked, missed = asked + one[0], missed + one[1]
    rows = [len(taps(kernel.axes[2], output)) for output in _outputs(kernel.axes[2])]
    return missed / asked, sum(count > 0 for count in rows) / max(1, sum(rows))


def _simulated(
    kernel: GpuKernel, processors: int, processor: int, together: int, room: int, size: int
) -> tuple[int, int]:
    """Sectors that one multiprocessor asks for, and those that it does not have. Its programs are from the middle of
    the launch, since those at its ends read borders."""
    middle, width = kernel.programs // 2 + processor, kernel.config.inputs * size
    held: OrderedDict[int, None] = OrderedDict()
    asked = missed = steps = 0
    for wave in range(WAVES):
        numbers = [middle + (wave * together + one) * processors for one in range(together)]
        programs = [reads(kernel, number % kernel.programs, size) for number in numbers]
        while programs and steps < STEPS:
            for program in list(programs):
                found = next(program, None)
                if found is None:
                    programs.remove(program)
                    continue
                steps += 1
                sectors = np.unique(np.concatenate([(found + at) // SECTOR for at in range(0, width, SECTOR)])).tolist()
                asked += len(sectors)
                for sector in sectors:
                    if sector in held:
                        held.move_to_end(sector)
                        continue
                    missed += 1
                    held[sector] = None
                    if len(held) * SECTOR > room:  # the least recently used
                        held.popitem(last=False)
    return asked, missed


def _outputs(axis: GpuAxis) -> Iterator[int]:
    for residue in range(axis.pace):
        for member in range(axis.window):
            yield (residue * axis.jump + member) * axis.scale + axis.number("shift")


def rows(job: Job) -> Iterator[tuple[GpuKernel, float, float]]:
    figures = recorded()["plans"][name_of(job)]["kernels"]
    device = device_of(job)
    for kernel in job.plan().kernels:
        if kernel.kind == "dot":
            own = figures["_".join(kernel.names)]
            blocks = occupancy(device.generation, kernel.config.warps, own["registers"], own["shared"], 0).blocks
            room = FIRST_LEVEL[job.generation] - blocks * (own["shared"] + 1024)
            yield kernel, *share(kernel, device, blocks, room)


def main() -> None:
    print("| plan | from L2, simulated | if L1 had all taps along the width but the first |\n|---|---|---|")
    for slug in PROBLEMS:
        for kind in KINDS:
            for generation in SMS:
                job = Job(slug, kind, generation)
                for _, simulated, least in rows(job):
                    print(f"| {name_of(job)} | {simulated:.2f} | {least:.2f} |", flush=True)


if __name__ == "__main__":
    main()
