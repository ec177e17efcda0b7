"""Records the evidence of gauntlet cases, so that their verdicts can be derived again in seconds (`make record`).

usage: python -m tests.gauntlet.record [case ...]            runs these cases (all without names) and keeps their evidence
       python -m tests.gauntlet.record --from RUN_FOLDER ID  takes what was recorded on another machine, one with GPUs

Each recording is one small archive, `recorded/<id>.tar.xz`, without the paths of the machine it was made on. `recorded/verdicts.txt` says
what is derived from each; `--verdicts` writes it anew, and its difference shows what a change of `diagnose` has changed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import rankwise
from rankwise.diagnose import diagnose
from rankwise.evidence.run_folder import load_evidence
from tests.gauntlet.arena import Case, all_cases, find_problems, run_case, why_not_here

FOLDER = Path(__file__).parent / "recorded"
VERDICTS = FOLDER / "verdicts.txt"
_JOB, _PACKAGES = "/home/user/job", "/opt/env/lib/python3/site-packages"


def recordings() -> list[Path]:
    return sorted(FOLDER.glob("*.tar.xz"))


def verdict_of(recording: Path) -> str:
    """What is derived from a recording, in lines that show at a glance what has changed."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(recording) as archive:
        archive.extractall(folder, filter="data")
        findings = diagnose(load_evidence(Path(folder)))
    lines = [recording.name.removesuffix(".tar.xz")]
    for finding in findings:
        lines.append(f"  {finding.code} {'certain' if finding.certain else 'suspected'} {finding.severity}: {finding.summary}")
        lines += [f"    rank {place.rank} at {place.file}:{place.line}" for place in finding.culprits]
    return "\n".join(lines if findings else [*lines, "  nothing found"])


def keep(evidence: Path, name: str) -> None:
    """Write the evidence of a run as the recording of this name."""
    job = json.loads((evidence / "job.json").read_text())["cwd"]
    with tarfile.open(FOLDER / f"{name}.tar.xz", "w:xz", preset=9) as archive:
        for path in sorted(evidence.rglob("*")):
            if path.is_file():
                data = path.read_bytes()
                data = data if path.suffix == ".bin" else _anonymous(data.decode(), job).encode()
                entry = tarfile.TarInfo(str(path.relative_to(evidence)))
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))


def _anonymous(text: str, job: str) -> str:
    """Without the paths of this machine: the job's folder, the environment's packages, our own sources."""
    for path, instead in _places(text, job):
        text = text.replace(path, instead)
    return text


def _places(text: str, job: str) -> Iterator[tuple[str, str]]:
    yield job, _JOB
    yield str(Path(rankwise.__file__).parent), f"{_PACKAGES}/rankwise"
    yield from (
        (found, _PACKAGES) for found in sorted(set(re.findall(r"(/[^\s\"':]*?/(?:site|dist)-packages)/", text)), key=len, reverse=True)
    )
    yield sys.prefix, "/opt/env"
    yield sys.base_prefix, "/usr"
    yield os.uname().nodename, "host"


def _record(case: Case) -> bool:
    """Whether something was wrong with the run; nothing is kept then."""
    problems = [f"not here: {reason}"] if (reason := why_not_here(case)) else _problems_of_recording(case)
    print(f"{'not kept' if problems else 'kept'} {case.id} {'; '.join(problems)}", flush=True)
    return bool(problems)


def _problems_of_recording(case: Case) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        run = run_case(case, work)
        problems = find_problems(run)
        if not problems:
            keep(work / "out" / "evidence", case.id)
        return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CASE")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--from", dest="source", type=Path, metavar="RUN_FOLDER")
    parser.add_argument("--verdicts", action="store_true", help="only derive the verdicts anew")
    options = parser.parse_args()
    failed = 0
    if options.source is not None:
        keep(options.source / "evidence", options.names[0])
    elif not options.verdicts:
        cases = [case for case in all_cases() if case.id in options.names or not options.names]
        with ThreadPoolExecutor(options.jobs) as pool:
            failed = sum(pool.map(_record, cases))
    VERDICTS.write_text("\n\n".join(verdict_of(recording) for recording in recordings()) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
