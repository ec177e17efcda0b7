"""bandwidth between hosts

A short bulk transfer over TCP in both directions on every link, measured where it arrives.

Fails with RW607 below 100 Mbit/s, or below a twentieth of the other links; warns below 400 Mbit/s or a quarter. A link that loses packets,
swallows large ones or answers late is slow because of that, and is not named twice.
"""

from __future__ import annotations

from statistics import median

from rankwise.preflight.facts import CheckedJob, Facts, Seen
from rankwise.preflight.measured import find_bad_links, is_explained, measured, rate_of
from rankwise.sizes import rate_text

GROUP = "links"
_WRONG, _NOTABLE = 12.5e6, 50e6
_WRONG_SHARE, _NOTABLE_SHARE = 0.05, 0.25


def judge(job: CheckedJob, seen: Seen) -> None:
    rates = [rate_of(facts) for facts in measured(job, "up")]
    usual = median(rates) if rates else 0.0

    def is_slow(facts: Facts) -> bool:
        return rate_of(facts) < max(_NOTABLE, usual * _NOTABLE_SHARE) and not is_explained(facts)

    bad, blame = find_bad_links(job, seen, "up", "the transfer did not begin", _text, is_slow)
    if bad:
        worst = min(map(rate_of, bad))
        is_wrong = worst < max(_WRONG, usual * _WRONG_SHARE)
        others = f"half of all links do {rate_text(usual)} or more" if len(rates) > 2 else ""
        seen.add(
            "RW607",
            f"{blame.text()} move{'s' * (not blame.is_everywhere)} {rate_text(worst)}",
            job.named(blame.hosts()),
            certain=is_wrong,
            severity="error" if is_wrong else "warning",
            why="; ".join(filter(None, [others, blame.why()])),
        )


def _text(facts: Facts) -> str:
    return f"{rate_text(facts['up'])} there, {rate_text(facts['down'])} back"
