"""Compare: real changes are told, noise and a machine of another speed are not."""

from __future__ import annotations

from helpers.bench_rows import row

from convt3d.bench.compare import compare_rows

STEADY = [1.00e-3, 1.01e-3, 0.99e-3, 1.00e-3, 1.00e-3]
NOISY = [1.0e-3, 1.6e-3, 0.9e-3, 1.4e-3, 1.1e-3]


def verdict(old: list[float], new: list[float], gemm: tuple[float, float] = (1e11, 1e11)) -> str:
    rows = [row({"convt3d": times}, gemm=[rate] * len(times)) for times, rate in zip((old, new), gemm, strict=True)]
    (change,) = compare_rows([rows[0]], [rows[1]], ["convt3d"])
    return change.verdict


def test_changes_beyond_the_noise() -> None:
    assert verdict(STEADY, [0.8 * time for time in STEADY]) == "faster"
    assert verdict(STEADY, [1.2 * time for time in STEADY]) == "slower"


def test_noise() -> None:
    assert verdict(STEADY, STEADY) == "same"
    assert verdict(STEADY, [1.02 * time for time in STEADY]) == "same", "steady, but only 2%"
    assert verdict(NOISY, [1.1 * time for time in NOISY]) == "same"


def test_a_machine_of_another_speed_is_no_change() -> None:
    assert verdict(STEADY, [2 * time for time in STEADY], gemm=(1e11, 0.5e11)) == "same"
    assert verdict(STEADY, STEADY, gemm=(1e11, 0.5e11)) == "faster", "the machine was half as fast"


def test_only_what_both_hold() -> None:
    old, new = row({"convt3d": STEADY}), row({"convt3d": STEADY}, name="another case")
    assert compare_rows([old], [new], ["convt3d"]) == []
    assert compare_rows([old], [old], ["torch"]) == []


def test_a_contender_that_became_wrong() -> None:
    old, new = row({"convt3d": STEADY, "torch": STEADY}), row({"convt3d": STEADY, "torch": []})
    (change,) = compare_rows([old], [new], ["torch"])
    assert change.verdict == "ok -> wrong"


def test_one_call_only() -> None:
    old, new = row({"convt3d": STEADY, "torch": [1.0]}), row({"convt3d": STEADY, "torch": [2.0]})
    (change,) = compare_rows([old], [new], ["torch"])
    assert (change.verdict, change.ratio) == ("slower", 2.0)
