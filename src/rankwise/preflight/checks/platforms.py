"""operating system and processor

The same operating system, kernel, C library and kind of processor on every host? Different ones can work together, but the slowest sets the
pace, and results are rounded differently.

Warns with RW623.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from rankwise.preflight.facts import CheckedJob, Facts, Here, Seen, seeing_hosts

GROUP = "parity"
_TITLES = {
    "os": "operating system",
    "kernel": "kernel",
    "libc": "C library",
    "arch": "architecture",
    "cpu": "processor",
    "cores": "number of cores",
}


def look(here: Here) -> Facts:
    return {
        "os": _os_name(),
        "kernel": platform.release(),
        "libc": " ".join(filter(None, platform.libc_ver())) or "unknown",
        "arch": platform.machine(),
        "cpu": _processor(),
        "cores": str(os.cpu_count() or 0),
    }


def judge(job: CheckedJob, seen: Seen) -> None:
    facts_of = {host.name: facts for host, facts in seeing_hosts(job, "platforms", seen)}
    for name, facts in facts_of.items():
        seen.values[name] = f"{facts['os']}, {facts['arch']}, {facts['cores']} × {facts['cpu']}"
    for key, title in _TITLES.items():
        seen.add_difference("RW623", f"the {title}", {name: str(facts[key]) for name, facts in facts_of.items()}, job)


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _processor() -> str:
    """The name the kernel has for it; on ARM only numbers, which compare just as well."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or "unknown"
    if match := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
        return " ".join(match[1].split())
    parts = re.findall(r"^CPU (?:implementer|part)\s*:\s*(\S+)$", text, re.MULTILINE)[:2]
    return " ".join(parts) or platform.machine()
