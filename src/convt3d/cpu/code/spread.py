"""A pool's gradient on its way back: windows to voxels, in a tile of these.

An average's goes to all voxels of its windows: shares are summed over depth and height row by row, then along the
width. A maximum's goes to one place of each window; of windows that overlap, several may go to the same one.
"""

from __future__ import annotations

from ..ir.frame import Kernel, Scratch
from ..ir.values import F64, I32, I64, Number, constant, vector
from ..plan.geometry import READ, READ_COUNT, WRITE, WRITE_COUNT
from ..steps.spread import PlacesWords, SharesWords


def emit_shares(k: Kernel, words: SharesWords, step: int, source: Scratch, channels: Number, repeats: int) -> None:
    """source (C, D, H, W) of windows -> the same of voxels; `repeats`: along the width windows of so many voxels lie
    side by side from the array's begin."""
    b = k.b
    low, size, first, count = (k.spans(step, word) for word in (READ, READ_COUNT, WRITE, WRITE_COUNT))
    row, nothing = words.row.pointer, constant(vector(k.number, k.lanes), 0.0)
    with b.loop(0, channels) as c, b.loop(0, count[0]) as d:
        d_range = _windows(k, words, 0, b.add(first[0], d), low[0])
        with b.loop(0, count[1]) as h:
            h_range = _windows(k, words, 1, b.add(first[1], h), low[1])
            with b.loop(0, size[2], k.lanes) as at:
                along = b.load(words.width_divisors, b.add(low[2], at), k.number, k.lanes)
                with b.loop_carrying(*d_range, 1, [nothing]) as (in_d, outer):
                    in_depth = b.load(words.divisors[0], b.add(low[0], in_d), I64)
                    with b.loop_carrying(*h_range, 1, outer.values) as (in_h, inner):
                        place = k.dot((c, source.pitch), (b.add(b.mul(in_d, size[1]), in_h), size[2]), (at, 1))
                        divisor = b.mul(in_depth, b.load(words.divisors[1], b.add(low[1], in_h), I64))
                        each = b.mul(b.splat(b.cast(divisor, k.number), k.lanes), along)
                        share = b.div(b.load(source.pointer, place, k.number, k.lanes), each)
                        inner.next = [b.add(inner.values[0], share)]
                    outer.next = inner.result
                b.store(outer.result[0], row, at)
            b.store(nothing, row, size[2])  # voxels behind the last window have no share
            out = k.dot((c, words.spread.pitch), (b.add(b.mul(d, count[1]), h), count[2]))
            if repeats:
                _repeated(k, words, out, (first[2], low[2], size[2], count[2]), repeats)
            else:
                _along(k, words, out, (first[2], low[2], count[2]))


def _windows(k: Kernel, words: SharesWords, axis: int, i: Number, low: Number) -> tuple[Number, Number]:
    """Windows that voxel i is in, from the first that the tile has read."""
    b, table = k.b, words.windows[axis]
    begin, end = (b.load(table, b.add(b.mul(i, 2), word), I64) for word in range(2))
    return b.sub(begin, low), b.sub(end, low)


def _along(k: Kernel, words: SharesWords, out: Number, where: tuple[Number, ...]) -> None:
    """Voxels of a row, from the shares of windows."""
    b, (first, low, count) = k.b, where
    with b.loop(0, count) as at:
        with b.loop_carrying(*_windows(k, words, 2, b.add(first, at), low), 1, [constant(k.number, 0.0)]) as (o, sums):
            sums.next = [b.add(sums.values[0], b.load(words.row.pointer, o, k.number))]
        b.store(sums.result[0], words.spread.pointer, b.add(out, at))


def _repeated(k: Kernel, words: SharesWords, out: Number, where: tuple[Number, ...], repeats: int) -> None:
    """The same where each share is that of so many voxels."""
    b, (first, low, size, count) = k.b, where
    target = words.repeated.pointer
    with b.loop(0, b.add(size, 1), k.lanes) as at:
        share = b.load(words.row.pointer, at, k.number, k.lanes)
        for number, each in enumerate(b.interleave([share] * repeats)):
            b.store(each, target, b.add(b.mul(at, repeats), number * k.lanes))
    begin = b.sub(first, b.mul(low, repeats))
    with b.loop(0, count, k.lanes) as at:
        b.store(b.load(target, b.add(begin, at), k.number, k.lanes), words.spread.pointer, b.add(out, at))


def emit_to_places(k: Kernel, words: PlacesWords, step: int, source: Scratch, channels: Number) -> None:
    """source (C, D, H, W) of windows -> the same of voxels, of which most get nothing."""
    b, kind = k.b, I64 if k.number == F64 else I32
    size, first, count = (k.spans(step, word) for word in (READ_COUNT, WRITE, WRITE_COUNT))
    windows, voxels = (b.mul(b.mul(each[0], each[1]), each[2]) for each in (size, count))
    _, height, width = (b.cast(b.i64(each), kind) for each in words.sizes)
    starts = [b.cast(each, kind) for each in first]
    ends = [b.cast(each, kind) for each in count]
    target = words.spread.pointer
    with b.loop(0, channels) as c:
        base = b.mul(c, words.spread.pitch)
        with b.loop(0, voxels, k.lanes) as at:
            b.store(constant(vector(k.number, k.lanes), 0.0), target, b.add(base, at))
        with b.loop(0, windows) as o:
            place = b.load(words.places.pointer, b.add(b.mul(c, words.places.pitch), o), kind)
            row = b.raw.udiv(place, width)
            depth = b.raw.udiv(row, height)
            indices = depth, b.sub(row, b.mul(depth, height)), b.sub(place, b.mul(row, width))
            d, h, w = (b.sub(index, start) for index, start in zip(indices, starts, strict=True))
            inside = [b.raw.icmp_unsigned("<", index, end) for index, end in zip((d, h, w), ends, strict=True)]
            with b.if_(b.bits("and_", b.bits("and_", inside[0], inside[1]), inside[2])):
                flat = b.cast(b.add(b.mul(b.add(b.mul(d, ends[1]), h), ends[2]), w), I64)
                there = b.add(base, flat)
                gradient = b.load(source.pointer, b.add(b.mul(c, source.pitch), o), k.number)
                b.store(b.add(b.load(target, there, k.number), gradient), target, there)
