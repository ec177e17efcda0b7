"""batch size that fits

With `--fit my_module:step`: calls `step(batch_size)` with growing sizes until memory runs out, and says the largest that ended and the first
that did not. On the GPU by trying; on the CPU by trying too, under a limit of what the host (or its cgroup) has left, so that nothing
gets killed. Every size is tried twice, because an optimizer allocates its state in the first step.

Fails with RW640 where not even one sample fits, or where the step itself fails.
"""

from __future__ import annotations

from rankwise.preflight.facts import CheckedJob, Facts, Here, Seen, seeing_hosts
from rankwise.preflight.limits import memory_limits
from rankwise.sizes import bytes_text

GROUP = "fit"
_KEPT = 0.9  # of the free memory may be used: the rest of the system needs some too


def look(here: Here) -> Facts:
    if not here.plan.fit:
        return {"blind": "no --fit was given"}
    memory = int(min(left for _, left in memory_limits().values()) * _KEPT)
    limit_s = here.seconds_left() - 2.0
    facts: Facts = {"target": here.plan.fit, "largest": 0, "first_failing": None, "why": "", "error": "", "device": "", "memory": memory}
    facts |= {"trying": 0, "peak": 0}
    facts |= here.torch.ask({"do": "fit", "target": here.plan.fit, "limit_s": limit_s, "memory": memory}, limit_s + 1.0)
    trying, error = facts["trying"], facts["error"]
    if trying and error.startswith("the process was ended by signal 9"):
        facts |= {"first_failing": trying, "why": "the system ended the process at that size", "error": ""}
    elif "timed_out" in facts:
        facts |= {"why": f"size {trying} did not end within the time limit", "error": ""}
    elif error and trying:
        facts["error"] = f"at size {trying}: {error}"
    return facts


def judge(job: CheckedJob, seen: Seen) -> None:
    sizes = {}
    for host, facts in seeing_hosts(job, "fit", seen):
        largest = facts["largest"]
        sizes[host.name] = str(largest)
        seen.values[host.name] = _fit_text(facts) if largest else "nothing"
        if facts["error"]:
            seen.add("RW640", f"{facts['target']} fails on {host.name}", host, why=facts["error"])
        elif not largest:
            is_proven, room = facts["first_failing"] == 1, f"{facts['device']} with {bytes_text(facts['memory'])}"
            summary = f"not even one sample fits on {host.name} ({room})" if is_proven else f"no size was tried to its end on {host.name}"
            seen.add("RW640", summary, host, certain=is_proven, why=facts["why"])
    why = "all ranks take the same batch size, so the smallest counts"
    seen.add_difference("RW640", "the largest batch", sizes, job, severity="warning", why=why)


def _fit_text(facts: Facts) -> str:
    """`4096 on cuda, first failing 4097, 61.0 GiB at most`."""
    size, failing = facts["largest"], facts["first_failing"]
    end = f"first failing {failing}" if failing else facts["why"]
    return f"{size if failing else f'at least {size}'} on {facts['device']}, {end}, {bytes_text(facts['peak'])} at most"
