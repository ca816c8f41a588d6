"""The figure in the README is drawn from the committed run, and is well-formed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.dom import minidom

ROOT = Path(__file__).parent.parent


def test_the_figure_shows_the_committed_run(tmp_path: Path) -> None:
    drawn = tmp_path / "speed.svg"
    command = [sys.executable, ROOT / "benchmarks" / "figure.py", ROOT / "benchmarks" / "results" / "first.json", drawn]
    subprocess.run(command, check=True)
    assert drawn.read_text() == (ROOT / "docs" / "speed.svg").read_text()
    bars = minidom.parse(str(drawn)).getElementsByTagName("rect")
    assert len(bars) == 2 * 12, "convt3d and PyTorch for five operators and seven layers"
