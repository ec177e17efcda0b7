"""A rank that is stuck elsewhere: what it is doing instead of joining the others, read off its stack, its state and its helpers."""

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
from rankwise.evidence.records import Frame, Helper, JobEvidence, RankEvidence, Sample, Thread
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
_CHILD_LINE = re.compile(r"\.wait\(\)|\.communicate\(|subprocess\.|check_call|check_output|os\.wait|os\.system")


@dataclass(frozen=True)
class Activity:
    """What a rank is doing: the cause it points to, in words, and the line."""

    code: str
    doing: str
    frame: Frame | None
    why: str = ""
    moves: bool = False
    polls: str = ""  # the condition about a file that it looks at again and again, asleep in between
    with_ranks: tuple[int, ...] = ()  # ranks that share the blame (the holder of a lock)
    certain: bool = False
    deadlock: bool = False


def find_stuck(job: JobEvidence, states: RankStates, book: SourceBook) -> list[Finding]:
    """One finding per rank that others wait for and that is not on its way in any collective."""
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
        if activity.polls and _is_nobody_at_work(job, rank, waiters):
            why = f"it looks for a file again and again (`{activity.polls}`), and nobody in the job is at work who could make it come: whoever should may wait for this rank"
            activity = replace(activity, doing="sleeps and polls for a file", why=why, moves=False)
        _, ranks, waiting_for = found.setdefault((activity.code, activity.frame), (activity, [], set()))
        ranks.append(rank)
        waiting_for.update(waiters)
    ordered = sorted(found.values(), key=lambda entry: (-len(entry[2]), min(entry[1])))
    return [_finding(job, states, book, activity, ranks, sorted(waiters - set(ranks))) for activity, ranks, waiters in ordered]


def _is_nobody_at_work(job: JobEvidence, rank: int, waiters: list[int]) -> bool:
    """All other ranks have waited long for this one, and no process of the job computes, reads or writes."""
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
    for explain in (
        _stopped,
        _retried,
        _file_lock,
        _library_lock,
        _dataloader,
        _dead_thread,
        _process_pool,
        _lock,
        _child,
        _pipe,
        _socket,
        _sleep,
        _busy,
        _held_up_by_machine,
        _in_kernel,
    ):
        activity = explain(job, rank, book)
        if activity is not None:
            return activity
    if _has_moved(rank):
        return Activity("RW314", "is elsewhere, and moves", _current_line(rank), moves=True)
    return Activity("RW314", "is stuck", _current_line(rank))


# -- one explanation each -----------------------------------------------------------------------------------------------------


def _stopped(job: JobEvidence, rank: RankEvidence, book: SourceBook) -> Activity | None:
    if not rank.samples or rank.samples[-1].state not in ("T", "t"):
        return None
    sender = next((s for s in reversed(rank.signals) if s.target == rank.pid and s.signal in (signals.SIGSTOP, signals.SIGTSTP)), None)
    by = f"; process {sender.by} sent it" if sender else ""
    why = f"the process is in state T (stopped, paused): SIGSTOP or a debugger holds it{by}; kill -CONT {rank.pid} lets it go on"
    return Activity("RW311", "is stopped by a signal (SIGSTOP, state T)", _current_line(rank), why, certain=True)


def _retried(job: JobEvidence, rank: RankEvidence, book: SourceBook) -> Activity | None:
    """A DataLoader worker raises the same exception again and again, which the rank catches and tries again."""
    again = [caught for caught in rank.caught if caught.times > 2 and caught.time_ns >= rank.last_call_ns]
    if not again:
        return None
    last = max(again, key=lambda caught: caught.time_ns)
    why = f"{_short(last.message)}; {last.times} times since its last call, and it goes on trying: the exception is caught{at(_current_line(rank))} and swallowed"
    return Activity(
        "RW316",
        f"raises {last.type} again and again in its DataLoader worker, and retries",
        user_frame(last.stack) or _current_line(rank),
        why,
    )


def _file_lock(job: JobEvidence, rank: RankEvidence, book: SourceBook) -> Activity | None:
    if not rank.locks:
        return None
    lock = rank.locks[0]
    holder = next((r for r, e in job.ranks.items() if lock.holder is not None and e.pid == lock.holder), None)
    name = os.path.basename(lock.path) or "a file"
    if holder is None:
        by = f"process {lock.holder}" if lock.holder else "another process"
        return Activity("RW304", f"waits for the file lock on {name} (flock), held by {by}", _current_line(rank))
    if not any(call.is_open for call in job.ranks[holder].calls):
        return Activity("RW304", f"waits for the file lock on {name} (flock) that rank {holder} holds", _current_line(rank))
    why = f"rank {holder} holds the lock and waits itself: it took the lock and then entered a collective (barrier) that needs rank {rank.rank}"
    return Activity(
        "RW304", f"waits for the file lock on {name} (flock) that rank {holder} holds", _current_line(rank), why,
        with_ranks=(holder,), certain=True, deadlock=True,
    )  # fmt: skip


def _library_lock(job: JobEvidence, rank: RankEvidence, book: SourceBook) -> Activity | None:
    """Libraries that try a lock again and again (filelock, portalocker, fasteners) are not in the kernel's list of waiters."""
    thread = main_thread(rank)
    library = next((name for f in (thread.frames if thread else ()) for name in _LOCK_LIBRARIES if f"/{name}/" in f.file), "")
    here = _current_line(rank)
    if not library or here is None:
        return None
    why = f"the line: {book.line_text(here.file, here.line)}; whoever holds the lock does not let go of it"
    return Activity("RW304", f"waits for a file lock ({library})", here, why)


def _dataloader(job: JobEvidence, rank: RankEvidence, book: SourceBook) -> Activity | None:
    thread = main_thread(rank)
    if thread is None or not any(
        f.function in ("_try_get_data", "_get_data", "_next_data") and "dataloader" in f.file for f in thread.frames
    ):
        return None
    fetching = next((f for f in thread.frames if is_user_file(f.file)), None)
    workers = [helper for helper in rank.helpers if helper.is_dataloader_worker]
    if not any("multiprocessing" in f.file or "queue" in f.file or "connection" in f.file for f in thread.frames[:8]) and not workers:
        return None  # loading in the main process: look at the frame itself
    dead = [helper for helper in rank.helpers if helper.ended is not None and helper.is_python and helper.state == ""]
    alive = [worker for worker in workers if worker.state not in ("", "Z")]
    if not alive and (starting := [helper for helper in rank.helpers if _is_starting(helper)]):
        doing = f"waits for its DataLoader workers: process {starting[0].pid} is still starting"
        return Activity("RW307", doing, fetching, moves=any(helper.state in _AT_WORK for helper in starting))
    if not alive or (dead and not any(_worker_frame(worker) for worker in alive)):
        which = f" (process {dead[0].pid} is gone)" if dead else ""
        return Activity("RW308", f"waits for a DataLoader worker that is dead{which}", fetching)
    for worker in alive:
        if worker.state in ("T", "t"):
            return Activity(
                "RW307", f"waits for its DataLoader worker (process {worker.pid}), which is stopped by a signal", fetching, certain=True
            )
        own = _worker_frame(worker)
        if own is None:
            continue
        line = book.line_text(own.file, own.line)
        top = _main_thread_of(worker)
        if _LOCK_LINE.search(line) or (top and top.frames and os.path.basename(top.frames[0].file) == "threading.py"):
            why = "the worker was forked while another thread held the lock; in the child nobody is left to release the copy"
            return Activity("RW309", f"waits for its DataLoader worker (process {worker.pid}), which waits for a lock", own, why)
        return Activity(
            "RW307",
            f"waits for its DataLoader worker (process {worker.pid}), which is stuck in {own.function}()",
            own,
            f"the worker's line: {line}" if line else "",
        )
    return Activity("RW307", "waits for its DataLoader workers", fetching)


def _dead_thread(job: JobEvidence, rank: RankEvidence, book: SourceBook) -> Activity | None:
    died = [raised for raised in rank.raised if raised.thread != "MainThread"]
    top = _top_file(rank)
    if not died or top not in ("threading.py", "queue.py", "_base.py", "connection.py"):
        return None
    last = died[-1]
    where = user_frame(last.stack)
    why = f"thread {last.thread} died of {last.type}: {_short(last.message)}{at(where)}; nobody is left to wake the main thread"
    return Activity("RW312", f"waits for its helper thread {last.thread}, which is dead", _current_line(rank), why)


def _process_pool(job: JobEvidence, rank: RankEvidence, book: SourceBook) -> Activity | None:
    """The rank waits for the result of a process pool. One of its processes may have died with its task."""
    thread = main_thread(rank)
    if thread is None or not any(f.file.endswith(("multiprocessing/pool.py", "futures/process.py")) for f in thread.frames[:8]):
        return None
    dead = [helper for helper in rank.helpers if helper.ended is not None and not ended_well(helper.ended)]
    if not dead:
        return Activity("RW315", "waits for the worker processes of its pool", _current_line(rank))
    how = f"was killed by {signal_name(dead[0].ended.signal)}" if dead[0].ended and dead[0].ended.signal else "is gone"
    why = f"process {dead[0].pid} of the pool {how}; multiprocessing.Pool starts another one, but never gives it the lost task"
    return Activity("RW315", f"waits for a result that a worker process of its pool ({dead[0].pid}) took with it", _current_line(rank), why)


def _lock(job: JobEvidence, rank: RankEvidence, book: SourceBook) -> Activity | None:
    here = _current_line(rank)
    text = book.line_text(here.file, here.line) if here else ""
    thread = main_thread(rank)
    top = _top_file(rank)
    blocked = _cpu_rate(rank) < 0.2
    in_threading = top in ("threading.py", "queue.py", "synchronize.py", "_base.py")
    direct = thread is not None and here is not None and thread.frames[0] == here and _LOCK_LINE.search(text)
    if not blocked or not (in_threading or direct):
        return None
    what = {"queue.py": "an item in a queue", "_base.py": "the result of a future"}.get(top, "a lock (or another thread)")
    others = [
        f"thread {t.name or 'unnamed'} is{at(f)}"
        for t in rank.threads
        if not t.is_main and (f := user_frame(t.frames)) is not None and _LOCK_LINE.search(book.line_text(f.file, f.line))
    ]
    why = "; ".join(others[:3]) + (": the threads hold what the other wants" if others else "")
    return Activity("RW303", f"waits for {what}", here, why)


def _child(job: JobEvidence, rank: RankEvidence, book: SourceBook) -> Activity | None:
    thread = main_thread(rank)
    here = _current_line(rank)
    if thread is None or here is None:
        return None
    in_wait = any(
        (f.function in ("wait", "_wait", "communicate", "_communicate", "_try_wait") and f.file.endswith("subprocess.py"))
        or (f.function in ("join", "wait", "poll") and ("popen_fork" in f.file or f.file.endswith("multiprocessing/process.py")))
        for f in thread.frames[:6]
    )
    if not in_wait and not (thread.frames[0] == here and _CHILD_LINE.search(book.line_text(here.file, here.line))):
        return None
    children = [
        helper for helper in rank.helpers if helper.parent == rank.pid and helper.state not in ("", "Z") and not helper.is_dataloader_worker
    ]
    if not children:
        return None if not in_wait else Activity("RW315", "waits for a child process", here)
    child = children[-1]
    frame = user_frame(_main_thread_of(child).frames) if _main_thread_of(child) else None  # type: ignore[union-attr]
    return Activity(
        "RW315", f"waits for its child process {child.pid} ({_short(child.command, 36)})", here, f"the child is{at(frame)}" if frame else ""
    )


def _pipe(job: JobEvidence, rank: RankEvidence, book: SourceBook) -> Activity | None:
    thread = main_thread(rank)
    here = _current_line(rank)
    if thread is None or here is None or _cpu_rate(rank) > 0.2:
        return None
    in_connection = any(f.file.endswith(("multiprocessing/connection.py", "multiprocessing/queues.py")) for f in thread.frames[:6])
    direct = thread.frames[0] == here and _PIPE_LINE.search(book.line_text(here.file, here.line))
    if not in_connection and not direct:
        return None
    return Activity("RW305", "waits for data on a pipe or queue that nobody writes to", here)


def _socket(job: JobEvidence, rank: RankEvidence, book: SourceBook) -> Activity | None:
    thread = main_thread(rank)
    here = _current_line(rank)
    if thread is None or _cpu_rate(rank) > 0.2:
        return None
    text = book.line_text(here.file, here.line) if here else ""
    in_network = any(
        os.path.basename(f.file) in ("socket.py", "ssl.py", "selectors.py")
        or "/http/" in f.file
        or "urllib" in f.file
        or "asyncio" in f.file
        for f in thread.frames[:6]
    )
    if not in_network and not re.search(r"\.(recv|recv_into|accept|connect|urlopen)\(|requests\.", text):
        return None
    ours = {evidence.pid for evidence in job.ranks.values()}
    peers = [peer for peer in rank.connections if peer.status == "ESTABLISHED" and (peer.pid is None or peer.pid not in ours)]
    peer = f" to {peers[-1].remote}" if peers else ""
    return Activity(
        "RW306", f"waits for an answer on a network connection (socket{peer})", here, "there is no timeout on it" if peer else ""
    )


def _sleep(job: JobEvidence, rank: RankEvidence, book: SourceBook) -> Activity | None:
    here = _current_line(rank)
    if here is None or "sleep(" not in book.line_text(here.file, here.line) or _cpu_rate(rank) > 0.5:
        return None
    wakes = _switch_rate(rank) > 0.5
    doing = "sleeps and wakes again and again" if wakes else "sleeps (time.sleep)"
    return Activity("RW302", doing, here, moves=wakes, polls=book.file_polled_at(here.file, here.line) if wakes else "")


def _busy(job: JobEvidence, rank: RankEvidence, book: SourceBook) -> Activity | None:
    if _cpu_rate(rank) < 0.5 and not _always_running(rank):
        return None
    thread = main_thread(rank)
    here = _current_line(rank)
    before, now = user_frames(_frames(rank.earlier_threads)), main_stack(rank)
    if before and now and [f.function for f in before] != [f.function for f in now]:
        return Activity("RW301", "is busy", here, moves=True)
    text = book.line_text(here.file, here.line) if here else ""
    same_place = bool(before) and _frames(rank.earlier_threads) == _frames(rank.threads)
    calls_out = (
        re.search(r"[\w\])]\(|\*\*", text) is not None
    )  # plain arithmetic on one line is a loop of the user's, not C code that does not return
    loop = next(iter(book.loops_at(here.file, here.line)), None) if here else None
    # Within a loop every look may catch the same line although the loop moves: only a line that is run once shows that its call does not return.
    native = calls_out and same_place and loop is None and thread is not None and thread.owns_gil
    if native:
        why = f"the same line for every look, at {_cpu_rate(rank):.0%} CPU and holding the GIL: C code (a regular expression, big numbers) that does not return: {text}"
        return Activity("RW310", "is inside native code that holds the GIL", here, why)
    if same_place and calls_out and thread is not None and not thread.owns_gil and _waits_for_gpu(rank):
        quiet_s = (job.now_ns - rank.last_progress_ns) / 1e9
        why = f"{_cpu_rate(rank):.0%} CPU, always at `{_short(text, 80)}` without the GIL: it waits for its GPU, or computes in native code"
        return Activity("RW301", "is busy", here, why, moves=quiet_s < _KERNEL_S)
    where = f" in the loop of line {loop.start}" if loop else ""
    seen = (
        f"; at every look it was at `{_short(text, 80)}`: a loop that goes on, or a call in it that does not return"
        if same_place and text
        else ""
    )
    return Activity("RW301", f"is busy{where}", here, f"{_cpu_rate(rank):.0%} CPU, always in {here.function}(){seen}" if here else "")


def _waits_for_gpu(rank: RankEvidence) -> bool:
    """On NCCL the job's tensors are on GPUs, and a line that waits for one spins at full CPU."""
    return bool(rank.inits) and "nccl" in rank.inits[-1].backend


def _held_up_by_machine(job: JobEvidence, rank: RankEvidence, book: SourceBook) -> Activity | None:
    if not rank.samples:
        return None
    last = rank.samples[-1]
    if last.state not in ("T", "t") and _bytes_moved(rank) > _SOME_BYTES:
        return Activity("RW314", "reads or writes files", _current_line(rank), moves=True)
    if last.state == "D" or last.swap > (256 << 20):
        return Activity(
            "RW313", f"is held up by the machine (state {last.state}, {bytes_text(last.swap)} swapped out)", _current_line(rank)
        )
    return None


def _in_kernel(job: JobEvidence, rank: RankEvidence, book: SourceBook) -> Activity | None:
    found = kernel_wait(rank)
    if found is None or _cpu_rate(rank) > 0.2:
        return None
    code, doing = found
    return Activity(code, doing, _current_line(rank), f"the kernel has it in {rank.samples[-1].wchan}")


# -- measures -----------------------------------------------------------------------------------------------------------------


def _current_line(rank: RankEvidence) -> Frame | None:
    stack = main_stack(rank)
    return stack[0] if stack else None


def _top_file(rank: RankEvidence) -> str:
    thread = main_thread(rank)
    return os.path.basename(thread.frames[0].file) if thread and thread.frames else ""


def _frames(threads: tuple[Thread, ...]) -> tuple[Frame, ...]:
    return next((t.frames for t in threads if t.is_main), ())


def _cpu_rate(rank: RankEvidence) -> float:
    """CPU seconds per second over the last samples."""
    return _per_second(rank.samples[-6:], lambda sample: sample.cpu_s)


def _switch_rate(rank: RankEvidence) -> float:
    """Context switches of the main thread per second; a thread that is blocked for good has none."""
    return _per_second(rank.samples[-16:], lambda sample: sample.switches)


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


def _main_thread_of(helper: Helper) -> Thread | None:
    return next((t for t in helper.threads if t.is_main), helper.threads[0] if helper.threads else None)


def _worker_frame(helper: Helper) -> Frame | None:
    """The line a DataLoader worker is at while it reads a sample; below its loop lie the frames of the process that forked it."""
    thread = _main_thread_of(helper)
    frames = thread.frames if thread else ()
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
