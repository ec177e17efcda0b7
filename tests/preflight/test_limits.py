"""What this process may use."""

from __future__ import annotations

import os
import resource
from types import SimpleNamespace

import psutil
import pytest

from rankwise import cgroups
from rankwise.preflight import limits


def test_the_tightest_group_counts_and_limits_of_the_process_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=100, available=60))
    monkeypatch.setattr(cgroups, "memory_limits", lambda: [(50, 10), (30, 35), (80, 20)])
    softs = {resource.RLIMIT_AS: 70, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda number: (softs[number], -1))

    assert limits.memory_limits() == {"machine": (100, 60), "cgroup": (30, 0), "RLIMIT_AS": (70, 70)}
    monkeypatch.setattr(cgroups, "memory_limits", list)
    assert "cgroup" not in limits.memory_limits()


def test_cores_are_those_of_the_affinity_or_of_the_quota_where_that_is_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 5})
    for quotas, wanted in (([], 3.0), ([8.0, 1.5], 1.5), ([8.0], 3.0)):
        monkeypatch.setattr(cgroups, "cpu_quotas", lambda quotas=quotas: quotas)
        assert limits.cores() == wanted
