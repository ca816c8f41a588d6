"""`convt3d bench --suite networks`: whole networks beside eager PyTorch and what compiles it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..bench.record import append_row, calmed, provenance
from ..bench.rounds import middle
from ..cpu.plan.cores import available_cores
from ..errors import ArgumentError
from ..units import amount, duration, ratio
from .report import CHECK_FAILED, OK, emit, emit_json
from .terminal import Progress, Screen

SUITE, RESULTS, EAGER = "networks", "bench-networks.jsonl", "torch"


def bench_networks(args: argparse.Namespace) -> int:
    if args.suite != [SUITE]:
        received = " ".join(args.suite)
        raise ArgumentError("bench", "--suite", received, "networks are measured by themselves", "Name one suite")
    try:
        from ..bench.measure_networks import CONTENDERS, NOT_QUICK, OWN, chosen_networks, measure_network
    except ImportError as error:
        raise ArgumentError("bench", "--suite", SUITE, f"needs {error.name}", "pip install '.[torch,models]'") from None
    names = [name for name in CONTENDERS if name in (OWN, *args.peer)] if args.peer else list(CONTENDERS)
    names = [name for name in names if not (args.quick and name in NOT_QUICK)]
    path, origin = Path(args.output or RESULTS), provenance()
    rows: list[dict[str, Any]] = []
    networks = chosen_networks(args.filter)
    if not networks:
        raise ArgumentError("bench", "--filter", " ".join(args.filter), "chooses no network", "Use other words")
    with Progress(sys.stderr) as progress:
        for number, network in enumerate(networks, 1):
            progress.say(f"network {number} of {len(networks)}: {network.name}")
            row = measure_network(network, names, args.quick, args.threads or available_cores())
            rows.append({**origin, **row})
            append_row(path, rows[-1])
    if args.json:
        emit_json(rows)
    else:
        emit(f"{_table(Screen(sys.stdout), rows, names, OWN)}\nappended to {path}")
    wrong = any(row["contenders"].get(OWN, {}).get("status") in ("wrong", "failed") for row in rows)
    return CHECK_FAILED if wrong else OK


def _table(screen: Screen, rows: Sequence[dict[str, Any]], names: Sequence[str], own: str) -> str:
    """Times, and for others how many times ours; memory of our calls beside eager's."""
    cells = []
    for row in rows:
        found = calmed(row)["contenders"]
        ours = found[own].get("seconds") if own in found else None
        cells.append([row["name"], *(_cell(found[name], None if name == own else ours) for name in names)])
        cells[-1].append(duration(found[own]["first_seconds"]) if ours else "-")
        cells[-1].append(_memory(found.get(own, {}), found.get(EAGER, {})))
    table = screen.table(
        ["network", *names, "our first call", "memory / eager's"], cells, set(range(1, len(names) + 3))
    )
    return (
        f"{table}\n{screen.wrap('others: their time, and how many times ours it is; above 1 is slower than convt3d')}"
    )


def _memory(ours: dict[str, Any], eager: dict[str, Any]) -> str:
    needed = [each.get("extra_bytes") for each in (ours, eager)]
    return " / ".join("-" if each is None else amount(each) for each in needed)


def _cell(one: dict[str, Any], ours: Sequence[float] | None) -> str:
    seconds = one.get("seconds")
    if not seconds:
        return str(one["status"])
    share = [theirs / mine for theirs, mine in zip(seconds, ours, strict=True)] if ours else None
    return duration(middle(seconds)) + (f", {ratio(middle(share))}" if share else "")
