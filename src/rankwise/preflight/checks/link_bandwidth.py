"""bandwidth between hosts

A short bulk transfer over TCP in both directions on every link, measured where it arrives.

Fails with RW607 below 100 Mbit/s, or below a twentieth of the other links; warns below 400 Mbit/s or a quarter. A link that loses packets,
swallows large ones or answers late is slow because of that, and is not named twice.
"""

from __future__ import annotations

from statistics import median

from rankwise.preflight.job import Facts, Job, Seen
from rankwise.preflight.measured import is_explained, pair_text, seeing_links, sort_links
from rankwise.sizes import rate_text

GROUP = "links"
_WRONG, _NOTABLE = 12.5e6, 50e6
_WRONG_SHARE, _NOTABLE_SHARE = 0.05, 0.25


def judge(job: Job) -> Seen:
    seen = Seen()
    links = seeing_links(job, "up", seen, "the transfer did not begin")
    usual = median(min(link.facts["up"], link.facts["down"]) for link in links) if links else 0.0
    for link in links:
        seen.values[pair_text(link)] = f"{rate_text(link.facts['up'])} there, {rate_text(link.facts['down'])} back"
    found = sort_links(links, lambda facts: _rate(facts) < max(_NOTABLE, usual * _NOTABLE_SHARE) and not is_explained(facts))
    if found.bad:
        worst = min(_rate(link.facts) for link in found.bad)
        is_wrong = worst < max(_WRONG, usual * _WRONG_SHARE)
        others = f"half of all links do {rate_text(usual)} or more" if len(links) > 2 else ""
        seen.add(
            "RW607",
            f"{found.blame.text()} move{'s' * (not found.blame.is_everywhere)} {rate_text(worst)}",
            job.named(found.blame.hosts()),
            certain=is_wrong,
            severity="error" if is_wrong else "warning",
            why="; ".join(filter(None, [others, found.blame.why()])),
        )
    return seen


def _rate(facts: Facts) -> float:
    return float(min(facts["up"], facts["down"]))
