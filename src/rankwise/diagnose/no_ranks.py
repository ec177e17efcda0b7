"""A command that failed before any rank existed: its exit code and its last words are all there is to tell."""

from __future__ import annotations

import signal

from rankwise.causes import load_cause
from rankwise.diagnose.wording import at
from rankwise.evidence.frames import user_frame
from rankwise.evidence.records import JobEvidence, Raised
from rankwise.evidence.tracebacks import find_tracebacks
from rankwise.findings import Finding, Place

_MAX_SAID = 200


def find_command_failure(job: JobEvidence) -> Finding | None:
    """None while the command runs, where it ended well, and where there are ranks to speak of."""
    if not job.exit_code or job.ranks or job.duplicates:
        return None
    text = job.log_tails.get("launcher", "")
    raised = next(iter(find_tracebacks(text, job.now_ns)[-1:]), None)
    frame = user_frame(raised.stack) if raised else None
    said = _said(raised, text)
    return load_cause("RW413").finding(
        f"the command {_ended(job.exit_code)} before any rank had started{f': {said}' if said else ''}{at(frame)}",
        certain=True,
        culprits=(Place(file=frame.file, line=frame.line, function=frame.function),) if frame else (),
        why="no process of the job carried a rank or called init_process_group, so this is not about distributed training yet",
    )


def _ended(code: int) -> str:
    """As a shell says it: above 128 it was a signal."""
    try:
        return f"was ended by {signal.Signals(code - 128).name}"
    except ValueError:
        return f"ended with exit code {code}"


def _said(raised: Raised | None, text: str) -> str:
    """The exception, or else the last line that was printed."""
    if raised is not None:
        return f"{raised.type}: {raised.message}"[:_MAX_SAID] if raised.message else raised.type
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_MAX_SAID] if lines else ""
