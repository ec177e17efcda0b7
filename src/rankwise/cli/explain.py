"""`rankwise explain`."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from rankwise.causes import all_causes, load_cause
from rankwise.errors import UnreadableInput, UsageError

_EPILOG = """examples:
  rankwise explain RW201                        the page of a cause
  rankwise explain rankwise-runs/20260101-…     the verdict of an earlier run, derived again from its evidence"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="rankwise explain")
    add_options(parser)
    options = parser.parse_args(argv)
    if re.fullmatch(r"(?i)rw\d+", options.what):
        print(_page_of(options.what.upper()))
        return 0
    folder = Path(options.what)
    if not folder.exists():
        raise UsageError(
            f"{options.what!r} is neither a code nor a run folder", next=("rankwise explain RW201", "rankwise explain rankwise-runs/…")
        )
    return _explain_run(folder, options.json)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog, parser.formatter_class = _EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument("what", metavar="CODE|RUN_FOLDER", help="a code such as RW201, or the folder of an earlier run")
    parser.add_argument("--json", action="store_true", help="the verdict as JSON (run folders only)")


def _page_of(code: str) -> str:
    try:
        cause = load_cause(code)
    except KeyError:
        near = ", ".join(cause.code for cause in all_causes() if cause.code[:3] == code[:3]) or "RW101 to RW900"
        raise UsageError(f"there is no cause {code}", why=f"near it: {near}", next=("see docs/causes for all of them",)) from None
    return f"{cause.code} {cause.name}\n\n{cause.page}"


def _explain_run(folder: Path, as_json: bool) -> int:
    from rankwise.cli.terminal import has_colour, width
    from rankwise.diagnose import diagnose
    from rankwise.evidence.folder import load_evidence
    from rankwise.report.terminal import verdict_text
    from rankwise.report.verdict import verdict_dict

    try:
        job = load_evidence(folder / "evidence")
    except (OSError, ValueError) as error:
        raise UnreadableInput(
            f"{folder} holds no evidence of a run", why=str(error)[:300], next=("give the folder that --out named",)
        ) from error
    try:
        findings = diagnose(job)
    except RecursionError as error:
        raise UnreadableInput(f"the evidence in {folder} cannot be understood", why=f"{type(error).__name__}") from error
    outcome, exit_code, stuck = _recorded(folder)
    verdict = verdict_dict(outcome, exit_code, job.world_size, (job.now_ns - job.started_ns) / 1e9, stuck, findings)  # type: ignore[arg-type]
    print(json.dumps(verdict, indent=2) if as_json else verdict_text(verdict, folder=folder, colour=has_colour(), width=width()))
    return 0


def _recorded(folder: Path) -> tuple[str, int | None, float | None]:
    """What only the moment itself could know: outcome, exit code, and how long the job was stuck."""
    try:
        old = json.loads((folder / "verdict.json").read_text(encoding="utf-8")[: 64 << 20])
        code, stuck = old.get("exit_code"), old.get("seconds", {}).get("stuck_before_verdict")
        outcome = old.get("outcome")
    except (OSError, ValueError, AttributeError, RecursionError):
        return "running", None, None
    known = ("completed", "crashed", "hung", "stalled", "running")
    return (
        outcome if outcome in known else "running",
        code if isinstance(code, int) else None,
        float(stuck) if isinstance(stuck, (int, float)) else None,
    )
