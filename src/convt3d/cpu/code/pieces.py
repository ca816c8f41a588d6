"""A convolution in pieces: some taps and some input channels after the others, each from a slab of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from llvmlite import ir

from ..ir.frame import Kernel
from ..ir.move import zeros
from ..ir.values import I64, Number
from ..plan.geometry import POSITION, POSITION_COUNT, READ, READ_COUNT
from ..steps.conv import ConvCall, ConvWords
from ..steps.pieces import PiecesWords, PieceWords
from ..words import row_length
from .planes import Box

if TYPE_CHECKING:
    from .conv import Channels


@contextmanager
def each_piece(
    k: Kernel,
    conv: ConvWords,
    pieces: PiecesWords,
    call: ConvCall,
    number: int,
    part: Channels,
    pairs: bool,
    fill: Callable[[ConvWords, Box], None],
) -> Iterator[tuple[Channels, tuple[ir.Value, Number, Number]]]:
    """Runs the body for one piece of one group after the other, whose inputs `fill` has put into the slab, with the
    runs that it adds to the buffer: zeros before the first, and the bias joins after the last."""
    b, together, of_group = k.b, 2 if pairs else 1, k.b.sdiv(conv.in_channels, conv.groups)
    _each_vector(k, conv, number, part, lambda c, place: zeros(k))
    with b.loop(*part.groups) as group, b.loop(0, pieces.count) as at:
        row = k.row(PieceWords, b, b.at(pieces.pieces, b.mul(at, row_length(PieceWords)), I64))
        words, before = copy(conv), b.mul(row.channel, together)
        words.groups, words.in_group, words.in_channels = 1, row.channels, b.sub(of_group, before)
        k.first_channel = k.dot((group, of_group), (1, before))
        fill(words, _box_of(k, conv, pieces, number, (row.depth, row.height, row.width)))
        own = replace(part, groups=(group, b.add(group, 1)), slab=group)
        yield own, (pieces.runs, row.first, row.behind)
    k.first_channel = part.channel
    with b.if_(b.compare("!=", conv.biased, 0)):

        def lifted(c: Number, place: Number) -> ir.Value:
            bias = b.splat(b.load(call.bias, b.add(part.channel, c), k.number), k.lanes)
            return b.add(b.load(conv.phased.pointer, place, k.number, k.lanes), bias)

        _each_vector(k, conv, number, part, lifted)


def _box_of(k: Kernel, conv: ConvWords, pieces: PiecesWords, number: int, shifts: tuple[Number, ...]) -> Box:
    """The inputs of a piece whose first shifts are these."""
    b, found = k.b, []
    for axis, low in enumerate(shifts):
        read, first = k.span(axis, number, READ), k.span(axis, number, POSITION)
        pace, count = conv.paces[axis], k.span(axis, number, POSITION_COUNT)
        origin = k.dot((first, pace), (1, low))
        begin = b.max(origin, read)
        end = b.min(
            k.dot((1, origin), (b.sub(count, 1), pace), (1, pieces.shifts[axis])),
            b.add(read, k.span(axis, number, READ_COUNT)),
        )
        some = b.compare(">", end, begin)
        inside = (b.sub(begin, origin), b.sub(end, begin), b.sub(begin, read))
        found.append([b.select(some, word, 0) for word in inside])
    place, valid, begins = (tuple(words) for words in zip(*found, strict=True))
    return Box(place, valid, begins)


def _each_vector(
    k: Kernel, conv: ConvWords, step: int, part: Channels, value: Callable[[Number, Number], ir.Value]
) -> None:
    """Stores value(channel, place) all over the buffer."""
    b, length = k.b, k.b.mul(k.span(0, step, POSITION_COUNT), conv.plane)
    with b.loop(0, part.channels) as c, b.loop(0, conv.phases) as phase, b.loop(0, length, k.lanes) as at:
        place = k.dot((c, conv.phased.pitch), (phase, conv.phase), (at, 1))
        b.store(value(c, place), conv.phased.pointer, place)
