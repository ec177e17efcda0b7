"""verdict.json: built, written atomically, and read back from whatever a file may hold."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from rankwise.files import write_whole
from rankwise.findings import Finding
from rankwise.report.safe_text import duration_text
from rankwise.thaw import thaw

Outcome = Literal["completed", "crashed", "hung", "stalled", "running"]
SCHEMA = 1
_MAX_FINDINGS = 100


def verdict_dict(
    outcome: Outcome,
    exit_code: int | None,
    world_size: int | None,
    running_s: float,
    stuck_s: float | None,
    findings: Iterable[Finding],
) -> dict[str, Any]:
    """What verdict.json holds; `findings` come root cause first. `stuck_s` is None for a job that was not stuck."""
    return {
        "schema": SCHEMA,
        "outcome": outcome,
        "exit_code": exit_code,
        "world_size": world_size,
        "seconds": {"running": _rounded(running_s), "stuck_before_verdict": _rounded(stuck_s)},
        "findings": [finding.to_dict() for finding in findings],
    }


def write_json_atomically(path: Path, data: Any) -> None:
    """Write `data` so that a reader sees either the old file or the whole new one; only the owner may read it."""
    write_whole(path, json.dumps(data, indent=2, allow_nan=False, default=str) + "\n", is_private=True)


def findings_of(verdict: dict[str, Any]) -> list[Finding]:
    """The findings a verdict holds; entries that are not whole findings are left out."""
    raw = verdict.get("findings")
    found = []
    for entry in raw[:_MAX_FINDINGS] if isinstance(raw, list) else []:
        try:
            found.append(thaw(Finding, entry))
        except ValueError:
            continue
    return found


def outcome_facts(verdict: dict[str, Any]) -> list[str]:
    """`2 ranks`, `ran 31 s`, `stuck 8 s before the verdict`, `exit code 70`, as far as the verdict says so."""
    running, stuck = seconds_of(verdict, "running"), seconds_of(verdict, "stuck_before_verdict")
    size, code = verdict.get("world_size"), verdict.get("exit_code")
    facts = [
        f"{size:,} rank{'s' * (size != 1)}" if isinstance(size, int) else "",
        f"ran {duration_text(running)}" if running is not None else "",
        f"stuck {duration_text(stuck)} before the verdict" if stuck else "",
        f"exit code {code}" if isinstance(code, int) else "",
    ]
    return [fact for fact in facts if fact]


def seconds_of(verdict: dict[str, Any], name: str) -> float | None:
    """`running` or `stuck_before_verdict`, or None where it is not a sensible number."""
    seconds = verdict.get("seconds")
    value = seconds.get(name) if isinstance(seconds, dict) else None
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e10 else None


def _rounded(seconds: float | None) -> float | None:
    return round(seconds, 3) if seconds is not None and math.isfinite(seconds) else None
