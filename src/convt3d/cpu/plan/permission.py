"""Whether the system lets this process use the tile registers of AMX, which it grants only to those who ask."""

from __future__ import annotations

import ctypes
import sys

_ARCH_PRCTL, _REQUEST, _TILE_DATA = (
    158,
    0x1023,
    18,
)  # the system call on x86-64, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA


def tiles_permitted() -> bool:
    """Asks for them. All threads of the process share the answer, and so do processes that it forks; one that is
    executed anew asks again."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        call = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError):
        return False
    call.restype, call.argtypes = ctypes.c_long, [ctypes.c_long] * 3
    return bool(call(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0)
