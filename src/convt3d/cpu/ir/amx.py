"""The tile registers of AMX: eight tiles of up to 16 rows of 64 bytes, and products of two that are added to a third.

    C[m][n] += sum over k of A[m][2k] * B[k][2n] + A[m][2k+1] * B[k][2n+1]      A, B: bfloat16, C: float32

Tiles are named by their numbers, as the instructions do it: LLVM never moves or spills them.
"""

from __future__ import annotations

from llvmlite import ir

from .builder import Builder
from .frame import Kernel
from .values import I64, PTR, Number, constant, declare

SUMS = 4  # tiles 0 to 3 hold sums: of 16 rows and 16 columns each
_ROWS, _COLUMNS = 4, (5, 6)  # tiles of what is multiplied: A, and B in turn
_BYTE = ir.IntType(8)
_LINE = 64


def configure(k: Kernel, deep: int) -> None:
    """Tells the processor the sizes of tiles, where the kernel begins, for products `deep` pairs long; releases them
    where it ends."""
    rows, bytes_of_row = [16] * SUMS + [16, deep, deep, 0], [_LINE] * SUMS + [4 * deep, _LINE, _LINE, 0]
    words = [1, *[0] * 15]  # the palette
    for size in bytes_of_row:
        words += [size, 0]
    words += [0] * 16 + rows + [0] * 8
    shape = ir.ArrayType(_BYTE, len(words))
    sizes = ir.GlobalVariable(k.module, shape, "tile_sizes")
    sizes.initializer, sizes.global_constant, sizes.linkage = ir.Constant(shape, bytearray(words)), True, "internal"
    with k.b.raw.goto_entry_block():
        k.b.raw.call(declare(k.module, "llvm.x86.ldtilecfg", [PTR]), [sizes])
    k.at_end.append(lambda: k.b.raw.call(declare(k.module, "llvm.x86.tilerelease", []), []))


def clear(b: Builder, sums: int) -> None:
    b.raw.call(declare(b.module, "llvm.x86.tilezero", [_BYTE]), [_BYTE(sums)])


def load_rows(b: Builder, pointer: ir.Value, offset: Number, apart: Number) -> None:
    """A, whose rows are `apart` elements of 4 bytes."""
    _move(b, "tileloadd64", _ROWS, pointer, offset, apart)


def multiply_columns(b: Builder, sums: int, pointer: ir.Value, offset: Number, apart: Number) -> None:
    """Adds the product of A and the B that lies there to some sums."""
    columns = _COLUMNS[sums % len(_COLUMNS)]
    _move(b, "tileloadd64", columns, pointer, offset, apart)
    product = declare(b.module, "llvm.x86.tdpbf16ps", [_BYTE] * 3)
    b.raw.call(product, [_BYTE(sums), _BYTE(_ROWS), _BYTE(columns)])


def store_sums(b: Builder, sums: int, pointer: ir.Value, apart: Number) -> None:
    _move(b, "tilestored64", sums, pointer, 0, apart)


def _move(b: Builder, operation: str, tile: int, pointer: ir.Value, offset: Number, apart: Number) -> None:
    function = declare(b.module, f"llvm.x86.{operation}", [_BYTE, PTR, I64])
    stride = b.mul(apart, 4)
    place = b.at(pointer, offset, ir.IntType(32))
    b.raw.call(function, [_BYTE(tile), place, stride if isinstance(stride, ir.Value) else constant(I64, stride)])
