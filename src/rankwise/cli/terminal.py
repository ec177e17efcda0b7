"""Where text goes: width, colour, and what happens when nobody reads it."""

from __future__ import annotations

import os
import shutil
import sys

from rankwise.findings import Finding


def print_finding(finding: Finding) -> None:
    from rankwise.report.terminal import finding_text

    print(finding_text(finding, colour=has_colour(), width=width()), file=sys.stderr)


def has_colour() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")


def width() -> int:
    return shutil.get_terminal_size((120, 24)).columns if sys.stderr.isatty() else 120
