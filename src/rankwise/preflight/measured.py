"""What the links showed, sorted into bad and good pairs; the checks of the links group are made of this."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rankwise.meet.links import Blame, blame
from rankwise.preflight.job import Facts, Job, Link, Seen

LOSSY = 0.05
SLOW_ANSWER_S = 0.1


@dataclass(frozen=True)
class Sorted:
    """The bad links, worst first as the measure says, and who is to blame."""

    bad: tuple[Link, ...]
    blame: Blame


def is_measured(link: Link, key: str) -> bool:
    return link.facts.get(key) is not None


def sort_links(links: Iterable[Link], is_bad: Callable[[Facts], bool]) -> Sorted:
    known = list(links)
    bad = [link for link in known if is_bad(link.facts)]
    good = [link for link in known if link not in bad]
    return Sorted(tuple(bad), blame([(link.source, link.target) for link in bad], [(link.source, link.target) for link in good]))


def seeing_links(job: Job, key: str, seen: Seen, why: str) -> list[Link]:
    """The links on which this was measured; the others make the check blind there."""
    if len(job.hosts) < 2:
        seen.blind[""] = "there is no other host"
    elif not job.links:
        seen.blind[""] = "no two hosts could be connected"
    for link in job.links:
        if not is_measured(link, key):
            seen.blind[f"{link.source} – {link.target}"] = str(link.facts.get("error") or why)
    return [link for link in job.links if is_measured(link, key)]


def pair_text(link: Link) -> str:
    return f"{link.source} – {link.target}"


def loss_of(facts: Facts) -> float:
    return max(float(facts.get("lost_out") or 0.0), float(facts.get("lost_back") or 0.0))


def has_swallowed(facts: Facts) -> bool:
    """Small packets came back, the largest the interface allows did not."""
    return facts.get("largest") is not None and facts["largest"] < facts["wanted"]


def is_explained(facts: Facts) -> bool:
    """A link whose slowness has a cause that another check names."""
    return loss_of(facts) >= LOSSY or has_swallowed(facts) or float(facts.get("rtt_s") or 0.0) >= SLOW_ANSWER_S
