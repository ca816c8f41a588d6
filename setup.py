"""The readme of the package: README.md, whose links into the sources become plain paths, as an index has no sources."""

import re
from pathlib import Path

from setuptools import setup

LINK = re.compile(r"!?\[([^\]]*)\]\((?!https?:|#)([^)]+)\)")  # [text](path), and pictures


def words(link: re.Match[str]) -> str:
    text, path = link.groups()
    return f"`{path}`" if text in ("", path) or link[0].startswith("!") else f"{text} (`{path}`)"


README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
setup(long_description=LINK.sub(words, README), long_description_content_type="text/markdown")
