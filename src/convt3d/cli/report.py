"""How a command says its result: one JSON document or text on stdout, and the exit codes."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

from ..errors import ArgumentError, described
from .terminal import to_json

OK, CHECK_FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def emit(text: str) -> None:
    """Prints; a reader who has left early (`| head`) is no error, and what the command says by its code still holds."""
    try:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        print(text.encode(encoding, "replace").decode(encoding), flush=True)  # an ASCII terminal shows ? for µ
    except BrokenPipeError:
        silence(sys.stdout)
    except OSError as error:
        silence(sys.stdout)
        raise ArgumentError(
            "convt3d", "stdout", described(str(error)), "must take the result", "Free some room"
        ) from None


def emit_json(document: Any) -> None:
    emit(to_json(document))


def silence(stream: Any) -> None:
    """Later writes, the interpreter's last flush among them, go nowhere."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def tell(message: str) -> None:
    """One line on stderr that is no error."""
    with suppress(BrokenPipeError):
        print(f"convt3d: {message}", file=sys.stderr)


def complain(message: object) -> None:
    """One line on stderr."""
    with suppress(BrokenPipeError):
        print(f"convt3d: error: {' '.join(str(message).split())}", file=sys.stderr)
