"""Escaped HTML: only `tag` and `joined` make `Html`, and they escape everything else. Also a cause's page as HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator

from rankwise.report.safe_text import printable

_VOID = frozenset({"meta", "br"})
_INLINE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*")
_FENCE = re.compile(r"^```.*?$\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)


class Html(str):
    """Markup that is already safe."""

    __slots__ = ()


Child = str | Html | int | float | None


def tag(name: str, /, *children: Child, **attributes: str | int | None) -> Html:
    """`tag("td", text, class_="rank", data_label="state")`; children that are not Html are escaped, None is nothing."""
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value not in (None, "")}
    written = "".join(f' {key}="{escape(value)}"' for key, value in given.items())
    if name in _VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{joined(children)}</{name}>")


def joined(children: Iterable[Child]) -> Html:
    return Html("".join(escape(child) for child in children if child is not None))


def escape(child: Child) -> Html:
    return child if isinstance(child, Html) else block(child, 4000)


def block(text: Child, limit: int = 12_000) -> Html:
    """Longer text, with its line breaks."""
    return Html(html.escape(printable(text, limit), quote=True))


def classes(*names: str) -> str:
    return " ".join(filter(None, names))


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
