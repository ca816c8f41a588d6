"""Rounds: everyone has a turn in each, in changing order; statistics of what came out."""

from __future__ import annotations

import numpy as np
import pytest

from convt3d.bench.calm import Watch
from convt3d.bench.contenders.base import Ready
from convt3d.bench.rounds import LEAST_SAMPLE, MOST_REPEATS, Pace, Played, calm_rounds, middle, play, quartiles, spread

NOW = Pace(seconds=1.0, least=3, most=4, pause=0.0)


@pytest.fixture(autouse=True)
def _nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, "foreign_seconds", lambda self: 0.0)


def play_and_note(estimates: dict[str, float], pace: Pace = NOW) -> tuple[list[str], Played, list[int]]:
    calls: list[str] = []
    heard: list[int] = []

    def rate() -> float:
        calls.append("limit")
        return float(len(calls))

    contenders = {name: Ready(lambda name=name: calls.append(name), np.asarray) for name in estimates}
    played = play(contenders, {"gemm": rate}, estimates, pace, lambda turn, rounds, seconds: heard.append(turn))
    return calls, played, heard


def test_turns_alternate_and_every_round_has_all() -> None:
    calls, played, heard = play_and_note({"a": 1.0, "b": 1.0})
    assert calls == ["limit", "a", "b", "limit", "b", "a", "limit", "a", "b"]
    assert [len(samples) for samples in played.seconds.values()] == [3, 3]
    assert played.rates["gemm"] == [1.0, 4.0, 7.0]
    assert heard == [0, 1, 2]


def test_short_calls_are_repeated_and_warmed_up() -> None:
    calls, played, _ = play_and_note({"a": LEAST_SAMPLE / 3})
    assert calls.count("a") == 4 * 2 * 3, "4 rounds fit; as many calls to warm up as are timed"
    assert len(played.seconds["a"]) == 4
    calls, _, _ = play_and_note({"a": 1e-9})
    assert calls.count("a") == 4 * 2 * MOST_REPEATS


def test_rounds_follow_the_time_there_is() -> None:
    assert [NOW.rounds(one) for one in (10.0, 0.25, 0.3, 0.01)] == [3, 4, 3, 4]


def test_disturbed_rounds_are_played_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as there is hope; all of them are kept, and the calm ones count."""
    shares = iter([0.0, 9e9, 0.0, 9e9, 0.0, 0.0])
    monkeypatch.setattr(Watch, "foreign_seconds", lambda self: next(shares))
    _, played, heard = play_and_note({"a": 1.0})
    assert heard == [0, 1, 2, 3, 4]
    assert [share > 1 for share in played.foreign] == [False, True, False, True, False]
    assert calm_rounds(played.foreign) == [0, 2, 4]
    monkeypatch.setattr(Watch, "foreign_seconds", lambda self: 9e9)
    _, played, heard = play_and_note({"a": 1.0})
    assert len(heard) == 6
    assert len(calm_rounds(played.foreign)) == 3
    assert calm_rounds([0.9, 0.2, 0.8, 0.0, 0.3]) == [1, 3, 4], "too few are calm: the calmest count"
    assert calm_rounds([]) == []


def test_statistics() -> None:
    assert middle([3.0, 1.0, 2.0]) == 2.0
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 4.0)
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == 2.0
    assert quartiles([7.0]) == (7.0, 7.0)


def test_the_collector_is_on_again_after_an_interruption() -> None:
    import gc

    def interrupt() -> None:
        assert not gc.isenabled()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play({"a": Ready(interrupt, np.asarray)}, {}, {"a": 1.0}, NOW)
    assert gc.isenabled()
