"""`rankwise explain`."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from rankwise.causes import all_causes, load_cause
from rankwise.cli.options import parsed
from rankwise.errors import UnreadableInput, UsageError
from rankwise.report.verdict import Outcome, seconds_of, verdict_dict

_EPILOG = """examples:
  rankwise explain --list                       all causes, a line each
  rankwise explain RW201                        the page of a cause
  rankwise explain memory                       what a check of `rankwise check` looks at
  rankwise explain rankwise-runs/20260101-…     the verdict of an earlier run, derived again from its evidence"""

_EXAMPLES = ("rankwise explain --list", "rankwise explain RW201", "rankwise explain rankwise-runs/…")


def main(argv: list[str]) -> int:
    options = parsed("explain", add_options, argv)
    if options.list:
        print("\n".join(f"{cause.code}  {cause.title}" for cause in all_causes()))
        return 0
    if options.what is None:
        raise UsageError("nothing to explain was given", next=_EXAMPLES)
    if re.fullmatch(r"(?i)rw\d+", options.what):
        print(_page_of(options.what.upper()))
        return 0
    folder = Path(options.what)
    if folder.exists():
        return _explain_run(folder, options.json)
    from rankwise.preflight.all_checks import all_checks

    check = next((check for check in all_checks() if check.name == options.what), None)
    if check is None:
        raise UsageError(f"{options.what!r} is neither a code, nor a check, nor a run folder", next=_EXAMPLES)
    print(check.page)
    return 0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog, parser.formatter_class = _EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "what",
        nargs="?",
        metavar="CODE|CHECK|RUN_FOLDER",
        help="a code (RW201), a check (memory), or the folder of an earlier run",
    )
    parser.add_argument("--list", action="store_true", help="list all causes, a line each")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON (run folders only)")


def _page_of(code: str) -> str:
    try:
        cause = load_cause(code)
    except KeyError:
        near = ", ".join(cause.code for cause in all_causes() if cause.code[:3] == code[:3]) or "RW101 to RW900"
        raise UsageError(f"there is no cause {code}", why=f"near it: {near}", next=("rankwise explain --list",)) from None
    return f"{cause.code} {cause.name}\n\n{cause.page}"


def _explain_run(folder: Path, as_json: bool) -> int:
    from rankwise.cli.options import has_colour, width
    from rankwise.diagnose import diagnose
    from rankwise.evidence.run_folder import load_evidence
    from rankwise.report.finding_text import verdict_text

    try:
        job = load_evidence(folder / "evidence")
    except (OSError, ValueError) as error:
        raise UnreadableInput(
            f"{folder} holds no evidence of a run", why=str(error)[:300], next=("give the folder that --out named",)
        ) from error
    outcome, exit_code, stuck = _recorded(folder)
    try:
        verdict = verdict_dict(outcome, exit_code, job.world_size, (job.now_ns - job.started_ns) / 1e9, stuck, diagnose(job))
        text = json.dumps(verdict, indent=2) if as_json else verdict_text(verdict, folder=folder, colour=has_colour(), width=width())
    except Exception as error:  # evidence may be damaged in any way, and must never end in a traceback
        raise UnreadableInput(f"the evidence in {folder} cannot be understood", why=type(error).__name__) from error
    print(text)
    return 0


def _recorded(folder: Path) -> tuple[Outcome, int | None, float | None]:
    """What was known only at the time of the run: outcome, exit code, and how long the job was stuck."""
    from rankwise.evidence.run_folder import read_plain_file

    try:
        old = json.loads(read_plain_file(folder / "verdict.json", 64 << 20))
        code, stuck, outcome = old.get("exit_code"), seconds_of(old, "stuck_before_verdict"), old.get("outcome")
    except (OSError, ValueError, AttributeError, RecursionError):
        return "running", None, None
    known = ("completed", "crashed", "hung", "stalled", "running")
    return outcome if outcome in known else "running", code if isinstance(code, int) else None, stuck
