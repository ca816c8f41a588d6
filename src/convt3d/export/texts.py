"""The texts of a library: its header, the C file that its run-time is built around, and what build systems read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..cpu.plan.winograd import EXACT_PIECES, Matrix
from ..cpu.runtime import elementary
from ..cpu.steps.direct import HEIGHTS, SUMMED
from ..spec.dtypes import DType
from ..spec.problem_file import SIZE, TENSOR
from ..spec.text import write_pipeline
from .describe import FormText, word_places
from .forms import Form, Part, Subject
from .objects import LONGEST, SCHEMES, Level, gather_kinds, scatter_kinds

STORED = {"float32": 32, "float64": 64, "float16": 16, "bfloat16": 17}
REALS = {"float32": "float", "float64": "double", "float16": "uint16_t", "bfloat16": "uint16_t"}
RUNTIME = (
    *(
        "core.h",
        "geometry.c",
        "winograd.c",
        "shapes.c",
        "pieces.c",
        "tiling.c",
        "cost.c",
        "choice.c",
        "places.c",
        "transforms.c",
    ),
    *(
        "tables.c",
        "elementary.c",
        "statistics.c",
        "machine.c",
        "cores.c",
        "weights.c",
        "tame.c",
        "average.c",
        "execute.c",
        "sequence.c",
        "api.c",
    ),
)

HEADER = """\
/* {what}
   Arrays are of {dtype}{bits}. Written by convt3d; docs/c_library.md of convt3d describes it. */

#ifndef {guard}_H
#define {guard}_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

typedef {real} {name}_real;

/* (B, C, D, H, W) of a value; a vector has one axis, and sizes of 1 or 0 beside it. Strides are in elements; all of
   them 0: the array is dense. */
struct {name}_array {{
    void *data;
    int64_t shape[5];
    int64_t strides[5];
}};

enum {{
    {upper}_OK = 0,
    {upper}_ARGUMENT = 1,  /* a parameter, or a pointer, that is not allowed */
    {upper}_SHAPE = 2,     /* arrays that do not fit each other */
    {upper}_MEMORY = 3,    /* not enough of it */
    {upper}_WORKSPACE = 4  /* the workspace is too small */
}};

/* Set all of it to zero first. */
struct {name}_args {{
{fields}
    int threads;            /* 0: CONVT3D_NUM_THREADS, else all usable cores; bits are the same for any number */
    void *workspace;        /* NULL: memory is allocated for the call */
    size_t workspace_bytes; /* at least what {name}_workspace says */
}};

/* All return {upper}_OK or another code, of which {name}_message says more. Threads may call them at the same time. */
int {name}_run(const struct {name}_args *args);
int {name}_workspace(const struct {name}_args *args, size_t *bytes);    /* for these sizes; reads no data */
int {name}_output_shape(const struct {name}_args *args, int64_t shape[5]); /* reads no data */

const char *{name}_message(void); /* of the last error in this thread */
const char *{name}_isa(void);     /* the instruction set that was chosen: {isas} */
{solution}
#ifdef __cplusplus
}}
#endif

#endif
"""

SOURCE = """\
/* {what}: what convt3d has written about it, and the run-time that reads it. */

#define _GNU_SOURCE
#include "{name}.h"

typedef {number} number;
#define C3D_REAL {name}_real
#define C3D_ARRAY struct {name}_array
#define C3D_ARGS struct {name}_args
#define C3D_RUN {name}_run
#define C3D_ASK {name}_workspace
#define C3D_SHAPE_OF {name}_output_shape
#define C3D_TEXT {name}_message
#define C3D_CHOSEN {name}_isa
#define C3D_ATTEND {name}_attend
#define C3D_LAUNCH {name}_launch
{sizes}
enum {{ C3D_OK, C3D_ARGUMENT, C3D_SHAPE, C3D_MEMORY, C3D_WORKSPACE }};
{places}

#pragma GCC visibility push(default)
{exported}
#pragma GCC visibility pop

#include "runtime/core.h"

static const char *const C3D_NAMES[] = {{{names}}};
static const char *const C3D_ISA[] = {{{isas}}};
static const i64 C3D_VECTOR[] = {{{vectors}}}, C3D_REGISTERS[] = {{{registers}}};
static const i64 C3D_ROWS[] = {{{rows}}}, C3D_COLUMNS[] = {{{columns}}}; /* of the register tile */

{transforms}

{kernels}

{forms}

static const C3D_ARRAY *operand_of(const C3D_ARGS *args, int slot) {{
    const C3D_ARRAY *found[] = {{{operands}}};
    return found[slot];
}}

static void parameters_of(const C3D_ARGS *args, i64 *ints, double *reals) {{
    (void)args, (void)ints, (void)reals;
{parameters}}}

/* Of each segment, the first form that serves these parameters, for an instruction set; and the first one with an
   average in its weights, or NULL. */
{choices}
{segments}

{includes}
{solution}"""


@dataclass(frozen=True)
class FormSet:
    """Forms of a part, those with an average in its weights, the levels that they serve, and the numbers of their
    kernels."""

    part: Part
    levels: Sequence[Level]
    forms: Sequence[Form]
    averaged: Sequence[Form]
    kernels: Mapping[str, int]  # by the key of a structure; the same for all parts of a level

    @property
    def every(self) -> list[Form]:
        return [*self.forms, *self.averaged]

    def isas(self, levels: Sequence[Level]) -> str:
        """As a condition in C."""
        if len(self.levels) == len(levels):
            return "1"
        return " || ".join(f"isa == {at}" for at, level in enumerate(levels) if level in self.levels)


def header(subject: Subject, dtype: DType, levels: Sequence[Level]) -> str:
    fields = [f"    struct {subject.name}_array {name};" for name in ("input", *subject.operands, "output")]
    fields += [f"    {'int64_t' if kind == SIZE else 'double'} {name};" for name, kind in subject.parameters]
    solution = "\n/* The problem's own signature: dense arrays. An error is told on stderr. */\n"
    solution = f"{solution}{_signature(subject)};\n" if subject.problem else ""
    return HEADER.format(
        what=_what(subject),
        dtype=dtype.name,
        bits=", as their bits" if dtype.itemsize == 2 else "",
        guard=subject.name.upper(),
        name=subject.name,
        upper=subject.name.upper(),
        real=REALS[dtype.name],
        fields="\n".join(fields),
        isas=", ".join(dict.fromkeys(level.isa.name for level in levels)),
        solution=solution,
    )


def source(
    subject: Subject,
    dtype: DType,
    levels: Sequence[Level],
    sets: Sequence[FormSet],
) -> str:
    """The forms of a set serve some of the levels."""
    name = subject.name
    every = [one for own in sets for form in own.every for one in form.all]
    numbers = {id(form): number for number, form in enumerate(every)}
    texts = []
    for own in sets:
        names = {key: f"kernels_{number}" for key, number in own.kernels.items()}
        texts += [FormText(subject, own.part, one, numbers[id(one)], names) for form in own.every for one in form.all]
    sizes = {
        "STORED": STORED[dtype.name],
        "ITEM": dtype.itemsize,
        "SLOTS": max(len(subject.operands), *(len(part.operands) for part in subject.parts)),
        "SEGMENTS": len(subject.parts),
        "INTS": len(subject.integers),
        "REALS": len(subject.reals),
        "LEVELS": len(levels),
        "STAGES": max(len(form.pipeline.stages) for form in every),
        "VALUES": max(len(text.values) for text in texts),
        "STATISTICS": max(len(form.plan.sweeps) for form in every),
        "LABELS": max(len(text.labels) for text in texts),
        "GEOMETRIC": max(text.geometric for text in texts),
        "ROOMS": max(text.rooms for text in texts),
        "MOST_ROWS": max(level.tile.rows for level in levels),
        "SCHEMES": LONGEST,
        "PIECES": EXACT_PIECES,
        "SUMMED": SUMMED,
        "LOW": HEIGHTS.start,
        "HIGH": HEIGHTS.stop - 1,
    }
    return SOURCE.format(
        what=_what(subject),
        name=name,
        number=dtype.accumulate.replace("float32", "float").replace("float64", "double"),
        sizes="\n".join(f"#define C3D_{word} {value}" for word, value in sizes.items()),
        places=word_places(),
        exported="\n".join(_exported(subject)),
        names=", ".join(f'"{operand}"' for operand in subject.operands),
        isas=", ".join(f'"{level.isa.name}"' for level in levels),
        vectors=", ".join(str(level.isa.vector_bytes) for level in levels),
        registers=", ".join(str(level.isa.vector_registers) for level in levels),
        rows=", ".join(str(level.tile.rows) for level in levels),
        columns=", ".join(str(level.tile.columns) for level in levels),
        transforms="\n".join([*_matrices(), *_transforms(name, levels)]),
        kernels="\n".join(_kernels(name, levels, sets)),
        forms="\n".join(f"{text.text}\n{text.row(numbers)}" for text in texts),
        operands=", ".join(f"&args->{operand}" for operand in subject.operands),
        parameters="".join(_parameters(subject)),
        choices="\n".join(_choices(subject, levels, sets, numbers)),
        segments="\n".join(_segments(subject)),
        includes="\n".join(f'#include "runtime/{file}"' for file in RUNTIME[1:]),
        solution=_solution(subject) if subject.problem else "",
    )


def kernel_name(name: str, number: int, level: Level) -> str:
    return f"{name}_{number}_{level.name}"


def _what(subject: Subject) -> str:
    return subject.problem.title if subject.problem else write_pipeline(subject.pipeline)


def _exported(subject: Subject) -> list[str]:
    """Declared again, where symbols are visible."""
    name = subject.name
    found = [f"int {name}_run(const struct {name}_args *);"]
    found += [f"int {name}_workspace(const struct {name}_args *, size_t *);"]
    found += [f"int {name}_output_shape(const struct {name}_args *, int64_t[5]);"]
    found += [f"const char *{name}_message(void);", f"const char *{name}_isa(void);"]
    weak = "__attribute__((weak)) "  # several archives of one program may have it
    return [*found, f"{weak}{_signature(subject)};"] if subject.problem else found


def _kernels(name: str, levels: Sequence[Level], sets: Sequence[FormSet]) -> list[str]:
    lines = []
    for one in sets:
        for number in one.kernels.values() if one.part is sets[0].part else ():
            own = [kernel_name(name, number, level) if level in one.levels else "NULL" for level in levels]
            lines += [f"void {symbol}(i64 *, i64);" for symbol in own if symbol != "NULL"]
            lines.append(f"static const kernel_fn kernels_{number}[] = {{{', '.join(own)}}};")
    for way in ("read", "write"):
        own = [f"{name}_{level.name}_{way}" for level in levels]
        lines += [f"void {one}(void);" for one in own]
        lines.append(f"static void (*const C3D_{way.upper()}[])(void) = {{{', '.join(own)}}};")
    return lines


def _matrices() -> Iterator[str]:
    """Of the schemes of Winograd's method that make two outputs together; and the factors of elementary.c."""
    numbers = {
        "LN2": elementary.LN2,
        "LN2_REST": elementary.LN2_REST,
        "LOG2_E": elementary.LOG2_E,
        "FAR": elementary.FAR,
    }
    yield f"static const double {', '.join(f'C3D_{word} = {value!r}' for word, value in numbers.items())};"
    for word, factors in {"EXP": elementary.EXP, "LOG": elementary.LOG}.items():
        yield f"static const double C3D_{word}[] = {{{', '.join(map(repr, factors))}}};"
    sides = {
        "INPUTS": ("inputs_matrix", 4, 4),
        "WEIGHTS": ("weights_matrix", 4, 3),
        "OUTPUTS": ("outputs_matrix", 2, 4),
    }
    for word, (matrix, rows, columns) in sides.items():
        own = [_nested(getattr(scheme, matrix)) for scheme in SCHEMES[1:]]
        yield f"static const double C3D_{word}[{len(own)}][{rows}][{columns}] = {{{', '.join(own)}}};"


def _nested(matrix: Matrix) -> str:
    rows = (", ".join(repr(float(factor)) for factor in row) for row in matrix)
    return "{" + ", ".join(f"{{{row}}}" for row in rows) + "}"


def _transforms(name: str, levels: Sequence[Level]) -> Iterator[str]:
    """Where the code of each is, for each instruction set."""
    gathers, scatters = [kind.name for kind in gather_kinds()], [kind.name for kind in scatter_kinds()]
    for word, found in {"GATHER": gathers, "SCATTER": scatters}.items():
        own = [[f"{name}_{level.name}_{one}" for one in found] for level in levels]
        yield from (f"void {one}(void);" for each in own for one in each)
        yield f"static void (*const C3D_{word}[][{len(found)}])(void) = {{"
        yield from (f"    {{{', '.join(each)}}}," for each in own)
        yield "};"


def _parameters(subject: Subject) -> list[str]:
    ints = [f"    ints[{at}] = args->{name};\n" for at, name in enumerate(subject.integers)]
    return ints + [f"    reals[{at}] = args->{name};\n" for at, name in enumerate(subject.reals)]


def _choices(
    subject: Subject, levels: Sequence[Level], sets: Sequence[FormSet], numbers: Mapping[int, int]
) -> Iterator[str]:
    for at, part in enumerate(subject.parts):
        own = [one for one in sets if one.part is part]
        for name, given in (("form", [one.forms for one in own]), ("averaged", [one.averaged for one in own])):
            yield f"static const form *{name}_of_{at}(int isa, const i64 *ints, const double *reals) {{"
            yield "    (void)isa, (void)ints, (void)reals;"
            isas = [one.isas(levels) for one in own]
            yield "".join(_choice(subject, list(zip(isas, given, strict=True)), numbers)) + "}"


def _segments(subject: Subject) -> Iterator[str]:
    rows = []
    for at, part in enumerate(subject.parts):
        operands = ", ".join("ONES" if one is None else str(one) for one in part.operands)
        yield f"static const int operands_{at}[] = {{{operands}}};"
        own = f"{part.source}, {part.repeated}, {len(part.operands)}, operands_{at}, {part.last_reader}"
        rows.append(f"{{form_of_{at}, averaged_of_{at}, {own}}}")
    yield f"static const segment C3D_SEGMENT[C3D_SEGMENTS] = {{{', '.join(rows)}}};"


def _choice(
    subject: Subject, choices: Sequence[tuple[str, Sequence[Form]]], numbers: Mapping[int, int]
) -> Iterator[str]:
    """Forms by their conditions, for each set that serves some instruction sets."""
    used = " ".join(form.condition for _, forms in choices for form in forms)
    yield from (f"    const i64 {name} = ints[{at}];\n" for at, name in enumerate(subject.integers) if name in used)
    yield from (f"    const double {name} = reals[{at}];\n" for at, name in enumerate(subject.reals) if name in used)
    for isas, forms in choices:
        for form in forms:
            condition = " && ".join(f"({one})" for one in (isas, form.condition) if one != "1") or "1"
            yield f"    if ({condition})\n        return &form_{numbers[id(form)]};\n"
    yield "    return NULL;\n"


def _signature(subject: Subject) -> str:
    assert subject.problem is not None
    real = f"{subject.name}_real"
    parts = [
        f"{'const ' * p.const}{real} *{p.name}" if p.type == TENSOR else f"{p.type} {p.name}"
        for p in subject.problem.parameters
    ]
    return f"void solution({', '.join(parts)})"


def _solution(subject: Subject) -> str:
    """Fills the arguments of a run from sizes."""
    assert subject.problem is not None
    name, sizes = subject.name, [p.name for p in subject.problem.parameters]
    groups = "groups" if "groups" in sizes else "1"
    shapes = {
        "input": "{batch_size, in_channels, depth, height, width}",
        "kernel": f"{{in_channels, {groups} ? out_channels / {groups} : 0, kernel_d, kernel_h, kernel_w}}",
    }
    lines = [f"{_signature(subject)} {{", f"    struct {name}_args args = {{0}};"]
    for tensor in ("input", *subject.operands):
        shape = shapes.get(tensor, "{out_channels}")
        lines.append(f"    args.{tensor} = (C3D_ARRAY){{(void *){tensor}, {shape}, {{0}}}};")
    lines += [f"    args.{one} = {one};" for one, _ in subject.parameters]
    lines += [
        "    args.output.data = output;",
        f"    int code = {name}_output_shape(&args, args.output.shape);",
        f"    code = code ? code : {name}_run(&args);",
        "    if (code)",
        f'        fprintf(stderr, "{name}: %s\\n", message);',
        "}",
    ]
    return "\n" + "\n".join(lines) + "\n"
