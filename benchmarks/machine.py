"""What a benchmark's reader needs to know about the machine it ran on."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from datetime import date
from importlib.metadata import version
from pathlib import Path


def machine_facts() -> str:
    """One line: processor, cores, memory, kernel, versions, load and day."""
    return ", ".join(
        [
            f"{_processor()} with {os.cpu_count()} cores",
            f"{_memory_gib():.0f} GiB memory",
            f"Linux {platform.release().split('-')[0]}",
            f"Python {platform.python_version()}",
            f"torch {version('torch')}",
            f"load {os.getloadavg()[1]:.1f} over the last 5 minutes",
            date.today().isoformat(),
        ]
    )


def _processor() -> str:
    """From the kernel; on ARM only lscpu knows the name."""
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    if found is None and shutil.which("lscpu"):
        text = subprocess.run(["lscpu"], env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True).stdout
        found = re.search(r"^Model name:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
