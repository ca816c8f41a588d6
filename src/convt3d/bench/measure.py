"""One case measured: every contender prepared, checked against the float64 meaning, and then timed in rounds.

A wrong contender is reported as wrong and not timed; one that fails or cannot run the case says why. The answer is a
row of plain numbers, samples included; what follows from them is computed in `figures.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..cpu.plan.roofline import caller_bytes
from ..front.verify import Check, draw_sample
from .alone import first_calls, peak_memory, row_under_isa
from .cases import Arrays, Case
from .contenders.base import Contender, Ready, UnsupportedError
from .limits import limits
from .rounds import FULL, QUICK, play, timed

SAMPLE_SECONDS, QUICK_SAMPLE_SECONDS = 4.0, 0.5  # for the float64 meaning of a case
GIVE_UP, QUICK_GIVE_UP = 20.0, 2.0  # seconds of one call: nobody slower takes part in rounds
SLOW, SLOW_SHARE = 20.0, 1 / 40  # or this many times our time, and this share of the above


class Meaning(Protocol):
    def check(self, result: Any, /) -> Check: ...


Before = Callable[[str, float], None]  # hears what comes next, and about how many seconds it takes


def measure_case(
    case: Case,
    contenders: Mapping[str, Contender],
    quick: bool = False,
    apart: bool = True,
    earlier: Sequence[Mapping[str, Any]] = (),
    before: Before = lambda text, seconds: None,
) -> dict[str, Any]:
    """A row for the case. `apart`: measure too what needs its own process. `earlier` rows tell who is too slow."""
    if case.isa and apart:
        before(f"{case.name}: with {case.isa}", 10.0)
        return {**_facts(case, quick), **row_under_isa(case, quick)}
    before(f"{case.name}: its meaning", QUICK_SAMPLE_SECONDS if quick else SAMPLE_SECONDS)
    arrays = case.draw()
    seconds = QUICK_SAMPLE_SECONDS if quick else SAMPLE_SECONDS
    sample = _meaning(case, arrays, seconds)
    give_up = QUICK_GIVE_UP if quick else GIVE_UP
    found: dict[str, dict[str, Any]] = {}
    ready: dict[str, Ready] = {}
    for name, contender in contenders.items():
        before(f"{case.name}: {name}, first call", 1.0)
        expected = _expected_seconds(case, name, earlier)
        if expected > give_up:
            found[name] = {"status": "skipped", "note": f"would take about {expected:.0f} s, by an earlier case"}
            continue
        try:
            begun = time.perf_counter()
            prepared = contender.prepare(case, arrays)
            with prepared.around():
                result = prepared.run()
            first = time.perf_counter() - begun
            found[name] = judge(name, case, sample, prepared.stored(result)) | {"first_seconds": first}
            found[name]["note"] = "; ".join(filter(None, (found[name]["note"], prepared.note)))
        except UnsupportedError as reason:
            found[name] = {"status": reason.status, "note": str(reason)}
        except Exception as error:  # a peer may fail in any way: that is a finding, and the others go on
            found[name] = {"status": "failed", "note": f"{type(error).__name__}: {str(error).strip()[:200]}"}
        else:
            if found[name]["status"] == "ok":
                ready[name] = prepared
    pace = QUICK if quick else FULL
    estimates = _warm_calls(ready, found, give_up, pace.pause)
    racing = {name: one for name, one in ready.items() if name in estimates}

    def next_round(turn: int, rounds: int, one: float) -> None:
        again = "" if turn < rounds else " again, others were busy"
        before(f"{case.name}: round {turn % rounds + 1} of {rounds}{again}", one)

    played = play(racing, limits(case, quick), estimates, pace, next_round)
    for name, samples in played.seconds.items():
        found[name]["seconds"] = samples
    del ready, racing, arrays
    if apart:
        _measure_apart(case, found, quick, before)
    return {**_facts(case, quick), "rates": played.rates, "foreign": played.foreign, "contenders": found}


def _meaning(case: Case, arrays: Arrays, seconds: float) -> Meaning:
    """What results are compared with; gradients are compared whole, however long that takes."""
    if case.training:
        from .training import expected_step

        return expected_step(case, arrays)
    rng = np.random.default_rng(1)
    return draw_sample(case.pipeline, arrays.x, arrays.operands, case.dtype, rng, seconds=seconds)


def judge(name: str, case: Case, sample: Meaning, result: Any) -> dict[str, Any]:
    """ok or wrong, with the largest error in units of the type's rounding at the largest expected value."""
    check = sample.check(result)
    right = check.passed if name.startswith("convt3d") else check.worst <= _peer_tolerance(case, check)
    units = check.worst / (case.dtype.eps * check.scale) if check.scale else 0.0
    note = "" if right else f"off by {check.worst:.3g} where {check.tolerance:.3g} is allowed"
    status = "ok" if right else "wrong"
    return {"status": status, "note": note, "error_units": units, "voxels": check.voxels}


def _peer_tolerance(case: Case, check: Check) -> float:
    """A peer may round to the storage type after every stage; convt3d rounds once."""
    return check.tolerance + len(case.pipeline.stages) * case.dtype.eps * check.scale


def _warm_calls(
    ready: Mapping[str, Ready], found: dict[str, dict[str, Any]], give_up: float, pause: float
) -> dict[str, float]:
    """Seconds of a second call of those who take part in rounds; for the others that call is their figure."""
    estimates: dict[str, float] = {}
    for name, one in ready.items():
        if found[name]["first_seconds"] > give_up:
            _slow(found[name], found[name]["first_seconds"], "one call, the first, with its preparation")
            continue
        time.sleep(pause)
        with one.around():
            _, took = timed(one)
        ours = estimates.get("convt3d", took)
        if took > give_up or took > max(SLOW * ours, give_up * SLOW_SHARE):
            _slow(found[name], took, "one call only")
        else:
            estimates[name] = took
    return estimates


def _slow(found: dict[str, Any], seconds: float, note: str) -> None:
    found |= {"status": "slow", "note": "; ".join(filter(None, (note, found["note"]))), "seconds": [seconds]}


def _measure_apart(case: Case, found: dict[str, dict[str, Any]], quick: bool, before: Before) -> None:
    for name, one in found.items():
        own = name.startswith("convt3d")
        if one["status"] != "ok" or not (own or (case.peers_alone and not quick)):
            continue
        before(f"{case.name}: {name}, memory", 3.0)
        one["extra_bytes"] = peak_memory(case, name)
        if own:
            before(f"{case.name}: {name}, first call in a process", 2.0)
            one["first_call"] = first_calls(case, name)


def _expected_seconds(case: Case, name: str, earlier: Sequence[Mapping[str, Any]]) -> float:
    """By the rate at the same layer with another batch; 0 where there is none."""
    text = case.document()
    for row in reversed(earlier):
        same = all(row[key] == text[key] for key in ("pipeline", "dtype", "threads")) and list(row["w"]) == list(case.w)
        alike = row.get("training", False) == case.training
        seconds = row["contenders"].get(name, {}).get("seconds")
        if same and alike and seconds and list(row["x"][1:]) == list(case.x[1:]):
            return float(min(seconds) * case.x[0] / row["x"][0])
    return 0.0


def _facts(case: Case, quick: bool) -> dict[str, Any]:
    """A gradient of the input and one of the weights sum as many products as the result does; a step reads every input
    for the result and for the gradients, and writes as many."""
    plan, directions = case.plan, 3 if case.training else 1
    sizes = caller_bytes(plan)
    given = sum(sizes.values()) - sizes["output"]
    return {
        **{key: value for key, value in case.document().items() if key != "peers_alone"},
        "quick": quick,
        "y": case.pipeline.result_shape(plan.trace.output),
        "needed_flop": directions * plan.work.needed,
        "nominal_flop": directions * plan.work.nominal,
        "bytes": directions * given + (2 if case.training else 1) * sizes["output"],
    }
