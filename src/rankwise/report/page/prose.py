"""A cause's page (headings, paragraphs, lists, code) as HTML; only the Markdown those pages use."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankwise.report.page.markup import Html, block, joined, tag

_INLINE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*")
_FENCE = re.compile(r"^```.*?$\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)


def page_html(page: str) -> Html:
    """The page without its title line."""
    _, _, body = page.partition("\n")
    pieces = _FENCE.split(body)  # text, code, text, code, … text
    return joined(_code(piece) if i % 2 else joined(_paragraphs(piece)) for i, piece in enumerate(pieces))


def _paragraphs(text: str) -> Iterator[Html]:
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if paragraph.startswith("#"):
            yield tag("h4", paragraph.lstrip("# "))
        elif paragraph.startswith("- "):
            yield tag("ul", *(tag("li", inline(item)) for item in re.split(r"^- ", paragraph, flags=re.MULTILINE) if item))
        elif paragraph:
            yield tag("p", inline(paragraph))


def inline(text: str) -> Html:
    """`code` and **bold** marked, the rest escaped."""
    pieces: list[Html | str] = []
    end = 0
    for match in _INLINE.finditer(text):
        pieces += [text[end : match.start()], tag("code", match[1]) if match[1] else tag("b", match[2])]
        end = match.end()
    return joined([*pieces, text[end:]])


def _code(text: str) -> Html:
    return tag("pre", tag("code", block(text.rstrip())), class_="code")
