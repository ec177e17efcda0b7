"""`rankwise check`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import threading
import time
from typing import Any

from rankwise.cli.options import parsed, width
from rankwise.errors import UnreadableInput
from rankwise.launch.plan import TORCHRUN_FLAGS, TORCHRUN_VALUES
from rankwise.preflight.job_options import GROUPS, CheckPlan, plan_check

_USAGE = "rankwise check [OPTIONS] [TORCHRUN OPTIONS] [SCRIPT [ARGS...]]"
_EPILOG = """examples:
  rankwise check                                                       this host
  rankwise check --nproc-per-node 8 --checkpoints /data/runs train.py  this host, for that job
  rankwise check --nnodes 2 --node-rank 0 --master-addr node-a         the whole job: the same on every host,
                                                                       with torchrun's own options
  rankwise check --fit my_module:step                                  the largest batch size that fits

exit code: 0 when nothing failed, 1 when something did, 2 for wrong usage"""
_OWN = {
    "script": ("FILE", "compare this script, and the modules beside it that it imports, between hosts"),
    "fit": ("MODULE:FUNCTION", "find the largest batch_size for which FUNCTION(batch_size) does not run out of memory"),
    "checkpoints": ("DIR", "where checkpoints go (default: the current folder)"),
    "only": ("GROUP,…", f"only these groups of checks: {', '.join(GROUPS)}"),
    "wait": ("SECONDS", "how long to wait for the other hosts (default: 30)"),
    "time-limit": ("SECONDS", "how long all of it may take (default: 120)"),
}
_READ = {"nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port", "local-addr"}
_READ |= {"rdzv-backend", "rdzv-endpoint", "rdzv-id"}
_SHORT = {"--module": ("-m",), "--redirects": ("-r",), "--tee": ("-t",)}
_GRACE_S = 15.0


def main(argv: list[str]) -> int:
    given = vars(parsed("check", add_options, _with_dashes(argv)))
    options = {name.replace("_", "-"): value for name, value in given.items() if isinstance(value, str)}
    if given["rest"] and not given["module"] and not given["no_python"]:
        options.setdefault("script", given["rest"][0])
    plan = plan_check(options, os.environ, standalone=bool(given["standalone"]))
    report = _checked(plan)
    try:
        text = json.dumps(report, indent=2) if given["json"] else _text(report)
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # the report may come from a host with another version
        raise UnreadableInput(
            "the report of the meeting's host cannot be read",
            why=f"{type(error).__name__}: {error}"[:200],
            next=("use the same version of rankwise on every host",),
        ) from error
    print(text)
    return 1 if report.get("outcome") == "fail" else 0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.usage, parser.epilog = _USAGE, _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    own = parser.add_argument_group("options of rankwise")
    own.add_argument("--json", action="store_true", help="print the report as one JSON document")
    for name, (metavar, text) in _OWN.items():
        own.add_argument(f"--{name}", metavar=metavar, help=text)
    torchrun = parser.add_argument_group("options of torchrun: read where they say where the hosts meet, without effect otherwise")
    for name, text in TORCHRUN_VALUES.items():
        shown = text if name.removeprefix("--") in _READ else argparse.SUPPRESS
        torchrun.add_argument(*_SHORT.get(name, ()), name, metavar="X", help=shown)
    for name, text in TORCHRUN_FLAGS.items():
        shown = text if name == "--standalone" else argparse.SUPPRESS
        torchrun.add_argument(*_SHORT.get(name, ()), name, action="store_true", help=shown)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _with_dashes(argv: list[str]) -> list[str]:
    """torchrun takes --node_rank as well as --node-rank; what follows the script is the script's own."""
    words = []
    for i, word in enumerate(argv):
        name, equals, value = word.partition("=")
        words.append(name.replace("_", "-") + equals + value if name.startswith("--") else word)
        if word.endswith(".py") and not word.startswith("-") and not argv[max(0, i - 1)].startswith("--"):
            return words + argv[i + 1 :]
    return words


def _checked(plan: CheckPlan) -> dict[str, Any]:
    from rankwise.preflight.whole_check import run_check

    progress = CheckProgress()
    guard = threading.Timer(plan.limit_s + _GRACE_S, _give_up, [plan.limit_s])
    guard.daemon = True
    guard.start()
    try:
        return run_check(plan, progress.say)
    finally:
        guard.cancel()
        progress.end()


def _give_up(limit_s: float) -> None:
    """End this process after the limit: nothing should take so long, but a check must never hang."""
    sys.stderr.write(f"\nrankwise check: stopped {_GRACE_S:g} s after its time limit of {limit_s:g} s; a system call does not return\n")
    sys.stderr.flush()
    os._exit(1)


class CheckProgress:
    """What is being done, on stderr: one line that changes on a terminal; in a log a line per step, no more than one a second."""

    def __init__(self) -> None:
        self._is_live = sys.stderr.isatty()
        self._lock = threading.Lock()
        self._said, self._when = "", 0.0

    def say(self, text: str) -> None:
        with self._lock:
            now = time.monotonic()
            if text == self._said or (not self._is_live and now < self._when + 1.0):
                return
            self._said, self._when = text, now
            room = shutil.get_terminal_size((80, 24)).columns - 1
            sys.stderr.write(f"\r\033[K{text[:room]}" if self._is_live else f"rankwise check: {text}\n")
            sys.stderr.flush()

    def end(self) -> None:
        if self._is_live:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def _text(report: dict[str, Any]) -> str:
    from rankwise.report.checks import report_text

    is_tty = sys.stdout.isatty()
    return report_text(report, is_table=is_tty, colour=is_tty and not os.environ.get("NO_COLOR"), width=width(sys.stdout))
