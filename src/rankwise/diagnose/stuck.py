"""A rank that is stuck elsewhere: what it is doing instead of joining the others, by its stack, its state and its child processes."""

from __future__ import annotations

import os
import re
import signal as signals
from collections.abc import Callable
from dataclasses import dataclass, replace

from rankwise.causes import load_cause
from rankwise.diagnose.kernel_wait import kernel_wait
from rankwise.diagnose.rank_state import RankStates, ended_well, main_stack, main_thread, place_at, wait_of
from rankwise.diagnose.waiting import needed_by
from rankwise.diagnose.wording import at, seconds_text, verb
from rankwise.evidence.frames import is_user_file, user_frame, user_frames
from rankwise.evidence.records import Frame, Helper, JobEvidence, RankEvidence, Sample, Stack, Thread
from rankwise.findings import Finding, Place, ranks_text, signal_name
from rankwise.sizes import bytes_text
from rankwise.source.book import SourceBook

_LOCK_LINE = re.compile(r"\.acquire\(|^with .*(lock|mutex|sem|cond)|\block\b", re.IGNORECASE)
_PIPE_LINE = re.compile(r"os\.read\(|\.readline\(|\binput\(|\.recv\(\)|\.read\(\)|stdin|fifo|pipe", re.IGNORECASE)
_LONG_S = 60.0  # before that, ranks that all wait for something are more likely loading data than stuck
_KERNEL_S = 30.0  # a decomposition or a compiler may keep a GPU, and the line that waits for it, for that long
_SOME_BYTES = 1 << 20  # read or written over the last looks: less is what a log or a look at a file takes
_AT_WORK = ("R", "D")  # a process that runs, or reads a disk
_LOCK_LIBRARIES = ("filelock", "portalocker", "fasteners")
_SOCKET_LINE = re.compile(r"\.(recv|recv_into|accept|connect|urlopen)\(|requests\.")
_CHILD_LINE = re.compile(r"\.wait\(\)|\.communicate\(|subprocess\.|check_call|check_output|os\.wait|os\.system")


@dataclass(frozen=True)
class Activity:
    """What a rank is doing: the cause it points to, in words, and the line."""

    code: str
    doing: str
    frame: Frame | None
    why: str = ""
    moves: bool = False
    polls: str = ""  # the condition about a file that it checks again and again, asleep in between
    with_ranks: tuple[int, ...] = ()  # ranks that share the blame (the holder of a lock)
    certain: bool = False
    deadlock: bool = False


def find_stuck(job: JobEvidence, states: RankStates, book: SourceBook) -> list[Finding]:
    """One finding per rank that others wait for and that is in no collective itself."""
    waiting = [rank for rank, state in states.items() if state.kind in ("waiting", "init")]
    blockers: dict[int, list[int]] = {
        rank: sorted(set(waiting) - {rank})
        for rank, evidence in job.ranks.items()
        if evidence.alive and evidence.samples and evidence.samples[-1].state in ("T", "t") and set(waiting) - {rank}
    }
    for rank in waiting:
        for needed in needed_by(job, states, rank) if states[rank].kind == "waiting" else ():
            if needed in states and states[needed].kind in ("busy", "before_init") and rank not in blockers.get(needed, ()):
                blockers.setdefault(needed, []).append(rank)
    found: dict[tuple[str, Frame | None], tuple[Activity, list[int], set[int]]] = {}
    for rank, waiters in sorted(blockers.items(), key=lambda item: (-len(item[1]), item[0])):
        activity = activity_of(job, job.ranks[rank], book)
        if activity.polls and _is_job_idle(job, rank, waiters):
            why = f"it looks for a file again and again (`{activity.polls}`), and no process of the job is at work that could write it: the rank that should may wait for this one"
            activity = replace(activity, doing="sleeps and polls for a file", why=why, moves=False)
        _, ranks, waiting_for = found.setdefault((activity.code, activity.frame), (activity, [], set()))
        ranks.append(rank)
        waiting_for.update(waiters)
    ordered = sorted(found.values(), key=lambda entry: (-len(entry[2]), min(entry[1])))
    return [_finding(job, states, book, activity, ranks, sorted(waiters - set(ranks))) for activity, ranks, waiters in ordered]


def _is_job_idle(job: JobEvidence, rank: int, waiters: list[int]) -> bool:
    """Whether all other ranks have waited long for this one, and no process of the job computes, reads or writes."""
    living = {r: e for r, e in job.ranks.items() if e.alive}
    has_been_quiet = all(job.now_ns - e.last_progress_ns >= job.stall_after_s * 1e9 for e in living.values())
    helpers = [helper for e in living.values() for helper in e.helpers]
    is_idle = not any(_is_computing(e) or _bytes_moved(e) > _SOME_BYTES for e in living.values())
    return set(living) == {rank, *waiters} and has_been_quiet and is_idle and not any(helper.state in _AT_WORK for helper in helpers)


def loop_places(rank: RankEvidence, book: SourceBook) -> list[Place]:
    """The innermost line of the stack that is inside a loop, unless it is the current line: the loop is what takes long."""
    stack = main_stack(rank)
    looping = next((frame for frame in stack if book.loops_at(frame.file, frame.line)), None)
    return [place_at(rank, looping)] if looping is not None and looping != stack[0] else []


def _finding(job: JobEvidence, states: RankStates, book: SourceBook, activity: Activity, ranks: list[int], waiters: list[int]) -> Finding:
    """One finding for all ranks that are stuck in the same way at the same line."""
    cause = load_cause("RW502" if activity.moves else activity.code)
    state = states[waiters[0]] if waiters else states[ranks[0]]
    since = max(0.0, (job.now_ns - max((states[r].since_ns for r in waiters), default=job.now_ns)) / 1e9)
    where = f"it is{at(activity.frame)}; " if activity.frame is not None else ""
    where += f"{verb(waiters, 'waits', 'wait')} in {state.op_text}{at(state.frame)}, for {seconds_text(since)}"
    culprits = [place_at(job.ranks[rank], activity.frame) for rank in ranks]
    culprits += [place_at(job.ranks[r], states[r].frame) for r in activity.with_ranks]
    culprits += loop_places(job.ranks[ranks[0]], book) if activity.moves else []
    is_circle = bool(activity.with_ranks) and all(set(ranks) & needed_by(job, states, r) for r in activity.with_ranks)
    finding = cause.finding(
        f"{ranks_text(ranks)} {activity.doing}; {verb(waiters, 'waits', 'wait')} for it",
        certain=activity.certain,
        culprits=tuple(culprits),
        waiting=tuple(wait_of(states[r]) for r in waiters if r not in activity.with_ranks),
        why=f"{activity.why or _movement(job.ranks[ranks[0]])}; {where}",
        deadlock=activity.deadlock and is_circle,
    )
    return finding.with_severity("error") if finding.deadlock and finding.certain else finding


def find_all_idle(job: JobEvidence, states: RankStates, book: SourceBook) -> Finding | None:
    """No rank waits for another, all have stood at the same line for long, and none computes: what they wait for is outside the job."""
    living = [rank for rank, evidence in sorted(job.ranks.items()) if evidence.alive]
    if not living or any(states[rank].kind != "busy" or _is_computing(job.ranks[rank]) for rank in living):
        return None
    quiet_s = (job.now_ns - max(job.ranks[rank].last_progress_ns for rank in living)) / 1e9
    activities = [activity_of(job, job.ranks[rank], book) for rank in living]
    if quiet_s < job.stall_after_s or len({(activity.code, activity.frame) for activity in activities}) > 1:
        return None
    activity = activities[0]
    if activity.frame is None:
        return None
    finding = load_cause(activity.code).finding(
        f"all ranks stand at the same line, and none is in a collective: each {activity.doing}",
        certain=False,
        culprits=tuple(place_at(job.ranks[rank], activity.frame) for rank in living),
        why=f"{activity.why or 'what they wait for is outside the job: a file, a lock, a server, another program'}; they have been{at(activity.frame)} for {seconds_text(quiet_s)}",
    )
    return finding if quiet_s > _LONG_S else finding.with_severity("info")


def activity_of(job: JobEvidence, rank: RankEvidence, book: SourceBook) -> Activity:
    """The first explanation that fits, from the hardest evidence to the softest."""
    look = _Look(job, rank, book)
    for explain in (
        _stopped, _retried, _file_lock, _library_lock, _dataloader, _dead_thread, _process_pool, _lock, _child, _pipe, _socket, _sleep, _busy,
        _held_up_by_machine, _in_kernel,
    ):  # fmt: skip
        activity = explain(look)
        if activity is not None:
            return activity
    moves = _has_moved(rank)
    return Activity("RW314", "is elsewhere, and moves" if moves else "is stuck", look.here, moves=moves)


class _Look:
    """One rank, its stack, and the user's line that it is at."""

    def __init__(self, job: JobEvidence, rank: RankEvidence, book: SourceBook) -> None:
        self.job, self.rank, self.book = job, rank, book
        thread, stack = main_thread(rank), main_stack(rank)
        self.frames = thread.frames if thread is not None else ()
        self.owns_gil = thread is not None and thread.owns_gil
        self.here = stack[0] if stack else None
        self.text = book.line_text(self.here.file, self.here.line) if self.here else ""
        self.cpu = _cpu_rate(rank)

    @property
    def top_file(self) -> str:
        return os.path.basename(self.frames[0].file) if self.frames else ""

    def is_at(self, pattern: re.Pattern[str]) -> bool:
        """Whether the rank is in a C function that the user's own line called, and that line matches."""
        return self.here is not None and self.frames[0] == self.here and pattern.search(self.text) is not None


# -- one explanation each -----------------------------------------------------------------------------------------------------


def _stopped(look: _Look) -> Activity | None:
    rank = look.rank
    if not rank.samples or rank.samples[-1].state not in ("T", "t"):
        return None
    sender = next((s for s in reversed(rank.signals) if s.target == rank.pid and s.signal in (signals.SIGSTOP, signals.SIGTSTP)), None)
    by = f"; process {sender.by} sent it" if sender else ""
    why = f"the process is in state T (stopped, paused): SIGSTOP or a debugger holds it{by}; kill -CONT {rank.pid} lets it go on"
    return Activity("RW311", "is stopped by a signal (SIGSTOP, state T)", look.here, why, certain=True)


def _retried(look: _Look) -> Activity | None:
    """A DataLoader worker raises the same exception again and again, which the rank catches and tries again."""
    again = [caught for caught in look.rank.caught if caught.times > 2 and caught.time_ns >= look.rank.last_call_ns]
    if not again:
        return None
    last = max(again, key=lambda caught: caught.time_ns)
    why = f"{_short(last.message)}; {last.times} times since its last call, and it goes on trying: the exception is caught{at(look.here)} and swallowed"
    doing = f"raises {last.type} again and again in its DataLoader worker, and retries"
    return Activity("RW316", doing, user_frame(last.stack) or look.here, why)


def _file_lock(look: _Look) -> Activity | None:
    if not look.rank.locks:
        return None
    lock = look.rank.locks[0]
    holder = next((r for r, e in look.job.ranks.items() if lock.holder is not None and e.pid == lock.holder), None)
    doing = f"waits for the file lock on {os.path.basename(lock.path) or 'a file'} (flock)"
    if holder is None:
        return Activity("RW304", f"{doing}, held by {f'process {lock.holder}' if lock.holder else 'another process'}", look.here)
    doing += f" that rank {holder} holds"
    if not any(call.is_open for call in look.job.ranks[holder].calls):
        return Activity("RW304", doing, look.here)
    why = f"rank {holder} holds the lock and waits itself: it took the lock and then entered a collective (barrier) that needs rank {look.rank.rank}"
    return Activity("RW304", doing, look.here, why, with_ranks=(holder,), certain=True, deadlock=True)


def _library_lock(look: _Look) -> Activity | None:
    """Libraries that try a lock again and again (filelock, portalocker, fasteners) are not in the kernel's list of waiters."""
    library = next((name for f in look.frames for name in _LOCK_LIBRARIES if f"/{name}/" in f.file), "")
    if not library or look.here is None:
        return None
    why = f"the line: {look.text}; the process that holds the lock does not release it"
    return Activity("RW304", f"waits for a file lock ({library})", look.here, why)


def _dataloader(look: _Look) -> Activity | None:
    helpers, fetches = look.rank.helpers, ("_try_get_data", "_get_data", "_next_data")
    if not any(f.function in fetches and "dataloader" in f.file for f in look.frames):
        return None
    fetching = next((f for f in look.frames if is_user_file(f.file)), None)
    workers = [helper for helper in helpers if helper.is_dataloader_worker]
    if not workers and not any(part in f.file for f in look.frames[:8] for part in ("multiprocessing", "queue", "connection")):
        return None  # loading in the main process: look at the frame itself
    dead = [helper for helper in helpers if helper.ended is not None and helper.is_python and helper.state == ""]
    alive = [worker for worker in workers if worker.state not in ("", "Z")]
    if not alive and (starting := [helper for helper in helpers if _is_starting(helper)]):
        doing = f"waits for its DataLoader workers: process {starting[0].pid} is still starting"
        return Activity("RW307", doing, fetching, moves=any(helper.state in _AT_WORK for helper in starting))
    if not alive or (dead and not any(_worker_frame(worker) for worker in alive)):
        which = f" (process {dead[0].pid} is gone)" if dead else ""
        return Activity("RW308", f"waits for a DataLoader worker that is dead{which}", fetching)
    for worker in alive:
        doing = f"waits for its DataLoader worker (process {worker.pid}), which"
        if worker.state in ("T", "t"):
            return Activity("RW307", f"{doing} is stopped by a signal", fetching, certain=True)
        own = _worker_frame(worker)
        if own is None:
            continue
        line, frames = look.book.line_text(own.file, own.line), _frames_of(worker)
        if _LOCK_LINE.search(line) or (frames and os.path.basename(frames[0].file) == "threading.py"):
            why = "either the lock was held when the worker was forked, and no thread in the child can release it, or the worker took it before"
            return Activity("RW309", f"{doing} waits for a lock", own, why)
        return Activity("RW307", f"{doing} is stuck in {own.function}()", own, f"the worker's line: {line}" if line else "")
    return Activity("RW307", "waits for its DataLoader workers", fetching)


def _dead_thread(look: _Look) -> Activity | None:
    died = [raised for raised in look.rank.raised if raised.thread != "MainThread"]
    if not died or look.top_file not in ("threading.py", "queue.py", "_base.py", "connection.py"):
        return None
    last = died[-1]
    why = f"thread {last.thread} died of {last.type}: {_short(last.message)}{at(user_frame(last.stack))}; no thread is left to wake the main one"
    return Activity("RW312", f"waits for its helper thread {last.thread}, which is dead", look.here, why)


def _process_pool(look: _Look) -> Activity | None:
    """The rank waits for the result of a process pool. One of its processes may have died with its task."""
    if not any(f.file.endswith(("multiprocessing/pool.py", "futures/process.py")) for f in look.frames[:8]):
        return None
    dead = [(helper.pid, helper.ended.signal) for helper in look.rank.helpers if helper.ended is not None and not ended_well(helper.ended)]
    if not dead:
        return Activity("RW315", "waits for the worker processes of its pool", look.here)
    pid, signal = dead[0]
    how = f"was killed by {signal_name(signal)}" if signal else "is gone"
    why = f"process {pid} of the pool {how}; multiprocessing.Pool starts another one, but never gives it the lost task"
    return Activity("RW315", f"waits for a result that a worker process of its pool ({pid}) took with it", look.here, why)


def _lock(look: _Look) -> Activity | None:
    in_threading = look.top_file in ("threading.py", "queue.py", "synchronize.py", "_base.py")
    if look.cpu >= 0.2 or not (in_threading or look.is_at(_LOCK_LINE)):
        return None
    what = {"queue.py": "an item in a queue", "_base.py": "the result of a future"}.get(look.top_file, "a lock (or another thread)")
    others = [
        f"thread {t.name or 'unnamed'} is{at(f)}"
        for t in look.rank.threads
        if not t.is_main and (f := user_frame(t.frames)) is not None and _LOCK_LINE.search(look.book.line_text(f.file, f.line))
    ]
    why = "; ".join(others[:3]) + (": the threads hold what the other wants" if others else "")
    return Activity("RW303", f"waits for {what}", look.here, why)


def _child(look: _Look) -> Activity | None:
    in_wait = any(
        (f.function in ("wait", "_wait", "communicate", "_communicate", "_try_wait") and f.file.endswith("subprocess.py"))
        or (f.function in ("join", "wait", "poll") and ("popen_fork" in f.file or f.file.endswith("multiprocessing/process.py")))
        for f in look.frames[:6]
    )
    if look.here is None or not (in_wait or look.is_at(_CHILD_LINE)):
        return None
    mine = [helper for helper in look.rank.helpers if helper.parent == look.rank.pid and not helper.is_dataloader_worker]
    children = [helper for helper in mine if helper.state not in ("", "Z")]
    if not children:
        return Activity("RW315", "waits for a child process", look.here) if in_wait else None
    child = children[-1]
    frame = user_frame(_frames_of(child))
    doing = f"waits for its child process {child.pid} ({_short(child.command, 36)})"
    return Activity("RW315", doing, look.here, f"the child is{at(frame)}" if frame else "")


def _pipe(look: _Look) -> Activity | None:
    in_connection = any(f.file.endswith(("multiprocessing/connection.py", "multiprocessing/queues.py")) for f in look.frames[:6])
    if look.here is None or look.cpu > 0.2 or not (in_connection or look.is_at(_PIPE_LINE)):
        return None
    return Activity("RW305", "waits for data on a pipe or queue that nobody writes to", look.here)


def _socket(look: _Look) -> Activity | None:
    in_network = any(
        os.path.basename(f.file) in ("socket.py", "ssl.py", "selectors.py")
        or any(part in f.file for part in ("/http/", "urllib", "asyncio"))
        for f in look.frames[:6]
    )
    if not look.rank.threads or look.cpu > 0.2 or not (in_network or _SOCKET_LINE.search(look.text)):
        return None
    ours = {evidence.pid for evidence in look.job.ranks.values()}
    peers = [peer for peer in look.rank.connections if peer.status == "ESTABLISHED" and (peer.pid is None or peer.pid not in ours)]
    peer = f" to {peers[-1].remote}" if peers else ""
    doing = f"waits for an answer on a network connection (socket{peer})"
    return Activity("RW306", doing, look.here, "there is no timeout on it" if peer else "")


def _sleep(look: _Look) -> Activity | None:
    if look.here is None or "sleep(" not in look.text or look.cpu > 0.5:
        return None
    # A thread that is blocked for good has no context switches.
    wakes = _per_second(look.rank.samples[-16:], lambda sample: sample.switches) > 0.5
    doing = "sleeps and wakes again and again" if wakes else "sleeps (time.sleep)"
    polls = look.book.file_polled_at(look.here.file, look.here.line) if wakes else ""
    return Activity("RW302", doing, look.here, moves=wakes, polls=polls)


def _busy(look: _Look) -> Activity | None:
    rank, here, text = look.rank, look.here, look.text
    if look.cpu < 0.5 and not _always_running(rank):
        return None
    before, now = user_frames(_frames(rank.earlier_threads)), main_stack(rank)
    if before and now and [f.function for f in before] != [f.function for f in now]:
        return Activity("RW301", "is busy", here, moves=True)
    same_place = bool(before) and _frames(rank.earlier_threads) == _frames(rank.threads)
    # Plain arithmetic on one line is a loop of the user's, not C code that does not return.
    calls_out = same_place and bool(look.frames) and re.search(r"[\w\])]\(|\*\*", text) is not None
    loop = next(iter(look.book.loops_at(here.file, here.line)), None) if here else None
    # In a loop every look may catch the same line although the loop moves; only outside of loops it shows that the call does not return.
    if calls_out and loop is None and look.owns_gil:
        why = f"the same line for every look, at {look.cpu:.0%} CPU and holding the GIL: C code (a regular expression, big numbers) that does not return: {text}"
        return Activity("RW310", "is inside native code that holds the GIL", here, why)
    on_gpu = bool(rank.inits) and "nccl" in rank.inits[-1].backend  # a line that waits for a GPU spins at full CPU
    if calls_out and not look.owns_gil and on_gpu:
        quiet_s = (look.job.now_ns - rank.last_progress_ns) / 1e9
        why = f"{look.cpu:.0%} CPU, always at `{_short(text, 80)}` without the GIL: it waits for its GPU, or computes in native code"
        return Activity("RW301", "is busy", here, why, moves=quiet_s < _KERNEL_S)
    where = f" in the loop of line {loop.start}" if loop else ""
    seen = (
        f"; at every look it was at `{_short(text, 80)}`: a loop that goes on, or a call in it that does not return"
        if same_place and text
        else ""
    )
    return Activity("RW301", f"is busy{where}", here, f"{look.cpu:.0%} CPU, always in {here.function}(){seen}" if here else "")


def _held_up_by_machine(look: _Look) -> Activity | None:
    if not look.rank.samples:
        return None
    last = look.rank.samples[-1]
    if last.state not in ("T", "t") and _bytes_moved(look.rank) > _SOME_BYTES:
        return Activity("RW314", "reads or writes files", look.here, moves=True)
    if last.state == "D" or last.swap > (256 << 20):
        return Activity("RW313", f"is held up by the machine (state {last.state}, {bytes_text(last.swap)} swapped out)", look.here)
    return None


def _in_kernel(look: _Look) -> Activity | None:
    found = kernel_wait(look.rank)
    if found is None or look.cpu > 0.2:
        return None
    return Activity(*found, look.here, f"the kernel has it in {look.rank.samples[-1].wchan}")


# -- measures -----------------------------------------------------------------------------------------------------------------


def _frames(threads: tuple[Thread, ...]) -> Stack:
    return next((t.frames for t in threads if t.is_main), ())


def _cpu_rate(rank: RankEvidence) -> float:
    """CPU seconds per second over the last samples."""
    return _per_second(rank.samples[-6:], lambda sample: sample.cpu_s)


def _per_second(samples: tuple[Sample, ...], count: Callable[[Sample], float]) -> float:
    seconds = (samples[-1].time_ns - samples[0].time_ns) / 1e9 if samples else 0.0
    return (count(samples[-1]) - count(samples[0])) / seconds if seconds > 0 else 0.0


def _is_computing(rank: RankEvidence) -> bool:
    """Whether the rank uses the CPU, or waits for helper processes that are just starting."""
    return _cpu_rate(rank) > 0.2 or _always_running(rank) or any(_is_starting(h) and h.state in _AT_WORK for h in rank.helpers)


def _bytes_moved(rank: RankEvidence) -> int:
    """Bytes read and written over the last seconds: a checkpoint being written is progress."""
    samples = rank.samples[-3:]
    if len(samples) < 2:
        return 0
    return samples[-1].read_bytes + samples[-1].written_bytes - samples[0].read_bytes - samples[0].written_bytes


def _always_running(rank: RankEvidence) -> bool:
    """On a crowded machine a busy rank gets little CPU, but it is always ready to run."""
    states = [sample.state for sample in rank.samples[-8:]]
    return len(states) >= 3 and states.count("R") / len(states) > 0.7


def _has_moved(rank: RankEvidence) -> bool:
    before, now = user_frames(_frames(rank.earlier_threads)), main_stack(rank)
    return bool(before and now) and before != now


def _movement(rank: RankEvidence) -> str:
    if not main_stack(rank):
        return "its stack could not be read"
    moved = "its stack changed between two looks" if _has_moved(rank) else "its stack did not change between two looks"
    return f"{moved}, {_cpu_rate(rank):.0%} CPU"


def _frames_of(helper: Helper) -> Stack:
    return _frames(helper.threads) or (helper.threads[0].frames if helper.threads else ())


def _worker_frame(helper: Helper) -> Frame | None:
    """The line a DataLoader worker is at while it reads a sample; below its loop lie the frames of the process that forked it."""
    frames = _frames_of(helper)
    loop = next((i for i, frame in enumerate(frames) if frame.function == "_worker_loop"), len(frames))
    is_reading = any(frame.file.endswith("_utils/fetch.py") for frame in frames[:loop])
    return user_frame(frames[:loop]) or (frames[0] if is_reading else None)


def _is_starting(helper: Helper) -> bool:
    """A spawned process that has not come to its target yet: it imports everything anew, which takes seconds."""
    is_spawned = "multiprocessing.spawn" in helper.command and helper.state not in ("", "Z")
    return is_spawned and not any(frame.function == "_bootstrap" for thread in helper.threads for frame in thread.frames)


def _short(text: str, length: int = 160) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
