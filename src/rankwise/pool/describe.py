"""An input in few words, for findings: what it is made of, never all of it."""

from __future__ import annotations

from typing import Any

from rankwise.pool.tasks import Task


def described(task: Task) -> str:
    node = task.node
    return shape_of(node) + (f" (first bytes {_first_bytes(node)})" if _first_bytes(node) else "")


def shape_of(node: tuple[Any, ...]) -> str:
    tag = node[0]
    if tag in ("T", "N"):
        return f"{node[1]}{list(node[2])}"
    if tag == "=":
        return repr(node[1])[:80]
    if tag in ("[", "("):
        return ", ".join(shape_of(item) for item in node[1])[:300]
    if tag == "{":
        return "{" + ", ".join(f"{key!r}: {shape_of(item)}" for key, item in zip(node[1], node[2]))[:300] + "}"
    return f"an object of {node[1]} bytes"


def _first_bytes(node: tuple[Any, ...]) -> str:
    if node[0] in ("T", "N"):
        return node[3][:16].hex(" ", 4) if type(node[3]) is bytes else ""
    return next((found for item in node[-1] if (found := _first_bytes(item))), "") if node[0] in ("[", "(", "{") else ""
