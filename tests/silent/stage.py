"""Puts a case on: runs its ranks, reads what their probes wrote as `rankwise run` would, and asks for the findings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import rankwise
from rankwise.diagnose.silent import find_silent
from rankwise.evidence.records import JobEvidence
from rankwise.findings import Finding
from rankwise.launch.observe import Observer

CASES = Path(__file__).parent / "cases"
HOST = Path(__file__).parent / "host.py"
SITE = Path(rankwise.__file__).parent / "probe" / "site"


class Host:
    """The process that forks the ranks."""

    def __init__(self, live: Path, audit: str = "light") -> None:
        env = {**os.environ, "PYTHONPATH": str(SITE), "RANKWISE_PROBE": str(live), "RANKWISE_AUDIT": audit, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen([sys.executable, HOST], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, script: Path, fault: bool, work: Path, world: int = 2) -> dict[int, int]:
        assert self._process.stdin is not None and self._process.stdout is not None
        live = work / "live"
        live.mkdir()
        request = {"script": str(script), "fault": fault, "work": str(work), "live": str(live), "world": world}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return {int(rank): code for rank, code in json.loads(self._process.stdout.readline())["codes"].items()}

    def close(self) -> None:
        self._process.communicate(timeout=30)


def evidence(work: Path, script: Path) -> JobEvidence:
    """What the watcher would have gathered at the end."""
    observer = Observer(work / "live", os.getpid(), "here")
    observer.look(time.time_ns())
    ranks = {rank: observer.evidence_of(rank, pids[0]) for rank, pids in observer.rank_pids().items()}
    tails = {f"rank-{rank}": (work / f"rank-{rank}.log").read_text()[-4000:] for rank in ranks}
    return JobEvidence(
        command=("python", str(script)),
        started_ns=0,
        now_ns=time.time_ns(),
        world_size=len(ranks),
        stall_after_s=10.0,
        ranks=ranks,
        sources={str(script): script.read_text()},
        exit_code=0,
        log_tails=tails,
        cwd=str(script.parent),
    )


def findings_of(host: Host, script: Path, fault: bool, work: Path, world: int = 2) -> tuple[list[Finding], JobEvidence]:
    codes = host.run(script, fault, work, world)
    said = "\n".join(path.read_text()[-2000:] for path in sorted(work.glob("rank-*.log")))
    assert set(codes.values()) == {0}, said
    job = evidence(work, script)
    blind = [spot for e in job.ranks.values() for spot in e.blind]
    assert not blind, blind
    return find_silent(job), job


def load_truth(script: Path) -> dict[str, Any]:
    """The `CASE` of a script: what it must be found to be."""
    text = script.read_text()
    start = text.index("CASE = ") + len("CASE = ")
    import ast

    return dict(ast.literal_eval(text[start : text.index("\n}\n", start) + 2]))


def said_by(finding: Finding) -> str:
    return " ".join([finding.name, finding.summary, finding.why, *finding.next]).lower()


def marked_line(script: Path) -> int | None:
    found = [n for n, text in enumerate(script.read_text().splitlines(), 1) if text.rstrip().endswith("# fault")]
    return found[0] if found else None
