"""An argument parser whose errors are findings, and printing: width, colour, and a reader that closed the pipe."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from typing import NoReturn, TextIO

from rankwise.errors import UsageError
from rankwise.findings import Finding


class Parser(argparse.ArgumentParser):
    """argparse, but wrong usage raises UsageError instead of printing and exiting."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}", next=(f"{self.prog} --help",))


def parsed(command: str, add_options: Callable[[argparse.ArgumentParser], None], argv: list[str]) -> argparse.Namespace:
    """The options of one command; raises UsageError for wrong ones."""
    parser = Parser(prog=f"rankwise {command}")
    add_options(parser)
    return parser.parse_args(argv)


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Where the models run, for the commands that have a pool."""
    parser.add_argument("--engine", choices=("processes", "ray"), help="processes of this machine, or actors of a Ray cluster")
    parser.add_argument("--address", metavar="HOST:PORT", help="of the Ray cluster (default: as ray.init finds it)")


def number_or_auto(option: str, text: str, least: int) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < least:
        raise UsageError(f'{option} takes "auto" or a number from {least} on, not {text!r}')
    return int(text)


def print_finding(finding: Finding) -> None:
    from rankwise.report.terminal import finding_text

    print(finding_text(finding, colour=has_colour(), width=width()), file=sys.stderr)


def has_colour() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")


def width(stream: TextIO | None = None, unknown: int = 120) -> int:
    """Of the terminal that stderr, or another stream, goes to."""
    return shutil.get_terminal_size((unknown, 24)).columns if (stream or sys.stderr).isatty() else unknown
