"""Sorts measured links into bad and good pairs; the checks of the group `links` share this."""

from __future__ import annotations

from collections.abc import Callable

from rankwise.meet.links import LinkBlame, blame
from rankwise.preflight.facts import CheckedJob, Facts, Link, Seen

LOSSY = 0.05
SLOW_ANSWER_S = 0.1


def measured(job: CheckedJob, key: str) -> list[Facts]:
    """The facts of the links on which `key` was measured."""
    return [link.facts for link in job.links if link.facts.get(key) is not None]


def find_bad_links(
    job: CheckedJob, seen: Seen, key: str, why_blind: str, shown: Callable[[Facts], str], is_bad: Callable[[Facts], bool]
) -> tuple[list[Facts], LinkBlame]:
    """The facts of the bad links, and what is to blame. Notes what each link showed; the check is blind to links without `key`."""
    if len(job.hosts) < 2:
        seen.blind[""] = "there is no other host"
    elif not job.links:
        seen.blind[""] = "no two hosts could be connected"
    bad: list[Link] = []
    good: list[Link] = []
    for link in job.links:
        pair = f"{link.source} – {link.target}"
        if link.facts.get(key) is None:
            seen.blind[pair] = str(link.facts.get("error") or why_blind)
            continue
        seen.values[pair] = shown(link.facts)
        (bad if is_bad(link.facts) else good).append(link)
    return [link.facts for link in bad], blame([(link.source, link.target) for link in bad], [(link.source, link.target) for link in good])


def rate_of(facts: Facts) -> float:
    """The rate of the slower direction."""
    return float(min(facts["up"], facts["down"]))


def loss_of(facts: Facts) -> float:
    return max(float(facts.get("lost_out") or 0.0), float(facts.get("lost_back") or 0.0))


def has_swallowed(facts: Facts) -> bool:
    """Whether small packets came back, and the largest that the interface allows did not."""
    return facts.get("largest") is not None and facts["largest"] < facts["wanted"]


def is_explained(facts: Facts) -> bool:
    """Whether another check already names the cause for which this link is slow."""
    return loss_of(facts) >= LOSSY or has_swallowed(facts) or float(facts.get("rtt_s") or 0.0) >= SLOW_ANSWER_S
