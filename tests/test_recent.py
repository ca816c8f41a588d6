"""The cache that threads, forks and Ctrl-C share: nothing is made twice, lost count of, or found broken afterwards."""

from __future__ import annotations

import linecache
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from convt3d import recent
from convt3d.recent import Recent


class Key:
    """With methods in Python, as most of our keys have: an interrupt may come inside a dict's own search."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.number == other.number


def counted(kept: Recent[Any]) -> int:
    return sum(entry.size for entry in kept._entries.values())


def interrupt() -> None:
    raise KeyboardInterrupt


def interrupted(step: int, function: Callable[[], Any], by: Callable[[], Any] = interrupt) -> bool:
    """Calls function, and `by` in front of its step-th line, as a signal handler would; False where it has fewer."""
    left = step

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        name, line = frame.f_code.co_filename, frame.f_lineno
        if name not in (recent.__file__, __file__):
            return None
        # A `with` line shows up once more when the block is left; there the interpreter takes no signals.
        if event == "line" and not linecache.getline(name, line).lstrip().startswith("with "):
            left -= 1
            if left < 0:
                sys.settrace(None)
                by()
                return None
        return trace

    sys.settrace(trace)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return left < 0


def test_the_least_recently_used_go_first() -> None:
    kept: Recent[str] = Recent(16)
    for number in range(16):
        kept.put(number, "value")
    assert kept.get(0) == "value"
    kept.put(16, "value")
    assert kept.get(0) == kept.get(16) == "value"
    assert kept.get(1) is None
    assert kept.total == len(kept) <= 16
    kept.put("large", "value", 100)
    assert (kept.get("large"), len(kept)) == ("value", 1), "what is larger than all the room is kept alone"
    kept.put("large", "value", 3)
    assert kept.total == 3


def test_the_total_is_the_sum_of_what_is_kept() -> None:
    kept: Recent[int] = Recent(1000)
    draw = random.Random(7)
    for turn in range(3000):
        kept.put(draw.randrange(80), turn, draw.choice((0, 1, 10, 100, 700)))
        kept.get(draw.randrange(80))
        assert kept._counted
        assert kept.total == counted(kept)
        assert kept.total <= 1000 or len(kept) == 1


def test_a_miss_looks_at_no_other_entry() -> None:
    """Weights that change at every call come as thousands of entries; none of them may cost more than the first."""
    compared: list[int] = []

    class Counted(Key):
        def __hash__(self) -> int:
            compared.append(self.number)
            return hash(self.number)

    kept: Recent[int] = Recent(1000)
    looked = []
    for number in range(8000):
        compared.clear()
        before = kept._entries
        kept.put(Counted(number), number)
        looked.append(len(compared))
        assert kept._entries is before, "not built anew"
    evictions = [count for count in looked if count > 3]
    assert sum(looked) <= 8 * len(looked)
    assert len(evictions) <= 8000 // (1000 // 8) + 1, "many are removed at a time, so that it happens rarely"


def actions(kept: Recent[int]) -> dict[str, Callable[[], Any]]:
    return {
        "get": lambda: kept.get(Key(4)),
        "put": lambda: kept.put(Key(10), 10, 3),
        "put again": lambda: kept.put(Key(4), 4, 5),
        "evict": lambda: kept.put(Key(10), 10, 30),
        "once": lambda: kept.once(Key(11), lambda: (11, 3)),
        "clear": kept.clear,
        "total": lambda: kept.total,
    }


@pytest.mark.parametrize("action", ["get", "put", "put again", "evict", "once", "clear"])
def test_an_interrupt_between_any_two_lines(action: str) -> None:
    """Also inside the keys' own methods, after which the standard library's OrderedDict raises KeyError for ever."""
    step = 0
    while True:
        kept: Recent[int] = Recent(40)
        for number in range(10):
            kept.put(Key(number), number, 3)
        happened = interrupted(step, actions(kept)[action])
        assert kept.total == counted(kept)
        for number in range(30, 60):
            assert kept.once(Key(number), lambda number=number: (number, 3)) == number
            assert kept.total == counted(kept) <= 40
        for number in range(60):
            assert kept.get(Key(number)) in (None, number)
        with_another_thread(lambda kept=kept: kept.put(Key(1), 1))  # no lock is left behind
        if not happened:
            break
        step += 1
    assert step >= 3, "it was interrupted indeed"


@pytest.mark.parametrize("handler", ["get", "put", "put again", "evict", "clear", "total"])
@pytest.mark.parametrize("action", ["get", "put", "put again", "evict", "clear", "total"])
def test_a_signal_handler_between_any_two_lines(action: str, handler: str) -> None:
    """It may use the same cache; what it finds and leaves is counted."""
    for step in range(1000):
        kept: Recent[int] = Recent(40)
        for number in range(10):
            kept.put(Key(number), number, 3)
        happened = interrupted(step, actions(kept)[action], actions(kept)[handler])
        assert kept.total == counted(kept)
        kept.put(Key(20), 20, 3)
        assert kept.total == counted(kept) <= 40
        if not happened:
            break
    assert step >= 1


def with_another_thread(function: Callable[[], Any]) -> None:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def test_threads_that_ask_together_make_it_once() -> None:
    kept: Recent[object] = Recent(100)
    made: list[int] = []
    found: list[object] = []
    together = threading.Barrier(8)

    def ask() -> None:
        together.wait()
        for key in range(20):
            found.append(kept.once(key, lambda key=key: (made.append(key) or object(), 1)))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(usual)
    assert sorted(made) == list(range(20))
    assert len(set(map(id, found))) == 20


def test_what_cannot_be_made_is_tried_again() -> None:
    kept: Recent[int] = Recent(10)
    with pytest.raises(ZeroDivisionError):
        kept.once("key", lambda: (1 // 0, 1))
    assert kept.once("key", lambda: (1, 1)) == 1


def test_a_value_may_ask_for_itself_while_it_is_made() -> None:
    """As a signal handler or a finalizer might, on the thread that is inside."""
    kept: Recent[int] = Recent(10)
    assert kept.once("key", lambda: (kept.once("key", lambda: (2, 1)) + 1, 1)) == 3


def forked(function: Callable[[], bool]) -> int:
    """A child, forked here, that ends with 0 if the function says True."""
    child = os.fork()
    if child == 0:
        os._exit(0 if function() else 1)
    return child


can_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
# Python 3.12 warns of forks beside threads.
beside_threads = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@can_fork
@beside_threads
def test_a_child_forked_while_another_thread_holds_the_lock() -> None:
    """The child has no such thread: it must not wait for it."""
    kept: Recent[int] = Recent(10)
    inside, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with kept._lock:
            kept._counted, kept._total = False, 99
            inside.set()
            go_on.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(60)
    child = forked(lambda: kept.once("key", lambda: (2, 1)) == 2 and kept.total == 1)
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@can_fork
@beside_threads
def test_a_fork_waits_for_what_another_thread_is_making() -> None:
    """Of a build or an import that is half done, the child could never do the other half."""
    kept: Recent[str] = Recent(10)
    inside = threading.Event()

    def slow() -> tuple[str, int]:
        inside.set()
        time.sleep(0.3)
        return "made", 1

    thread = threading.Thread(target=lambda: kept.once("key", slow))
    thread.start()
    inside.wait(60)
    child = forked(lambda: kept.get("key") == "made" and kept.once("other", lambda: ("other", 1)) == "other")
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
