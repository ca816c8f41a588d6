"""The words of the kernels of gradients, and of the rows of their tables."""

from __future__ import annotations

from dataclasses import dataclass

from ..words import Array, Arrays, Buffer, Size, Sizes, Words


@dataclass(eq=False)
class GradientWords(Words):
    """What a plan says: sizes along axes are of depth, height and width."""

    items: Size  # a part of the result and a chunk of the tiles each
    scratch_size: Size  # elements of one worker
    chunks: Size
    handed_on: Size  # 1: sums of an item join others before they are the result
    window: Size  # tiles that are summed before their sums are handed on
    tiles: Size  # of positions, of all samples
    tile_counts: Sizes
    tile_sizes: Sizes
    tile_samples: Size
    samples: Size
    sizes: Sizes  # of the small array
    large_sizes: Sizes
    strides: Sizes
    paddings: Sizes
    dilations: Sizes
    parts: Array  # rows of PartWords
    tap_table: Array  # rows of TapWords
    vector_blocks: Size  # of a group
    all_sums: Size  # of all parts
    sums: Buffer  # of a part: (slots, blocks of vectors, blocks of numbers, taps, rows, columns, lanes)


@dataclass(eq=False)
class PackedWords(Words):
    """An array packed for a tile: (blocks, samples, D, H, W, pitch), in numbers."""

    packed: Buffer
    pitch: Size  # from one position to the next
    steps: Sizes  # from one position of the tile to the next, along the axes
    sample: Size
    row: Size  # from one row to the next
    plane: Size
    channels: Array  # of each vector: the channel of each lane
    counts: Array  # of each vector: its lanes that are channels
    places: Array  # of each of these in the result


@dataclass(eq=False)
class SlabWords(Words):
    """How positions of the large array lie in its slab: runs of consecutive places, along each axis."""

    runs: Sizes
    run_lengths: Sizes  # in places
    run_steps: Sizes  # in the large array, from one run to the next
    place_steps: Sizes  # in the large array, from one place to the next


@dataclass(eq=False)
class DirectWords(Words):
    """Of direct summation: what is summed at a time, and which positions a tap has."""

    box: Sizes
    ranges: Arrays  # of each tap: first position, and the one behind the last


@dataclass(eq=False)
class WinogradWords(Words):
    """Of Winograd's method. A sheet is all points along height and width, at one point along the depth."""

    small_sheets: Array  # rows of SmallSheetWords
    small_count: Size
    large_sheets: Array  # rows of LargeSheetWords
    terms: Array  # rows of TermWords
    triples: Array  # rows of TripleWords
    triple_count: Size
    number_points: Buffer  # (points of a sheet, blocks, steps, pitch)
    vector_points: Buffer
    number_point: Size  # elements from one point to the next
    vector_point: Size


@dataclass(eq=False)
class SmallSheetWords(Words):
    kind: Size  # which code transforms it
    term: Size  # the first row of its terms along the depth; those of its inputs along height and width follow
    pace_d: Size  # positions that are taken together
    pace_h: Size
    pace_w: Size
    points: Size
    large: Size  # the first sheet of the large array that meets it
    large_count: Size


@dataclass(eq=False)
class LargeSheetWords(Words):
    kind: Size
    term: Size
    slot: Size  # of its first point


@dataclass(eq=False)
class TermWords(Words):
    offset: Size  # in the packed array, in elements
    factor: Size


@dataclass(eq=False)
class TripleWords(Words):
    kind: Size  # which code makes taps of its points
    slot: Size  # of the first point


@dataclass(eq=False)
class PartWords(Words):
    """A part of the result: channels and taps."""

    number: Size  # the first block of the array whose channels are broadcast
    number_count: Size
    vector: Size  # the first block of the array whose channels lie along the lanes
    vector_count: Size
    taps: Size  # the first row of the table of taps
    tap_groups: Size
    tap_count: Size
    tap: Size  # the first tap
    corner_d: Size  # its indices
    corner_h: Size
    corner_w: Size
    begin: Size  # of its sums among those of all parts
    length: Size


@dataclass(eq=False)
class TapWords(Words):
    offset: Size  # in the slab, in elements
    d: Size
    h: Size
    w: Size
    slot: Size  # of its sums
    within: Size  # in a slot's block, in elements


@dataclass(eq=False)
class GradientCall(Words):
    """What a call adds."""

    partials: Array  # (chunks, sums of all parts)
    arrived: Array  # of each part: chunks that are summed
    result: Array  # (Ca, Cb / groups, Kd, Kh, Kw), contiguous
    unfit: Array  # counts rows with numbers that zeros or transforms must not meet


@dataclass(eq=False)
class BiasWords(Words):
    """Of the kernel of a bias's gradient."""

    items: Size  # a piece and a block of channels each
    pieces: Size  # some planes of a sample each
    pieces_of_sample: Size
    planes: Size  # of a piece
    depth: Size
    height: Size
    width: Size
    channels: Size


@dataclass(eq=False)
class BiasCall(Words):
    partials: Array  # (pieces, parts of a sum, channels), float64, zero
