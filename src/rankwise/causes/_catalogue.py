"""Finds causes by listing the folder, and reads their pages."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rankwise.findings import Finding, Severity

_FILE = re.compile(r"(RW\d{3})-([a-z0-9-]+)\.md")
_PAGE = re.compile(r"\+\+\+\n(?P<head>.*?)\n\+\+\+\n# (?P<text>(?P<title>.*?)\n.*)", re.DOTALL)


@dataclass(frozen=True)
class Cause:
    """One cause: its code, its name (the bad thing, never the fix), its page, what to do next, and how it is treated."""

    code: str
    name: str
    title: str
    page: str
    severity: Severity
    next: tuple[str, ...]
    stage: str = ""  # of start-up, that it keeps a job from passing
    order: int = 50  # among what `check` found: causes before their consequences
    note: bool = False  # worth telling only beside something else while the job runs
    silent: bool = False  # training that runs: no reason to stop a job, and none to call it stalled
    unnoticed: bool = False  # a mismatch that may go through without an error
    may_echo: bool = False  # what a collective says that met another one
    echo_of: tuple[str, ...] = ()  # causes that explain this one: it is not told beside them

    def finding(self, summary: str, *, certain: bool, **details: Any) -> Finding:
        """A finding of this cause; `next` given here comes before the cause's own steps, `instead` takes their place."""
        steps = details.pop("instead", ()) or (*details.pop("next", ()), *self.next)
        details["next"] = (*steps, f"rankwise explain {self.code}")
        details.setdefault("severity", self.severity)
        return Finding(self.code, self.name, certain=certain, summary=summary, **details)


@cache
def cause_files() -> dict[str, Path]:
    """The page of each code."""
    found = ((_FILE.fullmatch(path.name), path) for path in Path(__file__).parent.iterdir())
    return {match[1]: path for match, path in found if match}


@cache
def load_cause(code: str) -> Cause:
    """The cause with this code; KeyError if there is none."""
    path = cause_files()[code]
    page = _PAGE.fullmatch(path.read_text("utf-8"))
    if page is None:
        raise ValueError(f"{path.name} does not begin with +++, TOML, +++ and a title")
    head: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in tomllib.loads(page["head"]).items()}
    return Cause(code, path.stem.partition("-")[2], page["title"], page["text"].strip(), **head)


def is_cause(code: str) -> bool:
    return code in cause_files()


def all_causes() -> list[Cause]:
    return [load_cause(code) for code in sorted(cause_files())]
