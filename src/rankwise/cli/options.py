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

COMMANDS = {
    "run": "launch a script as torchrun would, or any command after --, and watch it",
    "check": "find what would keep a job from starting, on this host or on all hosts of the job",
    "explain": "show the page of a cause, or the verdict of an earlier run",
    "predict": "run a model over a file or a folder: every row exactly once, in order; resumable",
    "serve": "serve models over the Open Inference Protocol v2 (REST and gRPC), for Triton's and KServe's clients",
    "weights": "show what is in a checkpoint, or convert it to plain weights or to a torch.export program",
    "worker": "run the tasks that a broker (Redis, RabbitMQ) brings, each answered once",
    "top": "show a live table of the inference pools on this machine",
    "demo": "take the tour: train on two ranks, break the training, read the verdict",
}


class Parser(argparse.ArgumentParser):
    """argparse, but wrong usage raises UsageError instead of printing and exiting."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}", next=(f"{self.prog} --help",))


def parser_for(command: str, add_options: Callable[[argparse.ArgumentParser], None]) -> Parser:
    """The parser of one command; its --help begins with what the command does."""
    parser = Parser(prog=f"rankwise {command}", description=f"{COMMANDS[command][0].upper()}{COMMANDS[command][1:]}.")
    add_options(parser)
    return parser


def parsed(command: str, add_options: Callable[[argparse.ArgumentParser], None], argv: list[str]) -> argparse.Namespace:
    """The options of one command; raises UsageError for wrong ones."""
    return parser_for(command, add_options).parse_args(argv)


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where the models run; for the commands that have a pool."""
    parser.add_argument("--engine", choices=("processes", "ray"), help="processes of this machine, or actors of a Ray cluster")
    parser.add_argument("--address", metavar="HOST:PORT", help="address of the Ray cluster (default: as ray.init finds it)")


def seconds(text: str) -> float:
    """For argparse: a time that can be waited for."""
    if not 0 <= (value := float(text)) < float("inf"):
        raise ValueError
    return value


def number_or_auto(option: str, text: str, least: int) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < least:
        raise UsageError(f'{option} takes "auto" or a number from {least} on, not {text!r}')
    return int(text)


def print_finding(finding: Finding) -> None:
    from rankwise.report.finding_text import finding_text

    print(finding_text(finding, colour=has_colour(), width=width()), file=sys.stderr)


def has_colour() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")


def width(stream: TextIO | None = None, unknown: int = 120) -> int:
    """The width of the terminal that stderr, or another stream, goes to."""
    return shutil.get_terminal_size((unknown, 24)).columns if (stream or sys.stderr).isatty() else unknown
