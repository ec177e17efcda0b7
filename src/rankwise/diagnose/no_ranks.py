"""No rank exists yet: the command failed before it started one, or its launcher waits for other nodes."""

from __future__ import annotations

import signal

from rankwise.causes import load_cause
from rankwise.diagnose.wording import at, seconds_text
from rankwise.evidence.frames import find_tracebacks, user_frame
from rankwise.evidence.records import Helper, JobEvidence, Raised
from rankwise.findings import Finding, Place

_MAX_SAID = 200


def find_command_failure(job: JobEvidence) -> Finding | None:
    """The finding for a command that failed before it had ranks; None while it runs, where it ended well, or had ranks."""
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
    """How the command ended; an exit code above 128 stands for a signal, as in a shell."""
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


def find_rendezvous_wait(job: JobEvidence) -> Finding | None:
    """torchrun starts no rank before every node has joined: say how many have not. A suspicion, since they may only be late."""
    waiting = [launcher for launcher in job.launchers if _is_in_rendezvous(launcher)]
    if not waiting or job.ranks or job.exit_code is not None:
        return None
    num_nodes = option_of(job.command, "--nnodes").split(":")[0]
    endpoint = option_of(job.command, "--rdzv-endpoint") or ":".join(
        filter(None, (option_of(job.command, "--master-addr"), option_of(job.command, "--master-port")))
    )
    here = [host.name for host in job.hosts] or ["this one"]
    seen = f"only {', '.join(here)} {'is' if len(here) == 1 else 'are'} here"
    waited = seconds_text((job.now_ns - job.started_ns) / 1e9)
    where = f" at {endpoint}" if endpoint else ""
    return load_cause("RW101").finding(
        f"torchrun waits for the other nodes{where}: {len(here)} of {num_nodes or 'the'} nodes joined, {seen} ({waited} so far); no rank has been started",
        certain=False,
        why="torchrun starts the ranks of a node only when all nodes have joined; a node is missing, late, or looks for the others elsewhere",
        next=(
            "start the same command on the missing node, with the same --nnodes and address",
            "or find out what is between them: rankwise check, with the same options, on every node",
        ),
    )


def _is_in_rendezvous(launcher: Helper) -> bool:
    return any(frame.function == "next_rendezvous" for thread in launcher.threads for frame in thread.frames)


def option_of(command: tuple[str, ...], name: str) -> str:
    """The value of a torchrun option, as `--name value` or `--name=value`, with dashes or underscores."""
    for i, word in enumerate(command):
        given, has_value, value = word.partition("=")
        if given.replace("_", "-") == name:
            return value if has_value else "".join(command[i + 1 : i + 2])
    return ""
