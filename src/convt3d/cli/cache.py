"""`convt3d cache`: kernels on disk, made in advance, listed, verified, cleared, and carried away in a signed pack."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..cache import Entry, ObjectCache, object_cache
from ..cpu.plan.machine import machine
from ..cpu.runtime.pack import isa_of, name_of, no_use, read_key, read_pack, write_pack
from ..errors import ArgumentError, ArgumentTypeError, described
from ..front.solutions import problems
from ..front.warm import instruction_set, warm
from ..spec.dtypes import DTYPES
from ..spec.pipeline import Pipeline
from ..spec.text import read_stages
from ..units import amount, counted, duration
from .choose import named_values
from .report import CHECK_FAILED, OK, emit, emit_json
from .terminal import Progress, Screen

ACTIONS = ("warm", "list", "verify", "clear", "export", "import")
_SHAPES = re.compile(r"\d+(?:x\d+){4}(?::\d+(?:x\d+){4})+")


def cache(args: argparse.Namespace) -> int:
    _check_words(args)
    store = object_cache()
    if store.directory is None:
        rule = store.why_not or "there is none: it is off, or there is no home directory"
        remedy = "Set CONVT3D_CACHE_DIR to a directory of yours"
        raise ArgumentError("cache", "cache directory", described("none"), rule, remedy)
    document, text, code = _COMMANDS[args.action](args, store, Screen(sys.stdout))
    document = {"directory": str(store.directory), "action": args.action, **document}
    emit_json(document) if args.json else emit(text)
    return code


def _check_words(args: argparse.Namespace) -> None:
    """As many as the action takes."""
    takes = {"warm": "problems or pipelines", "export": "one file", "import": "one file"}.get(args.action)
    right = bool(args.words) if args.action == "warm" else len(args.words) == (takes is not None)
    if not right:
        received = described(f"{len(args.words)} words after {args.action}")
        raise ArgumentError("cache", "words", received, f"{args.action} takes {takes or 'none'}", "See cache --help")


def _rows(entries: list[Entry], states: list[str]) -> list[dict[str, Any]]:
    return [
        {
            "name": name_of(each),
            "isa": isa_of(each),
            "bytes": each.size,
            "used": each.used,
            "key": each.key,
            "state": at,
        }
        for each, at in zip(entries, states, strict=True)
    ]


def _state(entry: Entry) -> str:
    return (no_use(entry.about) or "ok") if entry.sound else "damaged"


# --- warm -------------------------------------------------------------------------------------------------------------


class _Job(NamedTuple):
    what: str
    pipeline: Pipeline
    input: tuple[int, ...]
    weights: tuple[tuple[int, ...], ...]  # of each convolution


def _jobs(args: argparse.Namespace) -> Iterator[_Job]:
    for word in args.words:
        if "(" not in word:
            problem = problems[word]
            values = named_values(problem, args.size)
            shapes = problem.shapes(values)
            yield _Job(word, problem.pipeline(values), shapes["input"], (shapes["kernel"],))
            continue
        pipeline = Pipeline(*read_stages(word))
        if not args.shape:
            received, rule = described("none"), "a pipeline needs the shapes of input and weight"
            raise ArgumentError("cache warm", "--shape", received, rule, "Write --shape 1x32x8x8x8:32x16x3x3x3")
        for text in args.shape:
            yield _Job(word, pipeline, *_shapes(text, len(pipeline.convolutions)))


def _shapes(text: str, convolutions: int) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    x, *weights = (tuple(map(int, part.split("x"))) for part in text.split(":")) if _SHAPES.fullmatch(text) else ((),)
    if len(weights) != convolutions:
        rule = "must be INPUT:WEIGHT with five sizes each"
        if convolutions > 1:
            rule = f"must be INPUT and {convolutions} WEIGHTs, one for each convolution, with five sizes each"
        remedy = f"Write for example 1x32x8x8x8{':32x32x3x3x3' * convolutions}"
        raise ArgumentTypeError("cache warm", "--shape", text, rule, remedy)
    return x, tuple(weights)


def _warm(args: argparse.Namespace, store: ObjectCache, screen: Screen) -> tuple[dict[str, Any], str, int]:
    if not os.access(str(store.directory), os.W_OK):
        rule, remedy = "must be writable to be warmed", "Set CONVT3D_CACHE_DIR to a directory of yours"
        raise ArgumentError("cache warm", "cache directory", str(store.directory), rule, remedy)
    rows, jobs, unkept = [], list(_jobs(args)), store.unkept
    turns = [(isa, dtype, job) for isa in args.isa or [None] for dtype in args.dtype or ["float32"] for job in jobs]
    with Progress(sys.stderr) as progress:
        for at, (isa, dtype, job) in enumerate(turns):
            progress.begin(f"{job.what} {dtype}", at / len(turns), (at + 1) / len(turns))
            before, start = _keys(store), time.perf_counter()
            with instruction_set(isa):
                warm(job.pipeline, job.input, job.weights, DTYPES[dtype])
                used = machine().isa
            made = len(_keys(store) - before)
            rows.append({"what": job.what, "dtype": dtype, "isa": used, "input": job.input, "weights": job.weights})
            rows[-1] |= {"kernels": made, "seconds": time.perf_counter() - start}
    if args.readable:
        _make_readable(store)
    cells = [
        [
            r["what"],
            r["dtype"],
            r["isa"],
            _by(r["input"]),
            " ".join(map(_by, r["weights"])),
            str(r["kernels"]),
            duration(r["seconds"]),
        ]
        for r in rows
    ]
    heads = ["warmed", "type", "vectors", "input", "weight", "new", "time"]
    table, unkept = screen.table(heads, cells, right={5, 6}, spare=[4]), store.unkept - unkept
    told = f"{table}\n{counted(unkept, 'kernel')} could not be written to {store.directory}: is the disk full?"
    return {"warmed": rows, "unkept": unkept}, told if unkept else table, CHECK_FAILED if unkept else OK


def _keys(store: ObjectCache) -> set[str]:
    return {path.name for path in store.directory.iterdir()} if store.directory else set()


def _make_readable(store: ObjectCache) -> None:
    """For other users, who trust what belongs to root."""
    assert store.directory is not None
    os.chmod(store.directory, 0o755)
    for entry in store.entries():
        os.chmod(entry.path, 0o644)


def _by(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


# --- what is there ----------------------------------------------------------------------------------------------------


def _list(args: argparse.Namespace, store: ObjectCache, screen: Screen) -> tuple[dict[str, Any], str, int]:
    entries = store.entries()
    rows = _rows(entries, list(map(_state, entries)))
    cells = [[r["name"], r["isa"], amount(r["bytes"]), _when(r["used"]), r["state"]] for r in rows]
    total = f"{counted(len(rows), 'file')}, {amount(sum(r['bytes'] for r in rows))} in {store.directory}"
    table = screen.table(["kernel", "vectors", "size", "last used", "state"], cells, right={2}, spare=[3])
    return {"entries": rows}, f"{table}\n{total}" if rows else total, OK


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _verify(args: argparse.Namespace, store: ObjectCache, screen: Screen) -> tuple[dict[str, Any], str, int]:
    entries = store.entries()
    states = list(map(_state, entries))
    rows = _rows(entries, states)
    damaged, other = states.count("damaged"), sum(each not in ("ok", "damaged") for each in states)
    cells = [[r["name"], r["key"][:12], r["state"]] for r in rows if r["state"] != "ok"]
    lines = [screen.table(["kernel", "key", "state"], cells)] if cells else []
    lines.append(
        f"{counted(len(rows), 'file')}: {states.count('ok')} ok, {damaged} damaged, "
        f"{other} for other machines or versions"
    )
    found = {"ok": states.count("ok"), "damaged": damaged, "other": other, "entries": rows}
    return found, "\n".join(lines), CHECK_FAILED if damaged else OK


def _clear(args: argparse.Namespace, store: ObjectCache, screen: Screen) -> tuple[dict[str, Any], str, int]:
    going = [each for each in store.entries() if not args.stale or _state(each) != "ok"]
    gone = [store.remove(each) for each in going]
    left = len(gone) - sum(gone)
    text = f"removed {counted(sum(gone), 'file')} from {store.directory}"
    told = f"{text}; {left} could not be removed" if left else text
    return {"removed": sum(gone), "left": left}, told, CHECK_FAILED if left else OK


# --- packs ------------------------------------------------------------------------------------------------------------


def _export(args: argparse.Namespace, store: ObjectCache, screen: Screen) -> tuple[dict[str, Any], str, int]:
    if args.key is None:
        rule, remedy = "a pack is signed", "Give --key FILE; make one with: openssl rand -out key 32"
        raise ArgumentError("cache export", "--key", described("none"), rule, remedy)
    key, path = read_key(args.key), Path(args.words[0])
    entries = [each for each in store.entries() if _state(each) == "ok"]
    try:
        write_pack(path, entries, key)
    except FileExistsError:
        raise ArgumentError("cache export", "FILE", str(path), "exists already", "Choose another name") from None
    except OSError as problem:
        received = described(f"{path}: {problem.strerror}")
        raise ArgumentError("cache export", "FILE", received, "must be writable", "Choose another place") from None
    text = f"wrote {counted(len(entries), 'file')} to {path} ({amount(path.stat().st_size)})"
    return {"file": str(path), "entries": len(entries), "bytes": path.stat().st_size}, text, OK


def _import(args: argparse.Namespace, store: ObjectCache, screen: Screen) -> tuple[dict[str, Any], str, int]:
    if (args.key is None) != args.unsigned:
        rule = "a signature is checked, unless --unsigned says that it need not be"
        received = described("none" if args.key is None else "with --unsigned")
        raise ArgumentError("cache import", "--key", received, rule, "Give --key FILE, or --unsigned, not both")
    done = read_pack(Path(args.words[0]), store, None if args.unsigned else read_key(args.key))
    if args.readable:
        _make_readable(store)
    lines = [f"took {counted(len(done.taken), 'file')} into {store.directory}"]
    lines += [f"left {counted(len(names), 'file')}: {reason}" for reason, names in done.foreign.items()]
    document = {"signed": done.signed, "taken": done.taken, "left": done.foreign}
    return document, "\n".join(lines), CHECK_FAILED if done.foreign and not done.taken else OK


_COMMANDS = {
    "warm": _warm,
    "list": _list,
    "verify": _verify,
    "clear": _clear,
    "export": _export,
    "import": _import,
}
