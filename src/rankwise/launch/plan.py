"""What to run and how: separates the options of `rankwise run` from torchrun's and the script's."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwise.errors import UsageError

# torchrun's options (torch 2.13), so that the script's name can be found among them without importing torch.
TORCHRUN_VALUES = {
    "--nnodes": "number of nodes, or MIN:MAX",
    "--nproc-per-node": "workers per node: a number, auto, cpu, gpu",
    "--rdzv-backend": "rendezvous backend: static, c10d, …",
    "--rdzv-endpoint": "rendezvous endpoint HOST:PORT",
    "--rdzv-id": "job id, the same on every node",
    "--rdzv-conf": "further rendezvous settings, key=value,…",
    "--max-restarts": "restarts of the worker group before giving up",
    "--monitor-interval": "seconds between looks at the workers",
    "--start-method": "spawn, fork or forkserver",
    "--event-log-handler": "name of a registered event log handler",
    "--role": "name for the workers' role",
    "--log-dir": "folder for torchrun's own log files",
    "--redirects": "redirect streams into torchrun's log files",
    "--tee": "the same, and to the console",
    "--local-ranks-filter": "show only these local ranks on the console",
    "--duplicate-stdout-filters": "duplicate matching stdout lines to a file",
    "--duplicate-stderr-filters": "duplicate matching stderr lines to a file",
    "--node-rank": "rank of this node (static rendezvous)",
    "--master-addr": "address of node 0 (static rendezvous)",
    "--master-port": "port of node 0 (static rendezvous)",
    "--local-addr": "address of this node",
    "--logs-specs": "entry point that overrides logging",
    "--numa-binding": "bind workers to NUMA nodes",
    "--signals-to-handle": "signals that torchrun forwards",
    "--shutdown-timeout": "seconds between SIGTERM and SIGKILL of workers",
}
TORCHRUN_FLAGS = {
    "--standalone": "one node, a free port, no rendezvous options needed",
    "--module": "SCRIPT is a Python module, as with python -m (-m)",
    "--no-python": "SCRIPT is not a Python script",
    "--run-path": "run SCRIPT with runpy in the same interpreter",
    "--virtual-local-rank": "LOCAL_RANK is 0 for all workers",
}
_SHORT = {"-m": "--module", "-r": "--redirects", "-t": "--tee"}
OWN_OPTIONS = {
    "--out": "run folder (default: rankwise-runs/<time>-<script>)",
    "--stall-after": "seconds without progress before a suspicion is reported (default: learned from the job's own pace, at least 10)",
    "--audit": "light (default), full or off: look for training that runs but trains wrong",
    "--on-stall": "abort (default): stop a job that is proven deadlocked; report: report it and never stop it",
}


OWN_FLAGS = {"--profile": "write trace.json into the run folder: all ranks' steps on one clock, for Perfetto or chrome://tracing"}


@dataclass(frozen=True)
class RunPlan:
    """One run, decided. `command` is what gets started: torchrun with its options, or the user's own command."""

    command: tuple[str, ...]
    style: str  # "torchrun" or "command"
    script: str
    out: Path | None = None
    stall_after_s: float | None = None
    on_stall: str = "abort"
    audit: str = "light"
    profile: bool = False
    num_nodes: int = 1
    endpoint: str = ""
    job_id: str = "none"
    may_restart: bool = False  # torchrun may restart the ranks after a failure, or because nodes come and go


def plan_run(argv: list[str]) -> RunPlan:
    """Split `[OPTIONS] [TORCHRUN OPTIONS] SCRIPT [ARGS]` or `[OPTIONS] -- COMMAND`; what is not ours is passed on unchanged."""
    own: dict[str, str] = {}
    torchrun: list[str] = []
    options: dict[str, str] = {}
    while argv:
        word, used = argv[0], 1
        if word == "--":
            return _plan_command(own, torchrun, argv[1:])
        if not word.startswith("-"):
            return _plan_torchrun(own, torchrun, options, argv)
        name, equals, value = word.partition("=")
        full = _full_name(name)
        if (full in OWN_OPTIONS or full in TORCHRUN_VALUES) and not equals:
            value, used = argv[1] if len(argv) > 1 else "", 2
        if full in OWN_FLAGS and equals:
            raise UsageError(f"{name} takes no value", next=("rankwise run --help",))
        if used > len(argv) or (full in OWN_OPTIONS and not value):
            raise UsageError(f"{name} needs a value", next=("rankwise run --help",))
        if full in OWN_OPTIONS or full in OWN_FLAGS:
            own[full] = value
        else:
            torchrun += argv[:used]
            options[full] = value
        argv = argv[used:]
    raise UsageError(
        "no script to run",
        why="rankwise run needs a script, as torchrun does, or a command after --",
        next=("rankwise run --standalone --nproc-per-node 2 train.py", "rankwise run -- python train.py"),
    )


def _full_name(name: str) -> str:
    """An option's full name: torchrun's options may also be written with underscores, or abbreviated where that is unambiguous."""
    full = _SHORT.get(name, name).replace("_", "-")
    known = {*OWN_OPTIONS, *OWN_FLAGS, *TORCHRUN_VALUES, *TORCHRUN_FLAGS}
    longer = [option for option in (*TORCHRUN_VALUES, *TORCHRUN_FLAGS) if option.startswith(full)]
    return longer[0] if full not in known and full.startswith("--") and len(longer) == 1 else full


def _plan_command(own: dict[str, str], torchrun: list[str], command: list[str]) -> RunPlan:
    if torchrun:
        raise UsageError(
            f"{torchrun[0]} cannot stand before --",
            why="after -- comes a command that starts its ranks itself, so torchrun's options have no effect",
            next=("drop the option", "or drop the -- to let torchrun start the script"),
        )
    if not command:
        raise UsageError("no command after --", next=("rankwise run -- python train.py",))
    script = next((word for word in command[1:] if word.endswith((".py", ".sh"))), command[0])
    return RunPlan(tuple(command), "command", script, **_own(own))


def _plan_torchrun(own: dict[str, str], torchrun: list[str], options: dict[str, str], rest: list[str]) -> RunPlan:
    script, is_python = rest[0], not {"--module", "--no-python"} & set(options)
    if is_python and not Path(script).is_file():
        raise UsageError(
            f"there is no script {script!r}",
            why=f"looked in {Path.cwd()}",
            next=("check the path", "use -m for a module, --no-python for another program"),
        )
    *fewest, nodes = _given(options, "--nnodes", "1").split(":")
    endpoint = options.get("--rdzv-endpoint") or f"{options.get('--master-addr', '127.0.0.1')}:{options.get('--master-port', '29500')}"
    restarts = _given(options, "--max-restarts", "0")
    return RunPlan(
        # The -- keeps torchrun from taking the script's options for abbreviations of its own: `--logs` for `--logs-specs`.
        (sys.executable, "-m", "torch.distributed.run", *torchrun, "--", *rest),
        "torchrun",
        script,
        num_nodes=int(nodes) if nodes.isdigit() else 1,
        endpoint="" if "--standalone" in options else endpoint,
        job_id=options.get("--rdzv-id", "none"),
        may_restart=restarts.lstrip("0") != "" or fewest not in ([], [nodes]),
        **_own(own),
    )


def _given(options: dict[str, str], name: str, default: str) -> str:
    """The value as torchrun reads it: the option, or else its variable PET_…."""
    return options.get(name) or os.environ.get(f"PET_{name[2:].replace('-', '_').upper()}") or default


def _own(own: dict[str, str]) -> dict[str, Any]:
    text = own.get("--stall-after")
    try:
        stall_after = None if text is None else float(text)
    except ValueError:
        stall_after = -1.0
    if stall_after is not None and not 0 < stall_after < 1e7:
        raise UsageError(f"--stall-after takes a number of seconds above 0, not {text!r}", next=("rankwise run --stall-after 60 …",))
    return {
        "out": Path(own["--out"]) if "--out" in own else None,
        "stall_after_s": stall_after,
        "on_stall": _one_of(own, "--on-stall", "abort", "report"),
        "audit": _one_of(own, "--audit", "light", "full", "off"),
        "profile": "--profile" in own,
    }


def _one_of(own: dict[str, str], name: str, *choices: str) -> str:
    """The value of an option with several choices; the first choice where it is not given."""
    chosen = own.get(name, choices[0])
    if chosen not in choices:
        raise UsageError(f"{name} takes {', '.join(choices[:-1])} or {choices[-1]}, not {chosen!r}", next=("rankwise run --help",))
    return chosen
