"""packet loss between hosts

A hundred small UDP packets on every link, echoed back; counted in both directions.

Fails with RW605 from 5 % in one direction, warns from 2 %. Two rounds of pairs tell a bad host from a bad link.
"""

from __future__ import annotations

from rankwise.preflight.job import Job, Seen
from rankwise.preflight.measured import LOSSY, loss_of, pair_text, seeing_links, sort_links

GROUP = "links"
_NOTABLE = 0.02


def judge(job: Job) -> Seen:
    seen = Seen()
    links = seeing_links(job, "lost_out", seen, "UDP does not get through")
    for link in links:
        facts = link.facts
        seen.values[pair_text(link)] = f"{facts['lost_out']:.0%} there, {facts['lost_back']:.0%} back"
    found = sort_links(links, lambda facts: loss_of(facts) >= _NOTABLE)
    if found.bad:
        loss = max(loss_of(link.facts) for link in found.bad)
        seen.add(
            "RW605",
            f"{loss:.0%} of packets get lost on {found.blame.text()}",
            job.named(found.blame.hosts()),
            certain=loss >= LOSSY,
            severity="error" if loss >= LOSSY else "warning",
            why=found.blame.why(),
        )
    return seen
