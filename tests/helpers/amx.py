"""AMX where no processor has it: the tile instructions as plain functions of LLVM IR, with their documented meaning.

The text that an emitter wrote stays as it is, but for the names that it calls.
"""

from __future__ import annotations

import re

import numpy as np
from llvmlite import ir

from convt3d.cpu.code.tile import emit
from convt3d.cpu.ir.builder import Builder, define
from convt3d.cpu.ir.values import F32, I64, PTR, Number, constant
from convt3d.cpu.plan.machine import Machine, machine
from convt3d.cpu.plan.structure import Structure
from convt3d.cpu.runtime.build import Code, Target, compile_ir, load

_BYTE, _SHORT, _WORD = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_SIZES, _TILE, _ROW = 64, 1024, 64  # bytes of the configuration, of a tile, of its rows
state = np.zeros(_SIZES + 8 * _TILE, np.uint8)  # the registers: of one thread, which runs all kernels


def emulated_kernel(structure: Structure, host: Machine) -> Code:
    """The kernel of a sweep, as `kernel` would give it."""
    text = emit(structure, host)
    code = load(compile_ir(emulated(text), Target.of(machine())).object_code, ("run",))
    return code


def emulated(text: str) -> str:
    """The text with calls of plain functions in the place of tile instructions."""
    declared = re.compile(r'^declare .*@"llvm\.x86\.(ldtilecfg|tile\w+|tdpbf16ps)".*$', re.MULTILINE)
    names = set(declared.findall(text))
    assert names <= set(_MEANINGS), names
    changed = re.sub(r'@"llvm\.x86\.(ldtilecfg|tile\w+|tdpbf16ps)"', r'@"emulated_\1"', declared.sub("", text))
    module = ir.Module("emulated")
    for name, meaning in _MEANINGS.items():
        meaning(module, f"emulated_{name}")
    own = [
        line for line in str(module).splitlines() if not line.startswith(("; ModuleID", "target", "source_filename"))
    ]
    lines = [line for line in own if not (line.startswith("declare") and line in changed)]
    return "\n".join([changed, *lines])


def _at(b: Builder, offset: Number) -> ir.Value:
    """An address of the registers."""
    base = b.raw.inttoptr(constant(I64, state.ctypes.data), PTR)
    return b.at(base, offset, _BYTE)


def _tile(b: Builder, tile: ir.Value) -> Number:
    return b.add(b.mul(b.cast(tile, I64), _TILE), _SIZES)


def _rows(b: Builder, tile: ir.Value) -> ir.Value:
    return b.cast(b.load(_at(b, 48), b.cast(tile, I64), _BYTE), I64)


def _bytes_of_row(b: Builder, tile: ir.Value) -> ir.Value:
    return b.cast(b.load(_at(b, 16), b.cast(tile, I64), _SHORT), I64)


def _copy(b: Builder, source: ir.Value, to: ir.Value, count: Number) -> None:
    with b.loop(0, count) as at:
        b.store(b.load(source, at, _BYTE), to, at)


def _clear(b: Builder, to: ir.Value, count: Number) -> None:
    with b.loop(0, count) as at:
        b.store(constant(_BYTE, 0), to, at)


def _configure(module: ir.Module, name: str) -> None:
    b = define(module, name, [("sizes", PTR)], internal=True)
    _copy(b, b.args["sizes"], _at(b, 0), _SIZES)
    _clear(b, _at(b, _SIZES), 8 * _TILE)
    b.ret()


def _release(module: ir.Module, name: str) -> None:
    b = define(module, name, [], internal=True)
    _clear(b, _at(b, 0), len(state))
    b.ret()


def _zero(module: ir.Module, name: str) -> None:
    b = define(module, name, [("tile", _BYTE)], internal=True)
    _clear(b, _at(b, _tile(b, b.args["tile"])), _TILE)
    b.ret()


def _load(module: ir.Module, name: str) -> None:
    """Rows and bytes beyond those of the tile are zero."""
    b = define(module, name, [("tile", _BYTE), ("source", PTR), ("stride", I64)], internal=True)
    a, tile = b.args, _tile(b, b.args["tile"])
    _clear(b, _at(b, tile), _TILE)
    with b.loop(0, _rows(b, a["tile"])) as row:
        source = b.at(a["source"], b.mul(row, a["stride"]), _BYTE)
        _copy(b, source, _at(b, b.add(tile, b.mul(row, _ROW))), _bytes_of_row(b, a["tile"]))
    b.ret()


def _store(module: ir.Module, name: str) -> None:
    b = define(module, name, [("tile", _BYTE), ("to", PTR), ("stride", I64)], internal=True)
    a, tile = b.args, _tile(b, b.args["tile"])
    with b.loop(0, _rows(b, a["tile"])) as row:
        to = b.at(a["to"], b.mul(row, a["stride"]), _BYTE)
        _copy(b, _at(b, b.add(tile, b.mul(row, _ROW))), to, _bytes_of_row(b, a["tile"]))
    b.ret()


def _multiply(module: ir.Module, name: str) -> None:
    """Even and odd products are summed apart, rounded to nearest, and both sums join the tile; numbers below 2^-126 are
    taken for zero, and such sums become zero."""
    b = define(module, name, [("sums", _BYTE), ("one", _BYTE), ("other", _BYTE)], internal=True)
    a = b.args
    sums, one, other = (_tile(b, a[word]) for word in ("sums", "one", "other"))
    pairs = b.sdiv(_bytes_of_row(b, a["one"]), 4)

    def flushed(x: ir.Value) -> ir.Value:
        return b.select(b.compare("<", b.intrinsic("llvm.fabs", x), 2.0**-126), constant(F32, 0.0), x)

    def number(tile: Number, row: Number, place: Number) -> ir.Value:
        bits = b.load(_at(b, b.add(tile, b.mul(row, _ROW))), place, _SHORT)
        return flushed(b.bitcast(b.raw.shl(b.raw.zext(bits, _WORD), constant(_WORD, 16)), F32))

    with b.loop(0, _rows(b, a["sums"])) as m, b.loop(0, b.sdiv(_bytes_of_row(b, a["sums"]), 4)) as n:
        with b.loop_carrying(0, pairs, 1, [constant(F32, 0.0)] * 2) as (k, both):
            both.next = [
                flushed(
                    b.multiply_add(
                        number(one, m, b.add(b.mul(k, 2), half)), number(other, k, b.add(b.mul(n, 2), half)), total
                    )
                )
                for half, total in enumerate(both.values)
            ]
        row = _at(b, b.add(sums, b.mul(m, _ROW)))
        b.store(flushed(b.add(b.load(row, n, F32), flushed(b.add(*both.result)))), row, n)
    b.ret()


_MEANINGS = {
    "ldtilecfg": _configure,
    "tilerelease": _release,
    "tilezero": _zero,
    "tileloadd64": _load,
    "tilestored64": _store,
    "tdpbf16ps": _multiply,
}
