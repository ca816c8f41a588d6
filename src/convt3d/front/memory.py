"""The most memory this process has held since a moment one chooses. Linux only; elsewhere unknown."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


class PeakMemory:
    """The most memory this process held since the object was made, beyond what it held then."""

    def __init__(self) -> None:
        self._resettable = False
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
            self._resettable = True
        self._before = status("VmRSS")

    def extra(self) -> int | None:
        peak = status("VmHWM")
        if not self._resettable or peak is None or self._before is None:
            return None
        return max(0, peak - self._before)


def status(key: str) -> int | None:
    """Bytes of one line of /proc/self/status."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    return None
