"""GPU errors and throttling

Uncorrected memory errors (ECC) since the driver was loaded, rows that wait to be replaced, errors the driver wrote to the kernel log
(Xid), and clocks held down by heat or power.

Fails with RW632 for ECC errors and failed row replacements, warns for Xid entries and pending replacements; warns with RW633 for
throttling.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankwise.findings import Severity
from rankwise.preflight.facts import CheckedJob, Facts, Here, Host, Seen, seeing_hosts
from rankwise.preflight.gpus import slowed_text

GROUP = "gpus"


def look(here: Here) -> Facts:
    return here.gpus


def judge(job: CheckedJob, seen: Seen) -> None:
    for host, facts in seeing_hosts(job, "gpu-health", seen):
        errors = list(_errors(host, facts))
        slow = [
            f"GPU {i} of {host.name} is held back: {text}" for i, gpu in enumerate(facts["gpus"]) if (text := slowed_text(gpu["throttle"]))
        ]
        blind = f" (Xid: {facts['xids_blind']})" if facts["xids_blind"] else ""
        seen.values[host.name] = f"{len(errors) or 'no'} errors, {len(slow) or 'none'} throttled{blind}"
        for summary, severity in errors:
            seen.add("RW632", summary, host, severity=severity)
        for summary in slow:
            seen.add("RW633", summary, host, why="all ranks wait for the slowest")


def _errors(host: Host, facts: Facts) -> Iterator[tuple[str, Severity]]:
    for i, gpu in enumerate(facts["gpus"]):
        if gpu["ecc"]:
            yield f"GPU {i} of {host.name} had {gpu['ecc']} uncorrected memory errors since its driver was loaded", "error"
        if gpu["remap_failed"]:
            yield f"GPU {i} of {host.name} could not replace a broken row of its memory", "error"
        elif gpu["remap_pending"]:
            yield f"GPU {i} of {host.name} waits for a reset to replace a broken row of its memory", "warning"
    if facts["xids"]:
        listed = ", ".join(f"Xid {key}: {count} times" for key, count in sorted(facts["xids"].items())[:5])
        yield f"the driver of {host.name} has reported GPU errors since the machine started: {listed}", "warning"
