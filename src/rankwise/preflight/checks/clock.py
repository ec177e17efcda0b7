"""clock

Do the hosts' clocks show the same time? Logs of different hosts cannot be put in order, certificates look invalid and file times mislead
where they do not. Measured against node 0 over several round trips; the error of that is shown.

Warns with RW616 above 1 s, fails above 60 s.
"""

from __future__ import annotations

from rankwise.meet.differences import hosts_text
from rankwise.preflight.facts import CheckedJob, Seen
from rankwise.sizes import seconds_text

GROUP = "resources"
_NOTABLE_S, _WRONG_S = 1.0, 60.0


def judge(job: CheckedJob, seen: Seen) -> None:
    if len(job.hosts) < 2:
        seen.blind[""] = "there is no other host to compare with"
        return
    far = {}
    for host in job.hosts:
        if host.name not in job.offsets_s:
            seen.blind[host.name] = "it did not answer when asked for the time"
            continue
        offset, error = job.offsets_s[host.name]
        seen.values[host.name] = f"{'+' if offset >= 0 else '-'}{seconds_text(abs(offset))} ± {seconds_text(error)}"
        if abs(offset) - error > _NOTABLE_S:
            far[host.name] = offset
    if far and len(far) == len(job.hosts) - 1 and len(far) > 1 and max(far.values()) - min(far.values()) < _NOTABLE_S:
        # All others agree with each other: it is node 0's clock that is off.
        first = next(host.name for host in job.hosts if host.node == 0)
        far = {first: -sum(far.values()) / len(far)}
    for name, offset in far.items():
        others = [other.name for other in job.hosts if other.name not in far]
        seen.add(
            "RW616",
            f"the clock of {name} is {seconds_text(abs(offset))} {'ahead of' if offset > 0 else 'behind'} {hosts_text(others)}",
            job.named([name]),
            certain=len(job.hosts) > 2,
            severity="error" if abs(offset) > _WRONG_S else "warning",
            why="" if len(job.hosts) > 2 else "with two hosts it cannot be told which one is right",
        )
