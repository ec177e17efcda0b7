"""latency between hosts

The quickest round trip of many small packets on every link: the best the path can do, whatever else runs on the hosts.

Fails with RW606 from 100 ms, warns from 10 ms.
"""

from __future__ import annotations

from rankwise.preflight.facts import CheckedJob, Seen
from rankwise.preflight.measured import SLOW_ANSWER_S, find_bad_links
from rankwise.sizes import seconds_text

GROUP = "links"
_NOTABLE_S = 0.01


def judge(job: CheckedJob, seen: Seen) -> None:
    bad, blame = find_bad_links(
        job, seen, "rtt_s", "no packet came back", lambda facts: seconds_text(facts["rtt_s"]), lambda facts: facts["rtt_s"] >= _NOTABLE_S
    )
    if bad:
        worst = max(facts["rtt_s"] for facts in bad)
        summary = f"a message and its answer take {seconds_text(worst)} on {blame.text()}"
        severity = "error" if worst >= SLOW_ANSWER_S else "warning"
        seen.add("RW606", summary, job.named(blame.hosts()), severity=severity, why=blame.why())
