"""Synthetic jobs, written the way one would tell them: `job(waiting(0, "all_reduce", at="train.py:10"), busy(1, at="train.py:8"))`.

Every rank has joined, has done five all_reduces and stands still since ten seconds, unless its builder says otherwise. Files are relative
to the folder the job was started in. A place is `file:line function`, a stack is a list of places, innermost first.
"""

from __future__ import annotations

import signal as signals
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rankwise.diagnose import diagnose
from rankwise.evidence.collective_log import CollectiveLog, Signature
from rankwise.evidence.flight import log_from_calls
from rankwise.evidence.records import (
    Call,
    Ended,
    Frame,
    Helper,
    Init,
    JobEvidence,
    Model,
    NewGroup,
    Raised,
    RankEvidence,
    Sample,
    Stack,
    Thread,
)
from rankwise.findings import Finding

SECOND = 1_000_000_000
START_NS = 1_790_000_000 * SECOND
NOW_NS = START_NS + 100 * SECOND
STUCK_S = 10.0  # how long everybody stands still
HOME = "/home/ada/segmenter"
TORCH = "/home/ada/venv/lib/python3.11/site-packages/torch"
PYTHON = "/usr/lib/python3.11"
C10D = f"{TORCH}/distributed/distributed_c10d.py:2900 all_reduce"
LOADER = (
    f"{PYTHON}/selectors.py:415 select",
    f"{PYTHON}/multiprocessing/connection.py:930 wait",
    f"{PYTHON}/multiprocessing/queues.py:113 get",
    f"{TORCH}/utils/data/dataloader.py:1300 _try_get_data",
    f"{TORCH}/utils/data/dataloader.py:1400 _next_data",
)

Place = str
Places = Place | list[Place]


# -- the job ------------------------------------------------------------------------------------------------------------------


def job(*ranks: RankEvidence, sources: dict[str, str] | None = None, **facts: Any) -> JobEvidence:
    """The evidence of a running job of these ranks; `sources` are the user's files by name."""
    by_rank = {evidence.rank: evidence for evidence in ranks}
    facts = {"world_size": len(by_rank), "stall_after_s": 10.0, "started_ns": START_NS, "now_ns": NOW_NS, "cwd": HOME, **facts}
    return JobEvidence(
        command=("rankwise", "run", "train.py"),
        ranks=by_rank,
        sources={path_of(name): text for name, text in (sources or {}).items()},
        **facts,
    )


def cast(
    culprits: list[int], world_size: int, guilty: Callable[[int], RankEvidence], innocent: Callable[[int], RankEvidence]
) -> list[RankEvidence]:
    """`guilty(rank)` for the culprits, `innocent(rank)` for everybody else."""
    return [guilty(number) if number in culprits else innocent(number) for number in range(world_size)]


def others(culprits: list[int], world_size: int) -> list[int]:
    return [number for number in range(world_size) if number not in culprits]


def root(evidence: JobEvidence) -> Finding:
    """The root cause."""
    found = diagnose(evidence)
    assert found, "nothing was found"
    return found[0]


def alarms(evidence: JobEvidence) -> list[Finding]:
    """Findings that would disturb the user of a healthy job: errors, and whatever would stop it."""
    return [finding for finding in diagnose(evidence) if finding.severity == "error" or finding.deadlock]


def expect(finding: Finding, code: str, blames: list[int], *says: str, certain: bool = True, deadlock: bool = True, at: str = "") -> None:
    """One finding: its code, exactly these culprits, none of them also shown as waiting, and these words in its summary."""
    assert finding.code == code, finding
    assert sorted({place.rank for place in finding.culprits}, key=str) == sorted(blames), finding
    assert not {wait.rank for wait in finding.waiting} & set(blames), finding
    assert (finding.certain, finding.deadlock) == (certain, deadlock), finding
    told = f"{finding.summary}; {finding.why}".lower()
    missing = [words for words in says if words.lower() not in told]
    assert not missing, f"{missing} not in: {told}"
    if at:
        assert at in {f"{place.file}:{place.line}" for place in finding.culprits}, finding
    assert finding.next[-1] == f"rankwise explain {code}"


def waiting_ranks(finding: Finding) -> list[int | None]:
    return [wait.rank for wait in finding.waiting]


# -- collectives --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slot:
    """One collective of one rank, before it is numbered."""

    op: str = "all_reduce"
    at: Places = "train.py:10 train"
    group: str = "0"
    sizes: tuple[int, ...] = (8,)
    dtype: str = "float32"
    peer: int | None = None
    reduce_op: str = ""
    origin: str = "user"
    done: bool = True


def did(op: str = "all_reduce", times: int = 1, **facts: Any) -> list[Slot]:
    return [Slot(op, **facts)] * times


def gradients(times: int = 1, at: Places = "train.py:12 train", **facts: Any) -> list[Slot]:
    """DDP's own all_reduces, in backward."""
    return did("all_reduce", times, at=at, origin="backward", sizes=(1024,), **facts)


FIVE = did(times=5)


def log_of(slots: list[Slot], *, first_seq: int = 1, ended_ns: int = NOW_NS - int(STUCK_S * SECOND)) -> CollectiveLog:
    """A flight recorder's log: one collective a second, the last one at `ended_ns`; with `first_seq` above 1 it has overflowed."""
    log, numbers = CollectiveLog(), {}
    for i, slot in enumerate(slots):
        seq = numbers[slot.group] = numbers.get(slot.group, first_seq - 1) + 1
        what = Signature(slot.group, slot.op, slot.sizes, slot.dtype, slot.peer, slot.reduce_op)
        log.add(seq, what, ended_ns - (len(slots) - 1 - i) * SECOND, slot.done, stack_of(slot.at), slot.origin)
    return log


def calls_of(slots: list[Slot], *, ended_ns: int = NOW_NS - int(STUCK_S * SECOND)) -> tuple[Call, ...]:
    """What the probe's ring holds of the same collectives: DDP's show as the forward, backward or constructor they happened in."""
    calls = []
    for i, slot in enumerate(slots):
        started = ended_ns - (len(slots) - 1 - i) * SECOND - 1000
        own = slot.origin == "user"
        calls.append(
            Call(
                slot.op if own else slot.origin,
                started,
                started + SECOND // 10 if slot.done else 0,
                stack_of(slot.at),
                slot.group,
                slot.sizes if own else (),
                slot.dtype if own else "",
                slot.peer,
                slot.reduce_op,
            )
        )
    return tuple(calls)


# -- ranks --------------------------------------------------------------------------------------------------------------------


def rank(
    number: int, slots: list[Slot] | None = None, *, world_size: int = 4, recorder: bool = True, first_seq: int = 1, **facts: Any
) -> RankEvidence:
    """A rank that has joined and called these collectives. Without `recorder` only the probe's calls are known."""
    slots = FIVE if slots is None else slots
    calls = facts.pop("calls", calls_of(slots))
    counts: dict[str, int] = {}
    for call in calls:
        counts[call.op] = counts.get(call.op, 0) + 1
    facts = {
        "pid": 4200 + number,
        "host": "node-a",
        "script": path_of("train.py"),
        "started_ns": START_NS,
        "torch": "2.13.0+cpu",
        "inits": (joined(number, world_size, facts.pop("backend", "gloo")),),
        "samples": samples(),
        "last_progress_ns": NOW_NS - int(STUCK_S * SECOND),
        **facts,
    }
    facts["counts"] = {**counts, **facts.get("counts", {})}
    collectives = log_of(slots, first_seq=first_seq) if recorder else log_from_calls(calls)
    return RankEvidence(rank=number, calls=calls, collectives=collectives, **facts)


def waiting(
    number: int, op: str = "all_reduce", at: Places = "train.py:10 train", *, after: list[Slot] | None = None, **facts: Any
) -> RankEvidence:
    """A rank that waits in a collective, after those it has done (five all_reduces)."""
    slot, rest = _split(facts, op=op, at=at, done=False)
    rest.setdefault("threads", main_thread(C10D, *_list(at)))
    return rank(number, [*(FIVE if after is None else after), slot], **rest)


def in_backward(number: int, at: Places = "train.py:12 train", *, after: list[Slot] | None = None, **facts: Any) -> RankEvidence:
    """A rank that waits for its gradients, in loss.backward()."""
    return waiting(number, "all_reduce", at, after=gradients(5) if after is None else after, origin="backward", sizes=(1024,), **facts)


def in_forward(number: int, at: Places = "train.py:11 train", *, after: list[Slot] | None = None, **facts: Any) -> RankEvidence:
    """A rank that waits for buffers, in the forward of the DDP module."""
    return waiting(number, "broadcast", at, after=gradients(5) if after is None else after, origin="forward", sizes=(64,), **facts)


def in_call(
    number: int, op: str, at: Places = "train.py:10 train", *, peer: int | None = None, after: list[Slot] | None = None, **facts: Any
) -> RankEvidence:
    """A rank inside a call that torch does not record: send, recv, monitored_barrier, new_group."""
    done = FIVE if after is None else after
    opened = Call(op, NOW_NS - int(STUCK_S * SECOND), 0, stack_of(at), facts.pop("group", "0"), peer=peer)
    facts.setdefault("threads", main_thread(C10D, *_list(at)))
    return rank(number, done, calls=(*calls_of(done, ended_ns=opened.started_ns - SECOND), opened), **facts)


def elsewhere(
    number: int, at: Places = "train.py:8 train", *, inside: Places | None = None, after: list[Slot] | None = None, **facts: Any
) -> RankEvidence:
    """A rank that is in no collective; `inside` are the library's frames below the user's line."""
    facts.setdefault("threads", main_thread(*_list(inside), *_list(at)))
    facts.setdefault("earlier_threads", facts["threads"])
    return rank(number, after, **facts)


def busy(number: int, at: Places = "train.py:8 train", **facts: Any) -> RankEvidence:
    return elsewhere(number, at, **{"samples": samples(cpu=1.0, state="R"), **facts})


def returned(evidence: RankEvidence) -> RankEvidence:
    """The same rank with its calls come back: collectives started with async_op=True, or on a GPU's stream."""
    return replace(evidence, calls=tuple(replace(call, ended_ns=call.ended_ns or call.started_ns + 1000) for call in evidence.calls))


def in_init(number: int, at: Places = "train.py:3 main", *, world_size: int = 4, **facts: Any) -> RankEvidence:
    """A rank that is inside init_process_group."""
    init, rest = _init(number, at, world_size, facts)
    rest.setdefault("threads", main_thread(C10D, *_list(at)))
    opened = Call("init_process_group", init.started_ns, 0, init.stack)
    return rank(number, [], calls=(opened,), inits=(init,), last_progress_ns=init.started_ns, **rest)


def before_init(number: int, at: Places = "train.py:2 main", *, inside: Places | None = None, **facts: Any) -> RankEvidence:
    """A rank that has started and not yet called init_process_group."""
    facts.setdefault("threads", main_thread(*_list(inside), *_list(at)))
    return rank(number, [], inits=(), **facts)


def unseen(number: int, **facts: Any) -> RankEvidence:
    """A process that is a rank by its environment, and of which the probe tells nothing."""
    return replace(before_init(number, recorder=False, **facts), torch="", blind=(f"process {4200 + number} runs without the probe",))


# -- ends ---------------------------------------------------------------------------------------------------------------------


def ended(evidence: RankEvidence, kind: str = "finished", *, ago_s: float = STUCK_S, at: Places = (), **facts: Any) -> RankEvidence:
    """The same rank, gone; every wait it was in counts as failed."""
    calls = tuple(replace(call, ended_ns=NOW_NS - int(ago_s * SECOND), failed=True) if call.is_open else call for call in evidence.calls)
    end = Ended(kind, NOW_NS - int(ago_s * SECOND), stack=stack_of(at), **facts)
    return replace(evidence, alive=False, ended=end, calls=calls, threads=())


def finished(number: int, slots: list[Slot] | None = None, *, ago_s: float = STUCK_S, **facts: Any) -> RankEvidence:
    return ended(rank(number, slots, **facts), "finished", ago_s=ago_s, code=0)


def raised(
    evidence: RankEvidence,
    error: str = "ValueError",
    message: str = "bad sample",
    at: Places = "train.py:8 train",
    *,
    ago_s: float = STUCK_S,
    kind: str = "exception",
    **facts: Any,
) -> RankEvidence:
    """The same rank, ended by an exception."""
    boom = Raised(error, message, stack_of(at), NOW_NS - int(ago_s * SECOND), text=f"{error}: {message}")
    gone = ended(evidence, kind, ago_s=ago_s - 0.01, **{"code": 1, **facts})
    return replace(gone, raised=(*evidence.raised, boom))


def echo(evidence: RankEvidence, *, ago_s: float = STUCK_S - 0.1, message: str = "") -> RankEvidence:
    """The same rank, fallen because another one was gone."""
    at = [C10D, *(f"{frame.file}:{frame.line} {frame.function}" for frame in _open_stack(evidence))]
    text = message or "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:31337"
    return raised(evidence, "RuntimeError", text, at, ago_s=ago_s)


def killed(evidence: RankEvidence, signal: int = signals.SIGKILL, *, ago_s: float = STUCK_S, **facts: Any) -> RankEvidence:
    return ended(evidence, "signal", ago_s=ago_s, signal=int(signal), **facts)


def terminated(evidence: RankEvidence, *, ago_s: float = STUCK_S - 1) -> RankEvidence:
    """The same rank, ended by the launcher because another one had failed."""
    gone = killed(evidence, signals.SIGTERM, ago_s=ago_s)
    return replace(gone, calls=evidence.calls)


# -- parts --------------------------------------------------------------------------------------------------------------------


def path_of(name: str) -> str:
    return name if name.startswith(("/", "<")) else f"{HOME}/{name}"


def frame_of(place: Place) -> Frame:
    spot, _, function = place.partition(" ")
    file, _, line = spot.rpartition(":")
    return Frame(path_of(file), int(line), function or "<module>")


def stack_of(places: Places | tuple[Place, ...] | None) -> Stack:
    return tuple(frame_of(place) for place in _list(places))


def main_thread(*places: Place, **facts: Any) -> tuple[Thread, ...]:
    return (thread(*places, name="MainThread", is_main=True, **facts),)


def thread(*places: Place, name: str = "Thread-1", **facts: Any) -> Thread:
    return Thread(name, stack_of(places), **facts)


def samples(
    *, cpu: float = 0.0, state: str = "S", wakes: float = 0.0, rss: int = 500 << 20, seconds: int = 8, **facts: Any
) -> tuple[Sample, ...]:
    """One look a second: CPU seconds and wake-ups per second as given."""
    first = NOW_NS - seconds * SECOND
    return tuple(Sample(first + i * SECOND, state, 20.0 + cpu * i, rss, switches=int(100 + wakes * i), **facts) for i in range(seconds + 1))


def helper(pid: int, parent: int, *places: Place, state: str = "S", command: str = "python train.py", **facts: Any) -> Helper:
    return Helper(pid, command, parent, main_thread(*places) if places else (), state, "python" in command, **facts)


def worker(pid: int, parent: int, *places: Place, **facts: Any) -> Helper:
    """A DataLoader worker."""
    loop = f"{TORCH}/utils/data/_utils/worker.py:340 _worker_loop"
    return helper(pid, parent, *places, loop, is_dataloader_worker=True, **facts)


def joined(number: int, world_size: int, backend: str = "gloo") -> Init:
    began, over = START_NS + SECOND, START_NS + 2 * SECOND
    return Init(number, world_size, backend, "env://", "localhost", 29500, 1800.0, began, over, stack_of("train.py:3 main"))


def new_group(*members: int, name: str, at: Place = "train.py:5 main", done: bool = True) -> NewGroup:
    started = START_NS + (3 + int(name or 0)) * SECOND
    return NewGroup(name if done else "", members, started, started + 1000 if done else 0, stack_of(at))


def model(at: Place = "train.py:6 main", **shapes: tuple[int, ...]) -> Model:
    names = tuple(name.replace("__", ".") for name in shapes)
    return Model(names, tuple(shapes.values()), ("torch.float32",) * len(names), path_of("net.py"), stack_of(at))


def numbered(source: str) -> tuple[str, dict[str, int]]:
    """The source, and the numbers of its lines that carry a mark such as `# <- here`."""
    lines = source.splitlines()
    return source, {line.rsplit("# <- ", 1)[1].strip(): i for i, line in enumerate(lines, 1) if "# <- " in line}


def _init(number: int, at: Places, world_size: int, facts: dict[str, Any]) -> tuple[Init, dict[str, Any]]:
    names = set(Init.__dataclass_fields__)
    given = {name: facts.pop(name) for name in list(facts) if name in names}
    opened = {"stack": stack_of(at), "ended_ns": 0, "started_ns": NOW_NS - int(STUCK_S * SECOND), **given}
    return replace(joined(number, world_size), **opened), facts


def _split(facts: dict[str, Any], **slot: Any) -> tuple[Slot, dict[str, Any]]:
    names = set(Slot.__dataclass_fields__)
    return Slot(**slot, **{key: value for key, value in facts.items() if key in names}), {
        key: value for key, value in facts.items() if key not in names
    }


def _list(places: Places | tuple[Place, ...] | None) -> list[Place]:
    return [] if places is None else [places] if isinstance(places, str) else list(places)


def _open_stack(evidence: RankEvidence) -> Stack:
    return next((call.stack for call in reversed(evidence.calls) if call.is_open), ())
