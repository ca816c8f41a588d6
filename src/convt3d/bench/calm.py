"""How much of the machine others have used meanwhile: other processes, and other guests of the same host."""

from __future__ import annotations

import os
from pathlib import Path

_BUSY = (0, 1, 2, 5, 6, 7)  # of a cpu line of /proc/stat: user, nice, system, irq, softirq, steal


class Watch:
    """Watches from the moment it is made. Linux only; elsewhere it knows nothing."""

    def __init__(self) -> None:
        self._all, self._own = _busy_seconds(), _own_seconds()

    def foreign_seconds(self) -> float | None:
        """Processor time since then that was not this process's."""
        now = _busy_seconds()
        if now is None or self._all is None:
            return None
        return max(0.0, (now - self._all) - (_own_seconds() - self._own))


def _busy_seconds() -> float | None:
    """Of all cores since the system started."""
    try:
        ticks = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
        return sum(int(ticks[at]) for at in _BUSY) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def _own_seconds() -> float:
    return sum(os.times()[:4])
