"""Which device and backend a rank takes, and what it says when it cannot."""

from __future__ import annotations

import pytest
import torch

from rankwise.findings import Place
from rankwise.train.devices import claim_device, find_missing_interface

ME = Place(rank=1, host="node-a", pid=7)
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")


@no_gpu
def test_without_a_gpu_the_backend_is_gloo_and_nccl_is_a_finding() -> None:
    plain, wanted = claim_device(None, 0, ME, {}), claim_device("nccl", 0, ME, {})

    assert (plain.backend, str(plain.device), plain.problem) == ("gloo", "cpu", None)
    assert wanted.problem is not None and (wanted.problem.code, wanted.problem.stage) == ("RW122", "devices")


@pytest.mark.parametrize(
    ("backend", "value", "is_there"),
    [
        ("gloo", "lo", True), ("gloo", "^docker,lo", False), ("gloo", "nosuch0", False),
        ("nccl", "lo", True), ("nccl", "=lo", True), ("nccl", "=l", False), ("nccl", "^docker", True), ("nccl", "nosuch", False),
    ],
)  # fmt: skip
def test_an_interface_is_looked_for_as_its_backend_would(backend: str, value: str, is_there: bool) -> None:
    finding = find_missing_interface(backend, {f"{backend.upper()}_SOCKET_IFNAME": value}, ME)

    assert (finding is None) == is_there
    assert finding is None or (finding.code == "RW108" and "lo" in finding.summary)
