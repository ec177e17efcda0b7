"""Whether the kernel ended a worker because memory ran out."""

from __future__ import annotations

from pathlib import Path

_SOON_S = 1.0  # a kill that matches no worker within this time, or twice that, was another process's


class OomWatch:
    """Tells whether the kernel killed a worker because memory ran out. Each kill it counts is blamed for one worker at most."""

    def __init__(self, now: float, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc, self._cgroups = proc, cgroups
        self._ours = self._count_of_group() or 0
        self._machines = count = self._count_of_machine()
        self._noted = now, count

    def note(self, now: float) -> None:
        """Remember how many kills there were so far; called several times a second."""
        noted, count = self._noted
        if now - noted >= _SOON_S:
            self._machines = max(self._machines, count)
            self._noted = now, self._count_of_machine()

    def look(self, now: float) -> str:
        """A worker was killed. "certain" where a process of our own control group was ended for want of memory; "perhaps" where it was
        one of the machine; "" where none was, or another worker was found to be it."""
        self.note(now)
        ours, machines = self._count_of_group(), self._count_of_machine()
        if ours is not None and ours > self._ours:
            self._ours += 1
            self._machines = min(machines, self._machines + 1)
            return "certain"
        if machines > self._machines:
            self._machines += 1
            return "perhaps"
        return ""

    def _count_of_group(self) -> int | None:
        """Kills in this process' control group (version 2). In a container the group often is the root of the visible tree."""
        path = next((line[3:] for line in read_text(self._proc / "self/cgroup").splitlines() if line.startswith("0::")), "")
        counts = [_oom_kills(read_text(folder / "memory.events")) for folder in (self._cgroups / path.lstrip("/"), self._cgroups)]
        return next((count for count in counts if count is not None), None)

    def _count_of_machine(self) -> int:
        return _oom_kills(read_text(self._proc / "vmstat")) or 0


def _oom_kills(text: str) -> int | None:
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), None)


def read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")  # a process may call itself anything
    except OSError:
        return ""
