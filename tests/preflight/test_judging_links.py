"""What the checks make of a whole job: who is missing, who is odd, which link or which host is bad."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rankwise.preflight.catalogue import judge_all
from rankwise.preflight.job import Job
from rankwise.preflight.pairing import Pair, blame, rounds_for, second_look
from rankwise.preflight.results import sorted_findings
from tests.preflight.facts import GOOD_LINK, facts_of, job_of

Change = Callable[[Job], Job]


def told(**plans: Any) -> Change:
    """What single hosts were told, by letter."""

    def change(job: Job) -> Job:
        return replace(job, hosts=tuple(replace(h, plan={**h.plan, **plans.get(h.name[-1], {})}) for h in job.hosts))

    return change


def links(*names: str, **facts: Any) -> Change:
    """Links are `ab` for node-a to node-b; only those named get the facts."""

    def change(job: Job) -> Job:
        return replace(
            job, links=tuple(replace(k, facts=k.facts | (facts if k.source[-1] + k.target[-1] in names else {})) for k in job.links)
        )

    return change


def knocks(*names: str, **how: Any) -> Change:
    def change(job: Job) -> Job:
        new = {a: {b: how if a[-1] + b[-1] in names else facts for b, facts in row.items()} for a, row in job.knocks.items()}
        return replace(job, knocks=new)

    return change


CLOSED = {"high": False, "gloo": False, "how": "no answer"}
FAULTS: dict[str, tuple[Change, str, str, str, str, set[str]]] = {
    "missing": (lambda job: replace(job, hosts=job.hosts[:2], meeting={"waited_s": 30.0}), "roll-call", "fail", "RW101", "node 2 did not come within 30.0 s: 2 of 3", set()),
    "duplicate": (told(c={"node_rank": 1}), "roll-call", "fail", "RW102", "node-b and node-c both say that they are node 1", {"b", "c"}),
    "nnodes": (told(b={"nnodes": 4}), "roll-call", "fail", "RW112", "4 on node-b, 3 on node-a and node-c", {"b"}),
    "nproc": (told(b={"nproc": 3}), "roll-call", "warn", "RW112", "ranks per node: 3 on node-b", {"b"}),
    "late": (lambda job: replace(job, hosts=(*job.hosts[:2], replace(job.hosts[2], started_s=9.0))), "roll-call", "warn", "RW601", "node-c was started 9.0 s after", {"c"}),
    "stranger": (lambda job: replace(job, meeting={"strangers": [{"name": "node-x", "address": "10.0.0.9"}]}), "roll-call", "fail", "RW103", "node-x (10.0.0.9) came with another --rdzv-id", {"x"}),
    "fell silent": (lambda job: replace(job, meeting={"gone": ["node-c"]}), "roll-call", "fail", "RW101", "node-c came, but fell silent", {"c"}),
    "master port blocked": (told(b={"tries": {"29500": "no answer", "29501": "met"}}), "rendezvous-port", "fail", "RW111", "node-b cannot reach the rendezvous port node-a:29500", {"b"}),
    "high ports blocked on a host": (knocks("ab", "cb", "ba", "bc", **CLOSED), "high-ports", "fail", "RW114", "every link of node-b", {"b"}),
    "high ports blocked on a link": (knocks("ab", **CLOSED), "high-ports", "fail", "RW114", "the link node-a – node-b", {"a", "b"}),
    "gloo offers another address": (knocks("ab", "cb", high=True, gloo=False), "interface", "fail", "RW114", "gloo on node-b offers 10.0.0.2 (eth0), which node-a, node-c cannot reach", {"b"}),
    "loss on a host": (links("ab", "bc", lost_out=0.3), "link-loss", "fail", "RW605", "30% of packets get lost on every link of node-b", {"b"}),
    "loss on a link": (links("bc", lost_back=0.3), "link-loss", "fail", "RW605", "the link node-b – node-c", {"b", "c"}),
    "a little loss": (links("bc", lost_back=0.03), "link-loss", "warn", "RW605", "3%", {"b", "c"}),
    "UDP blocked": (links("bc", lost_back=None, lost_out=None), "link-loss", "not possible", "", "", set()),
    "latency": (links("ab", "bc", rtt_s=0.2), "link-latency", "fail", "RW606", "200 ms on every link of node-b", {"b"}),
    "some latency": (links("ab", rtt_s=0.02), "link-latency", "warn", "RW606", "20.0 ms on the link node-a – node-b", {"a", "b"}),
    "large packets": (links("ac", "bc", largest=1200), "link-large-packets", "fail", "RW608", "packets above 1228 bytes vanish on every link of node-c", {"c"}),
    "slow link": (links("ac", up=1.2e5), "link-bandwidth", "fail", "RW607", "the link node-a – node-c moves 960 kbit/s", {"a", "c"}),
    "slow everywhere": (links("ab", "ac", "bc", up=30e6), "link-bandwidth", "warn", "RW607", "all links move 240 Mbit/s", {"a", "b", "c"}),
    "slow because of loss": (links("ac", up=1.2e5, lost_out=0.3), "link-bandwidth", "pass", "", "", set()),
    "clock": (lambda job: replace(job, offsets_s={**job.offsets_s, "node-b": (3600.0, 0.01)}), "clock", "fail", "RW616", "the clock of node-b is 60 min 0 s ahead of node-a and node-c", {"b"}),
    "clock of node 0": (lambda job: replace(job, offsets_s={"node-a": (0.0, 0.0), "node-b": (-5.0, 0.01), "node-c": (-5.1, 0.01)}), "clock", "warn", "RW616", "the clock of node-a is", {"a"}),
    "wrong result": (lambda job: replace(job, collective={"gloo": {"node-a": {"wrong": ["all_reduce gave 2, not 3"], "bytes_per_s": 1e9}}}), "collective", "fail", "RW609", "gave 2, not 3", {"a"}),
    "slow collective": (lambda job: replace(job, collective={"gloo": {"node-a": {"wrong": [], "bytes_per_s": 1e7}}}), "collective", "warn", "RW610", "moves 80 Mbit/s, while the slowest link alone moves 8.8 Gbit/s", set()),
    "collective fails": (lambda job: replace(job, collective={"gloo": {"node-b": {"error": "connect timeout"}}}), "collective", "fail", "RW114", "1 rank failed", {"b"}),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_and_placed(fault: str) -> None:
    change, check, status, code, word, letters = FAULTS[fault]
    result = next(result for result in judge_all(change(job_of(3))) if result.check == check)

    assert result.status == status, result
    if code:
        assert result.findings[0].code == code
        assert word in result.findings[0].summary
        assert {place.host for place in result.findings[0].culprits} == {f"node-{letter}" for letter in letters}


def test_two_hosts_cannot_tell_a_host_from_a_link() -> None:
    job = links("ab", lost_out=0.3)(job_of(2))
    result = next(result for result in judge_all(job) if result.check == "link-loss")

    assert "the link node-a – node-b" in result.findings[0].summary
    assert result.findings[0].why == ""


def test_causes_come_before_their_consequences() -> None:
    job = job_of(3)
    facts_of(job, 1, "address").update(addresses=[], error="Name or service not known")
    facts_of(job, 2, "cpu").update(busy=0.9)
    found = sorted_findings(judge_all(replace(job, hosts=job.hosts[:2] + job.hosts[2:], meeting={"waited_s": 5.0})))

    assert [finding.code for finding in found] == ["RW106", "RW612"]
    missing = sorted_findings(
        judge_all(replace(told(b={"nnodes": 4})(job), hosts=told(b={"nnodes": 4})(job).hosts[:2], meeting={"waited_s": 5.0}))
    )
    assert [finding.code for finding in missing] == ["RW106", "RW112", "RW101"]


@pytest.mark.parametrize("num", range(2, 9))
def test_few_hosts_measure_every_pair_once(num: int) -> None:
    names = [str(i) for i in range(num)]
    rounds = rounds_for(names)

    assert {frozenset(pair) for some in rounds for pair in some} == {frozenset((a, b)) for a in names for b in names if a != b}
    assert sum(map(len, rounds)) == num * (num - 1) // 2
    for some in rounds:
        members = [name for pair in some for name in pair]
        assert len(members) == len(set(members)), "nobody can measure twice at a time"


def test_many_hosts_are_told_apart_in_two_rounds_and_a_second_look() -> None:
    names = [f"{i:02}" for i in range(20)]
    sick = "07"

    def is_bad(pair: Pair) -> bool:
        return sick in pair or pair in (("00", "19"), ("19", "00"))  # a bad host, and one bad link

    pairs = [pair for some in rounds_for(names) for pair in some]
    more = second_look(names, [p for p in pairs if not is_bad(p)], [p for p in pairs if is_bad(p)])
    pairs += [pair for some in more for pair in some]
    guilty = blame([p for p in pairs if is_bad(p)], [p for p in pairs if not is_bad(p)])

    assert len(pairs) < 2 * len(names)
    assert guilty.nodes == (sick,)
    assert [set(link) for link in guilty.links] == [{"00", "19"}]


def test_nobody_stands_out_where_everything_is_bad() -> None:
    assert blame([("a", "b"), ("a", "c"), ("b", "c")], []).is_everywhere


def test_a_good_link_is_described_by_all_its_measures() -> None:
    values = {r.check: r.values for r in judge_all(job_of(2)) if r.group == "links"}

    assert values["link-latency"] == {"node-a – node-b": "0.2 ms"}
    assert values["link-bandwidth"] == {"node-a – node-b": "8.8 Gbit/s there, 9.6 Gbit/s back"}
    assert GOOD_LINK["largest"] == 1472 and values["link-large-packets"] == {"node-a – node-b": "1500 of 1500 bytes"}
