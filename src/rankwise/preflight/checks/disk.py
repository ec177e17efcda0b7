"""disk space

The room where checkpoints go: the current folder, or the one `--checkpoints` names. Is it there, may it be written, how much is free?

Fails with RW615 where it cannot be written or has under 1 GiB, warns below 10 GiB.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from rankwise.preflight.facts import CheckedJob, Facts, Here, Seen, seeing_hosts
from rankwise.sizes import bytes_text

GROUP = "resources"
_LEAST = 1 << 30
_COMFORT = 10 << 30


def look(here: Here) -> Facts:
    place = here.plan.checkpoints.absolute()
    try:
        nearest = next(parent for parent in (place, *place.parents) if parent.exists())
        if not nearest.is_dir():
            return {"folder": str(place), "free": 0, "error": "is not a folder"}
        free = shutil.disk_usage(nearest).free
    except (OSError, ValueError) as error:
        return {"folder": str(place), "free": 0, "error": str(error)[:200]}
    return {"folder": str(place), "free": free, "error": _why_not_writable(nearest)}


def _why_not_writable(folder: Path) -> str:
    """Why no file can be made there, by making one without a name. Permission bits do not tell: root, network disks, read-only mounts."""
    try:
        with tempfile.TemporaryFile(dir=folder) as trial:
            trial.write(b"x")
            trial.flush()
    except OSError as error:
        return f"may not be written: {error.strerror}"
    return ""


def judge(job: CheckedJob, seen: Seen) -> None:
    for host, facts in seeing_hosts(job, "disk", seen):
        seen.values[host.name] = facts["error"] or f"{bytes_text(facts['free'])} free"
        if facts["error"] or facts["free"] < _COMFORT:
            summary = f"{facts['folder']} on {host.name} {facts['error'] or 'has ' + bytes_text(facts['free']) + ' free'}"
            severity = "error" if facts["error"] or facts["free"] < _LEAST else "warning"
            seen.add("RW615", summary, host, severity=severity, why="checkpoints go there")
