"""Four hosts: the whole check in under a minute, and a bad host told from a bad link. Long: RANKWISE_LONG=1."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.lab import faults
from tests.lab.hosts import Host, lab, why_no_lab
from tests.preflight.lab_check import Start, check_on
from tests.preflight.test_lab import same_everywhere

pytestmark = [
    pytest.mark.netns,
    pytest.mark.timeout(200),
    pytest.mark.skipif(not os.environ.get("RANKWISE_LONG"), reason="takes minutes: RANKWISE_LONG=1"),
]
EVERYTHING = "names,ports,links,collectives,resources,parity,gpus"


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    if reason := why_no_lab() or faults.why_no_nft():
        pytest.skip(reason)
    with lab(4) as found:
        yield found


def test_four_hosts_are_checked_whole_within_a_minute(hosts: list[Host]) -> None:
    told = check_on(hosts, only=EVERYTHING)
    one = same_everywhere(told)

    assert not [finding for finding in one.report["findings"] if finding["severity"] == "error"], one.report["findings"]
    assert max(each.seconds for each in told.values()) < 60
    assert "4 ranks right" in one.result("collective")["values"]["gloo"]
    assert len(one.result("link-bandwidth")["values"]) == 6  # every pair


def test_loss_on_one_host_blames_the_host(hosts: list[Host]) -> None:
    with faults.losing(hosts[2], 30):
        one = same_everywhere(check_on(hosts))

    assert one.codes[0] == "RW605" and one.hosts_of("RW605") == {"node-c"}
    assert "every link of node-c" in one.finding("RW605")["summary"]


def test_loss_between_two_hosts_blames_the_link(hosts: list[Host]) -> None:
    rule = f"ip saddr {hosts[1].address} numgen random mod 100 < 30 drop"
    with faults.firewall(hosts[2], rule):
        one = same_everywhere(check_on(hosts))

    assert one.codes[0] == "RW605" and one.hosts_of("RW605") == {"node-b", "node-c"}
    assert "the link node-b – node-c" in one.finding("RW605")["summary"]
    assert "path between the two" in one.finding("RW605")["why"]


def test_high_ports_blocked_on_one_host_blames_the_host(hosts: list[Host]) -> None:
    with faults.high_ports_blocked(hosts[3]):
        one = same_everywhere(check_on(hosts))

    assert one.codes == ["RW114"] and one.hosts_of("RW114") == {"node-d"}


def test_one_slow_host_is_named(hosts: list[Host]) -> None:
    with faults.thin_link(hosts[1], "20mbit"):
        one = same_everywhere(check_on(hosts))

    assert one.codes == ["RW607"] and one.hosts_of("RW607") == {"node-b"}


def test_latency_on_one_host(hosts: list[Host]) -> None:
    if reason := faults.why_no_relay():
        pytest.skip(reason)
    with faults.far_away(hosts, hosts[3], 0.1):
        one = same_everywhere(check_on(hosts))

    assert one.codes == ["RW606"] and one.hosts_of("RW606") == {"node-d"}


def test_large_packets_swallowed_towards_one_host(hosts: list[Host]) -> None:
    with faults.swallowing(hosts, hosts[1], 1300):
        one = same_everywhere(check_on(hosts))

    assert one.codes == ["RW608"] and one.hosts_of("RW608") == {"node-b"}


def test_two_faults_at_once_are_both_named(hosts: list[Host]) -> None:
    with ExitStack() as both:
        both.enter_context(faults.high_ports_blocked(hosts[3]))
        both.enter_context(faults.losing(hosts[1], 30))
        one = same_everywhere(check_on(hosts))

    assert {"RW114", "RW605"} <= set(one.codes)
    assert one.hosts_of("RW114") == {"node-d"} and one.hosts_of("RW605") == {"node-b"}


def test_a_missing_host_among_four(hosts: list[Host]) -> None:
    told = check_on(hosts, "--wait", "4", only="names,ports", c=Start(is_absent=True))
    one = same_everywhere(told)

    assert one.codes == ["RW101"]
    assert "node 2 did not come" in one.finding("RW101")["summary"]
