"""Reads the probe's journals: one file of JSON lines per process. Damaged lines are skipped, never trusted."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rankwise.evidence.audit import AuditLog
from rankwise.evidence.records import Caught, Ended, Frame, Init, Model, NewGroup, PortHolder, Raised, SentSignal, Stack
from rankwise.thaw import thaw

_MAX_BYTES = 32 << 20


@dataclass
class Journal:
    """What one process said about itself. Filled line by line while the process lives."""

    pid: int
    process: dict[str, Any] = field(default_factory=dict)
    torch: str = ""
    rank: int | None = None
    world_size: int | None = None
    inits: list[Init] = field(default_factory=list)
    groups: list[NewGroup] = field(default_factory=list)
    models: list[Model] = field(default_factory=list)
    raised: list[Raised] = field(default_factory=list)
    ended: Ended | None = None
    caught: dict[str, Caught] = field(default_factory=dict)  # by type and message
    signals: list[SentSignal] = field(default_factory=list)
    child_exits: dict[int, tuple[int, int]] = field(default_factory=dict)  # pid: code, time
    children: dict[int, tuple[dict[str, str], int]] = field(default_factory=dict)  # pid: rank variables, time of start
    broken: list[str] = field(default_factory=list)
    server: str = ""
    out: str = ""
    err: str = ""
    ops: list[str] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    sites: dict[int, Stack] = field(default_factory=dict)
    audit: AuditLog = field(default_factory=AuditLog)
    _offset: int = 0

    def read_more(self, path: Path) -> bool:
        """Take in what was appended since the last time; True if there was anything."""
        try:
            with path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(_MAX_BYTES)
        except OSError:
            return False
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        for line in data[:whole].splitlines():
            self._take(line)
        return whole > 0

    def _take(self, line: bytes) -> None:
        try:
            facts = json.loads(line)
            reader = getattr(self, f"_on_{facts['k']}", None)
            if reader is not None:
                reader(facts)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            self.broken.append("an unreadable line in the journal")

    def _on_process(self, facts: dict[str, Any]) -> None:
        self.process = {
            "t": _whole(facts["t"]),
            "pid": _whole(facts["pid"]),
            "ppid": _whole(facts["ppid"]),
            "host": str(facts["host"]),
            "argv": [str(part) for part in facts["argv"]],
            "env": _texts(facts["env"]),
        }

    def _on_torch(self, facts: dict[str, Any]) -> None:
        self.torch = str(facts["version"])

    def _on_streams(self, facts: dict[str, Any]) -> None:
        self.out, self.err = str(facts["out"]), str(facts["err"])

    def _on_server(self, facts: dict[str, Any]) -> None:
        self.server = str(facts["path"])

    def _on_ring(self, facts: dict[str, Any]) -> None:
        self.ops = [str(op) for op in facts["ops"]]

    def _on_name(self, facts: dict[str, Any]) -> None:
        self.names[int(facts["i"])] = str(facts["s"])

    def _on_site(self, facts: dict[str, Any]) -> None:
        self.sites[int(facts["i"])] = stack_from(facts["frames"])

    def _record(self, cls: type, facts: dict[str, Any], **more: Any) -> Any:
        """A record from a line; `more` has the fields that the line calls by another name."""
        stack = stack_from(facts["frames"]) if "frames" in facts else self.sites.get(facts["site"], ())
        return replace(thaw(cls, {**facts, **more, "stack": []}), stack=stack)

    def _on_init(self, facts: dict[str, Any]) -> None:
        port = str(facts.get("port", ""))
        number = int(port) if port.isdecimal() and len(port) < 6 else None
        self.inits.append(self._record(Init, facts, port=number, started_ns=facts["t"], ended_ns=0))
        self.rank, self.world_size = self.inits[-1].rank, self.inits[-1].world_size
        self.process.setdefault("env", {}).update(_texts(facts.get("env") or {}))

    def _on_inited(self, facts: dict[str, Any]) -> None:
        if self.inits:
            holder = thaw(PortHolder, facts["holder"]) if facts.get("holder") else None
            self.inits[-1] = replace(self.inits[-1], ended_ns=int(facts["t"]), error=str(facts["error"]), holder=holder)

    def _on_rank(self, facts: dict[str, Any]) -> None:
        self.rank, self.world_size = int(facts["rank"]), int(facts["world_size"])
        if self.inits:
            self.inits[-1] = replace(self.inits[-1], rank=self.rank, world_size=self.world_size, backend=str(facts["backend"]))

    def _on_new_group(self, facts: dict[str, Any]) -> None:
        if facts.get("local"):
            return  # a group that only its members have to create
        ranks = facts["ranks"]
        members = tuple(int(rank) for rank in ranks) if ranks is not None else tuple(range(self.world_size or 0))
        self.groups.append(NewGroup("", members, int(facts["t"]), 0, self.sites.get(facts["site"], ())))

    def _on_new_group_made(self, facts: dict[str, Any]) -> None:
        if self.groups and not self.groups[-1].ended_ns:
            self.groups[-1] = replace(self.groups[-1], name=str(facts["name"]), ended_ns=int(facts["t"]))

    def _on_model(self, facts: dict[str, Any]) -> None:
        self.models.append(self._record(Model, facts, class_file=facts["file"], has_buffers=facts["buffers"]))

    def _on_unused(self, facts: dict[str, Any]) -> None:
        if self.models:
            unused, replaced, added = (tuple(map(str, facts[key])) for key in ("names", "replaced", "added"))
            self.models[-1] = replace(self.models[-1], unused=unused, replaced=replaced, added=added)

    def _on_raise(self, facts: dict[str, Any]) -> None:
        self.raised.append(self._record(Raised, facts, time_ns=facts["t"]))

    def _on_exit(self, facts: dict[str, Any]) -> None:
        self.ended = self._record(Ended, facts, time_ns=facts["t"])

    def _on_worker_raised(self, facts: dict[str, Any]) -> None:
        """A DataLoader worker's exception that reached this process; the latest line tells how often."""
        caught: Caught = self._record(Caught, facts, time_ns=facts["t"])
        self.caught[f"{caught.type}: {caught.message}"] = caught

    def _on_child_start(self, facts: dict[str, Any]) -> None:
        self.children[_whole(facts["pid"])] = (_texts(facts["env"]), _whole(facts["t"]))

    def _on_child_exit(self, facts: dict[str, Any]) -> None:
        self.child_exits[int(facts["pid"])] = (int(facts["code"]), int(facts["t"]))

    def _on_signal(self, facts: dict[str, Any]) -> None:
        self.signals.append(self._record(SentSignal, facts, by=self.pid, time_ns=facts["t"]))

    def _on_audit(self, facts: dict[str, Any]) -> None:
        for line in facts["lines"]:
            self.audit.take(line)

    def _on_broken(self, facts: dict[str, Any]) -> None:
        self.broken.append(f"{facts['what']}: {facts['error']}")


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 63:
        raise TypeError("expected a whole number")
    return value


def _texts(value: Any) -> dict[str, str]:
    return {str(name): str(text) for name, text in value.items()}


def stack_from(frames: Any) -> Stack:
    """A stack from its JSON form, [[file, line, function], …]."""
    return tuple(Frame(str(file), int(line or 0), str(function)) for file, line, function in frames)
