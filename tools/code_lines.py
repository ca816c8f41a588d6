"""Counts lines of code, without docstrings, comments and blank lines, folder by folder.

python tools/code_lines.py [FOLDER]        # src/convt3d, unless another is given
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

_NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(text: str) -> int:
    """Of a Python file."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOT_CODE:
            found |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(
            node
        ):
            found -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(found)


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "src" / "convt3d")
    counts: Counter[str] = Counter()
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root).parts
        counts["/".join(inside[: 2 if inside[0] == "cpu" else 1])] += code_lines(path.read_text(encoding="utf-8"))
    for name, lines in counts.items():
        print(f"{lines:7} {name}")
    print(f"{counts.total():7} in all")


if __name__ == "__main__":
    main()
