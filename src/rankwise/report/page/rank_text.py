"""What one rank is doing, in words: state, place, since when, last collective."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rankwise.evidence.collective_log import LoggedCollective
from rankwise.evidence.records import Ended, Frame, RankEvidence
from rankwise.findings import signal_name
from rankwise.report.page.markup import Html, classes, tag
from rankwise.report.page.reported_job import ReportedJob, main_stack, user_stack
from rankwise.report.places import op_text

_ORIGINS = {"forward": "DDP forward", "backward": "DDP backward", "ddp": "DDP", "fsdp_forward": "FSDP forward"}
_MAX_UNSEEN = 8192  # a limit, because damaged evidence may hold any world size
_LONGEST_S = 10 * 365 * 86400


@dataclass(frozen=True)
class RankRow:
    """One rank's row; `tone` is its colour: wait, busy, ended, failed, stopped or unseen."""

    rank: int
    state: str
    tone: str
    frame: Frame | None = None
    since_s: float | None = None
    last: str = ""
    is_pending: bool = False
    pid: int | None = None
    host: str = ""
    rss: int = 0
    is_culprit: bool = False


def rank_states(reported: ReportedJob) -> list[RankRow]:
    """A row per rank that was seen, then one per rank of the world size that was not seen."""
    seen = [_seen(reported, reported.job.ranks[rank]) for rank in sorted(reported.job.ranks)]
    unseen = (RankRow(rank, "never seen", "unseen", is_culprit=rank in reported.culprits) for rank in _missing(reported))
    return sorted([*seen, *unseen], key=lambda state: state.rank)


def state_mark(state: RankRow) -> Html:
    """The state as a coloured dot and words. Only a short state is kept on one line, because the name of an exception may be long."""
    return tag("span", state.state, class_=classes("state", state.tone, "whole" if len(state.state) < 26 else ""))


def _seen(reported: ReportedJob, rank: RankEvidence) -> RankRow:
    pending, last = _pending_and_last(rank)
    state, tone, since_ns = _state(reported, rank, pending)
    stack = user_stack(main_stack(rank))
    return RankRow(
        rank=rank.rank,
        state=state,
        tone=tone,
        frame=stack[0] if stack else None,
        since_s=_age_s(reported.job.now_ns, since_ns, rank.last_progress_ns),
        last=_entry_text(last) if last else _call_text(rank),
        is_pending=last is not None and not last.done,
        pid=rank.pid,
        host=rank.host,
        rss=rank.samples[-1].rss if rank.samples else 0,
        is_culprit=rank.rank in reported.culprits,
    )


def _state(reported: ReportedJob, rank: RankEvidence, pending: LoggedCollective | None) -> tuple[str, str, int]:
    """(state, tone, since_ns), from the surest sign to the weakest."""
    process = rank.samples[-1].state if rank.samples else ""
    moved_ns = rank.last_progress_ns
    if rank.ended:
        return _ended_text(rank), "ended" if rank.ended.kind == "finished" else "failed", rank.ended.time_ns
    if not rank.alive or process == "Z":
        return "gone", "failed", moved_ns
    if process in ("T", "t"):
        return "stopped by a signal", "stopped", moved_ns
    if rank.inits and not rank.inits[-1].ended_ns and not rank.inits[-1].error:
        return "joining", "wait", rank.inits[-1].started_ns
    if rank.rank in reported.waiting or (pending and process != "R" and (rank.rank not in reported.culprits or _is_at(rank, pending))):
        return "waiting", "wait", pending.created_ns if pending else moved_ns
    if not rank.inits and not len(rank.collectives) and not rank.calls:
        return "before init", "busy", rank.started_ns
    if process == "D":
        return "in the kernel", "busy", moved_ns
    is_running = process == "R" or any(thread.is_main and thread.is_active for thread in rank.threads)
    return ("busy" if is_running else "blocked"), "busy", moved_ns


def _is_at(rank: RankEvidence, entry: LoggedCollective) -> bool:
    """Whether the rank still is where it called this collective: a culprit may have an unfinished one behind it and be stuck elsewhere."""
    here, there = user_stack(main_stack(rank)), user_stack(tuple(rank.collectives.stack_of(entry)))
    return not here or not there or here[0] == there[0]


def _age_s(now_ns: int, *times_ns: int) -> float | None:
    """Seconds since the first of these times that makes sense."""
    ages = ((now_ns - time_ns) / 1e9 for time_ns in times_ns if time_ns)
    return next((age for age in ages if 0 <= age < _LONGEST_S), None)


def _ended_text(rank: RankEvidence) -> str:
    ended = rank.ended or Ended("vanished", 0)
    if ended.kind == "exception" and rank.raised:
        return f"raised {rank.raised[0].type}"
    if ended.kind == "signal":
        return f"killed by {signal_name(ended.signal or 0)}"
    words = {"finished": "finished", "exception": "raised", "sys_exit": "exited", "os_exit": "left by os._exit", "vanished": "vanished"}
    code = f" with {ended.code}" if ended.code and ended.kind in ("sys_exit", "os_exit") else ""
    return words.get(ended.kind, ended.kind) + code


def _pending_and_last(rank: RankEvidence) -> tuple[LoggedCollective | None, LoggedCollective | None]:
    """The oldest unfinished collective or None, and the one to show as the last: that one, else the newest. Reads only the log's end."""
    log = rank.collectives
    if not len(log):
        return None, None
    oldest = log.done.find(0, max(0, len(log) - 64))
    pending = log[oldest] if oldest >= 0 else None
    return pending, pending or log[len(log) - 1]


def _entry_text(entry: LoggedCollective) -> str:
    origin = _ORIGINS.get(entry.origin, "")
    return op_text(entry.what.op, entry.seq, entry.what.group) + (f" ({origin})" if origin else "")


def _call_text(rank: RankEvidence) -> str:
    return op_text(rank.calls[-1].op, None, rank.calls[-1].group) if rank.calls else ""


def _missing(reported: ReportedJob) -> Iterator[int]:
    size = reported.job.world_size or 0
    return (rank for rank in range(min(size, _MAX_UNSEEN)) if rank not in reported.job.ranks)
