"""One check from beginning to end: look at this host, meet the others, measure, judge."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rankwise.preflight.catalogue import judge_all, look_around
from rankwise.preflight.checks.interface import exports
from rankwise.preflight.here import Here
from rankwise.preflight.job import Host, Job
from rankwise.preflight.plan import CheckPlan
from rankwise.preflight.results import report_dict
from rankwise.preflight.torch_process import TorchProcess

_TORCH_GROUPS = {"links", "parity", "gpus", "fit"}

Say = Callable[[str], None]


def run_check(plan: CheckPlan, say: Say) -> dict[str, Any]:
    """The report as a document. `say` hears what is being done; whatever happens, it ends within the plan's limit and a little."""
    started = time.monotonic()
    torch = TorchProcess()
    try:
        if _TORCH_GROUPS & set(plan.only):
            torch.start()
        here = Here(plan, torch, started + plan.limit_s)
        job = _check_alone(here, say)
        results = judge_all(job)
        return report_dict(job, results, _exports(job), time.monotonic() - started)
    finally:
        torch.close()


def _check_alone(here: Here, say: Say) -> Job:
    facts = look_around(here, say)
    told = {"nnodes": here.plan.nodes_max, "node_rank": here.plan.node_rank, "master": here.plan.master, "port": here.plan.port}
    return Job(here.plan, (Host(here.name, here.plan.node_rank or 0, facts, told),))


def _exports(job: Job) -> dict[str, list[str]]:
    return {host.name: exports(host) for host in job.hosts} if job.plan.master else {}
