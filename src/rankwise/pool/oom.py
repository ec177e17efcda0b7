"""Whether the kernel ended a worker for want of memory: all that can be seen is how often it did so, here and on the whole machine."""

from __future__ import annotations

from pathlib import Path

_SOON_S = 1.0  # after that, and twice that at most, a kill that no worker was found for was somebody else's


class OomWatch:
    """Each kill is taken for one worker's at most."""

    def __init__(self, now: float, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc, self._cgroups = proc, cgroups
        self._ours = self._count_of_group() or 0
        self._machines = count = self._count_of_machine()
        self._noted = now, count

    def note(self, now: float) -> None:
        """To be called some times a second."""
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
        """Of version 2, then 1. Inside a container the group often is the root of what can be seen."""
        for line in _read(self._proc / "self/cgroup").splitlines():
            _, controllers, path = [*line.split(":", 2), "", ""][:3]
            folder, name = (self._cgroups, "memory.events") if not controllers else (self._cgroups / "memory", "memory.oom_control")
            if not controllers or "memory" in controllers.split(","):
                counts = [_oom_kills(_read(place / name)) for place in (folder / path.lstrip("/"), folder)]
                if found := [count for count in counts if count is not None]:
                    return found[0]
        return None

    def _count_of_machine(self) -> int:
        return _oom_kills(_read(self._proc / "vmstat")) or 0


def _oom_kills(text: str) -> int | None:
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), None)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
