"""An argument parser whose errors are findings, like all others."""

from __future__ import annotations

import argparse
from typing import NoReturn

from rankwise.errors import UsageError


class Parser(argparse.ArgumentParser):
    """argparse, but wrong usage raises UsageError instead of printing and exiting."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}", next=(f"{self.prog} --help",))
