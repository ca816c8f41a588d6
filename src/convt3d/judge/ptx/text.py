"""PTX as text -> instructions, their operands apart, with the lines of the Triton source they come from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)([^{]*)\{", re.DOTALL)
_PARAMETER = re.compile(r"\.param\s+\.(\w+)[^,]*?([\w$]+)\s*(?:,|$)")
_THREADS = re.compile(r"\.(?:reqntid|maxntid)\s+([\d, ]+)")
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(.*)", re.DOTALL)
_LABEL = re.compile(r"([$\w]+):(?!:)")
_LOCATION = re.compile(r"\.loc\s+\d+\s+(\d+)")
_ADDRESS = re.compile(r"\[\s*([%$\w.]+)\s*(?:\+\s*(-?\w+))?\s*\]")
_DIRECTIVE = re.compile(r"\.(?:loc|file|pragma|section)[^\n]*")
_SHARED = re.compile(r"\.shared\s+\.align\s+\d+\s+\.b8\s+([\w$]+)\[(\d*)\]")


class Unknown(Exception):
    """Text, or an instruction, that this machine has no meaning for."""


@dataclass(frozen=True)
class Address:
    """[base + offset]: a register, or the name of a parameter or of shared memory."""

    base: str
    offset: int


Operand: TypeAlias = "str | Address | tuple[str, ...]"  # register, number or label; memory; a vector of registers


@dataclass(frozen=True)
class Instruction:
    name: str  # add
    parts: tuple[str, ...]  # rn, f32
    operands: tuple[Operand, ...]
    guard: tuple[str, bool] | None  # predicate, and whether it must hold
    line: int  # of the Triton source; 0: not known

    @property
    def type(self) -> str:
        return self.parts[-1]

    @property
    def words(self) -> str:
        return ".".join((self.name, *self.parts))


@dataclass(frozen=True)
class Kernel:
    name: str
    parameters: tuple[tuple[str, str], ...]  # type and name
    threads: int
    registers: Mapping[str, str]  # the beginning of a name, or a whole one -> type
    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]
    shared: frozenset[str]  # names whose value is where shared memory begins


def read(text: str) -> Kernel:
    """The one kernel of a module."""
    text = _COMMENT.sub("", text)
    found = _ENTRY.search(text)
    if found is None:
        raise Unknown("the text has no kernel")
    sizes = _THREADS.search(found[3])
    threads = 1
    for size in sizes[1].split(",") if sizes else ():
        threads *= int(size)
    parameters = tuple((one[1], one[2]) for one in _PARAMETER.finditer(found[2]))
    shared = frozenset(name for name, _ in _SHARED.findall(text[: found.start()]))
    registers, instructions, labels = _body(text[found.end() :])
    return Kernel(found[1], parameters, threads, registers, instructions, labels, shared)


def _body(text: str) -> tuple[dict[str, str], tuple[Instruction, ...], dict[str, int]]:
    registers: dict[str, str] = {}
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    scopes, made, line = [""], 0, 0
    branches: list[tuple[int, str, tuple[str, ...]]] = []  # those whose label is not known yet
    for kind, words in _statements(text):
        if kind == "{":
            made += 1
            scopes.append(f"{scopes[-1]}/{made}")
        elif kind == "}":
            scopes.pop()
        elif kind == "line":
            line = int(words)
        elif kind == "label":
            labels[scopes[-1] + words] = len(instructions)
        elif words.startswith(".reg"):
            declared = _REGISTERS.match(words)
            if declared is None:
                raise Unknown(f"`{words}` declares no registers")
            for name in declared[2].split(","):
                registers[name.strip().partition("<")[0]] = declared[1]
        else:
            instruction = _instruction(words, line)
            if instruction.name == "bra":
                branches.append((len(instructions), str(instruction.operands[0]), tuple(scopes)))
            instructions.append(instruction)
        if not scopes:
            break
    for at, label, around in branches:  # the innermost scope that has the label
        own = next((scope + label for scope in reversed(around) if scope + label in labels), None)
        if own is None:
            raise Unknown(f"no label {label}")
        old = instructions[at]
        instructions[at] = Instruction(old.name, old.parts, (own,), old.guard, old.line)
    return registers, tuple(instructions), labels


def _statements(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
        elif text[at] in "{}":
            yield text[at], ""
            at += 1
        elif found := _DIRECTIVE.match(text, at):
            location = _LOCATION.match(found[0])
            if location:
                yield "line", location[1]
            at = found.end()
        elif found := _LABEL.match(text, at):
            yield "label", found[1]
            at = found.end()
        else:
            end = text.find(";", at)
            if end < 0:
                return
            yield "statement", " ".join(text[at:end].split())
            at = end + 1


def _instruction(words: str, line: int) -> Instruction:
    guard = None
    if words.startswith("@"):
        name, _, words = words[1:].partition(" ")
        guard = (name.lstrip("!"), not name.startswith("!"))
    opcode, _, rest = words.strip().partition(" ")
    name, *parts = opcode.split(".")
    return Instruction(name, tuple(parts), tuple(map(_operand, _apart(rest))), guard, line)


def _apart(text: str) -> Iterator[str]:
    """Operands, at the commas that are in no bracket."""
    depth, start = 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "{[") - (letter in "}]")
        if letter == "," and not depth:
            yield text[start:at].strip()
            start = at + 1
    if text[start:].strip():
        yield text[start:].strip()


def _operand(text: str) -> Operand:
    if text.startswith("{"):
        return tuple(part.strip() for part in text[1:-1].split(","))
    if text.startswith("["):
        found = _ADDRESS.fullmatch(text)
        if found is None:
            raise Unknown(f"`{text}` is no address")
        return Address(found[1], int(found[2] or "0", 0))
    return text
