"""What checks look at: hosts that did not look, differences between hosts, and how many ranks a host runs."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from rankwise.preflight.facts import CheckedJob, Here, Host, Seen, seeing_hosts
from rankwise.preflight.job_options import CheckPlan

HOSTS = tuple(Host(f"node-{number}", number, {"memory": {"free": number}}) for number in range(3))


def test_a_host_that_did_not_look_is_blind_and_no_culprit() -> None:
    job = CheckedJob(CheckPlan(), (*HOSTS[:2], Host("node-2", 2, {"memory": {"blind": "no /proc"}}), Host("node-3", 3)))
    seen = Seen()

    assert [(host.name, facts["free"]) for host, facts in seeing_hosts(job, "memory", seen)] == [("node-0", 0), ("node-1", 1)]
    assert seen.blind == {"node-2": "no /proc", "node-3": "this host did not look"}


def test_a_difference_blames_the_odd_ones_out_and_none_is_no_finding() -> None:
    job, seen = CheckedJob(CheckPlan(), HOSTS), Seen()

    seen.add_difference("RW123", "torch", dict.fromkeys(("node-0", "node-1", "node-2"), "2.13.0"), job)
    assert seen.findings == []
    seen.add_difference("RW123", "torch", {"node-0": "2.13.0", "node-1": "2.11.0", "node-2": "2.13.0"}, job)

    (finding,) = seen.findings
    assert finding.summary.startswith("torch differs between hosts: ") and "2.11.0" in finding.summary
    assert [place.host for place in finding.culprits] == ["node-1"]


def test_a_finding_is_of_one_host_of_several_or_of_whom_it_says() -> None:
    seen = Seen()
    seen.add("RW123", "one", HOSTS[0])
    seen.add("RW123", "several", iter(HOSTS[:2]), certain=False)
    seen.add("RW123", "nobody", HOSTS[0], culprits=())

    assert [[place.host for place in finding.culprits] for finding in seen.findings] == [["node-0"], ["node-0", "node-1"], []]
    assert [finding.certain for finding in seen.findings] == [True, False, True]


class Torch:
    def __init__(self, num_gpus: int | None) -> None:
        self._facts = {} if num_gpus is None else {"gpus": num_gpus}

    def facts(self, patience_s: float) -> dict[str, Any]:
        return self._facts


@pytest.mark.parametrize(
    ("nproc", "num_gpus", "wanted"),
    [
        ("4", 2, 4),
        ("gpu", 2, 2),
        ("gpu", 0, 0),
        ("auto", 2, 2),
        ("auto", 0, os.cpu_count()),
        ("cpu", 2, os.cpu_count()),
        ("auto", None, os.cpu_count()),
    ],
)
def test_torchruns_words_for_the_number_of_ranks(nproc: str, num_gpus: int | None, wanted: int) -> None:
    here = Here(CheckPlan(nproc=nproc), Torch(num_gpus), time.monotonic() + 10)  # type: ignore[arg-type]

    assert here.ranks == wanted


def test_one_look_takes_no_more_than_half_of_what_is_left() -> None:
    here = Here(CheckPlan(), Torch(0), time.monotonic() + 10)  # type: ignore[arg-type]
    assert 4 < here.patience_s() <= 5
    assert Here(CheckPlan(), Torch(0), time.monotonic() - 10).patience_s() == 0  # type: ignore[arg-type]
