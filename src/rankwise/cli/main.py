"""The command line: finds the command, and turns a RankwiseError, or memory that ran out, into a finding and exit code 2."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from rankwise.causes import load_cause
from rankwise.cli.options import COMMANDS, Parser, print_finding
from rankwise.errors import RankwiseError, UsageError, is_out_of_memory, text_of_error
from rankwise.version import __version__


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    try:
        if not words or words[0] in ("-h", "--help"):
            build_parser().print_help()
            sys.stdout.flush()
            return 0 if words else 2
        if words[0] == "--version":
            print(f"rankwise {__version__}")
            return 0
        if words[0] not in COMMANDS:
            raise UsageError(f"there is no command {words[0]!r}", why=f"the commands are {', '.join(COMMANDS)}", next=("rankwise --help",))
        code = int(importlib.import_module(f"rankwise.cli.{words[0]}").main(words[1:]))
        sys.stdout.flush()
        return code
    except RankwiseError as error:
        print_finding(error.finding)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone; Python would complain once more when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        steps = ("give it more, or less to do: ulimit -v, the limit of the container, and free -h say what there is",)
        summary = f"rankwise {words[0]} ran out of memory"
        print_finding(load_cause("RW408").finding(summary, certain=True, why=text_of_error(error)[:300], instead=steps))
        return 2


def build_parser() -> argparse.ArgumentParser:
    """The whole command line as parsers, for --help and for the test that freezes its options."""
    parser = Parser(
        prog="rankwise", description="Distributed PyTorch without the mystery.", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"rankwise {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, help_text in COMMANDS.items():
        module = importlib.import_module(f"rankwise.cli.{name}")
        module.add_options(commands.add_parser(name, help=help_text, add_help=True))
    return parser
