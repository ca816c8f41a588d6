"""Puts the phases of a tile together: phase-planar (C, phases, positions) -> rows along the width, in natural order.

Output o = stride * t + j along each axis lies in phase j at position t.
"""

from __future__ import annotations

from llvmlite import ir

from ..plan.geometry import POSITION, WRITE, WRITE_COUNT
from .kernel import Kernel
from .move import ArrayRows, Sink, in_vectors, to_scratch
from .values import Number


def unphase(k: Kernel, step: int, stride_w: int, channels: Number, target: ArrayRows | str) -> None:
    """Rows of the tile into a buffer (C, D, H, W), or straight into an array. `stride_w` 0 stands for any above 2."""
    b = k.b
    phased, pitch = k.buffer("phased"), k.param("pitch phased")
    low, count, first = k.spans(step, WRITE), k.spans(step, WRITE_COUNT), k.spans(step, POSITION)
    strides = [k.param(f"stride {axis}") for axis in "dhw"]
    with b.loop(0, channels) as c, b.loop(0, count[0]) as d:
        t_d, j_d = _split(k, b.add(low[0], d), strides[0], first[0])
        with b.loop(0, count[1]) as h:
            t_h, j_h = _split(k, b.add(low[1], h), strides[1], first[1])
            phase = b.mul(b.add(b.mul(j_d, strides[1]), j_h), strides[2])
            start = k.dot((c, pitch), (phase, k.param("phase")), (t_d, k.param("plane")), (t_h, k.param("slab pitch")))
            if isinstance(target, str):
                row = k.dot((c, k.param(f"pitch {target}")), (b.add(b.mul(d, count[1]), h), count[2]))
                buffer = k.buffer(target)

                def put(at: Number, value: ir.Value, lanes: Number | None, row: Number = row) -> None:
                    to_scratch(k, value, buffer, b.add(row, at), lanes)

            else:
                row = target.row(c, b.add(low[0], d), b.add(low[1], h))

                def put(at: Number, value: ir.Value, lanes: Number | None, row: Number = row) -> None:
                    target.write(row, b.add(low[2], at), value, lanes)

            _row(k, stride_w, phased, start, low[2], first[2], count[2], put)


def _split(k: Kernel, o: Number, stride: Number, first: Number) -> tuple[Number, Number]:
    """Position (from the tile's first) and phase of output o."""
    t = k.b.sdiv(o, stride)
    return k.b.sub(t, first), k.b.sub(o, k.b.mul(t, stride))


def _row(
    k: Kernel, stride_w: int, phased: ir.Value, start: Number, low: Number, first: Number, count: Number, put: Sink
) -> None:
    b = k.b
    if stride_w == 1:
        in_vectors(k, count, lambda at, n: put(at, b.load(phased, b.add(start, at), k.number, k.lanes), n))
        return
    stride, phase = k.param("stride w"), k.param("phase")
    if stride_w == 2:
        # The row begins in phase 0 or 1; the vectors that follow each other are the same, one position on.
        odd = b.compare("==", b.sub(low, b.mul(first, 2)), 1)
        even_row, odd_row = start, b.add(start, phase)
        one = b.select(odd, odd_row, even_row)
        two = b.select(odd, b.add(even_row, 1), odd_row)
        with b.loop(0, count, 2 * k.lanes) as at:
            t = b.sdiv(at, 2)
            pair = [b.load(phased, b.add(begin, t), k.number, k.lanes) for begin in (one, two)]
            left = b.sub(count, at)
            for half, value in enumerate(b.interleave(pair)):
                left_here = b.sub(left, half * k.lanes)
                with b.if_else(b.compare(">=", left_here, k.lanes)) as (whole, part):
                    with whole:
                        put(b.add(at, half * k.lanes), value, None)
                    with part, b.if_(b.compare(">", left_here, 0)):
                        put(b.add(at, half * k.lanes), value, left_here)
        return
    with b.loop(0, count) as at:
        t, j = _split(k, b.add(low, at), stride, first)
        value = b.load(phased, k.dot((1, start), (j, phase), (t, 1)), k.number)
        put(at, b.splat(value, k.lanes), 1)
