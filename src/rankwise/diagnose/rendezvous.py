"""A launcher that waits for other nodes: no rank exists yet, so nobody else can tell."""

from __future__ import annotations

from rankwise.causes import load_cause
from rankwise.diagnose.wording import seconds_text
from rankwise.evidence.records import Helper, JobEvidence
from rankwise.findings import Finding


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
