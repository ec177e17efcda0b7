"""Runs small distributed programs step by step, without processes, and takes the evidence at any moment.

A program is a list of collectives and transfers per rank. `Job.step` moves one rank as torch would: it enters its next operation, or leaves
the one it is in, once those it needs have entered theirs. So every moment of a correct program is one that a healthy job can be seen in.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rankwise.evidence.collective_log import CollectiveLog, Signature
from rankwise.evidence.flight import log_from_calls
from rankwise.evidence.records import Call, JobEvidence, NewGroup, RankEvidence
from tests.diagnose.jobs import C10D, NOW_NS, SECOND, START_NS, Slot, busy, elsewhere, ended, job, main_thread, rank, returned, stack_of

TRANSFERS = ("send", "recv")


@dataclass
class Process:
    """One rank: what it is to do, how far it is, and when it entered and left each operation."""

    program: list[Slot]
    done: int = 0
    is_inside: bool = False
    entered: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)

    @property
    def slot(self) -> Slot:
        return self.program[self.done]

    @property
    def has_ended(self) -> bool:
        return self.done == len(self.program)

    def number(self, position: int) -> int:
        """The sequence number of an operation within its group."""
        group = self.program[position].group
        return sum(slot.group == group and slot.op not in TRANSFERS for slot in self.program[: position + 1])

    def has_entered(self, group: str, seq: int, op: str) -> bool:
        """Whether it has entered the collective with this number, and with the same operation."""
        reached = range(self.done + self.is_inside)
        return any(
            self.program[i].group == group and self.program[i].op == op and self.number(i) == seq
            for i in reached
            if self.program[i].op not in TRANSFERS
        )

    def num_transfers(self, op: str, peer: int, *, begun: bool = True) -> int:
        """How many transfers in this direction it has begun, or ended."""
        return sum(slot.op == op and slot.peer == peer for slot in self.program[: self.done + (self.is_inside and begun)])


@dataclass
class Job:
    processes: list[Process]
    groups: dict[str, tuple[int, ...]]
    clock: int = 0

    def step(self, number: int) -> bool:
        """Move one rank if it can move."""
        process = self.processes[number]
        if process.has_ended:
            return False
        self.clock += 1
        if not process.is_inside:
            process.is_inside = True
            process.entered.append(self.clock)
            return True
        if self.blockers(number):
            return False
        process.is_inside = False
        process.left.append(self.clock)
        process.done += 1
        return True

    def run(self, *, without: int | None = None) -> None:
        """Until nobody can move; one rank may be left standing where it is."""
        while sum(self.step(number) for number in range(len(self.processes)) if number != without):
            pass

    def blockers(self, number: int) -> list[int]:
        """Whom the rank waits for in the operation it is in."""
        process = self.processes[number]
        slot = process.slot
        if slot.op in TRANSFERS:
            peer = self.processes[slot.peer]
            mine = process.num_transfers(slot.op, slot.peer)
            # A send is over when the other side has received, a recv once the other side sends.
            theirs = peer.num_transfers("recv", number, begun=False) if slot.op == "send" else peer.num_transfers("send", number)
            return [] if theirs >= mine else [slot.peer]
        if slot.op == "broadcast" and slot.peer == number:
            return []  # what was sent is on its way
        members = self.groups[slot.group]
        needed = [slot.peer] if slot.op == "broadcast" else members
        seq = process.number(process.done)
        return [r for r in needed if r != number and not self.processes[r].has_entered(slot.group, seq, slot.op)]

    def evidence(self, *, without_recorder: tuple[int, ...] = ()) -> JobEvidence:
        """What would be seen at this moment; ranks that are in no operation are at work."""
        made = tuple(NewGroup(name, members, START_NS, START_NS + 1) for name, members in self.groups.items() if name != "0")
        return job(*[self._rank(r, made, r not in without_recorder) for r in range(len(self.processes))])

    def _rank(self, number: int, groups: tuple[NewGroup, ...], recorder: bool) -> RankEvidence:
        process = self.processes[number]
        calls, log = [], CollectiveLog()
        for i, started in enumerate(process.entered):
            slot, left = process.program[i], process.left[i] if i < len(process.left) else 0
            began, over = self._time(started), self._time(left) if left else 0
            calls.append(Call(slot.op, began, over, stack_of(slot.at), slot.group, slot.sizes, slot.dtype, slot.peer, slot.reduce_op))
            if slot.op not in TRANSFERS:
                what = Signature(slot.group, slot.op, slot.sizes, slot.dtype, slot.peer, slot.reduce_op)
                log.add(process.number(i), what, began + 1000, bool(left), stack_of(slot.at))
        evidence = rank(number, []) if process.is_inside or process.has_ended else busy(number, "train.py:99 work", after=[])
        counts: dict[str, int] = {}
        for call in calls:
            counts[call.op] = counts.get(call.op, 0) + 1
        evidence = replace(
            evidence,
            calls=tuple(calls),
            counts=counts,
            groups=groups,
            collectives=log if recorder else log_from_calls(tuple(calls)),
            threads=main_thread(C10D, *_places(process.slot)) if process.is_inside else evidence.threads,
        )
        return ended(evidence, "finished", code=0) if process.has_ended else evidence

    def _time(self, tick: int) -> int:
        return NOW_NS - 20 * SECOND - (self.clock - tick) * SECOND // 100


def start(programs: list[list[Slot]], groups: dict[str, tuple[int, ...]] | None = None) -> Job:
    return Job([Process(list(program)) for program in programs], {"0": tuple(range(len(programs))), **(groups or {})})


def _places(slot: Slot) -> list[str]:
    return [slot.at] if isinstance(slot.at, str) else list(slot.at)


@dataclass
class Streams:
    """The same on GPUs: a rank only queues its collectives and goes on; they complete in order, once all members have queued theirs."""

    programs: list[list[Slot]]
    groups: dict[str, tuple[int, ...]]
    queued: list[int]
    completed: list[int]
    idle: set[int] = field(default_factory=set)  # ranks whose main thread waits for its GPU

    def step(self, number: int, what: str) -> None:
        """One rank queues its next collective, completes its oldest one, or begins or ends a wait for its GPU."""
        if what == "queue" and number not in self.idle and self.queued[number] < len(self.programs[number]):
            self.queued[number] += 1
        elif what == "complete" and self.completed[number] < self.queued[number] and self._can_complete(number):
            self.completed[number] += 1
        elif what == "wait" and self.completed[number] < self.queued[number]:
            self.idle.add(number)
        if self.completed[number] == self.queued[number]:
            self.idle.discard(number)

    def settle(self, *, without: int) -> None:
        """All but one go on until they wait for their GPU."""
        for _ in range(sum(map(len, self.programs)) + 1):
            for number in range(len(self.programs)):
                self.step(number, "complete")
                if number != without:
                    self.step(number, "queue")
        for number in range(len(self.programs)):
            if number != without:
                self.step(number, "wait")

    def _can_complete(self, number: int) -> bool:
        position = self.completed[number]
        group, seq = self.programs[number][position].group, self._number(number, position)
        return all(self._num_queued(member, group) >= seq for member in self.groups[group])

    def _number(self, number: int, position: int) -> int:
        group = self.programs[number][position].group
        return sum(slot.group == group for slot in self.programs[number][: position + 1])

    def _num_queued(self, number: int, group: str) -> int:
        return sum(slot.group == group for slot in self.programs[number][: self.queued[number]])

    def evidence(self) -> JobEvidence:
        made = tuple(NewGroup(name, members, START_NS, START_NS + 1) for name, members in self.groups.items() if name != "0")
        return job(*[self._rank(number, made) for number in range(len(self.programs))])

    def _rank(self, number: int, groups: tuple[NewGroup, ...]) -> RankEvidence:
        slots = self.programs[number][: self.queued[number]]
        slots = [replace(slot, done=i < self.completed[number]) for i, slot in enumerate(slots)]
        if not slots[-1:] or (self.completed[number] == len(self.programs[number])):
            return busy(number, "train.py:99 work", after=slots, backend="nccl", groups=groups)
        make = elsewhere if number in self.idle else busy
        return returned(make(number, "train.py:98 log", after=slots, backend="nccl", groups=groups))
