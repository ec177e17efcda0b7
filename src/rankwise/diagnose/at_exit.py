"""Ranks whose script is over and whose process does not end: what holds them at exit."""

from __future__ import annotations

from rankwise.causes import load_cause
from rankwise.diagnose.rank_state import end_of, place_at
from rankwise.diagnose.stuck import activity_of
from rankwise.diagnose.wording import at, seconds_text, verb
from rankwise.evidence.frames import user_frame
from rankwise.evidence.records import JobEvidence
from rankwise.findings import Finding, ranks_text
from rankwise.source.book import SourceBook


def find_stuck_at_exit(job: JobEvidence, book: SourceBook) -> Finding | None:
    """All ranks have come to the end of their script, some are still there, and have not moved for long."""
    living = [rank for rank, evidence in sorted(job.ranks.items()) if evidence.alive]
    ends = {rank: end for rank in living if (end := end_of(job.ranks[rank])) is not None}
    if not living or len(ends) < len(living):
        return None
    since_s = (job.now_ns - max(max(end.time_ns, job.ranks[rank].last_progress_ns) for rank, end in ends.items())) / 1e9
    if since_s < job.stall_after_s:
        return None
    activity = activity_of(job, job.ranks[living[0]], book)
    threads = [
        (thread.name, frame) for thread in job.ranks[living[0]].threads if not thread.is_main and (frame := user_frame(thread.frames))
    ]
    threads_text = "; ".join(f"thread {name or 'unnamed'} is{at(frame)}" for name, frame in threads[:3])
    gone = [rank for rank in job.ranks if rank not in living]
    rest = f"; {verb(gone, 'has', 'have')} ended" if gone else ""
    return load_cause("RW317").finding(
        f"{ranks_text(living)} {'hangs' if len(living) == 1 else 'hang'} at exit: {activity.doing}{rest}",
        certain=False,
        culprits=tuple(place_at(job.ranks[rank], activity.frame or (threads[0][1] if threads else None)) for rank in living),
        why=f"the script is over, and for {seconds_text(since_s)} the process does not end: what runs at exit (atexit, threads that are joined, "
        f"queues, pools) does not return{''.join(f'; {part}' for part in (activity.why, threads_text) if part)}",
    )
