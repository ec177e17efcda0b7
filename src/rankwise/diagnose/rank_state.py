"""What each rank is doing: waiting for others, before its start, elsewhere, or gone."""

from __future__ import annotations

import signal
from collections.abc import Collection
from dataclasses import dataclass, replace

from rankwise.diagnose.transfers import ASYNC_P2P, unanswered_transfer
from rankwise.diagnose.wording import op_text
from rankwise.evidence.collective_log import WRAPPER_CALLS, LoggedCollective
from rankwise.evidence.flight import P2P_MARK, base_group
from rankwise.evidence.frames import user_frame, user_frames
from rankwise.evidence.records import Call, Ended, Frame, JobEvidence, Raised, RankEvidence, Stack, Thread
from rankwise.findings import Place, Wait

P2P = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list"})
_ECHOES = (
    "connection closed by peer", "connection reset by peer", "broken pipe", "connection refused", "ncclremoteerror", "nccl error: remote",
    "socketprogress", "ncclsystemerror", "failed to recv, got 0 bytes", "recvvalue failed", "sendbytes failed", "gloo::ioexception",
    "gloo/transport", "transport/tcp", "application timeout caused pair closure", "was aborted", "process group has been destroyed",
    "signalexception", "store has been closed", "nccl communicator was aborted", "heartbeat monitor", "remote process exited",
)  # fmt: skip
_NEVER_ASYNC = frozenset({*WRAPPER_CALLS, "send", "recv", "monitored_barrier", "new_group", "init_process_group", "destroy_process_group"})
_RECORDED = frozenset({"all_reduce", "broadcast", "all_gather", "barrier"})  # by torch, on every backend
_WATCHDOG = ("watchdog caught collective operation timeout", "watchdog got stuck", "heartbeat monitor", "heartbeatmonitor")
_TIMEOUTS = ("timed out", "timeout", "monitoredbarrier")
_ECHO_TYPES = frozenset({"RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError", "DistError", "SignalException"})


@dataclass(frozen=True)
class RankState:
    """One rank at the moment of the evidence. kind: waiting, init, before_init, busy, ended."""

    rank: int
    kind: str
    op: str = ""
    group: str = "0"
    seq: int | None = None
    peer: int | None = None
    stack: Stack = ()  # user frames, innermost first
    since_ns: int = 0
    inside: str = ""  # forward, backward or ddp: what DDP was doing
    is_echo: bool = False  # the rank is gone, but only because the one it waited for was

    @property
    def frame(self) -> Frame | None:
        return self.stack[0] if self.stack else None

    @property
    def op_text(self) -> str:
        """The operation as a user knows it."""
        return op_text(self.op, self.inside)


class RankStates(dict[int, RankState]):
    """The states of all ranks, and what was already worked out from them: with thousands of ranks nothing may be worked out twice."""

    def __init__(self, states: dict[int, RankState]) -> None:
        super().__init__(states)
        self.missing: dict[tuple[object, ...], set[int]] = {}
        self.doomed: set[int] | None = None


def rank_states(job: JobEvidence) -> RankStates:
    first = min((e.ended.time_ns for e in job.ranks.values() if e.ended and has_failed(job, e)), default=0)
    found = {rank: rank_state_of(evidence, first) for rank, evidence in job.ranks.items()}
    return RankStates({rank: _with_its_peer(job, state) for rank, state in found.items()})


def rank_state_of(rank: RankEvidence, first_failure_ns: int = 0) -> RankState:
    if not rank.alive and not _was_ended_by_others(rank, first_failure_ns):
        return _at_the_end(rank)
    if rank.alive and rank.leaving is not None and (not rank.inits or _waiting(rank) is None):
        return RankState(rank.rank, "ended", stack=user_frames(rank.leaving.stack), since_ns=rank.leaving.time_ns)
    if rank.inits and not rank.inits[-1].ended_ns:
        init = rank.inits[-1]
        return RankState(rank.rank, "init", "init_process_group", stack=user_frames(init.stack), since_ns=init.started_ns)
    if not rank.inits and (seen := _from_stack_alone(rank)) is not None:
        return seen
    if not rank.inits:
        return RankState(rank.rank, "before_init", stack=main_stack(rank), since_ns=rank.started_ns)
    return _waiting(rank) or RankState(rank.rank, "busy", stack=main_stack(rank), since_ns=rank.last_progress_ns)


def _with_its_peer(job: JobEvidence, state: RankState) -> RankState:
    """A rank that waits for several sends and receives at once waits for the one that the other side has no part in."""
    if state.kind != "waiting" or state.op not in ASYNC_P2P:
        return state
    if lists_its_transfers(job.ranks[state.rank]):
        return replace(state, op="batch_isend_irecv", peer=None)
    call = unanswered_transfer(job, state.rank)
    return replace(state, op=call.op, peer=call.peer) if call is not None else state


def lists_its_transfers(rank: RankEvidence) -> bool:
    """Whether the rank is inside batch_isend_irecv and may have more transfers to begin: NCCL's first one waits for the connection."""
    open_calls = [call.op for call in rank.calls if call.is_open]
    return "batch_isend_irecv" in open_calls and open_calls[-1] in ("isend", "irecv")


def _from_stack_alone(rank: RankEvidence) -> RankState | None:
    """The state of a rank without the probe: torch's own function on its stack tells what it waits in."""
    thread = main_thread(rank)
    inside = [f.function for f in thread.frames if f.file.endswith("torch/distributed/distributed_c10d.py")] if thread else []
    names = [name for name in inside if not name.startswith("_") and name != "wrapper"]
    if not names:
        return None
    kind = "init" if "init_process_group" in names else "waiting"
    op = "init_process_group" if kind == "init" else names[-1]
    return RankState(rank.rank, kind, op, stack=main_stack(rank), since_ns=rank.last_progress_ns or rank.started_ns)


def _was_ended_by_others(rank: RankEvidence, first_failure_ns: int) -> bool:
    """Whether the launcher ended the rank with SIGTERM after another one had failed: what it did until then still counts."""
    return rank.ended is not None and rank.ended.signal == signal.SIGTERM and 0 < first_failure_ns <= rank.ended.time_ns


def has_failed(job: JobEvidence, rank: RankEvidence) -> bool:
    """Whether the rank ended badly, so that its launcher ends the others with SIGTERM.

    A lost connection counts only if another rank had left by then: otherwise it was lost to the rank that SIGTERM ended.
    """
    ended, raised = rank.ended, first_raised(rank)
    if ended is not None and raised is not None and is_echo(raised) and not is_timeout(raised):
        others = (e.ended for e in job.ranks.values() if e is not rank and e.ended is not None and e.ended.signal != signal.SIGTERM)
        return any(other.time_ns <= ended.time_ns for other in others)
    return ended is not None and (ended.kind == "exception" or bool(ended.code) or ended.signal not in (None, signal.SIGTERM))


def end_of(rank: RankEvidence) -> Ended | None:
    """How a rank ended, or its script: then the process may still be busy with what runs at exit."""
    return rank.ended or rank.leaving


def ended_well(ended: Ended | None) -> bool:
    """Whether the process left by itself and with success."""
    return ended is not None and not ended.signal and (ended.kind == "finished" or ended.code == 0)


def main_thread(rank: RankEvidence) -> Thread | None:
    return next((thread for thread in rank.threads if thread.is_main), rank.threads[0] if rank.threads else None)


def main_stack(rank: RankEvidence) -> Stack:
    thread = main_thread(rank)
    return user_frames(thread.frames) if thread else ()


def is_echo(raised: Raised) -> bool:
    """True for errors that only say that another rank is gone or late."""
    if raised.type.rsplit(".", 1)[-1] not in _ECHO_TYPES and not raised.type.startswith("torch.distributed"):
        return False  # neither gloo nor NCCL nor the store raises OSError's family: those are the user's own connections
    text = f"{raised.type}: {raised.message}".lower()
    return any(words in text for words in _ECHOES) or is_timeout(raised)


def is_timeout(raised: Raised) -> bool:
    text = f"{raised.type}: {raised.message}".lower()
    if raised.type in ("TimeoutError", "subprocess.TimeoutExpired"):
        return False
    about_collectives = any(word in text for word in ("distributed", "gloo", "nccl", "barrier", "store", "waiting"))
    return about_collectives and any(words in text for words in _TIMEOUTS)


def gave_up(rank: RankEvidence) -> bool:
    """torch itself ended the rank because it had waited too long: gloo raises, NCCL's watchdog aborts the process."""
    raised = first_raised(rank)
    if raised is not None:
        return is_timeout(raised)
    said = rank.ended.said.lower() if rank.ended is not None else ""
    ended_by = rank.ended.signal if rank.ended is not None else None
    return ended_by in (signal.SIGABRT, signal.SIGSEGV) and any(words in said for words in _WATCHDOG)


def first_raised(rank: RankEvidence) -> Raised | None:
    """The exception that ended the rank (its main thread's), if any."""
    own = [raised for raised in rank.raised if raised.thread == "MainThread"]
    return own[-1] if own else None


def place_at(rank: RankEvidence, frame: Frame | None) -> Place:
    return Place(rank.rank, rank.host or None, rank.pid, *_spot(frame))


def wait_of(state: RankState) -> Wait:
    group = base_group(state.group)
    return Wait(state.rank, state.op, "default" if group == "0" else group, state.seq, *_spot(state.frame))


def waits_except(states: RankStates, culprits: Collection[int]) -> tuple[Wait, ...]:
    """Where every rank waits that is not a culprit."""
    return tuple(wait_of(s) for rank, s in sorted(states.items()) if rank not in culprits and s.kind in ("waiting", "init"))


def _spot(frame: Frame | None) -> tuple[str | None, int | None, str | None]:
    return (frame.file, frame.line, frame.function) if frame else (None, None, None)


def last_call_frame(rank: RankEvidence) -> Frame | None:
    """The user's line of the latest call that has one."""
    return next((frame for call in reversed(rank.calls) if (frame := user_frame(call.stack)) is not None), None)


def _in_call(rank: RankEvidence) -> RankState | None:
    """What an aborted rank was waiting in: the first collective that the recorder does not show as done."""
    pending = _pending_of(rank)
    return _from_pending(rank, pending, rank.calls[-1] if rank.calls else None) if pending is not None else None


def _waiting(rank: RankEvidence) -> RankState | None:
    """The state of a rank that is in a collective, a send or a recv: by the recorder's pending entries and the open calls."""
    open_calls = [call for call in rank.calls if call.is_open and not _is_helper_threads(rank, call)]
    innermost = open_calls[-1] if open_calls else None
    pending = _pending_of(rank)
    if innermost is not None and innermost.op == "destroy_process_group" and pending is not None and _on_nccl(rank):
        return _from_pending(rank, pending, None)  # it waits for what is still queued on the GPU
    if innermost is not None and innermost.op in P2P | {"new_group", "monitored_barrier", "destroy_process_group"}:
        return _from_call(rank, innermost)
    if pending is not None and (innermost is not None or _on_nccl(rank) or _looks_idle(rank)):
        return _from_pending(rank, pending, innermost)
    if innermost is not None and (innermost.op not in WRAPPER_CALLS or _is_comparing_models(rank, innermost)):
        return _from_call(rank, innermost)
    if innermost is not None and (rank.collectives.is_partial or _is_of_before(rank)) and _looks_idle(rank):
        return _from_call(rank, innermost)
    return _in_p2p_wait(rank)


def _is_comparing_models(rank: RankEvidence, call: Call) -> bool:
    """DDP's constructor begins with collectives; the first one of NCCL is not in torch's record before all ranks are connected."""
    thread = main_thread(rank)
    return call.op == "ddp" and thread is not None and bool(thread.frames) and thread.frames[0].file.endswith("torch/distributed/utils.py")


def _from_pending(rank: RankEvidence, pending: LoggedCollective, call: Call | None) -> RankState:
    inside = pending.origin if pending.origin in WRAPPER_CALLS else ""
    stack = user_frames(rank.collectives.stack_of(pending)) or (user_frames(call.stack) if call else main_stack(rank))
    what = pending.what
    group = what.group.removesuffix(P2P_MARK)
    return RankState(rank.rank, "waiting", what.op, group, pending.seq, what.peer, stack, pending.created_ns, inside)


def _on_nccl(rank: RankEvidence) -> bool:
    """Whether the rank uses NCCL, where a pending collective waits on the GPU whatever the main thread does (it may spin in a synchronize)."""
    return "nccl" in rank.inits[-1].backend


def _is_helper_threads(rank: RankEvidence, call: Call) -> bool:
    """Whether another thread makes this collective: then the main thread is seen at work somewhere else."""
    thread = main_thread(rank)
    frame = user_frame(call.stack)
    if thread is None or frame is None or not thread.is_active or _looks_idle(rank):
        return False
    return (frame.file, frame.function) not in {(f.file, f.function) for f in thread.frames}


def _pending_of(rank: RankEvidence) -> LoggedCollective | None:
    """The first entry that is not done and that no later one has overtaken. Works on the arrays, because in most logs all are done."""
    log = rank.collectives
    first = log.done.find(0)
    if first < 0 or _is_of_before(rank):
        return None
    pending = [i for i in range(first, len(log)) if not log.done[i]]
    newest_done = max((log.created_ns[i] for i in range(first, len(log)) if log.done[i]), default=0)
    current = [i for i in pending if log.created_ns[i] >= newest_done] or pending[-1:]
    return log[current[0]]


def _is_of_before(rank: RankEvidence) -> bool:
    """Whether torch's record is that of an earlier look: the rank has since ended a collective that is not in it."""
    log, own = rank.collectives, {"0", *(made.name for made in rank.groups if rank.rank in made.ranks)}
    last = next((call for call in reversed(rank.calls) if call.op in _RECORDED and call.group in own and not call.is_open), None)
    return last is not None and len(log) > 0 and not log.is_partial and not last.failed and log.created_ns[-1] < last.started_ns


def _from_call(rank: RankEvidence, call: Call, echo: bool = False) -> RankState:
    inside = call.op if call.op in WRAPPER_CALLS else ""
    op = WRAPPER_CALLS.get(call.op, call.op)
    stack = user_frames(call.stack)
    return RankState(rank.rank, "waiting", op, call.group, None, call.peer, stack, call.started_ns, inside, is_echo=echo)


def _in_p2p_wait(rank: RankEvidence) -> RankState | None:
    """The state of a rank in wait() of an `isend` or `irecv`, which shows only as an idle main thread right after the call."""
    last = rank.calls[-1] if rank.calls else None
    if last is None or last.op not in ASYNC_P2P or not _looks_idle(rank):
        return None
    thread = main_thread(rank)
    if thread is None or not _is_own_line(thread.frames):
        return None
    return replace(_from_call(rank, last), stack=main_stack(rank) or user_frames(last.stack))


def _is_own_line(stack: Stack) -> bool:
    """Whether the rank is in a C function that the user's own line called, as wait() is."""
    return bool(stack) and stack[0] == user_frame(stack)


def _looks_idle(rank: RankEvidence) -> bool:
    """The process used next to no CPU over its last samples, and its main thread is not at work."""
    thread = main_thread(rank)
    samples = rank.samples[-4:]
    if len(samples) >= 2:
        seconds = max((samples[-1].time_ns - samples[0].time_ns) / 1e9, 0.1)
        return (samples[-1].cpu_s - samples[0].cpu_s) / seconds < 0.25
    return thread is None or not thread.is_active


def _at_the_end(rank: RankEvidence) -> RankState:
    """The state of a rank that is gone: one that failed only because another was gone counts as waiting where it was."""
    ended = rank.ended or Ended("vanished", rank.last_progress_ns)
    raised = first_raised(rank)
    failed = _last_unfinished(rank)
    if raised is None and gave_up(rank):
        return replace(_in_call(rank) or RankState(rank.rank, "waiting", "unknown", stack=user_frames(ended.stack)), is_echo=True)
    if raised is not None and is_echo(raised) and ended.kind in ("exception", "sys_exit", "vanished"):
        if failed is not None:
            echo = _from_call(rank, failed, echo=True)
            pending = _pending_of(rank)
            if pending is not None and failed.op in WRAPPER_CALLS:
                echo = replace(echo, op=pending.what.op, group=pending.what.group, peer=None)
            return replace(echo, seq=pending.seq) if pending is not None else echo
        if rank.inits and rank.inits[-1].error:
            init = rank.inits[-1]
            return RankState(rank.rank, "init", "init_process_group", stack=user_frames(init.stack), since_ns=init.started_ns, is_echo=True)
        last = rank.calls[-1] if rank.calls else None
        if last is not None and last.op not in _NEVER_ASYNC and _is_own_line(raised.stack):  # wait() of what a call with async_op returned
            return replace(_from_call(rank, last, echo=True), stack=user_frames(raised.stack))
        return RankState(rank.rank, "waiting", "unknown", stack=user_frames(raised.stack), since_ns=raised.time_ns, is_echo=True)
    stack = user_frames(ended.stack) or (user_frames(raised.stack) if raised else ())
    return RankState(rank.rank, "ended", stack=stack, since_ns=ended.time_ns)


def _last_unfinished(rank: RankEvidence) -> Call | None:
    """The innermost of the calls that were open or failed last."""
    unfinished = [call for call in rank.calls if call.is_open or call.failed]
    if unfinished and unfinished[-1].op in ("init_process_group", "destroy_process_group"):
        unfinished.pop()
    return unfinished[-1] if unfinished else None
