"""A case of the soak as a value: its text is a program, a smaller one is a replaced field, its arrays follow from it.

`drawn(rng)` gives cases that share one kernel, so that most of the time is spent on running and not on compiling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, replace
from math import inf, nan, prod
from typing import Any

import numpy as np
from helpers.data import SPECIALS, sprinkled
from helpers.draws import geometry, make, several_geometry, thinned
from helpers.guard import Fence, fenced_like

import convt3d as ct
from convt3d.spec.dtypes import DTYPES, DType
from convt3d.spec.stage import Stage
from convt3d.spec.text import read_stages, write_pipeline

VARIANTS = {"direct": 90, "auto": 8, "winograd": 8}  # cases of one pipeline: as many as may share its kernels
MOST_WORK = 1_000_000  # multiply-adds, and values of all stages: the meaning takes about a hundredth of a second
PLAIN = "plain"
NORMAL = "normal"


@dataclass(frozen=True)
class Draw:
    """`values` and `layouts` are for x and the operands in their order, `layouts` ends with that of the result; those
    that are missing are normal and plain."""

    pipeline: str
    x: tuple[int, ...]
    kernel: tuple[int, ...]
    dtype: str = "float32"
    values: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    threads: int = 1
    algorithm: str = "auto"
    tiles: int | None = None  # seed of drawn tiles; None: those the plan chooses
    streamed: bool = False
    at_end: bool = True  # arrays end at an unreadable page; else they begin there
    seed: int = 0
    more: tuple[tuple[int, ...], ...] = ()  # kernels of further convolutions

    def __repr__(self) -> str:
        """Only what is not the default."""
        given = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Draw({', '.join(f'{name}={value!r}' for name, value in given)})"

    @property
    def stages(self) -> tuple[Stage, ...]:
        return read_stages(self.pipeline)

    def asked(self) -> ct.Pipeline:
        return ct.Pipeline(*self.stages)

    @property
    def kind(self) -> DType:
        return DTYPES[self.dtype]

    def work(self) -> int:
        """Multiply-adds and values; an Error if the case makes no sense."""
        pipeline = self.asked()
        kernels = (self.kernel, *self.more)
        trace = pipeline.trace(self.x, pipeline.operand_shapes(self.x, *kernels))
        taps = 0
        for index, kernel in zip(pipeline.convolutions, kernels, strict=True):
            transposed = isinstance(pipeline.stages[index], ct.ConvTranspose3d)
            taps += prod(kernel[1:]) * prod(trace.values[index + (not transposed)])
        return taps + 10 * sum(map(prod, trace.values))

    def arrays(self, fences: list[Fence]) -> tuple[Any, tuple[Any, ...], Any]:
        """x, operands and the place of the result, as storage between unreadable pages, all else NaN."""
        pipeline, rng = self.asked(), np.random.default_rng(self.seed)
        case = make(pipeline, self.x, self.kernel, self.dtype, self.seed, self.more)
        roles = ["", *(slot.operand.role for slot in pipeline.slots)]
        filled = []
        for at, (array, role) in enumerate(zip((case.x, *case.operands), roles, strict=True)):
            wide = VALUES[_at(self.values, at, NORMAL)](rng, self.kind.widen(array), self.kind)
            filled.append(self.kind.narrow(np.abs(wide) if role == "running_var" else wide))
        for at, slot in enumerate(pipeline.slots, 1):
            if slot.operand.kind == "tensor" and _at(self.layouts, at, PLAIN) == "thin":
                filled[at] = thinned(rng, filled[at])
        filled.append(np.empty(case.output, self.kind.storage))
        laid = [
            LAYOUTS[_at(self.layouts, at, PLAIN)](rng, array, self.at_end, fences) for at, array in enumerate(filled)
        ]
        return laid[0], tuple(laid[1:-1]), laid[-1]


def _at(words: tuple[str, ...], at: int, otherwise: str) -> str:
    return words[at] if at < len(words) else otherwise


# --- values -----------------------------------------------------------------------------------------------------------


def _exponents(kind: DType) -> tuple[int, int]:
    """Of the smallest normal and of the largest number, as powers of two."""
    return {"float16": (-14, 15), "float64": (-1022, 1023)}.get(kind.name, (-126, 127))


def _scaled(low: float, high: float) -> Callable[[np.random.Generator, Any, DType], Any]:
    """By one power of two, as a share of the type's range."""

    def scale(rng: np.random.Generator, values: Any, kind: DType) -> Any:
        share = rng.uniform(low, high)
        return values * 2.0 ** int(abs(share) * _exponents(kind)[share > 0])

    return scale


def _denormal(rng: np.random.Generator, values: Any, kind: DType) -> Any:
    least = 2.0 ** (_exponents(kind)[0] + 1) * kind.eps
    return rng.integers(-40, 41, values.shape) * least


VALUES: dict[str, Callable[[np.random.Generator, Any, DType], Any]] = {
    NORMAL: lambda rng, values, kind: values,
    "zero": lambda rng, values, kind: values * 0.0,
    "constant": lambda rng, values, kind: np.full(values.shape, rng.normal(0.0, 2.0)),
    "large mean": lambda rng, values, kind: values + rng.choice([30.0, -1e3, 2e4]),
    "huge": _scaled(0.3, 0.97),
    "tiny": _scaled(-0.97, -0.3),
    "denormal": _denormal,
    "many sizes": lambda rng, values, kind: values * 2.0 ** rng.integers(-12, 12, values.shape),
    "mixed": lambda rng, values, kind: sprinkled(rng, values, SPECIALS["mixed"]),
    "nan": lambda rng, values, kind: sprinkled(rng, values, SPECIALS["nan"], 0.0),
    "inf": lambda rng, values, kind: sprinkled(rng, values, SPECIALS["inf"], 0.0),
}


# --- layouts ----------------------------------------------------------------------------------------------------------


def _permuted(rng: np.random.Generator, array: Any, order: Any) -> Any:
    return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))


def _spaced(rng: np.random.Generator, array: Any, backwards: bool) -> Any:
    """With gaps between elements along some axes; `backwards`: from the end of some axes to their beginning."""
    steps = rng.integers(1, 4, array.ndim)
    room = np.zeros([size * step for size, step in zip(array.shape, steps, strict=True)], array.dtype)
    turned = tuple(slice(None, None, -1) if backwards and rng.integers(2) else slice(None) for _ in array.shape)
    view = room[tuple(slice(None, None, step) for step in steps)][turned]
    view[...] = array
    return view


def _repeated(rng: np.random.Generator, array: Any) -> Any:
    """Strides of zero along some axes: the first element there stands for all."""
    first = array[tuple(slice(0, 1) if rng.integers(2) else slice(None) for _ in array.shape)]
    return np.broadcast_to(first, array.shape)


def _misaligned(rng: np.random.Generator, array: Any, at_end: bool, fences: list[Fence]) -> Any:
    fence = Fence(array.nbytes + 1, True)
    fences.append(fence)
    copy = np.ndarray(array.shape, array.dtype, fence.bytes, 0)
    copy[...] = array
    return copy


def _fenced(change: Callable[[np.random.Generator, Any], Any]) -> Callable[..., Any]:
    return lambda rng, array, at_end, fences: fenced_like(change(rng, array), at_end, fences)


LAYOUTS: dict[str, Callable[[np.random.Generator, Any, bool, list[Fence]], Any]] = {
    PLAIN: _fenced(lambda rng, array: np.ascontiguousarray(array)),
    "thin": _fenced(lambda rng, array: np.ascontiguousarray(array)),
    "permuted": _fenced(lambda rng, array: _permuted(rng, array, rng.permutation(array.ndim))),
    "channels last": _fenced(lambda rng, array: _permuted(rng, array, [0, *range(2, array.ndim), 1][: array.ndim])),
    "gaps": _fenced(lambda rng, array: _spaced(rng, array, False)),
    "backwards": _fenced(lambda rng, array: _spaced(rng, array, True)),
    "repeated": _fenced(_repeated),
    "misaligned": _misaligned,
}
ONLY_READ = ("repeated", "misaligned", "thin")  # layouts that a result may not have


# --- drawing ----------------------------------------------------------------------------------------------------------


def drawn(rng: np.random.Generator) -> Iterator[Draw]:
    """Cases of one pipeline: stages, type, algorithm and output channels stay, sizes and data change."""
    dtype = str(rng.choice(["float32", "float32", "float64", "float16", "bfloat16"]))
    algorithm = str(rng.choice(["direct", "direct", "auto", "winograd"]))
    if rng.integers(8) == 0:
        yield from _of_several(rng, dtype, algorithm)
        return
    pipeline, x, kernel = _that_fits(rng)
    for _ in range(VARIANTS[algorithm]):
        yield _dressed(rng, pipeline, x, kernel, dtype, algorithm)
        for _ in range(20):
            try:
                changed = _other_sizes(rng, pipeline, x, kernel)
                if _work(*changed) <= MOST_WORK:
                    pipeline, x, kernel = changed
                    break
            except ct.Error:  # stages and sizes that do not fit together
                continue


def _of_several(rng: np.random.Generator, dtype: str, algorithm: str) -> Iterator[Draw]:
    """Cases of one pipeline of several convolutions; data and layouts change."""
    while True:
        try:
            pipeline, x, (kernel, *more) = several_geometry(rng)
            if Draw(write_pipeline(pipeline), x, kernel, more=tuple(more)).work() <= MOST_WORK:
                break
        except ct.Error:
            continue
    for _ in range(VARIANTS[algorithm] // 4):
        yield replace(_dressed(rng, pipeline, x, kernel, dtype, algorithm), more=tuple(more))


def _that_fits(rng: np.random.Generator) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    while True:
        try:
            pipeline, x, kernel = geometry(rng)
            if rng.integers(3) == 0:  # more channels than one block of registers or one vector takes
                x, kernel = _wider(rng, pipeline, x, kernel)
            if _work(pipeline, x, kernel) <= MOST_WORK:
                return pipeline, x, kernel
        except ct.Error:
            continue


def _work(pipeline: Any, x: tuple[int, ...], kernel: tuple[int, ...]) -> int:
    return Draw(write_pipeline(pipeline), x, kernel).work()


def _wider(rng: np.random.Generator, pipeline: Any, x: Any, kernel: Any) -> tuple[Any, Any]:
    factor = int(rng.integers(2, 9))
    if isinstance(pipeline.conv, ct.Conv3d):
        groups = pipeline.conv.groups
        entering = kernel[1] * factor if kernel[1] * groups == x[1] else kernel[1]
        return (x[0], x[1] * factor, *x[2:]), (groups * int(rng.integers(8, 50) // groups), entering, *kernel[2:])
    entering = kernel[0] * factor if kernel[0] == x[1] else kernel[0]
    return (x[0], x[1] * factor, *x[2:]), (entering, int(rng.integers(8, 50)), *kernel[2:])


def _other_sizes(rng: np.random.Generator, pipeline: Any, x: Any, kernel: Any) -> tuple[Any, Any, Any]:
    """Another volume and, of the convolution, other strides, paddings, dilations and taps: the same kernel serves."""
    most = rng.choice([4, 9, 20])
    x = (int(rng.integers(1, 4)), x[1], *(int(size) for size in rng.integers(1, most, 3)))
    stride, dilation = rng.integers(1, rng.choice([3, 5, 12]), 3), rng.integers(1, 4, 3)
    padding, extra = (
        rng.integers(0, 4, 3),
        [int(rng.integers(0, max(pair))) for pair in zip(stride, dilation, strict=True)],
    )
    kernel = (*kernel[:2], *(int(size) for size in rng.integers(1, 6, 3)))
    lists = {"stride": stride, "padding": padding, "output_padding": extra, "dilation": dilation}
    if isinstance(pipeline.conv, ct.Conv3d):
        del lists["output_padding"]
    conv = replace(pipeline.conv, **{name: tuple(map(int, values)) for name, values in lists.items()})
    stages = [*pipeline.stages[: pipeline.conv_index], conv, *pipeline.stages[pipeline.conv_index + 1 :]]
    return ct.Pipeline(*stages), x, kernel


def _dressed(rng: np.random.Generator, pipeline: Any, x: Any, kernel: Any, dtype: str, algorithm: str) -> Draw:
    count = 1 + len(pipeline.slots)
    plainly = rng.integers(3) == 0
    unusual = rng.choice(list(VALUES), count)
    values = np.where(rng.integers(0, 3, count) > 0, NORMAL, unusual)
    layouts = rng.choice(list(LAYOUTS), count + 1)
    if layouts[-1] in ONLY_READ:
        layouts[-1] = PLAIN
    return Draw(
        write_pipeline(pipeline),
        x,
        kernel,
        dtype,
        () if rng.integers(3) == 0 else tuple(map(str, values)),
        () if plainly else tuple(map(str, layouts)),
        int(rng.integers(1, 6)),
        algorithm,
        int(rng.integers(1, 10**6)) if rng.integers(2) else None,
        bool(rng.integers(2)),
        bool(rng.integers(3)),
        int(rng.integers(10**6)),
    )


# --- smaller ones -----------------------------------------------------------------------------------------------------


def smaller(draw: Draw) -> Iterator[Draw]:
    """Cases a little simpler, the largest steps first; some make no sense."""
    stages, pipeline = draw.stages, draw.asked()
    for f in fields(draw):
        if f.default is not MISSING and getattr(draw, f.name) != f.default:
            yield replace(draw, **{f.name: f.default})
    for index in range(len(stages)):
        if index not in pipeline.convolutions:
            yield _without_stage(draw, pipeline, index)
    if draw.more:  # without the last convolution
        last = pipeline.convolutions[-1]
        yield replace(_without_stage(draw, pipeline, last), more=draw.more[:-1])
    conv = pipeline.stages[pipeline.convolutions[0]]
    for name, field in type(conv).__dataclass_fields__.items():
        plain, given = field.default, getattr(conv, name)
        if given != plain:
            triples = [plain]
            if isinstance(given, tuple):
                triples += [
                    (*given[:at], number, *given[at + 1 :]) for at in range(3) for number in (plain, given[at] - 1)
                ]
            for triple in triples:
                yield _with_conv(draw, pipeline, **{name: triple})
    for word in ("values", "layouts"):
        given = getattr(draw, word)
        usual = NORMAL if word == "values" else PLAIN
        for at, one in enumerate(given):
            if one != usual:
                yield replace(draw, **{word: (*given[:at], usual, *given[at + 1 :])})
    for word in ("x", "kernel"):
        sizes = getattr(draw, word)
        for at, size in enumerate(sizes):
            for less in dict.fromkeys((1, size // 2, size - 1)):
                if 0 < less < size:
                    yield replace(draw, **{word: (*sizes[:at], less, *sizes[at + 1 :])})
    if draw.x[1] > 1 and draw.x[1] == draw.kernel[0]:
        for less in (1, draw.x[1] // 2):
            yield replace(draw, x=(draw.x[0], less, *draw.x[2:]), kernel=(less, *draw.kernel[1:]))
    if draw.threads > 2:
        yield replace(draw, threads=2)


def _with_conv(draw: Draw, pipeline: Any, **parameters: Any) -> Draw:
    stages = list(pipeline.stages)
    try:
        stages[pipeline.convolutions[0]] = replace(stages[pipeline.convolutions[0]], **parameters)
        changed = ct.Pipeline(*stages)
    except ct.Error:
        return draw
    if "bias" in parameters:  # its operand goes
        first = next(at for at, slot in enumerate(pipeline.slots, 1) if slot.stage == pipeline.convolutions[0])
        draw = replace(draw, values=_dropped(draw.values, {first + 1}), layouts=_dropped(draw.layouts, {first + 1}))
    return replace(draw, pipeline=write_pipeline(changed))


def _without_stage(draw: Draw, pipeline: Any, index: int) -> Draw:
    gone = {at for at, slot in enumerate(pipeline.slots, 1) if slot.stage == index}
    stages = [stage for at, stage in enumerate(pipeline.stages) if at != index]
    try:
        text = write_pipeline(ct.Pipeline(*stages))
    except ct.Error:
        return draw
    return replace(draw, pipeline=text, values=_dropped(draw.values, gone), layouts=_dropped(draw.layouts, gone))


def _dropped(words: tuple[str, ...], gone: set[int]) -> tuple[str, ...]:
    return tuple(word for at, word in enumerate(words) if at not in gone)


def read(text: str) -> Draw:
    """A Draw from its text."""
    found = eval(text, {"Draw": Draw, "inf": inf, "nan": nan})
    assert isinstance(found, Draw)
    return found
