"""Limits of control groups, in both versions, are found at the process' own group and at all above it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise import cgroups

GIB = 1 << 30
# The process' own entry, the files of the tree, then what is found: limits and use of memory, and cores.
TREES: dict[str, tuple[str, dict[str, str], list[tuple[int, int]], list[float]]] = {
    "version 2": (
        "0::/user.slice/job.scope\n",
        {
            "user.slice/job.scope/memory.max": "max\n",
            "user.slice/job.scope/memory.current": "5\n",
            "user.slice/job.scope/cpu.max": "max 100000\n",
            "user.slice/memory.max": f"{4 * GIB}\n",
            "user.slice/memory.current": f"{2 * GIB}\n",
            "user.slice/memory.stat": f"anon 7\nactive_file {GIB // 2}\ninactive_file {GIB // 2}\n",
            "user.slice/cpu.max": "150000 100000\n",
        },
        [(4 * GIB, GIB)],
        [1.5],
    ),
    "version 1": (
        "4:memory:/docker/ab\n3:cpu,cpuacct:/docker/ab\n",
        {
            "memory/docker/ab/memory.limit_in_bytes": f"{GIB}\n",
            "memory/docker/ab/memory.usage_in_bytes": "9\n",
            "memory/memory.limit_in_bytes": f"{(1 << 63) - 4096}\n",
            "memory/memory.usage_in_bytes": "9\n",
            "cpu/docker/ab/cpu.cfs_quota_us": "50000\n",
            "cpu/docker/ab/cpu.cfs_period_us": "100000\n",
            "cpu/cpu.cfs_quota_us": "-1\n",
            "cpu/cpu.cfs_period_us": "100000\n",
        },
        [(GIB, 9)],
        [0.5],
    ),
    "a container that sees only its own": (
        "0::/not/visible/here\n",
        {"memory.max": f"{GIB}\n", "memory.current": "9\n", "cpu.max": "200000 100000\n"},
        [(GIB, 9)],
        [2.0],
    ),
    "nothing": ("", {}, [], []),
}


@pytest.mark.parametrize("name", TREES)
def test_limits_of_all_groups_around_a_process_are_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, files, memory, cores = TREES[name]
    (tmp_path / "own").write_text(own)
    for path, text in files.items():
        (tmp_path / "root" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / path).write_text(text)
    monkeypatch.setattr(cgroups, "_OWN", tmp_path / "own")
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path / "root")

    assert list(cgroups.memory_limits()) == memory
    assert list(cgroups.cpu_quotas()) == cores
