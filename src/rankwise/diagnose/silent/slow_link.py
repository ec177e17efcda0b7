"""One link between hosts is much slower than the others, and every ring all_reduce waits for it."""

from __future__ import annotations

from dataclasses import dataclass

from rankwise.diagnose.silent.audited_job import AuditedJob
from rankwise.findings import Finding

_SLOWER = 3.0  # times, than the fastest link of this job
_SHARE = 0.2  # of the time in which the ranks train: less is not worth a word
_LEAST_BYTES = 4 << 20


@dataclass
class _Link:
    """What one host sent to another while the ranks were looked at."""

    sender: str
    receiver: str
    rank: int
    bytes: int = 0
    busy_s: float = 0.0
    wall_s: float = 0.0

    @property
    def rate(self) -> float:
        return self.bytes / self.busy_s


def find(audited: AuditedJob) -> Finding | None:
    links = sorted(
        (link for link in _links(audited).values() if link.bytes >= _LEAST_BYTES and link.busy_s > 0), key=lambda link: link.rate
    )
    if len(links) < 3:
        return None  # of two links neither is the odd one
    best = links[-1].rate
    slow = [link for link in links if link.rate * _SLOWER < best and link.busy_s > _SHARE * link.wall_s]
    # A host with a slow way out is also slow to confirm what it gets, so that the links to it look slow as well.
    shared = set.intersection(*({link.sender, link.receiver} for link in slow)) if slow else set()
    if not shared or any(link not in slow and shared == {link.sender, link.receiver} for link in links):
        return None
    worst = slow[0]
    what = f"the network of {shared.pop()}" if len(shared) == 1 else f"the link from {worst.sender} to {worst.receiver}"
    gain = worst.busy_s * (1 - worst.rate / best)
    return audited.suspected(
        "RW515",
        f"{what} is slow: {worst.sender} sends {_per_s(worst.rate)} to {worst.receiver}, elsewhere it is {_per_s(best)}",
        dict.fromkeys(sorted({link.rank for link in slow if link.rate == worst.rate})),
        f"data was under way on that link for {worst.busy_s:.1f} s of {worst.wall_s:.1f} s ({worst.bytes / 1e6:.0f} MB); at the pace of the "
        f"others it would be about {gain:.1f} s less, {100 * gain / worst.wall_s:.0f} % of the time. By the kernel's counters: "
        + "; ".join(f"{link.sender} → {link.receiver} {_per_s(link.rate)}" for link in links[:6]),
    )


def _links(audited: AuditedJob) -> dict[tuple[str, str], _Link]:
    """The links by their two hosts, between the first and the last look: start-up has other traffic."""
    host_of = {
        local: audited.job.ranks[rank].host for rank, audit in audited.audits.items() for seen in audit.links for local, *_ in seen.links
    }
    found: dict[tuple[str, str], _Link] = {}
    for rank, audit in audited.audits.items():
        if len(audit.links) < 2:
            continue
        first, last = audit.links[0], audit.links[-1]
        for sender, receiver in {(host_of.get(local, local), host_of.get(remote, remote)) for local, remote, *_ in last.links}:
            if sender == receiver:
                continue
            link = found.setdefault((sender, receiver), _Link(sender, receiver, rank))
            for sign, seen in ((-1, first), (1, last)):
                for local, remote, num_bytes, busy_us in seen.links:
                    if (host_of.get(local, local), host_of.get(remote, remote)) == (sender, receiver):
                        link.bytes += sign * num_bytes
                        link.busy_s += sign * busy_us / 1e6
            link.wall_s = max(link.wall_s, (last.t - first.t) / 1e9)
    return found


def _per_s(rate: float) -> str:
    return f"{rate / 1e6:.3g} MB/s"
