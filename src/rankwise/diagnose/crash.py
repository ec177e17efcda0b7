"""A rank that crashed, was killed or exited: the first one that did not fail because of another rank, and why."""

from __future__ import annotations

import re
import signal as signals
from dataclasses import dataclass, replace

from rankwise.causes import is_cause, load_cause
from rankwise.diagnose.model_mismatch import model_difference
from rankwise.diagnose.rank_state import (
    RankStates,
    ended_well,
    first_raised,
    gave_up,
    has_failed,
    is_echo,
    last_call_frame,
    place_at,
    waits_except,
)
from rankwise.diagnose.wording import at, class_name, error_text, first_line
from rankwise.evidence.frames import is_user_file, user_frame
from rankwise.evidence.records import Ended, Frame, JobEvidence, Raised, RankEvidence
from rankwise.findings import Finding, ranks_text, signal_name
from rankwise.sizes import bytes_text
from rankwise.source.book import SourceBook

_WORKER_KILLED = re.compile(
    r"DataLoader worker \(pid\(?s?\)? (\d{1,9}(?:, ?\d{1,9})*)\).*?(killed by signal: \w+|exited unexpectedly)", re.DOTALL
)
_TRACE_LINE = re.compile(r'File "([^"]+)", line (\d{1,9}), in (\S+)')
_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "memoryerror",
    "outofmemoryerror",
    "unable to allocate",
)
_SHM = (
    "shared memory (shm)",
    "shared memory(shm)",
    "insufficient shared memory",
    "no space left on device: '/dev/shm",
    "unable to open shared memory",
    "unable to resize file",
    "out of shared memory",
    "unable to write to file </torch",
    "bus error",
)
_NCCL_SAYS = (
    ("duplicate gpu detected", "RW121", "two ranks are on the same GPU, which NCCL refuses"),
    ("no socket interface found", "RW108", "no network interface fits NCCL_SOCKET_IFNAME"),
    ("invalid device ordinal", "RW122", "this host has fewer GPUs than the number that was asked for"),
    ("bootstrap : no socket interface", "RW108", "no network interface fits NCCL_SOCKET_IFNAME"),
)
_DIRECT_CAUSE = "The above exception was the direct cause of the following exception"
_CUDA_ASYNC = ("device-side assert", "illegal memory access", "unspecified launch failure", "misaligned address", "cuda error: an illegal")
_CUDA_ASYNC_WHY = (
    "CUDA reports an error when the next call notices it: the named line is where it surfaced, the kernel that failed was started "
    "earlier. CUDA_LAUNCH_BLOCKING=1 shows the line that started it, compute-sanitizer the access itself"
)
_UNUSED = "finished reduction in the prior iteration"
_SIZE_MISMATCH = "doesn't match expected size"
_ADVICE: dict[int | None, tuple[str, ...]] = {
    signals.SIGKILL: (
        "the worker was killed, most often because memory ran out: use fewer workers, a lower prefetch_factor, smaller samples in memory",
    ),
    signals.SIGBUS: ("raise --shm-size of the container, or lower num_workers and prefetch_factor",),
    signals.SIGSEGV: ("look at the named line, or run with num_workers=0 to find the sample that crashes the library it calls",),
    signals.SIGABRT: ("look at the worker's last words in the rank's log: a library aborted it",),
}
_NATIVE = (signals.SIGSEGV, signals.SIGABRT, signals.SIGBUS, signals.SIGFPE, signals.SIGILL)
_POLITE = (signals.SIGTERM, signals.SIGINT, signals.SIGHUP)
_MODELS = ("expects same model across all ranks", "appears not to match", "inconsistent", "params in ddp")


@dataclass(frozen=True)
class _RankEnd:
    """The end of a rank that failed by itself, not because another rank was gone."""

    rank: int
    time_ns: int
    ended: Ended
    raised: Raised | None


def find_crash(job: JobEvidence, states: RankStates, book: SourceBook) -> Finding | None:
    """The root cause among the ranks that ended badly; None if none did by itself."""
    ends = sorted(_own_ends(job), key=lambda end: (end.time_ns, end.rank))
    # A rank that is only known to be gone may have ended well, so ranks that are known to have failed come first.
    ends = [end for end in ends if end.raised or end.ended.kind != "vanished" or end.ended.code] or ends
    if not ends:
        return None
    root = ends[0]
    if (found_by_session := _found_by_session(ends)) is not None:
        return found_by_session
    together = [end for end in ends if _is_same_mistake(root, end)]
    return _finding_of_exception(job, states, book, root, together) if root.raised else _finding_of_end(job, states, root)


def failed_in_collective(job: JobEvidence, crash: Finding) -> bool:
    """True if the first failure came out of a collective: gloo's abort at a wrong size, an exception below torch.distributed."""
    ranks = [place.rank for place in crash.culprits if place.rank in job.ranks]
    return load_cause(crash.code).may_echo and bool(ranks) and all(_failed_inside(job.ranks[rank]) for rank in ranks if rank is not None)


def _failed_inside(evidence: RankEvidence) -> bool:
    ended, raised = evidence.ended, first_raised(evidence)
    if raised is not None:
        frames = raised.stack[: next((i for i, frame in enumerate(raised.stack) if is_user_file(frame.file)), None)]
        return any(f"torch/{part}" in frame.file for frame in frames for part in ("distributed/", "nn/parallel/distributed"))
    return ended is not None and _SIZE_MISMATCH in ended.said


def _own_ends(job: JobEvidence) -> list[_RankEnd]:
    found = []
    for rank, evidence in job.ranks.items():
        ended = evidence.ended
        if evidence.alive or ended is None:
            continue
        raised = first_raised(evidence)
        if raised is not None and not is_echo(raised):
            found.append(_RankEnd(rank, raised.time_ns, ended, raised))
        elif raised is None and _is_bad_end(job, ended) and not gave_up(evidence):
            found.append(_RankEnd(rank, ended.time_ns, ended, None))
    return found


def _is_bad_end(job: JobEvidence, ended: Ended) -> bool:
    if ended.kind in ("sys_exit", "os_exit"):
        return bool(ended.code)
    if ended.kind == "signal":
        return ended.signal != signals.SIGTERM or not _others_failed_before(job, ended)
    return ended.kind == "vanished" and (ended.code is None or ended.code != 0) and not _others_failed_before(job, ended)


def _others_failed_before(job: JobEvidence, ended: Ended) -> bool:
    """Whether another rank failed first: torchrun then ends the rest with SIGTERM, so this end is a consequence."""
    others = (e for e in job.ranks.values() if e.ended is not None and e.ended is not ended)
    return any(other.ended.time_ns <= ended.time_ns for other in others if other.ended and has_failed(job, other))


def _is_same_mistake(a: _RankEnd, b: _RankEnd) -> bool:
    """Whether two ranks made the same mistake: same exception, same line."""
    if a.rank == b.rank:
        return True
    if a.raised is None or b.raised is None:
        return False
    return a.raised.type == b.raised.type and user_frame(a.raised.stack) == user_frame(b.raised.stack)


# -- exceptions ---------------------------------------------------------------------------------------------------------------


def _finding_of_exception(job: JobEvidence, states: RankStates, book: SourceBook, root: _RankEnd, together: list[_RankEnd]) -> Finding:
    raised = root.raised
    assert raised is not None
    text = f"{raised.type}: {raised.message}".lower()
    ranks = sorted(end.rank for end in together)
    if (special := _unused_parameters(job, states, book, raised, ranks) or _different_models(job, raised)) is not None:
        return special
    killed = _WORKER_KILLED.search(raised.message)
    if killed:
        return _worker_killed(job, states, root, int(killed[1].split(",")[0]), killed[2])
    lost = _lost_worker(job.ranks[root.rank], raised)
    if lost is not None:
        return _worker_killed(job, states, root, lost, "exited unexpectedly")
    code = "RW401"
    why = "the first exception by time; what the other ranks report came after it"
    before = " before init_process_group" if not job.ranks[root.rank].inits else ""
    failed = f"failed{before} with {error_text(raised)}{at(_raise_frame(raised))}"
    if raised.type == "KeyboardInterrupt":
        code, why = "RW409", "a user or a scheduler asked the job to end"
        failed = "was interrupted from outside (Ctrl-C, SIGINT)"
    elif any(words in text for words in _SHM):
        code, why = "RW406", "shared memory (/dev/shm) is used up" + _shm_left(job)
    elif any(words in text for words in _OUT_OF_MEMORY):
        code, why = "RW408", f"the memory ran out on this rank{_memory_text(job.ranks[root.rank])}"
    elif (prefixed := _prefixed_side(raised.message)) is not None:
        code, why = "RW411", prefixed
    elif (nccl := next(((code, words) for mark, code, words in _NCCL_SAYS if mark in text), None)) is not None:
        code, why = nccl[0], f"NCCL's own words: {_last_error(raised.message)}"
        failed = f"failed: {nccl[1]}"
    elif any(words in text for words in _CUDA_ASYNC):
        why = _CUDA_ASYNC_WHY
    if origin := _origin_of(raised):
        why = f"it came from {origin}; {why}"
    return load_cause(code).finding(
        f"{ranks_text(ranks)} {failed}",
        certain=True,
        culprits=tuple(place_at(job.ranks[end.rank], _raise_frame(end.raised) if end.raised else None) for end in together),
        waiting=waits_except(states, ranks),
        why=why,
        deadlock=True,
    )


def _origin_of(raised: Raised) -> str:
    """The last line of the first exception of a chain (`raise … from …`), which says why a step of a library failed."""
    for text in (raised.message, raised.text):
        first, chained, _ = text.partition(_DIRECT_CAUSE)
        lines = [line.strip() for line in first.splitlines() if line.strip() and not line.startswith(" ")]
        if chained and lines:
            return lines[-1][:200]
    return ""


def _last_error(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    after = [lines[i + 1] for i, line in enumerate(lines[:-1]) if line.lower().startswith("last error")]
    return (after or lines[-1:] or [""])[0][:200]


def _found_by_session(ends: list[_RankEnd]) -> Finding | None:
    """The finding that `session()` raised on every rank; one that says why a rank is missing goes before one that only says it is missing."""
    if ends[0].raised is None or class_name(ends[0].raised.type) != "StartError":
        return None
    findings = [end.raised.finding for end in ends if end.raised and class_name(end.raised.type) == "StartError"]
    known = [finding for finding in findings if finding is not None and is_cause(finding.code)]
    if not known:
        return None
    best = min(known, key=lambda finding: finding.code in ("RW101", "RW111"))
    return replace(best, deadlock=True)


def _prefixed_side(message: str) -> str | None:
    """Which side of a failed load_state_dict has a wrapper's prefix in front of its names; None if neither or both."""
    missing, _, unexpected = message.partition("Unexpected key(s)")
    if "Missing key(s) in state_dict" not in missing:
        return None
    for prefix, wrapper in (("module.", "DDP-wrapped"), ("_orig_mod.", "compiled")):
        in_model, in_checkpoint = f'"{prefix}' in missing, f'"{prefix}' in unexpected
        if in_checkpoint and not in_model:
            return f"the checkpoint was saved from a {wrapper} model, whose names all start with '{prefix}'"
        if in_model and not in_checkpoint:
            return f"the model is {wrapper} (its names start with '{prefix}'), the checkpoint was saved from one that is not"
    return None


def _unused_parameters(job: JobEvidence, states: RankStates, book: SourceBook, raised: Raised, ranks: list[int]) -> Finding | None:
    if _UNUSED not in raised.message:
        return None
    models = {rank: job.ranks[rank].models[-1] for rank in ranks if job.ranks[rank].models}
    model = next(iter(models.values()), None)
    names = list(model.unused) if model else []
    replaced = [name for name in (model.replaced if model else ()) if not names or name in names]
    frame = _raise_frame(raised)
    everyone = set(ranks) >= {rank for rank, e in job.ranks.items() if e.models}
    listed = ", ".join(names[:6]) + ("…" if len(names) > 6 else "") if names else "some parameters"
    if replaced:
        code, line = "RW217", _attribute_place(book, replaced[0], ("assign",))
        what = f"{', '.join(replaced[:6])} was replaced after DDP wrapped the model, so DDP waits for gradients that never come (unused parameters)"
        why = f"DDP still holds the old parameters; the module was modified{at(line)}, after wrapping"
    else:
        code = "RW214" if everyone else "RW215"
        line = _attribute_place(book, names[0], ("define",) if everyone else ("guarded", "use", "define")) if names else None
        named = names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "") if names else "some parameters"
        what = f"{named} got no gradient (unused parameters)" + ("" if everyone else ", unlike on the other ranks")
        why = f"{listed}: their output did not take part in the loss{at(line)}; DDP failed with '{first_line(raised.message, 70)}'{at(frame)}; it waits for every parameter unless find_unused_parameters=True"
    return load_cause(code).finding(
        f"{ranks_text(ranks)}: {what}",
        certain=True,
        culprits=tuple(place_at(job.ranks[rank], line or frame) for rank in ranks),
        waiting=waits_except(states, ranks),
        why=why,
        deadlock=True,
    )


def _different_models(job: JobEvidence, raised: Raised) -> Finding | None:
    in_ddp = any(words in raised.message.lower() for words in _MODELS) or any(
        f.function == "__init__" and "parallel/distributed" in f.file for f in raised.stack
    )
    return model_difference(job, deadlock=True) if in_ddp else None


def _lost_worker(evidence: RankEvidence, raised: Raised) -> int | None:
    """The pid of a DataLoader worker that died before the DataLoader noticed: the rank then fails with a broken connection to it."""
    is_broken = raised.type in ("ConnectionResetError", "EOFError", "BrokenPipeError", "ConnectionRefusedError")
    if not is_broken or not any("dataloader" in frame.file for frame in raised.stack):
        return None
    dead = [helper for helper in evidence.helpers if helper.ended is not None and not ended_well(helper.ended)]
    return next((helper.pid for helper in dead), 0)  # 0: the worker was gone before it was seen


def _worker_killed(job: JobEvidence, states: RankStates, root: _RankEnd, pid: int, how_it_ended: str) -> Finding:
    raised = root.raised
    assert raised is not None
    evidence = job.ranks[root.rank]
    sent = next((s for s in evidence.signals if s.target == pid), None)
    helper = next((h for h in evidence.helpers if h.pid == pid), None)
    own = user_frame(sent.stack) if sent else None
    if own is None and helper is not None and helper.ended is not None:
        own = user_frame(helper.ended.stack)
    oom = any(kill.get("pid") == pid for host in job.hosts for kill in host.oom_kills)
    how = "; the kernel killed it because memory ran out" if oom else ""
    name = f" ({signal_name(helper.ended.signal)})" if helper and helper.ended and helper.ended.signal else ""
    name = name or (f" ({root.ended.said})" if root.ended.said else "")
    worker = f"DataLoader worker (pid {pid})" if pid else "DataLoader worker"
    return load_cause("RW407").finding(
        f"rank {root.rank}'s {worker} was {how_it_ended.replace('exited unexpectedly', 'killed or exited unexpectedly')}{name}{at(own)}{how}",
        certain=True,
        culprits=(place_at(evidence, own or _raise_frame(raised)),),
        waiting=waits_except(states, [root.rank]),
        why="the rank fails when its worker is gone, and the other ranks lose their connection to it",
        deadlock=True,
        instead=_ADVICE.get(helper.ended.signal if helper and helper.ended else None, ()),
    )


# -- ends without an exception ------------------------------------------------------------------------------------------------


def _finding_of_end(job: JobEvidence, states: RankStates, root: _RankEnd) -> Finding:
    evidence, ended = job.ranks[root.rank], root.ended
    frame = None if ended.crashed_after_its_end else user_frame(ended.stack) or _signal_frame(evidence, ended) or last_call_frame(evidence)
    before = " before init_process_group" if not evidence.inits else ""
    number = None if ended.kind in ("sys_exit", "os_exit") or (ended.kind == "vanished" and ended.code) else ended.signal
    if number in _NATIVE:
        told = _native_crash(job, root, number, frame)
    elif number in _POLITE:
        told = _End("RW409", f"was ended from outside by {signal_name(number)}{at(frame)}", "a scheduler or a user asked it to end")
    else:
        told = _exit_or_kill(job, evidence, ended, frame, before)
    return load_cause(told.code).finding(
        told.summary or f"rank {root.rank} {told.what}",
        certain=told.certain,
        culprits=(place_at(evidence, told.frame or frame),),
        waiting=waits_except(states, [root.rank]),
        why=told.why,
        deadlock=told.deadlock,
        instead=told.instead,
    )


@dataclass(frozen=True)
class _End:
    """What the finding says of a rank that ended without an exception."""

    code: str
    what: str  # goes on after "rank N"
    why: str
    instead: tuple[str, ...] = ()
    certain: bool = True
    deadlock: bool = True
    frame: Frame | None = None
    summary: str = ""  # replaces "rank N" and `what`


def _exit_or_kill(job: JobEvidence, evidence: RankEvidence, ended: Ended, frame: Frame | None, before: str) -> _End:
    memory = _memory_text(evidence)
    if ended.kind in ("sys_exit", "os_exit"):
        call = "os._exit" if ended.kind == "os_exit" else "sys.exit"
        return _End(
            "RW402", f"left{before}: it called {call}({ended.code}){at(frame)}", "a rank that exits alone leaves the others waiting"
        )
    if ended.kind == "vanished" and ended.code:
        return _End("RW402", f"exited{before} with code {ended.code}{at(frame)}", "the process did not say why; its log may")
    if proof := _oom_proof(job, evidence):
        return _End("RW404", f"was killed by the kernel: out of memory (SIGKILL){at(frame)}", f"{proof}{memory}")
    name = signal_name(ended.signal) if ended.signal else "SIGKILL"
    if ended.by == "itself":
        why = f"its own code sent the signal{at(frame)}{memory}"
        return _End("RW403", f"killed itself with {name}{before}", why, ("look at the named line: what makes the process kill itself",))
    by = f" by {ended.by}" if ended.by else ""
    unknown = "nothing shows that memory ran out; another process killed it" if name == "SIGKILL" else f"the process does not handle {name}"
    why = f"{f'the signal came{by}' if by else unknown}{memory}"
    if ended.signal is not None:
        return _End("RW403", f"was killed by {name}{by}{before}{at(frame)}", why)
    code = f", exit code {ended.code}" if ended.code else ""
    what = f"is gone without a trace, as after SIGKILL (killed){code}{before}{at(frame)}"
    return _End("RW403", what, why, certain=False, deadlock=False)


def _native_crash(job: JobEvidence, root: _RankEnd, number: int, frame: Frame | None) -> _End:
    name, said = signal_name(number), root.ended.said
    call = next((call for call in reversed(job.ranks[root.rank].calls) if call.is_open or call.failed), None)
    op = call.op if call is not None else "a collective"
    if number == signals.SIGBUS and any(host.shm_free is not None and host.shm_free < (8 << 20) for host in job.hosts):
        return _End("RW406", f"crashed with SIGBUS{at(frame)}: /dev/shm is full", f"shared memory is used up{_shm_left(job)}")
    if _SIZE_MISMATCH in said:  # gloo checks every message it gets against the buffer it was given
        frame = user_frame(call.stack) if call is not None else frame  # the crash's own stack may be that of any thread
        why = f"the sizes (counts, splits, shapes) of its call{at(frame)} do not fit those of another rank; gloo ended the process: {said}"
        instead = ("compare what each rank called last, and with which sizes",)
        return _End("RW204", f"was sent more than it expects in {op}", why, instead, certain=False, frame=frame)
    if any(words in said.lower() for words in _CUDA_ASYNC):  # torch's watchdog thread noticed it before the main thread did
        why = f"{_CUDA_ASYNC_WHY}. Here NCCL's watchdog noticed it and ended the process with {name}"
        instead = ("run once with CUDA_LAUNCH_BLOCKING=1 to see the line that started the kernel",)
        return _End("RW401", f"failed with {said[max(said.find('CUDA error'), 0) :]}{at(frame)}", why, instead)
    if "nccl error" in said.lower():
        summary = f"NCCL refused {op} on rank {root.rank}: its sizes or splits may not fit those of another rank"
        instead = ("compare the sizes and splits of the ranks' last calls",)
        return _End("RW204", "", f"NCCL's watchdog ended the process: {said}", instead, certain=False, summary=summary)
    if not root.ended.stack and not said:  # faulthandler writes no stack once the interpreter has shut down
        last = f"; its last noted call was{at(frame)}" if frame is not None else ""
        why = f"it left no Python line, as when a process crashes after its script's end{last}"
        if root.ended.crashed_after_its_end:
            why = "its script had come to its end, with success; the process crashed while it exited, so there is no Python line"
        instead = ("look at the rank's last words in its log, and end its script with dist.destroy_process_group()",)
        return _End("RW405", f"crashed in native code with {name} (signal {number})", why, instead)
    why = f"the C++ exception was: {said}" if said else "the Python line is where the crash happened; the fault is in the C code it called"
    return _End("RW405", f"crashed in native code with {name} (signal {number}){at(frame)}", why)


# -- small helpers ------------------------------------------------------------------------------------------------------------


def _raise_frame(raised: Raised | None) -> Frame | None:
    """The user's line an exception came from; for one that a DataLoader worker raised, the line in the worker."""
    if raised is None:
        return None
    if "Original Traceback" in raised.message:
        lines = [Frame(m[1], int(m[2]), m[3]) for m in _TRACE_LINE.finditer(raised.message) if is_user_file(m[1])]
        if lines:
            return lines[-1]
    return user_frame(raised.stack)


def _signal_frame(evidence: RankEvidence, ended: Ended) -> Frame | None:
    sent = [s for s in evidence.signals if s.target == evidence.pid and ended.signal in (None, s.signal)]
    return user_frame(sent[-1].stack) if sent else None


def _attribute_place(book: SourceBook, parameter: str, kinds: tuple[str, ...]) -> Frame | None:
    """Where the module attribute of a parameter like `body.aux.weight` is used, defined or replaced."""
    for attribute in reversed(parameter.split(".")[:-1]):
        found = book.attribute_lines(attribute)
        lines = (Frame(file, line, "") for kind in kinds for file, line, what in found if what == kind)
        if (first := next(lines, None)) is not None:
            return first
    return None


def _oom_proof(job: JobEvidence, evidence: RankEvidence) -> str:
    for host in job.hosts:
        for kill in host.oom_kills:
            if kill.get("pid") == evidence.pid:
                return "the kernel log says so"
            if kill.get("cgroup") and host.name == evidence.host:
                return "the memory limit of the cgroup was hit while it ran"
    return ""


def _memory_text(evidence: RankEvidence) -> str:
    if not evidence.samples:
        return ""
    rss = [sample.rss for sample in evidence.samples]
    return f"; its memory went from {bytes_text(rss[0])} to {bytes_text(rss[-1])} (peak {bytes_text(max(rss))})"


def _shm_left(job: JobEvidence) -> str:
    free = [host.shm_free for host in job.hosts if host.shm_free is not None]
    return f" ({bytes_text(free[0])} free now)" if free else ""
