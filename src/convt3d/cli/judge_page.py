"""A verdict as one HTML page that needs nothing else. What the kernel said is shown as text, whatever it contains."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..units import duration
from .judge_words import diagnosis, protections_off, quoted, reason_of

STYLE = """\
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
.passed { color: #1a7f37; } .failed { color: #cf222e; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }
td { white-space: pre-wrap; overflow-wrap: anywhere; } tr { border-bottom: 1px solid #8884; }
img { image-rendering: pixelated; max-width: 100%; } pre { overflow-x: auto; }"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def draw_page(document: Mapping[str, Any], png: bytes | None) -> str:
    """`document` is what `check --json` prints."""
    word = str(document["verdict"])
    kind = "passed" if document["passed"] else "failed"
    parts = [
        f"<h1 class='{kind}'>{escape(word)}</h1>",
        _table("", _facts(document)),
        f"<pre>{escape(quoted(document))}</pre>",
        _table("<h2>Diagnosis</h2>", diagnosis(document)),
        _picture(document, png),
        _cases(document["cases"]),
        _table("<h2>Left out</h2>", list(document["left_out"].items())),
    ]
    title = escape(f"{document['slug']}: {word}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
        f"<title>{title}</title><style>{STYLE}</style></head>\n<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _facts(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = {
        "problem": document["slug"],
        "case": document["case"],
        "reason": reason_of(document),
        "file": f"{document['file']} ({document['language']}, {document['dtype']})",
        "cases passed": len(document["cases"]),
        "threads tried": ", ".join(map(str, document["threads"])),
        "seed": document["seed"],
        **dict(protections_off(document)),
    }
    return [(name, str(value)) for name, value in facts.items() if value not in (None, "")]


def _picture(document: Mapping[str, Any], png: bytes | None) -> str:
    if png is None:
        return ""
    data = b64encode(png).decode()
    return (
        "<h2>Wrong voxels</h2><p>Red is wrong; slices of depth go across, channels go down.</p>"
        f"<img alt='wrong voxels' src='data:image/png;base64,{data}'><pre>{escape(document['picture'])}</pre>"
    )


def _cases(cases: Sequence[Mapping[str, Any]]) -> str:
    head = "<tr><th>case</th><th>why</th><th>runs</th><th>tolerance used</th><th>first run</th></tr>"
    rows = (
        f"<tr><td>{escape(case['name'])}</td><td>{escape(case['why'])}</td><td>{case['runs']}</td>"
        f"<td>{case['worst']:.3g}</td><td>{escape(duration(case['seconds']))}</td></tr>"
        for case in cases
    )
    return f"<h2>Cases that passed</h2><table>{head}{''.join(rows)}</table>" if cases else ""


def _table(heading: str, rows: Sequence[tuple[str, str]]) -> str:
    lines = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"{heading}<table>{''.join(lines)}</table>" if rows else ""
