"""What a check came to: pass, warn, fail or not possible; and the whole report as one document."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from rankwise.causes import load_cause
from rankwise.findings import Finding
from rankwise.preflight.job import Job, Seen

Status = Literal["pass", "warn", "fail", "not possible"]
SCHEMA = 1

# Causes of others come first: a host that cannot find the address cannot be there, a host that is cut off cannot be quick.
_WEIGHT = {"error": 0, "warning": 1, "info": 2}


@dataclass(frozen=True)
class Result:
    """One row of the report."""

    check: str
    group: str
    title: str
    status: Status
    values: dict[str, str]
    findings: tuple[Finding, ...] = ()
    why: str = ""

    @property
    def odd(self) -> list[str]:
        """The hosts that stand out."""
        return sorted({place.host for finding in self.findings for place in finding.culprits if place.host})

    def to_dict(self) -> dict[str, Any]:
        own = {"check": self.check, "group": self.group, "title": self.title, "status": self.status, "values": self.values}
        return own | {"odd": self.odd, "why": self.why, "findings": [finding.to_dict() for finding in self.findings]}


def result_of(check: str, group: str, title: str, seen: Seen) -> Result:
    """The status follows from what was found; what could not be seen is never called a pass."""
    severities = {finding.severity for finding in seen.findings}
    unseen: Status = "not possible" if seen.blind else "pass"
    status: Status = "fail" if "error" in severities else "warn" if "warning" in severities else unseen
    return Result(check, group, title, status, seen.values, tuple(seen.findings), _why_blind(seen.blind))


def sorted_findings(results: Iterable[Result]) -> list[Finding]:
    """Errors before warnings, causes before their consequences."""
    found = [finding for result in results for finding in result.findings]
    return sorted(found, key=lambda finding: (_WEIGHT[finding.severity], load_cause(finding.code).order))


def report_dict(job: Job, results: list[Result], exports: dict[str, list[str]], seconds: float, note: str = "") -> dict[str, Any]:
    """The report as one JSON document; the terminal's text is made from it, on every host alike."""
    statuses = [result.status for result in results]
    return {
        "schema": SCHEMA,
        "outcome": "fail" if "fail" in statuses else "warn" if "warn" in statuses else "pass",
        "nodes": {"expected": job.plan.nodes_max, "present": len(job.hosts)},
        "hosts": [{"name": host.name, "node_rank": host.node, "address": host.address} for host in job.hosts],
        "rendezvous": {"host": job.plan.master, "port": job.plan.port},
        "seconds": round(seconds, 2),
        "counts": {status: statuses.count(status) for status in ("pass", "warn", "fail", "not possible")},
        "note": note,
        "exports": exports,
        "findings": [finding.to_dict() for finding in sorted_findings(results)],
        "results": [result.to_dict() for result in results],
    }


def _why_blind(blind: dict[str, str]) -> str:
    reasons: dict[str, list[str]] = {}
    for host, why in blind.items():
        reasons.setdefault(why, []).append(host)
    if len(reasons) == 1:
        return next(iter(reasons))
    return "; ".join(f"{', '.join(filter(None, hosts)) or 'all'}: {why}" for why, hosts in reasons.items())
