"""An argument parser whose errors are findings, like all others."""

from __future__ import annotations

import argparse
from typing import NoReturn

from rankwise.errors import UsageError


class Parser(argparse.ArgumentParser):
    """argparse, but wrong usage raises UsageError instead of printing and exiting."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}", next=(f"{self.prog} --help",))


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Where the models run, for the commands that have a pool."""
    parser.add_argument("--engine", choices=("processes", "ray"), help="processes of this machine, or actors of a Ray cluster")
    parser.add_argument("--address", metavar="HOST:PORT", help="of the Ray cluster (default: as ray.init finds it)")
