"""A form as tables of C, which the run-time of a library reads: stages, sweeps, steps and links."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from ..cpu import words
from ..cpu.plan.plan import SweepPlan
from ..cpu.steps import arrays, chain, conv, direct, elementwise, interleave, padding, pieces, pool, reduce, winograd
from ..cpu.steps.base import Step
from ..cpu.words import Words, layout, places
from ..plan.names import INPUT, OUTPUT, ArrayName, OperandName, StatisticName, StatisticsName, ValueName
from ..plan.sweeps import Link
from ..spec import stages as s
from ..spec.checks import as_triple
from ..spec.pipeline import Pipeline
from ..spec.rewrite import Step as RewriteStep
from ..spec.stage import Stage
from ..spec.stages.padding import Pad
from .forms import PREPARED, Form, Part, Subject

OPS: dict[type[Stage], str] = {
    s.ConvTranspose3d: "TRANSPOSED",
    s.Conv3d: "CONV",
    Pad: "PAD",
    s.MaxPool3d: "MAX_POOL",
    s.AvgPool3d: "AVG_POOL",
    s.LogSumExp: "LOG_SUM_EXP",
    s.LayerNorm: "LAYER_NORM",
    s.GroupNorm: "GROUP_NORM",
    s.InstanceNorm: "INSTANCE_NORM",
    s.BatchNorm: "BATCH_NORM",
    s.LeakyReLU: "LEAKY_RELU",
    s.HardSwish: "HARD_SWISH",
    s.HardTanh: "HARD_TANH",
    **{
        kind: kind.__name__.upper()
        for kind in (
            *(s.Sum, s.Mean, s.Max, s.Softmax, s.Keep, s.Recall, s.Add, s.Subtract, s.Multiply, s.Divide, s.Clamp),
            *(s.GELU, s.ReLU, s.PReLU, s.Sigmoid, s.Tanh, s.SiLU, s.Mish, s.Softplus, s.Exp, s.Log),
        )
    },
}
_OVER = {"channels": "OVER_CHANNELS", "spatial": "OVER_SPACE", "width": "OVER_WIDTH"}
_KINDS = {"out_channel": "CHANNEL"}
_WORDS = (
    *(words.SweepWords, words.SweepCall, words.ArrayCall, words.SourceCall, words.DestinationCall, words.VectorCall),
    *(
        arrays.PartCall,
        elementwise.ShareWords,
        arrays.LoadWords,
        padding.PadWords,
        conv.ConvWords,
        conv.PacedWords,
        direct.DirectWords,
        direct.PhaseWords,
        direct.MaskWords,
    ),
    *(pieces.PiecesWords, pieces.PieceWords, pieces.RunWords),
    *(winograd.WinogradWords, winograd.GroupWords, winograd.PieceWords, winograd.PointWords),
    *(
        conv.ConvCall,
        direct.DirectCall,
        winograd.WinogradCall,
        interleave.InterleaveWords,
        chain.ConstantWords,
        chain.TensorWords,
        chain.KeepWords,
    ),
    *(pool.PoolWords, pool.WidthWords, pool.PhasePoolWords, reduce.ReduceCall),
)
_STATISTICS = ("shift", "scale", "offset")


def word_places() -> str:
    """Where each word of a set stands."""
    lines = []
    for one in _WORDS:
        own, size = layout(one, False)
        word = "CutWords" if one is pieces.PieceWords else one.__name__  # Winograd's method has pieces, too
        names = [f"{word}_{field.name} = {field.at}" for field in own]
        lines.append(f"enum {{ {', '.join([*names, f'{word}_words = {size}'])} }};")
    return "\n".join(lines)


def kinds(pipeline: Pipeline) -> list[str]:
    """Of the operands, slot by slot."""
    found = (slot.operand.kind for slot in pipeline.slots)
    return [f"KIND_{_KINDS.get(kind, kind.upper())}" for kind in found]


class FormText:
    """The tables of one form."""

    def __init__(self, subject: Subject, part: Part, form: Form, number: int, kernels: Mapping[str, str]) -> None:
        """`kernels` are the names of arrays that hold the code of sweeps, by the key of their structure."""
        self.subject, self.part, self.form, self.number, self.kernels = subject, part, form, number, kernels
        self.plan, self.pipeline = form.plan, form.pipeline
        self.shapes = form.plan.simplified.values
        labels = [stage.label for stage in self.pipeline.stages if isinstance(stage, s.Keep)]
        self.labels = {"x": 0, **{label: at for at, label in enumerate(labels, start=1)}}
        self.values: dict[ArrayName, int] = {}  # which value of the pipeline an array between sweeps holds
        for planned in self.plan.sweeps:
            sweep = planned.sweep
            if isinstance(sweep.dest, ValueName):
                self.values[sweep.dest] = self.shapes.index(sweep.result)
            if sweep.finish is not None and isinstance(sweep.finish.result, ValueName):
                self.values[sweep.finish.result] = self.shapes.index((*sweep.result[:2], 1, 1, 1))
        self.geometric = self.rooms = 1
        self.from_sizes = self._from_sizes()
        self.text = "\n".join(self._lines())

    def _lines(self) -> Iterable[str]:
        n = self.number
        same = ", ".join(str(self.shapes.index(shape)) for shape in self.shapes)
        yield f"static const int same_{n}[] = {{{same}}};"
        yield from self._operands()
        yield f"static const stage stages_{n}[] = {{"
        yield from (f"    {self._stage(at)}," for at in range(len(self.pipeline.stages)))
        yield "};"
        rows = []
        for at, ways in enumerate(self.form.ways):
            others: list[str] = []
            for way in ways.others:
                name = f"{n}_{at}_{len(others)}"
                if way is None:
                    others.append("NULL")
                    continue
                yield from self._steps(way, name)
                nothing = ["NULL"] * len(ways.others)
                yield f"static const sweep sweep_{name} = {self._sweep(way, name, nothing)};"
                others.append(f"&sweep_{name}")
            yield from self._steps(ways.direct, f"{n}_{at}")
            rows.append(self._sweep(ways.direct, f"{n}_{at}", others))
        yield f"static const sweep sweeps_{n}[] = {{"
        yield from (f"    {row}," for row in rows)
        yield "};"

    def row(self, numbers: Mapping[int, int]) -> str:
        """The form itself; `numbers` are those of all forms, by their identity."""
        n, stages, sweeps = self.number, len(self.pipeline.stages), len(self.plan.sweeps)
        aliases = ", ".join(str(self._array(name)) for name in self.plan.aliases) or "0"
        others = (self.form.apart, self.form.tame)
        apart, tame = ("NULL" if one is None else f"&form_{numbers[id(one)]}" for one in others)
        return (
            f"static const form form_{n} = {{{stages}, {sweeps}, {len(self.values)}, {self.pipeline.conv_index}, "
            f"stages_{n}, sweeps_{n}, same_{n}, {len(self.plan.aliases)}, {{{aliases}}}, "
            f"{len(self.pipeline.slots)}, kinds_{n}, {apart}, {tame}, {self._changes}, changes_{n}, "
            f"{self._average()}}};"
        )

    def _average(self) -> str:
        """What is part of the weights, and, of a pool, its window and divisor."""
        if not self.form.average:
            return "0, {0, 0, 0}, 0"
        kind, stage = PREPARED[self.form.average], self._changing[-1].before.stages[1]
        if not isinstance(stage, s.AvgPool3d):
            return f"{kind}, {{0, 0, 0}}, 0"
        window = ", ".join(map(str, stage.triples[0]))
        return f"{kind}, {{{window}}}, {stage.divisor_override or 0}"

    def _from_sizes(self) -> dict[Any, str]:
        """Of a sum over taps: numbers that sizes decide, by their value for the sample sizes."""
        if self.form.average != "mean_over_taps":
            return {}
        at = self.pipeline.conv_index
        before, behind = self.pipeline.stages[1:at], self.pipeline.stages[at + 1 :]
        found: dict[Any, str] = {stage.other: "C3D_REALS" for stage in before if isinstance(stage, s.Multiply)}
        if before and isinstance(self._changing[-1].before.stages[1], s.Sum):
            found[behind[0].other] = "C3D_REALS + 1"  # type: ignore[attr-defined]
        return found

    @property
    def _changing(self) -> list[RewriteStep]:
        return [step for step in self.plan.rewritten.steps if step.prepare is not None]

    @property
    def _changes(self) -> int:
        return len(self._changing)

    def _operands(self) -> Iterable[str]:
        """Their kinds, slot by slot, and how they come from those that are given."""
        n = self.number
        yield f"static const int kinds_{n}[] = {{{', '.join(kinds(self.pipeline))}}};"
        rows = []
        for step in self._changing:
            norm = next((one for one in step.before.stages if isinstance(one, s.BatchNorm)), None)
            folds = step.name == "batch_norm_into_weights" and norm is not None
            eps = repr(norm.eps) if folds and norm is not None else "0.0"
            biased = int(folds and step.before.conv.bias)
            average = int(any(isinstance(one, s.Mean) for one in step.before.stages))
            kernel = [slot.operand.kind for slot in step.before.slots].index("kernel")
            rows.append(f"{{{PREPARED[step.name]}, {step.first}, {step.count}, {eps}, {biased}, {average}, {kernel}}}")
        yield f"static const change changes_{n}[] = {{{', '.join(rows) or '{0, 0, 0, 0.0, 0, 0, 0}'}}};"

    # --- stages -------------------------------------------------------------------------------------------------------

    def _stage(self, at: int) -> str:
        stage = self.pipeline.stages[at]
        slots = [number for number, slot in enumerate(self.pipeline.slots) if slot.stage == at]
        over = _OVER.get(getattr(stage, "over", "channels"), "0")
        if isinstance(stage, s.GELU):
            over = str(int(stage.approximate == "tanh"))
        if isinstance(stage, Pad):
            over = f"PAD_{stage.mode.upper()}"
        label = stage.uses or stage.keeps
        numbers = ", ".join(self._number(value) for value in _numbers(stage))
        integers = ", ".join(map(str, self._integers(stage)))
        return (
            f"{{OP_{OPS[type(stage)]}, {over}, {int(getattr(stage, 'reverse', False))}, "
            f"{-1 if label is None else self.labels[label]}, {slots[0] if slots else 0}, {len(slots)}, "
            f"{{{numbers}}}, {{{integers}}}}}"
        )

    def _number(self, value: float | None) -> str:
        """A constant, or the parameter whose sample value it is."""
        if value is None:
            return "{-2, 0.0}"
        if value in self.from_sizes:
            return f"{{{self.from_sizes[value]}, 0.0}}"
        for at, name in enumerate(self.subject.reals):
            if self.form.values[name] == value:
                return f"{{{at}, 0.0}}"
        text = repr(value) if math.isfinite(value) else "NAN" if math.isnan(value) else f"{'-' * (value < 0)}INFINITY"
        return f"{{-1, {text}}}"

    def _parameter(self, name: str, value: int) -> str:
        names = self.subject.integers
        return str(-1 - names.index(name) if name in names else value)

    def _integers(self, stage: Stage) -> list[str]:
        if isinstance(stage, s.ConvTranspose3d) and self.form.average == "pool_into_weights":
            return [*(f"-1 - C3D_INTS - {n}" for n in range(12)), self._parameter("groups", stage.groups)]
        if isinstance(stage, s.ConvTranspose3d):
            triples = zip(("stride", "padding", "output_padding", "dilation"), stage.triples, strict=True)
            found = [
                self._parameter(f"{name}_{axis}", one)
                for name, three in triples
                for axis, one in zip("dhw", three, strict=True)
            ]
            return [*found, "WHOLE" if self.part.of_ones else self._parameter("groups", stage.groups)]
        if isinstance(stage, s.Conv3d):
            same, valid = stage.padding == "same", stage.padding == "valid"
            padded = ["SAME"] * 3 if same else ["0"] * 3 if valid else [str(one) for one in as_triple(stage.padding)]
            strides, dilations = map(str, as_triple(stage.stride)), map(str, as_triple(stage.dilation))
            return [*strides, *padded, *["0"] * 3, *dilations, str(stage.groups)]
        if isinstance(stage, Pad):
            conv_stage = self.part.pipeline.conv
            same = isinstance(conv_stage, s.Conv3d) and conv_stage.padding == "same"
            return ["SAME" if same else str(before) for before, _ in stage.sides]
        if isinstance(stage, (s.MaxPool3d, s.AvgPool3d)):
            return self._pool(stage)
        return [str(stage.num_groups)] if isinstance(stage, s.GroupNorm) else ["0"]

    def _pool(self, stage: s.MaxPool3d | s.AvgPool3d) -> list[str]:
        at = next(at for at, one in enumerate(self.pipeline.stages) if one is stage)
        found = self._turns(at)
        for three in stage.triples[:2] if not found else ():
            for size, axis in zip(three, self.shapes[at][2:], strict=True):
                whole = size == axis and stage not in self.part.pipeline.stages
                found.append("WHOLE" if whole else self._parameter("pool_kernel", size))
        include = int(getattr(stage, "count_include_pad", True))
        divisor = getattr(stage, "divisor_override", None) or 0
        return [*found, *map(str, stage.triples[2]), str(int(stage.ceil_mode)), str(include), str(divisor)]

    def _turns(self, at: int) -> list[str]:
        """Windows and strides of the pools that a max-pool over whole turns of phases became, where the strides of the
        convolution are parameters."""
        last = self.plan.rewritten.steps[-1] if self.plan.rewritten.steps else None
        if last is None or last.name != "max_pool_over_phases" or not self.subject.problem:
            return []
        first = next(n for n, one in enumerate(self.pipeline.stages) if isinstance(one, s.MaxPool3d))
        asked = last.before.stages[first]
        assert isinstance(asked, s.MaxPool3d)
        names = [self.subject.integers.index(f"stride_{axis}") for axis in "dhw"]
        if at == first:
            return [str(-1 - name) for name in names] * 2
        return [
            f"DIVIDED({size}, {name})" for three in asked.triples[:2] for size, name in zip(three, names, strict=True)
        ]

    # --- sweeps -------------------------------------------------------------------------------------------------------

    def _array(self, name: ArrayName | None) -> int:
        if name is None:
            return -1
        if isinstance(name, OperandName):
            return 2 + name.place
        if isinstance(name, ValueName):
            return 64 + name.number
        if isinstance(name, StatisticName):
            return 128 + 3 * name.number + _STATISTICS.index(name.word)
        if isinstance(name, StatisticsName):
            return 128 + 3 * name.number
        assert name in (INPUT, OUTPUT)
        return int(name == OUTPUT)

    def _sweep(self, planned: SweepPlan, name: str, others: Sequence[str]) -> str:
        sweep, steps = planned.sweep, _flat(planned.structure.steps)
        in_order = int(isinstance(planned.structure.steps[0], elementwise.Elementwise))
        size = places([*planned.structure.words, *planned.structure.call_words], False)[-1]
        before = places(planned.structure.words, False)[-1]
        behind = steps[next((n + 1 for n, step in enumerate(steps) if step.convolves), len(steps)) :]
        finish = -1 if sweep.finish is None else self.pipeline.stages.index(sweep.finish.stage)
        finished = -1 if sweep.finish is None else self._array(sweep.finish.result)
        rows = int(any(step.needs_whole_rows for step in steps))
        parts = int(not any(step.couples_channels for step in behind))
        pairs = int(any(isinstance(step, direct.PairedConvolution) for step in steps))
        masks = int(any(isinstance(step, direct.MaskedConvolution) for step in steps))
        by_rows = int(any(isinstance(step, direct.DirectConvolution) and bool(step.heights) for step in steps))
        pace = next((step.pace for step in steps if isinstance(step, winograd.WinogradConvolution)), 0)
        return (
            f"{{{self._array(sweep.source)}, {self.shapes.index(sweep.shape)}, {self._array(sweep.dest)}, "
            f"{self.shapes.index(sweep.result)}, {finish}, {finished}, {rows}, {parts}, {len(steps)}, "
            f"steps_{name}, {size}, {before}, {self.kernels[planned.structure.key]}, "
            f"{by_rows}, {pairs}, {masks}, {in_order}, {pace}, {others[0]}, {others[1]}, "
            f"{{{', '.join(others[2:4])}}}, {{{', '.join(others[4:])}}}}}"
        )

    def _steps(self, planned: SweepPlan, sweep_name: str) -> Iterable[str]:
        structure = planned.structure
        word, call = layout(words.SweepWords, False)[1], places(structure.words, False)[-1]
        call += layout(words.SweepCall, False)[1]
        rows, rooms, geometric = [], 0, 0
        if isinstance(structure.steps[0], elementwise.Elementwise):
            word += layout(elementwise.ShareWords, False)[1]
        for number, step in enumerate(_flat(structure.steps)):
            links = getattr(step, "links", None) or ((step.link,) if isinstance(step, chain.RowNorm) else ())
            name = f"links_{sweep_name}_{number}" if links else "NULL"
            if links:
                yield f"static const chain_link {name}[] = {{"
                yield from (f"    {self._link(link)}," for link in links)
                yield "};"
            kind, stage, array, numbers, paced = self._step(step, planned.sweep.source, planned.sweep.dest)
            rows.append(f"{{STEP_{kind}, {word}, {call}, {stage}, {array}, {numbers}, {paced}, {len(links)}, {name}}}")
            word += _length(step.words)
            call += _length(step.call)
            rooms += sum(field.kind == "buffer" for own in step.words for field in layout(own, False)[0])
            geometric += kind in ("CONV", "WINOGRAD", "POOL", "PHASE_POOL")
        self.rooms, self.geometric = max(self.rooms, rooms), max(self.geometric, geometric)
        yield f"static const step steps_{sweep_name}[] = {{"
        yield from (f"    {row}," for row in rows)
        yield "};"

    def _step(self, step: Step, source: ArrayName, dest: ArrayName | None) -> tuple[str, int, int, int, int]:
        """Its kind, stage, array, statistics and pace."""
        if isinstance(step, arrays.Load):
            return "LOAD", self.values.get(step.source, 0), self._array(step.source), int(step.in_parts), 0
        if isinstance(step, padding.PaddedLoad):
            return "PADDED", step.stage, self._array(step.source), 0, 0
        if isinstance(step, (direct.DirectConvolution, winograd.WinogradConvolution)):
            array, by = self._array(step.source) if step.reads else -1, isinstance(step, direct.DirectConvolution)
            return "CONV" if by else "WINOGRAD", self.pipeline.conv_index, array, 0, int(step.pace is not None)
        if isinstance(step, interleave.Interleave):
            return "INTERLEAVE", 0, self._array(dest) if step.writes else -1, 0, 0
        if isinstance(step, pool.Pool):
            return "POOL", step.stage, -1, int(step.whole is None), 0
        if isinstance(step, pool.PhasePool):
            return "PHASE_POOL", step.stage, -1, 0, 0
        if isinstance(step, reduce.Reduce):
            return "REDUCE", 0, -1, step.statistics, 0
        kinds: dict[type[Step], str] = {chain.Chain: "CHAIN", chain.RowNorm: "ROW_NORM", arrays.Store: "STORE"}
        return kinds[type(step)], 0, -1, 0, 0

    def _link(self, link: Link) -> str:
        numbers = chain.scalars(link.stage)
        kind = "PLAIN"
        if link.takes_tensor:
            kind = "TENSOR"
        elif isinstance(link.stage, s.Keep):
            kind = "KEEP"
        elif numbers:
            kind = "CONSTANTS"
        own = ", ".join(str(self._array(name)) for name in link.arrays) or "0"
        shape = self.values.get(link.arrays[0], 0) if link.arrays else 0
        constants = ", ".join(self._number(value) for _, value in numbers) or "{-1, 0.0}"
        return (
            f"{{LINK_{kind}, {int(link.collapses_channels)}, {len(link.arrays)}, {{{own}}}, {shape}, "
            f"{len(numbers)}, {{{constants}}}}}"
        )


def _flat(steps: Sequence[Step]) -> Sequence[Step]:
    """Load, chain and store one by one, where they are one step."""
    first = steps[0]
    return [first.load, first.chain, first.store] if isinstance(first, elementwise.Elementwise) else steps


def _length(sets: Sequence[type[Words]]) -> int:
    return sum(layout(one, False)[1] for one in sets)


def _numbers(stage: Stage) -> list[float | None]:
    """The stage's own numbers, in the order of its fields; None stands for one that is not given."""
    if isinstance(stage, s.Softmax):
        return [stage.shift, stage.scale if isinstance(stage.scale, float) else None, None]
    if isinstance(stage, s.Clamp):
        return [stage.min, stage.max, None]
    values: list[Any] = [getattr(stage, field.name) for field in fields(stage)]
    return ([value for value in values if isinstance(value, float)] + [None] * 3)[:3]
