"""packet loss between hosts

A hundred small UDP packets on every link, echoed back; counted in both directions.

Fails with RW605 from 5 % in one direction, warns from 2 %. Two rounds of pairs tell a bad host from a bad link.
"""

from __future__ import annotations

from rankwise.preflight.facts import CheckedJob, Facts, Seen
from rankwise.preflight.measured import LOSSY, find_bad_links, loss_of

GROUP = "links"
_NOTABLE = 0.02


def judge(job: CheckedJob, seen: Seen) -> None:
    bad, blame = find_bad_links(job, seen, "lost_out", "UDP does not get through", _text, lambda facts: loss_of(facts) >= _NOTABLE)
    if bad:
        loss = max(map(loss_of, bad))
        summary, severity = f"{loss:.0%} of packets get lost on {blame.text()}", "error" if loss >= LOSSY else "warning"
        seen.add("RW605", summary, job.named(blame.hosts()), certain=loss >= LOSSY, severity=severity, why=blame.why())


def _text(facts: Facts) -> str:
    return f"{facts['lost_out']:.0%} there, {facts['lost_back']:.0%} back"
