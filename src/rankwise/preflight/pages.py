"""Writes the checks' doc blocks as Markdown pages: `python -m rankwise.preflight.pages docs/checks`."""

from __future__ import annotations

import sys
from pathlib import Path

from rankwise.causes.pages import keep_pages
from rankwise.preflight.catalogue import Check, all_checks
from rankwise.preflight.plan import GROUPS

_NOTE = "<!-- Generated from the check's doc block by `make docs`. -->\n"


def page_of(check: Check) -> str:
    """One check as Markdown; codes become links to their causes."""
    body = check.page.removeprefix(check.title).strip()
    return (
        f"{_NOTE}# {check.title}\n\n`{check.name}` · group `{check.group}` · `rankwise check --only {check.group}`\n\n{_with_links(body)}\n"
    )


def index_page() -> str:
    """All checks, group by group."""
    parts = [f"{_NOTE}# Checks\n\nWhat `rankwise check` looks at, one page each.\n"]
    for group in GROUPS:
        rows = "\n".join(f"| [{check.title}]({check.name}.md) | `{check.name}` |" for check in all_checks() if check.group == group)
        parts.append(f"## {group}\n\n| what | name |\n|---|---|\n{rows}\n")
    return "\n".join(parts)


def write_pages(folder: Path) -> list[Path]:
    """Write one page per check and an index; pages of checks that are gone are removed."""
    return keep_pages(folder, {f"{check.name}.md": page_of(check) for check in all_checks()} | {"index.md": index_page()})


def _with_links(text: str) -> str:
    words = []
    for word in text.split(" "):
        code = word.strip("().,;:\n")
        words.append(word.replace(code, f"[{code}](../causes/{code}.md)") if code.startswith("RW") and code[2:].isdigit() else word)
    return " ".join(words)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m rankwise.preflight.pages FOLDER")
    sys.stdout.write(f"{len(write_pages(Path(sys.argv[1])))} pages in {sys.argv[1]}\n")
