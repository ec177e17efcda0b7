"""Links between hosts by the kernel's counters: which one is told, and what is no reason for a word."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwise.diagnose.silent import slow_link
from rankwise.diagnose.silent.audited_job import AuditedJob
from rankwise.evidence.audit import Audit, LinksSeen
from tests.diagnose.jobs import SECOND, START_NS, job, rank

MB = 1_000_000
HOSTS = "abc"
FAST = {("a", "b"): 0.2, ("b", "c"): 0.2, ("c", "a"): 0.2}


def audited(busy_s: dict[tuple[str, str], float], num_bytes: int = 100 * MB) -> AuditedJob:
    """Three hosts, a rank each, looked at for 20 s: how long the same bytes were under way on each link."""
    ranks = []
    for i, host in enumerate(HOSTS):
        own = [(ip(a), ip(b), num_bytes, int(seconds * 1e6)) for (a, b), seconds in busy_s.items() if a == host]
        first = LinksSeen(tuple((a, b, 0, 0) for a, b, *_ in own), t=START_NS)
        audit = Audit(links=(first, LinksSeen(tuple(own), t=START_NS + 20 * SECOND)))
        ranks.append(replace(rank(i), host=f"node-{host}", audit=audit))
    return AuditedJob(job(*ranks))


def ip(host: str) -> str:
    return f"10.0.0.{HOSTS.index(host) + 1}"


def test_one_slow_link_is_named_with_what_it_costs() -> None:
    found = slow_link.find(audited({**FAST, ("b", "c"): 10.0}))

    assert found.code == "RW515" and found.severity == "info" and not found.certain
    assert "the link from node-b to node-c is slow: node-b sends 10 MB/s to node-c, elsewhere it is 500 MB/s" in found.summary
    assert "10.0 s of 20.0 s" in found.why and "49 % of the time" in found.why
    assert [place.rank for place in found.culprits] == [1]


def test_a_host_that_is_also_slow_to_confirm_what_it_gets_is_named_itself() -> None:
    found = slow_link.find(audited({**FAST, ("b", "c"): 19.0, ("a", "b"): 9.0}))

    assert "the network of node-b is slow" in found.summary


@pytest.mark.parametrize(
    ("busy_s", "num_bytes"),
    [
        (FAST, 100 * MB),
        (dict.fromkeys(FAST, 15.0), 100 * MB),  # all alike: that is what the network gives
        ({**FAST, ("b", "c"): 3.0}, 100 * MB),  # slower, but hardly anything of the time
        ({**FAST, ("b", "c"): 19.0}, MB),  # too little to tell
        ({("a", "b"): 19.0, ("b", "a"): 0.2}, 100 * MB),  # two hosts: which of them is the usual one?
    ],
)
def test_what_is_no_reason_for_a_word(busy_s: dict[tuple[str, str], float], num_bytes: int) -> None:
    assert slow_link.find(audited(busy_s, num_bytes)) is None
