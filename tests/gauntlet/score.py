"""Run all or some gauntlet cases and print a table.

usage: python -m tests.gauntlet.score [--bare] [--all] [--jobs N] [--stall-after S] [--symptom hang|crash|ok] [--json OUT] [prefix ...]

`--bare` runs the scripts without rankwise and tells whether each does what its case.json says.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.gauntlet.arena import Case, Run, all_cases, find_bare_problems, find_problems, run_bare, run_case, why_not_here


def main() -> int:
    args = _parser().parse_args()
    cases = [case for case in all_cases() if _is_wanted(case, args)]
    if not cases:
        sys.exit("no such case")
    keep = Path(tempfile.mkdtemp(prefix="gauntlet-"))
    with ThreadPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(lambda case: _score(case, keep, args), cases))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return _print_summary(rows, keep)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefix", nargs="*")
    parser.add_argument("--bare", action="store_true", help="without rankwise: is the truth true?")
    parser.add_argument("--all", action="store_true", help="the variants too")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--stall-after", type=float, default=4.0, metavar="SECONDS")
    parser.add_argument("--symptom", action="append", choices=("hang", "crash", "ok"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", action="store_true", help="print what each job wrote")
    return parser


def _is_wanted(case: Case, args: argparse.Namespace) -> bool:
    is_named = any(case.id.startswith(prefix) for prefix in args.prefix)
    return (is_named or (not args.prefix and (args.all or not case.extra))) and (not args.symptom or case.symptom in args.symptom)


def _score(case: Case, keep: Path, args: argparse.Namespace) -> dict:
    if reason := why_not_here(case):
        print(f"skip  {case.id}: {reason}", flush=True)
        return {"id": case.id, "symptom": case.symptom, "skipped": reason, "problems": []}
    work = keep / case.id
    work.mkdir()
    run = run_bare(case, work) if args.bare else run_case(case, work, stall_after_s=args.stall_after)
    problems = find_bare_problems(run) if args.bare else find_problems(run)
    row = {"id": case.id, "symptom": case.symptom, "problems": problems, "seconds": round(run.seconds, 1), "exit": run.exit_code}
    row |= {"told_after_s": run.told_after_s, "code": run.top.get("code"), "said": run.top.get("summary")}
    _print_row(row, run, args)
    return row


def _print_row(row: dict, run: Run, args: argparse.Namespace) -> None:
    mark = "wrong" if row["problems"] else "right"
    told = f"told {run.told_after_s:5.1f}s" if run.told_after_s else ""
    ended = f"exit {row['exit']!s:4} {row['seconds']:5.1f}s"
    print(f"{mark} {row['id']:38} {row['symptom']:5} {ended} {told} {row['code'] or ''} {row['said'] or ''}", flush=True)
    for problem in row["problems"]:
        print(f"        {problem}", flush=True)
    if args.show:
        print("        | " + (run.output[-4000:] + run.stacks).replace("\n", "\n        | "), flush=True)


def _print_summary(rows: list[dict], keep: Path) -> int:
    ran = [row for row in rows if "skipped" not in row]
    wrong = [row["id"] for row in ran if row["problems"]]
    print(f"right {len(ran) - len(wrong)}/{len(ran)}, skipped {len(rows) - len(ran)}, in {keep}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
