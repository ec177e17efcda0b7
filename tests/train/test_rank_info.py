"""What a rank says of itself, and who connects to whom."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
import torch

from rankwise.findings import Finding
from rankwise.train.devices import Claim
from rankwise.train.rank_info import RankInfo, own_info


def info(backend: str, address: str) -> RankInfo:
    return RankInfo("id", 1, 2, 0, "node-a", 100, backend=backend, address=address)


@pytest.mark.parametrize(
    ("backend", "own", "other", "does"),
    [
        ("gloo", "10.0.0.10", "10.0.0.9", True),  # by number, not by letter
        ("gloo", "10.0.0.9", "10.0.0.10", False),
        ("gloo", "10.0.0.9", "10.0.0.9", True),
        ("gloo", "", "10.0.0.9", False),
        ("nccl", "10.0.0.9", "10.0.0.10", True),
        ("cpu:gloo,cuda:nccl", "10.0.0.9", "10.0.0.10", True),
    ],
)
def test_of_two_gloo_ranks_the_higher_address_connects(backend: str, own: str, other: str, does: bool) -> None:
    assert info(backend, own).dials(info(backend, other)) == does


def claim(**facts: Any) -> Claim:
    return Claim(**{"device": torch.device("cpu"), "backend": "gloo", "gpu": "", "problem": None, **facts})


def test_a_rank_says_who_and_where_it_is_and_what_it_runs_with() -> None:
    environ = {"NCCL_DEBUG": "INFO", "GLOO_SOCKET_IFNAME": "lo", "PATH": "/bin", "TORCHELASTIC_RUN_ID": "run-7"}

    one, other = (own_info(3, 8, 1, claim(), "127.0.0.1", environ) for _ in range(2))

    assert (one.rank, one.world_size, one.local_rank, one.host, one.pid) == (3, 8, 1, socket.gethostname(), os.getpid())
    assert one.settings == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "INFO"}
    assert one.versions["torch"] == torch.__version__ and one.job == "run-7"
    assert (one.address, one.interface, one.route, one.route_interface) == ("127.0.0.1", "lo", "127.0.0.1", "lo")
    assert one.id != other.id, "a process that is started again is another one"


def test_it_goes_through_the_store_and_a_newer_one_can_say_more() -> None:
    problem = Finding("RW108", "interface-missing", "error", True, "no eth9")
    one = own_info(0, 2, None, claim(problem=problem), "127.0.0.1", {"NCCL_DEBUG": "INFO", "TORCHELASTIC_RUN_ID": "run-7"})

    again = RankInfo.from_dict({**one.__dict__, "of a later version": 1})

    assert again == one and Finding.from_dict(again.problem or {}) == problem
    of_before = {name: value for name, value in one.__dict__.items() if name not in ("route", "is_gone")}
    assert RankInfo.from_dict(of_before).route == "", "and an older one less"
    short = RankInfo.from_dict(one.shortened())
    assert (short.versions, short.settings, short.job) == ({}, {}, "") and short.id == one.id and short.place == one.place
