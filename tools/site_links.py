"""For mkdocs: links of a page to files outside of docs/ become plain paths, as the site has no sources."""

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)]+)\)")  # [text](../path)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for each page; those in folders of docs/ have no such links."""
    return markdown if "/" in page.file.src_uri else OUTSIDE.sub(_words, markdown)


def _words(link: re.Match[str]) -> str:
    text, path = link.groups()
    return f"`{path}`" if text.strip("`") in ("", path) else f"{text} (`{path}`)"
