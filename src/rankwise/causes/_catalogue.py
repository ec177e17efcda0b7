"""Finds causes by listing the folder."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from rankwise.findings import Finding, Severity

_FILE = re.compile(r"rw(\d{3})_([a-z0-9_]+)$")


@dataclass(frozen=True)
class Cause:
    """One cause: its code, its name (the bad thing, never the fix), its page, and what to do next."""

    code: str
    name: str
    title: str
    page: str
    severity: Severity
    next: tuple[str, ...]

    def finding(self, summary: str, *, certain: bool, **details: Any) -> Finding:
        """A finding of this cause; `next` given here comes before the cause's own steps, `instead` takes their place."""
        steps = details.pop("instead", ()) or (*details.pop("next", ()), *self.next)
        details["next"] = (*steps, f"rankwise explain {self.code}")
        details.setdefault("severity", self.severity)
        return Finding(self.code, self.name, certain=certain, summary=summary, **details)


@cache
def _modules() -> dict[str, str]:
    package = importlib.import_module("rankwise.causes")
    found = (_FILE.match(module.name) for module in pkgutil.iter_modules(package.__path__))
    return {f"RW{match[1]}": match[0] for match in found if match}


@cache
def load_cause(code: str) -> Cause:
    """The cause with this code; KeyError if there is none."""
    module_name = _modules()[code]
    module = importlib.import_module(f"rankwise.causes.{module_name}")
    page = (module.__doc__ or "").strip()
    return Cause(
        code=code,
        name=module_name.split("_", 1)[1].replace("_", "-"),
        title=page.splitlines()[0],
        page=page,
        severity=module.SEVERITY,
        next=tuple(module.NEXT),
    )


def is_cause(code: str) -> bool:
    return code in _modules()


def all_causes() -> list[Cause]:
    return [load_cause(code) for code in sorted(_modules())]
