"""Links between hosts, sorted into bad and good ones; one that was not measured is neither."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise.preflight.facts import CheckedJob, Facts, Host, Link, Seen
from rankwise.preflight.job_options import CheckPlan
from rankwise.preflight.measured import find_bad_links, has_swallowed, is_explained, loss_of, measured, rate_of

GOOD: Facts = {"rtt_s": 0.0002, "lost_out": 0.0, "lost_back": 0.0, "largest": 1472, "wanted": 1472, "up": 2e9, "down": 1e9}


def job(links: dict[tuple[str, str], Facts], num_hosts: int = 3) -> CheckedJob:
    hosts = tuple(Host(f"node-{number}", number) for number in range(num_hosts))
    return CheckedJob(CheckPlan(), hosts, tuple(Link(source, target, facts) for (source, target), facts in links.items()))


def found(links: dict[tuple[str, str], Facts], num_hosts: int = 3) -> tuple[list[Facts], Any, Seen]:
    seen = Seen()
    bad, blame = find_bad_links(
        job(links, num_hosts), seen, "rtt_s", "nothing came back", lambda facts: f"{facts['rtt_s']} s", lambda facts: facts["rtt_s"] > 0.1
    )
    return bad, blame, seen


def test_the_host_of_all_bad_links_is_to_blame_and_each_link_is_shown() -> None:
    slow = {**GOOD, "rtt_s": 0.5}

    bad, blame, seen = found({("node-0", "node-1"): GOOD, ("node-0", "node-2"): slow, ("node-1", "node-2"): slow})

    assert bad == [slow, slow] and blame.hosts() == ["node-2"]
    assert seen.values == {"node-0 – node-1": "0.0002 s", "node-0 – node-2": "0.5 s", "node-1 – node-2": "0.5 s"} and not seen.blind


def test_a_link_that_was_not_measured_is_neither_bad_nor_good() -> None:
    links: dict[tuple[str, str], Facts] = {("node-0", "node-1"): {"error": "refused"}, ("node-0", "node-2"): {"rtt_s": None}}

    bad, _, seen = found(links)

    assert bad == [] and seen.values == {}
    assert seen.blind == {"node-0 – node-1": "refused", "node-0 – node-2": "nothing came back"}
    assert measured(job({**links, ("node-1", "node-2"): GOOD}), "rtt_s") == [GOOD]


@pytest.mark.parametrize(("num_hosts", "why"), [(1, "there is no other host"), (2, "no two hosts could be connected")])
def test_without_links_the_reason_is_told(num_hosts: int, why: str) -> None:
    assert found({}, num_hosts)[2].blind == {"": why}


@pytest.mark.parametrize(
    ("facts", "is_so"),
    [
        ({}, False),
        ({"lost_back": 0.05}, True),
        ({"lost_out": 0.049}, False),
        ({"largest": 1400}, True),
        ({"largest": None}, False),
        ({"rtt_s": 0.1}, True),
        ({"rtt_s": None, "lost_out": None}, False),
    ],
)
def test_slowness_that_another_check_names_is_explained(facts: Facts, is_so: bool) -> None:
    assert is_explained({**GOOD, **facts}) == is_so


def test_the_worse_direction_counts() -> None:
    assert rate_of(GOOD) == 1e9 and loss_of({"lost_out": 0.1, "lost_back": 0.2}) == 0.2 and loss_of({}) == 0.0
    assert has_swallowed({"largest": 0, "wanted": 1472}) and not has_swallowed(GOOD) and not has_swallowed({"wanted": 1472})
