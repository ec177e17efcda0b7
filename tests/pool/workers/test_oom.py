"""Who is told that memory ran out: by made-up files of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.pool.errors import Death
from rankwise.pool.workers.supervisor import OomWatch


class Kernel:
    """Files as the kernel writes them."""

    def __init__(self, folder: Path, groups: str, file: str) -> None:
        self.proc, self.cgroups, self._file = folder / "proc", folder / "cgroup", folder / "cgroup" / file
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self/cgroup").write_text(groups)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self.count(0, 0)

    def count(self, machine: int, ours: int | None) -> None:
        (self.proc / "vmstat").write_text(f"nr_free_pages 3\noom_kill {machine}\n")
        if ours is not None:
            self._file.write_text(f"oom_kill_disable 0\nunder_oom 0\nmax 7\noom_kill {ours}\n")

    def watch(self) -> OomWatch:
        return OomWatch(0.0, self.proc, self.cgroups)


GROUPS = {
    "version 2": ("0::/user.slice/a\n", "user.slice/a/memory.events"),
    "version 2 in a container": ("0::/some/where/else\n", "memory.events"),
    "version 1": ("4:memory:/docker/a\n1:cpu:/\n0::/\n", "memory/docker/a/memory.oom_control"),
}


@pytest.mark.parametrize("name", GROUPS)
def test_a_kill_in_our_own_group_is_certain_and_counts_once(tmp_path: Path, name: str) -> None:
    kernel = Kernel(tmp_path, *GROUPS[name])
    watch = kernel.watch()
    assert watch.look(1) == ""

    kernel.count(2, 2)

    assert [watch.look(1.1), watch.look(1.2), watch.look(1.3)] == ["certain", "certain", ""]


def test_a_kill_on_the_machine_is_a_guess_and_counts_once(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, *GROUPS["version 2"])
    watch = kernel.watch()

    kernel.count(2, 0)

    assert [watch.look(0.1), watch.look(0.2), watch.look(0.3)] == ["perhaps", "perhaps", ""]
    assert "perhaps" in Death(-9, out_of_memory=True, is_guess=True).text
    assert "perhaps" not in Death(-9, out_of_memory=True).text


def test_a_kill_that_no_worker_was_found_for_is_soon_somebody_elses(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, *GROUPS["version 2"])
    watch = kernel.watch()

    kernel.count(1, 0)
    for moment in (1.0, 2.0, 3.0):
        watch.note(moment)

    assert watch.look(3.1) == ""


def test_a_kernel_that_says_nothing_is_no_reason(tmp_path: Path) -> None:
    assert OomWatch(0.0, tmp_path, tmp_path).look(1) == ""
