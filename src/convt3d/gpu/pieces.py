"""Cuts the steps of a sweep into pieces, each of which one GPU kernel can do.

A piece has a source (the convolution, or an array), links, at most one pool with links after it. A piece of its own
copies the convolution's input, and does what lies before it; what no kernel can do in one go is stored between two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ..plan.names import ArrayName
from ..plan.sweeps import Chain, Conv, Interleave, Link, Op, Pad, PhasePool, Pool, Reduce, RowNorm, operands_of
from ..spec.pipeline import Pipeline, Trace
from ..spec.shapes import Shape
from ..spec.stages import CHANNELS, Add, Keep
from .config import MOST_CHANNELS, MOST_LOADED, MOST_POOLED


class NotOnGpu(Exception):  # noqa: N818 - no error: stock PyTorch takes the pipeline
    """Why a pipeline has no GPU kernels, or none that the GPU takes."""


@dataclass(frozen=True)
class PreparedName(ArrayName):
    """The convolution's input with its halo: channels last, as its tensor cores want it, by a kernel of its own."""

    number: int

    def title(self, pipeline: Pipeline) -> str:
        return f"prepared {self.number}"


@dataclass(frozen=True)
class BetweenName(ArrayName):
    """A value that is stored between two kernels of a sweep."""

    number: int

    of_numbers = True

    def title(self, pipeline: Pipeline) -> str:
        return f"value between {self.number}"


@dataclass(frozen=True)
class PartialsName(ArrayName):
    """Statistics of tiles."""

    number: int

    of_numbers = True


@dataclass(frozen=True)
class FilledName(ArrayName):
    """The convolution's input from its first voxel on, as its kernels read it."""

    source: ArrayName


@dataclass(frozen=True)
class WeightsName(ArrayName):
    """Packed weights; and a flag on the GPU, whether one of them is not finite."""

    word: Literal["packed", "wild"]


PACKED, WILD = WeightsName("packed"), WeightsName("wild")


@dataclass(frozen=True)
class Piece:
    """One kernel: what it reads, what it does and where the result goes."""

    source: ArrayName
    shape: Shape  # of the source
    conv: int | None = None  # stage, where the source is the convolution of it
    before: tuple[Link, ...] = ()
    pool: int | None = None  # stage
    pad: int | None = None  # stage that adds copies of voxels around what a convolution reads
    after: tuple[Link, ...] = ()
    reduce: str | None = None  # kind of the statistics it leaves
    partials: PartialsName | None = None  # where the statistics of tiles go
    dest: ArrayName | None = None
    result: Shape = (0, 0, 0, 0, 0)  # of what reaches the store or the statistics

    @property
    def links(self) -> tuple[Link, ...]:
        return self.before + self.after

    @property
    def blank(self) -> bool:
        """Whether nothing has happened to the source yet."""
        return self.conv is None and self.pool is None and self.pad is None and not self.links

    def linked(self, link: Link) -> Piece:
        return (
            replace(self, before=(*self.before, link))
            if self.pool is None
            else replace(self, after=(*self.after, link))
        )


@dataclass
class Arrays:
    """Between kernels: inputs of the convolution by what makes them, and values stored in the type of sums."""

    prepared: dict[tuple[ArrayName, tuple[Op, ...]], PreparedName] = field(default_factory=dict)
    stored: dict[ArrayName, Shape] = field(default_factory=dict)


def split(
    pipeline: Pipeline, trace: Trace, source: ArrayName, shape: Shape, ops: Sequence[Op], arrays: Arrays
) -> list[Piece]:
    """The pieces of these steps; the last one has no destination yet."""
    splitter = _Splitter(pipeline, trace, source, shape, arrays)
    for index, op in enumerate(ops):
        splitter.take(op, tuple(ops[:index]))
    return [*splitter.done, replace(splitter.piece, result=splitter.result)]


class _Splitter:
    """Walks over steps and begins a new kernel where one cannot take the next step."""

    def __init__(self, pipeline: Pipeline, trace: Trace, source: ArrayName, shape: Shape, arrays: Arrays) -> None:
        self.pipeline, self.trace, self.arrays = pipeline, trace, arrays
        self.piece = Piece(source, shape)
        self.result = shape
        self.done: list[Piece] = []

    def take(self, op: Op, before: tuple[Op, ...]) -> None:
        if type(op) not in TAKEN:
            raise NotImplementedError(f"the GPU has no piece for {type(op).__name__}: add it to TAKEN in {__name__}")
        TAKEN[type(op)](self, op, before)

    def conv(self, op: Conv, before: tuple[Op, ...]) -> None:
        self._prepare(before)
        self.piece = replace(self.piece, conv=op.stage)
        self.result = self.trace.values[op.stage + 1]
        _, *bias = operands_of(self.pipeline, op.stage)
        if bias:
            self.piece = self.piece.linked(Link(Add("channel"), tuple(bias)))

    def pool(self, op: Pool | PhasePool, before: tuple[Op, ...]) -> None:
        mixed = any(mixes(link) for link in self.piece.links)
        if self.piece.pool is not None or (mixed and self.piece.conv is not None and self._channels() > MOST_POOLED):
            self._store()
        self.piece = replace(self.piece, pool=op.stage)
        self.result = self.trace.values[op.stage + 1]

    def pad(self, op: Pad, before: tuple[Op, ...]) -> None:
        self.piece = replace(self.piece, pad=op.stage)
        self.result = self.trace.values[op.stage + 1]

    def chain(self, op: Chain, before: tuple[Op, ...]) -> None:
        for at, link in enumerate(op.links):
            self._link(link, op.links[at:])

    def row_norm(self, op: RowNorm, before: tuple[Op, ...]) -> None:
        raise NotOnGpu("LayerNorm along the width has no GPU kernel")

    def reduce(self, op: Reduce, before: tuple[Op, ...]) -> None:
        self.piece = replace(self.piece, reduce=op.kind)

    def nothing(self, op: Op, before: tuple[Op, ...]) -> None:
        """Kernels write phases to their places."""

    def _link(self, link: Link, rest: tuple[Link, ...]) -> None:
        if mixes(link):
            most = MOST_CHANNELS if self.piece.pool is None else MOST_POOLED
            grouped = self.pipeline.conv.groups > 1 and not self._depthwise()
            if self.piece.conv is not None and (grouped or self.result[1] > most):
                self._store_before(rest)
            if self.result[1] > MOST_LOADED:
                raise NotOnGpu(f"no program holds the {MOST_LOADED} channels and more of a stage that mixes them")
        self.piece = self.piece.linked(link)
        if mixes(link) and link.stage.out_shape(self.result, ()) != self.result:
            self.result = (self.result[0], 1, *self.result[2:])

    def _channels(self) -> int:
        """That the convolution of the piece gives."""
        return self.trace.values[self.pipeline.conv_index + 1][1]

    def _depthwise(self) -> bool:
        conv = self.pipeline.conv
        return self.trace.values[self.pipeline.conv_index][1] == conv.groups

    def _prepare(self, before: tuple[Op, ...]) -> None:
        """The convolution's input, made once however often it is read."""
        prepared, key = self.arrays.prepared, (self.piece.source, before)
        if key not in prepared:
            prepared[key] = PreparedName(len(prepared))
            self.done.append(replace(self.piece, dest=prepared[key], result=self.result))
        self.piece = Piece(prepared[key], self.result)

    def _store_before(self, rest: tuple[Link, ...]) -> None:
        """A value that the rest of the chain uses again must be kept in its kernel: all links since then move there."""
        piece, labels = self.piece, {link.stage.uses for link in rest}
        links = piece.before if piece.pool is None else piece.after
        start = next((at for at, link in enumerate(links) if _keeps(link, labels)), len(links))
        self.piece = replace(piece, before=links[:start]) if piece.pool is None else replace(piece, after=links[:start])
        self._store()
        self.piece = replace(self.piece, before=links[start:])

    def _store(self) -> None:
        name = BetweenName(len(self.arrays.stored))
        self.arrays.stored[name] = self.result
        self.done.append(replace(self.piece, dest=name, result=self.result))
        self.piece = Piece(name, self.result)


TAKEN: dict[type[Op], Callable[..., None]] = {
    Conv: _Splitter.conv,
    Pool: _Splitter.pool,
    PhasePool: _Splitter.pool,
    Pad: _Splitter.pad,
    Chain: _Splitter.chain,
    RowNorm: _Splitter.row_norm,
    Reduce: _Splitter.reduce,
    Interleave: _Splitter.nothing,
}


def _keeps(link: Link, labels: set[str | None]) -> bool:
    return isinstance(link.stage, Keep) and link.stage.label in labels


def mixes(link: Link) -> bool:
    return bool(link.stage.couples & CHANNELS)
