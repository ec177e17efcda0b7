"""Finds the checks by listing their folder, lets them look, and lets them judge: pass, warn, fail or not possible."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

from rankwise.causes import load_cause
from rankwise.findings import Finding
from rankwise.meet.threads import run_all
from rankwise.preflight.facts import CheckedJob, Facts, Here, Seen
from rankwise.preflight.job_options import GROUPS

Status = Literal["pass", "warn", "fail", "not possible"]

# Groups whose faults cause others come first: a host that cannot find the address is missing, one that is cut off is slow.
_WEIGHT = {"error": 0, "warning": 1, "info": 2}


@dataclass(frozen=True)
class Check:
    """One file of `checks/`: its doc block is its page, `look` gathers facts on one host, `judge` decides."""

    name: str
    title: str
    page: str
    group: str
    look: Callable[[Here], Facts] | None
    judge: Callable[[CheckedJob, Seen], None]
    is_always: bool = False  # judged with several nodes even where its group was not asked for


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
        """The hosts that the findings blame."""
        return sorted({place.host for finding in self.findings for place in finding.culprits if place.host})

    def to_dict(self) -> dict[str, Any]:
        own = {"check": self.check, "group": self.group, "title": self.title, "status": self.status, "values": self.values}
        return own | {"odd": self.odd, "why": self.why, "findings": [finding.to_dict() for finding in self.findings]}


@cache
def all_checks() -> tuple[Check, ...]:
    """All checks, in the order of the groups, by name within each."""
    package = importlib.import_module("rankwise.preflight.checks")
    names = [module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_")]
    checks = [_load(name) for name in names]
    return tuple(sorted(checks, key=lambda check: (GROUPS.index(check.group), check.name)))


def _load(name: str) -> Check:
    module = importlib.import_module(f"rankwise.preflight.checks.{name}")
    page = (module.__doc__ or "").strip()
    look, is_always = getattr(module, "look", None), getattr(module, "ALWAYS", False)
    return Check(name.replace("_", "-"), page.splitlines()[0], page, module.GROUP, look, module.judge, is_always)


def look_around(here: Here, say: Callable[[str], None], already: Mapping[str, Facts] | None = None) -> dict[str, Facts]:
    """The facts of all checks, which look at the same time; one that does not return in time is left running, and its check is blind."""
    facts = dict(already or {})
    asked = [check for check in all_checks() if check.look is not None and check.group in here.plan.only and check.name not in facts]
    if asked:
        say(f"looking at this host: {', '.join(check.name for check in asked)}")
    late: Facts = {"blind": "it did not answer within the time limit"}
    patience_s = here.seconds_left() if "fit" in here.plan.only else here.patience_s()
    return facts | {check.name: late for check in asked} | run_all({check.name: partial(_look, check, here) for check in asked}, patience_s)


def judge_all(job: CheckedJob) -> list[Result]:
    """The results of every check of the groups asked for; pure, so that the same facts give the same report anywhere."""
    return [_judge(check, job) for check in all_checks() if check.group in job.plan.only or (check.is_always and not job.plan.is_alone)]


def sorted_findings(results: Iterable[Result]) -> list[Finding]:
    """Errors before warnings, causes before their consequences."""
    found = [finding for result in results for finding in result.findings]
    return sorted(found, key=lambda finding: (_WEIGHT[finding.severity], load_cause(finding.code).order))


def _look(check: Check, here: Here) -> Facts:
    try:
        return check.look(here) if check.look else {}
    except Exception as error:  # a host may be broken in any way, and the other checks go on
        return {"blind": f"{type(error).__name__}: {error}"[:300]}


def _judge(check: Check, job: CheckedJob) -> Result:
    seen = Seen()
    try:
        check.judge(job, seen)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        # Facts come from other hosts too, perhaps from another version of rankwise.
        seen = Seen(blind={"": f"the facts cannot be read: {type(error).__name__}: {error}"[:300]})
    severities = {finding.severity for finding in seen.findings}
    unseen: Status = "not possible" if seen.blind else "pass"  # what could not be seen is never called a pass
    status: Status = "fail" if "error" in severities else "warn" if "warning" in severities else unseen
    return Result(check.name, check.group, check.title, status, seen.values, tuple(seen.findings), _why_blind(seen.blind))


def _why_blind(blind: dict[str, str]) -> str:
    reasons: dict[str, list[str]] = {}
    for host, why in blind.items():
        reasons.setdefault(why, []).append(host)
    if len(reasons) == 1:
        return next(iter(reasons))
    return "; ".join(f"{', '.join(filter(None, hosts)) or 'all'}: {why}" for why, hosts in reasons.items())
