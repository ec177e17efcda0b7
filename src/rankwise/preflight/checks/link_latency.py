"""latency between hosts

The quickest round trip of many small packets on every link: the best the path can do, whatever else runs on the hosts.

Fails with RW606 from 100 ms, warns from 10 ms.
"""

from __future__ import annotations

from rankwise.preflight.job import Job, Seen
from rankwise.preflight.measured import SLOW_ANSWER_S, pair_text, seeing_links, sort_links
from rankwise.sizes import seconds_text

GROUP = "links"
_NOTABLE_S = 0.01


def judge(job: Job) -> Seen:
    seen = Seen()
    links = seeing_links(job, "rtt_s", seen, "no packet came back")
    for link in links:
        seen.values[pair_text(link)] = seconds_text(link.facts["rtt_s"])
    found = sort_links(links, lambda facts: facts["rtt_s"] >= _NOTABLE_S)
    if found.bad:
        worst = max(link.facts["rtt_s"] for link in found.bad)
        summary = f"a message and its answer take {seconds_text(worst)} on {found.blame.text()}"
        severity = "error" if worst >= SLOW_ANSWER_S else "warning"
        seen.add("RW606", summary, job.named(found.blame.hosts()), severity=severity, why=found.blame.why())
    return seen
