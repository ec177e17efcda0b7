"""HTML that is escaped unless it says otherwise: only `Html` passes through untouched, and only `tag` and `joined` make it."""

from __future__ import annotations

import html
from collections.abc import Iterable

from rankwise.report.wording import printable


class Html(str):
    """Markup that is already safe."""

    __slots__ = ()


Child = str | Html | int | float | None
_VOID = frozenset({"meta", "br"})


def tag(name: str, /, *children: Child, **attributes: str | int | None) -> Html:
    """`tag("td", text, class_="rank", data_label="state")`; children that are not Html are escaped, None is nothing."""
    written = "".join(f' {_attribute(key)}="{escape(value)}"' for key, value in attributes.items() if value not in (None, ""))
    if name in _VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{joined(children)}</{name}>")


def joined(children: Iterable[Child]) -> Html:
    return Html("".join(escape(child) for child in children if child is not None))


def escape(child: Child) -> Html:
    return child if isinstance(child, Html) else Html(html.escape(printable(child, 4000), quote=True))


def block(text: str, limit: int = 12_000) -> Html:
    """Longer text, line breaks kept."""
    return Html(html.escape(printable(text, limit), quote=True))


def classes(*names: str) -> str:
    return " ".join(filter(None, names))


def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")
