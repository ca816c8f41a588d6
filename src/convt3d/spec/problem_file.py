"""Reads a problem file: front matter between `---` lines, in the YAML subset of the published problems, then a statement.

    slug: "conv-transpose3d-..."                  one of KEYS, a quoted text
    tags: ["convolution", "pooling"]
    parameters:                                   the arguments of `solution`, in order
      - name: "input"
        type: "[VAR]"                             or "size_t", "double"
        pointer: "true"
        const: "true"                             `constant` means the same
    benchmark: {batch_size: 8, in_channels: 48}   a number for every parameter that is no tensor; may span lines
    sample: {batch_size: 1, in_channels: 2}
    cases:
      - name: "prime-sizes"
        why: "no size is a multiple of a tile"
        values: {batch_size: 1, in_channels: 7}

The last three are the project's own; published files come without them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NoReturn, TypeAlias, cast

from ..errors import ProblemFileError, described

Values: TypeAlias = Mapping[str, int | float]
ParameterType: TypeAlias = Literal["[VAR]", "size_t", "double"]

TYPES = ("[VAR]", "size_t", "double")
TEXT_KEYS = ("slug", "title", "difficulty")
NUMBER_KEYS = ("benchmark", "sample")
KEYS = (*TEXT_KEYS, "author", "tags", "parameters", *NUMBER_KEYS, "cases")


@dataclass(frozen=True)
class Parameter:
    """One argument of `solution`."""

    name: str
    type: ParameterType
    pointer: bool
    const: bool


@dataclass(frozen=True, eq=False)
class Case:
    """Sizes and scalars worth testing, and why."""

    name: str
    why: str
    values: Values


@dataclass(frozen=True, eq=False)
class ProblemFile:
    """What a problem file says. `benchmark`, `sample` and `cases` are empty where the file has none."""

    slug: str
    title: str
    difficulty: str
    author: str | None
    tags: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    benchmark: Values
    sample: Values
    cases: tuple[Case, ...]
    statement: str


def load(text: str, path: str, *, complete: bool = False) -> ProblemFile:
    """The problem in `text`, or the first thing wrong with it. `complete` asks for the project's own keys too."""
    reader = _Reader(path)
    front, statement = reader.split(text)
    nodes = reader.front_matter(front)
    optional = ("author",) if complete else ("author", *NUMBER_KEYS, "cases")
    reader.check_keys(nodes, KEYS, tuple(key for key in KEYS if key not in optional), "front matter", 1)

    texts = {key: reader.text(key, nodes[key]) for key in TEXT_KEYS}
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", texts["slug"]):
        rule = "must be lower-case words and digits joined by single hyphens"
        reader.fail("slug", nodes["slug"].line, texts["slug"], rule, "Write it like conv-transpose3d-max-max-sum")
    parameters = reader.parameters(nodes["parameters"])
    absent = _Node(0, {})
    return ProblemFile(
        **texts,
        author=reader.text("author", nodes["author"]) if "author" in nodes else None,
        tags=tuple(reader.text("tags", tag) for tag in reader.items("tags", nodes["tags"])),
        parameters=parameters,
        benchmark=reader.values("benchmark", nodes["benchmark"], parameters) if "benchmark" in nodes else _none(),
        sample=reader.values("sample", nodes["sample"], parameters) if "sample" in nodes else _none(),
        cases=reader.cases(nodes.get("cases", absent), parameters) if "cases" in nodes else (),
        statement=statement,
    )
