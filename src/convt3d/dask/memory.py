"""Memory of boxes: a thread keeps as much as its largest one took, for the next, and gives it back when none has come
for some seconds. Pages that are touched for the first time cost as much as a fifth of the arithmetic."""

from __future__ import annotations

import threading
import time

from ..cpu.runtime.memory import Spare

PATIENCE = 5.0  # seconds


class Kept:
    def __init__(self, patience: float = PATIENCE) -> None:
        self.patience = patience
        self.spares: dict[int, Spare] = {}  # of each thread
        self.until = 0.0
        self.watch: threading.Timer | None = None

    def work_with(self, size: int) -> None:
        """This thread used so much memory for a box."""
        thread = threading.get_ident()
        known = self.spares.get(thread)
        if known is None or known.size < size:
            self.spares[thread] = Spare(size)
        self.until = time.monotonic() + self.patience
        if self.watch is None or not self.watch.is_alive():  # of two that begin at once both end
            self._wait(self.patience)

    def _wait(self, seconds: float) -> None:
        self.watch = threading.Timer(seconds, self._look)
        self.watch.daemon = True
        self.watch.start()

    def _look(self) -> None:
        left = self.until - time.monotonic()
        if left > 0:
            self._wait(left)
        else:
            self.spares.clear()


KEPT = Kept()
