"""Results as one HTML page that needs nothing else: no network, no other file; light or dark, on a phone or a desk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from ..units import amount, ratio
from .charts import bars, curves, roofline, title
from .figures import OWN, disturbed, geometric_mean, nearest_ratios, row_figures
from .rounds import middle
from .suites import SUITES
from .svg import shown
from .table import HEADERS, label, notes, own_cells, peer_names, ratio_cell

METHOD = """All contenders and the limits of the machine take turns within a round; ratios and shares are taken within a
round, and the median over rounds counts. The spread is the interquartile range. Every result was compared with the
float64 meaning of the operator on sampled voxels before it was timed: a wrong one is listed as wrong, not timed. A
round during which other processes were busy was played again."""
TERMS = {
    "needed GFLOP/s": "multiply-adds that reach the result, zeros that a stride inserts left out, two FLOP each",
    "nominal": "FLOP as usually counted: 2 · batch · Cin · Cout · kernel · input volume",
    "of sgemm": "needed rate over the rate of numpy's matrix product with as many threads",
    "of peak": "needed rate over that of a loop of multiply-adds in registers, which nothing but fewer products beats",
    "of roofline": "the time that matrix product and streaming copy leave at least, over the time taken",
    "kept": "PyTorch with the memory of large results kept between calls, which glibc otherwise gives back: about half "
    "of the time of large results is the wait for fresh pages",
    "extra memory": "how far calls raise the memory of a process, at its peak, beyond inputs and result",
    "first call": "what the first call of a process takes beyond a repeated one, imports left out",
    "error, roundings": "largest error over (spacing of numbers at 1 · largest expected value)",
    "*": "ran once only, because it was far slower",
}


def draw_page(rows: Sequence[Mapping[str, Any]]) -> str:
    suites = [suite for suite in SUITES if any(row["suite"] == suite for row in rows)]
    suites += sorted({row["suite"] for row in rows} - set(suites))
    body = "\n".join(
        [
            _head(rows),
            _tiles(rows),
            _roofline_section(rows),
            _navigation(suites),
            *(_suite_section(suite, [row for row in rows if row["suite"] == suite]) for suite in suites),
            _table_section(rows),
            _untimed_section(rows),
            _method_section(rows),
        ]
    )
    data = json.dumps(rows, separators=(",", ":")).replace("</", "<\\/")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>convt3d benchmark</title><style>{_part('style.css')}</style></head>\n<body><main>{body}</main>\n"
        f'<script type="application/json" id="rows">{data}</script>\n'
        f"<script>{_part('script.js')}</script></body></html>\n"
    )


def _part(name: str) -> str:
    return (resources.files(__package__) / "page_parts" / name).read_text(encoding="utf-8")


def _head(rows: Sequence[Mapping[str, Any]]) -> str:
    last = rows[-1]
    threads = max(row["threads"] for row in rows)
    facts = f"{last['machine']['cpu']}, {last['machine']['isa']}, {threads} threads · {last['when'][:10]}"
    commits = ", ".join(sorted({row["commit"] for row in rows if row["commit"]}))
    told = f"{facts} · commit {commits}" if commits else facts
    return f"<h1>convt3d beside its peers</h1><p class='muted'>{escape(told)}</p>"


def _tiles(rows: Sequence[Mapping[str, Any]]) -> str:
    """Headlines; of rows in which others were busy none is made."""
    rows = [row for row in rows if not disturbed(row)]
    large = [row for row in rows if row["suite"] in ("seeds", "models")]
    nearest = nearest_ratios(large or rows)
    owns = [own for row in rows if (own := row_figures(row).get(OWN))]
    shares = [own.of_roofline.value for own in owns if own.of_roofline]
    tiles = []
    if nearest:
        wins = sum(value > 1 for value in nearest)
        tiles.append((f"{wins} of {len(nearest)}", "operators and layers where convt3d is faster than every peer"))
        tiles.append((f"{ratio(geometric_mean(nearest))}×", "fastest peer's time over ours there, geometric mean"))
    if shares:
        tiles.append((f"{middle(shares):.0%}", "of the roofline, median of all cases"))
    warm = [own.first_call["warm"] for own in owns if "warm" in own.first_call]
    if warm:
        tiles.append((f"{1e3 * middle(warm):.0f} ms", "first call with a warm cache, median"))
    cells = "".join(
        f"<div class='tile'><b>{value}</b><span class='muted'>{words}</span></div>" for value, words in tiles
    )
    return f"<div class='tiles'>{cells}</div>"


def _roofline_section(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the usual threads and instruction set: others have other roofs."""
    threads = max(row["threads"] for row in rows)
    usual = [row for row in rows if row["threads"] == threads and not row["isa"] and row.get("rates")]
    groups = {"Operators and layers": ("seeds", "models"), "Small volumes and growing sizes": ("small", "scaling")}
    cards = []
    for heading, suites in groups.items():
        chart = roofline([row for row in usual if row["suite"] in suites])
        cards += [f"<div class='card'><h3>{heading}</h3>{chart}</div>"] if chart else []
    words = (
        "Each point is a case. The line is what the matrix product (flat) and a streaming copy (slope) allow. A point "
        "above it is no error: FLOP are counted as direct summation needs them, and Winograd's schemes make up to 3.4 "
        "times fewer products for the same result; arrays that stay in the caches are not bound by the copy."
    )
    return (
        f"<h2>Roofline</h2><p>{words}</p><div class='grid wide' id='roofline'>{''.join(cards)}</div>" if cards else ""
    )


def _navigation(suites: Sequence[str]) -> str:
    every = "<button value='' aria-pressed='true'>all</button>"
    each = "".join(f"<button value='{suite}' aria-pressed='false'>{suite}</button>" for suite in suites)
    return f"<h2>Times</h2><p>Shorter is better; × is the time over ours.</p><nav>{every}{each}</nav>"


def _suite_section(suite: str, rows: Sequence[Mapping[str, Any]]) -> str:
    series = list(dict.fromkeys(row["series"] for row in rows if row["series"]))
    cards = []
    for name in series:
        along = [row for row in rows if row["series"] == name]
        chart = curves(along)
        head = f"<h3>{escape(along[0]['name'].rpartition(',')[0])}: {escape(name)}</h3>"
        cards += [f"<div class='card'>{head}{chart}</div>"] if chart else []
    cards += [f"<div class='card'>{title(row)}{bars(row)}{_remarks(row)}</div>" for row in rows if not row["series"]]
    heading = SUITES.get(suite, suite)
    return f"<section data-suite='{suite}'><h2>{escape(heading)}</h2><div class='grid'>{''.join(cards)}</div></section>"


def _remarks(row: Mapping[str, Any]) -> str:
    wrong = [shown(name) for name, one in row["contenders"].items() if one["status"] in ("wrong", "failed")]
    held = {name: one.get("extra_bytes") for name, one in row["contenders"].items()}
    memory = [f"{shown(name)} {amount(size)}" for name, size in held.items() if size is not None]
    lines = [f"<p class='bad'>not timed: {escape(', '.join(wrong))}</p>"] if wrong else []
    lines += [
        f"<p class='bad'>others took {share:.0%} of the processor meanwhile</p>" if (share := disturbed(row)) else ""
    ]
    return "".join([f"<p class='muted'>extra memory: {escape(', '.join(memory))}</p>" if memory else "", *lines])


def _table_section(rows: Sequence[Mapping[str, Any]]) -> str:
    peers = peer_names(rows)
    heads = "".join(f"<th><button>{escape(name)}</button></th>" for name in (*HEADERS, *map(shown, peers)))
    body = "".join(_table_row(row, peers) for row in rows)
    return (
        "<h2>All figures</h2><p class='muted'>Click a heading to sort. Columns of peers: their time over ours.</p>"
        f"<div class='scroll'><table id='figures'><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _table_row(row: Mapping[str, Any], peers: Sequence[str]) -> str:
    figures = row_figures(row)
    cells = [f"<td>{escape(label(row))}</td>"]
    cells += [_cell(words, value) for words, value in own_cells(figures.get(OWN))]
    for name in peers:
        one = figures.get(name)
        value = one.ratio.value if one and one.ratio else None
        kind = "" if value is None else " class='loss'" if value < 1 else " class='win'"
        cells.append(_cell(ratio_cell(one), value, kind))
    return f"<tr data-suite='{row['suite']}'>{''.join(cells)}</tr>"


def _cell(words: str, value: float | None, kind: str = "") -> str:
    sorts = "" if value is None else f" data-value='{value:.6g}'"
    return f"<td{kind}{sorts}>{escape(words)}</td>"


def _untimed_section(rows: Sequence[Mapping[str, Any]]) -> str:
    """Who was wrong, failed, could not run a case, or was skipped, and why."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        for name, one in row["contenders"].items():
            if one["status"] not in ("ok", "slow"):
                reasons.setdefault((name, one["status"], one.get("note", "")), []).append(label(row))
    if not reasons:
        return ""
    lines = [
        f"<dt>{escape(shown(name))}: {status}</dt>"
        f"<dd>{escape(why)} <span class='muted'>({escape(_some(cases))})</span></dd>"
        for (name, status, why), cases in reasons.items()
    ]
    return f"<h2>Not timed</h2><dl>{''.join(lines)}</dl>"


def _some(cases: Sequence[str]) -> str:
    return "; ".join(cases) if len(cases) <= 2 else f"{cases[0]}; and {len(cases) - 1} more"


def _method_section(rows: Sequence[Mapping[str, Any]]) -> str:
    last = rows[-1]
    terms = "".join(f"<dt>{escape(term)}</dt><dd>{escape(words)}</dd>" for term, words in TERMS.items())
    versions = ", ".join(f"{name} {version}" for name, version in last["versions"].items() if version)
    facts = {"machine": json.dumps(last["machine"]), "versions": versions, "commit": str(last["commit"])}
    told = "".join(f"<dt>{name}</dt><dd>{escape(words)}</dd>" for name, words in facts.items())
    said = "".join(f"<p>{escape(words)}</p>" for words in notes(rows))
    return f"<h2>How this was measured</h2><p>{METHOD}</p>{said}<dl>{terms}</dl><h2>Where</h2><dl>{told}</dl>"
