"""Reads a problem file: front matter between `---` lines, in the YAML subset of published problems, then a statement.

    slug: "conv-transpose3d-max-max-sum"
    title: "ConvTranspose3D Max Max Sum"
    difficulty: "MEDIUM"
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

The last three keys are this project's own; published files come without them, and may name an `author`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias

from ..errors import ProblemFileError, described

Values: TypeAlias = Mapping[str, int | float]  # of the size and scalar parameters

TENSOR, SIZE, SCALAR = TYPES = ("[VAR]", "size_t", "double")

_PUBLISHED_KEYS = ("slug", "title", "difficulty", "tags", "parameters")
_OWN_KEYS = ("benchmark", "sample", "cases")


@dataclass(frozen=True)
class Parameter:
    """One argument of `solution`."""

    name: str
    type: str
    pointer: bool
    const: bool


@dataclass(frozen=True, eq=False)
class Case:
    """Values worth testing, and why."""

    name: str
    why: str
    values: Values


@dataclass(frozen=True, eq=False)
class ProblemFile:
    """What a problem file says; `benchmark`, `sample` and `cases` are empty where it does not give them."""

    slug: str
    title: str
    difficulty: str
    tags: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    benchmark: Values
    sample: Values
    cases: tuple[Case, ...]
    statement: str


def load(text: str, path: str, *, complete: bool = False) -> ProblemFile:
    """The problem in `text`, or the first thing wrong with it. `complete` asks for this project's own keys too."""
    file = _File(PurePath(path).name)
    lines = text.splitlines()
    fences = [at for at, line in enumerate(lines) if line.rstrip() == "---"][:2]
    if len(fences) < 2 or fences[0] != 0:
        rule = "must stand first, between two lines of ---"
        file.fail("front matter", 1, lines[0] if lines else "", rule, "Put --- above and below the front matter")
    front = _Node(1, _read(file, lines[1 : fences[1]]))
    file.check_keys("front matter", front, _PUBLISHED_KEYS + _OWN_KEYS * complete, ("author", *_OWN_KEYS))
    nodes = front.value
    parameters = _parameters(file, nodes["parameters"])
    numbers = {
        key: _values(file, key, nodes[key], parameters) if key in nodes else MappingProxyType({})
        for key in ("benchmark", "sample")
    }
    return ProblemFile(
        slug=_slug(file, nodes["slug"]),
        title=file.text("title", nodes["title"]),
        difficulty=file.text("difficulty", nodes["difficulty"]),
        tags=tuple(file.text("tags", tag) for tag in file.items("tags", nodes["tags"])),
        parameters=parameters,
        **numbers,
        cases=_cases(file, nodes["cases"], parameters) if "cases" in nodes else (),
        statement="\n".join(lines[fences[1] + 1 :]).strip() + "\n",
    )


# --- what the keys mean -----------------------------------------------------------------------------------------------


def _slug(file: _File, node: _Node) -> str:
    slug = file.text("slug", node)
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug):
        rule = "must be lower-case words and digits joined by single hyphens"
        file.fail("slug", node.line, slug, rule, "Write it like conv-transpose3d-max-max-sum")
    return slug


def _parameters(file: _File, node: _Node) -> tuple[Parameter, ...]:
    parameters: dict[str, Parameter] = {}
    for item in file.items("parameters", node):
        if isinstance(item.value, dict) and "const" not in item.value and "constant" in item.value:
            item.value["const"] = item.value.pop("constant")
        file.check_keys("parameters", item, ("name", "type", "pointer", "const"))
        name, kind = (file.text(f"parameters.{key}", item.value[key]) for key in ("name", "type"))
        line = item.value["name"].line
        if not name.isidentifier():
            file.fail("parameters.name", line, name, "must be an identifier", "Write a name such as kernel_d")
        if name in parameters:
            file.fail("parameters.name", line, name, "names a parameter a second time", "Give each its own name")
        if kind not in TYPES:
            remedy = 'Tensors are "[VAR]", sizes "size_t", scalars "double"'
            file.fail("parameters.type", item.value["type"].line, kind, f"must be one of {', '.join(TYPES)}", remedy)
        pointer, const = (file.boolean(f"parameters.{key}", item.value[key]) for key in ("pointer", "const"))
        if pointer != (kind == TENSOR):
            rule = f"must be true for tensors ([VAR]) and false for numbers; {name} is {kind}"
            file.fail("parameters.pointer", item.value["pointer"].line, pointer, rule, "Change type or pointer")
        parameters[name] = Parameter(name, kind, pointer, const)
    return tuple(parameters.values())


def _cases(file: _File, node: _Node, parameters: Sequence[Parameter]) -> tuple[Case, ...]:
    cases: dict[str, Case] = {}
    for item in file.items("cases", node):
        file.check_keys("cases", item, ("name", "why", "values"))
        name, why = (file.text(f"cases.{key}", item.value[key]) for key in ("name", "why"))
        if name in cases:
            line = item.value["name"].line
            file.fail("cases.name", line, name, "names a case a second time", "Give each case its own name")
        cases[name] = Case(name, why, _values(file, f"cases.{name}", item.value["values"], parameters))
    return tuple(cases.values())


def _values(file: _File, field: str, node: _Node, parameters: Sequence[Parameter]) -> Values:
    numbers = [parameter for parameter in parameters if not parameter.pointer]
    file.check_keys(field, node, tuple(parameter.name for parameter in numbers))
    return MappingProxyType({p.name: file.number(f"{field}.{p.name}", node.value[p.name], p.type) for p in numbers})


# --- the YAML subset --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Node:
    line: int
    value: Any  # the text of a scalar as it stands in the file, a list of nodes, or a dict of nodes


@dataclass(frozen=True)
class _File:
    """The kinds of value a node may have, and the error that names the file."""

    name: str

    def fail(self, field: str, line: int, received: Any, rule: str, remedy: str) -> NoReturn:
        raise ProblemFileError(self.name, f"{field}, line {line}", received, rule, remedy)

    def check_keys(self, field: str, node: _Node, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
        if not isinstance(node.value, dict):
            self.fail(
                field, node.line, node.value, "must be a mapping", f"Write {', '.join(required)} with their values"
            )
        for key, item in node.value.items():
            if key not in required + optional:
                rule = f"is an unknown key; {field} has {', '.join(dict.fromkeys(required + optional))}"
                self.fail(field, item.line, described(key), rule, "Correct its spelling or remove it")
        for key in required:
            if key not in node.value:
                self.fail(field, node.line, described(f"no {key}"), f"must have a value for {key}", f"Add {key}")

    def items(self, field: str, node: _Node) -> list[_Node]:
        if not isinstance(node.value, list):
            self.fail(field, node.line, node.value, "must be a list", 'Write ["a", "b"], or items that begin with "- "')
        return node.value

    def text(self, field: str, node: _Node) -> str:
        if not isinstance(node.value, str) or not re.fullmatch(_QUOTED, node.value) or node.value == '""':
            self.fail(field, node.line, node.value, "must be a text in double quotes", 'Write "..."')
        return str(json.loads(node.value))

    def boolean(self, field: str, node: _Node) -> bool:
        word = node.value.strip('"') if isinstance(node.value, str) else ""
        if word not in ("true", "false"):
            self.fail(field, node.line, node.value, "must be true or false", 'Write "true" or "false"')
        return word == "true"

    def number(self, field: str, node: _Node, kind: str) -> int | float:
        pattern, rule = _NUMBERS[kind]
        if not isinstance(node.value, str) or not re.fullmatch(pattern, node.value):
            self.fail(field, node.line, node.value, f"must be {rule} ({kind})", f"Write {rule}, without quotes")
        return int(node.value) if kind == SIZE else float(node.value)


_QUOTED = r'"(?:[^"\\]|\\["\\/])*"'
_NUMBERS = {
    SIZE: (r"[0-9]+", "a whole number >= 0"),
    SCALAR: (r"[-+]?(inf|nan|[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?)", "a real number, inf, -inf or nan"),
}
_LINE = re.compile(r"(?P<indent> *)(?P<item>- )?(?P<key>[A-Za-z_]\w*):(?: +(?P<value>.*))?")


def _read(file: _File, lines: Sequence[str]) -> dict[str, _Node]:
    """Keys of the front matter; one without a value of its own is the list of the indented items below it."""
    top: dict[str, _Node] = {}
    items: list[_Node] | None = None
    for number, line in _logical_lines(lines):
        match = _LINE.fullmatch(line)
        nested = match and (match["item"] or match["indent"])
        if match is None or (nested and items is None) or (nested and not items and not match["item"]):
            rule = "must be `key: value`, `key:` with items below it, or an indented `- key: value` item"
            file.fail("front matter", number, line, rule, "Rewrite the line")
        if match["item"] and items is not None:
            items.append(_Node(number, {}))
        mapping = items[-1].value if nested and items else top
        key, raw = match["key"], (match["value"] or "").strip()
        if key in mapping:
            file.fail(key, number, raw, "is a key given twice", "Remove one of them")
        if not nested:
            items = None if raw else []
        mapping[key] = _Node(number, _flow(file, key, number, raw) if raw or nested else items)
    return top


def _logical_lines(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Lines that say something, with their number in the file; one with an open bracket goes on until it closes."""
    pending, start = "", 0
    for number, line in enumerate(lines, start=2):  # line 1 is the fence
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        start = start if pending else number
        pending = f"{pending} {line.strip()}" if pending else line.rstrip()
        bare = re.sub(_QUOTED, "", pending)
        if all(bare.count(opening) <= bare.count(closing) for opening, closing in ("{}", "[]")):
            yield start, pending
            pending = ""
    if pending:
        yield start, pending


def _flow(file: _File, key: str, line: int, raw: str) -> Any:
    """[a, b] as a list, {a: 1, b: 2} as a dict, anything else as it stands."""
    if raw[:1] not in ("[", "{"):
        return raw
    if raw[-1] != {"[": "]", "{": "}"}[raw[0]]:
        file.fail(key, line, raw, f"opens with {raw[0]} and does not close", "Close the bracket")
    parts = [part.strip() for part in re.findall(rf'(?:{_QUOTED}|[^,"])+', raw[1:-1]) if part.strip()]
    if raw[0] == "[":
        return [_Node(line, part) for part in parts]
    mapping: dict[str, _Node] = {}
    for part in parts:
        name, colon, value = (word.strip() for word in part.partition(":"))
        if not colon or name in mapping:
            rule = "is given twice" if colon else "must be `name: number`"
            file.fail(key, line, part, rule, "Write each name once, as {name: number, name: number}")
        mapping[name] = _Node(line, value)
    return mapping
