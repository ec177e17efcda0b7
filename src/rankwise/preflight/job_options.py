"""What is to be checked: the job as torchrun's options describe it, and this host's place in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rankwise.errors import UsageError
from rankwise.ranks import read_rank_env

GROUPS = ("names", "ports", "links", "collectives", "resources", "parity", "gpus", "fit")
_PORTS = {"static": 29500, "c10d": 29400}
_MAX_NODES = 4096
_MAX_RANKS = 4096


@dataclass(frozen=True)
class CheckPlan:
    """The options of one check. It waits for `nodes_max` hosts; `nodes_min` of them must come. `node_rank` is None if torchrun sets it."""

    nodes_min: int = 1
    nodes_max: int = 1
    node_rank: int | None = 0
    nproc: str = "1"
    master: str = ""
    port: int = 29500
    job_id: str = "none"
    is_standalone: bool = False
    local_addr: str = ""
    script: Path | None = None
    fit: str = ""
    checkpoints: Path = Path()
    only: tuple[str, ...] = GROUPS
    wait_s: float = 30.0
    limit_s: float = 120.0

    @property
    def is_alone(self) -> bool:
        return self.nodes_max == 1


def plan_check(options: Mapping[str, str | None], environ: Mapping[str, str], *, standalone: bool = False) -> CheckPlan:
    """Read the options, named as on the command line without dashes; raises UsageError for a value that makes no sense."""
    nodes_min, nodes_max = _nodes(options.get("nnodes") or "1")
    backend = options.get("rdzv-backend") or "static"
    master, port = _endpoint(options, environ, backend)
    if nodes_max > 1 and not master:
        raise UsageError(
            "several nodes need a place to meet",
            why=f"--nnodes is {options.get('nnodes')}, but neither --master-addr nor --rdzv-endpoint is given",
            next=("add --master-addr HOST --master-port PORT, the same on every node", "or --rdzv-backend c10d --rdzv-endpoint HOST:PORT"),
        )
    return CheckPlan(
        nodes_min=nodes_min,
        nodes_max=nodes_max,
        node_rank=_whole("node-rank", options.get("node-rank") or "0", 0, _MAX_NODES) if backend == "static" else None,
        nproc=_nproc(options.get("nproc-per-node") or "1"),
        master=master,
        port=port,
        job_id=options.get("rdzv-id") or "none",
        is_standalone=standalone,
        local_addr=options.get("local-addr") or "",
        script=_script(options.get("script")),
        fit=_target(options.get("fit") or ""),
        checkpoints=Path(options.get("checkpoints") or "."),
        only=_groups(options.get("only") or "", bool(options.get("fit"))),
        wait_s=_seconds("wait", options.get("wait") or "30"),
        limit_s=_seconds("time-limit", options.get("time-limit") or "120"),
    )


def _nodes(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    least = _whole("nnodes", low, 1, _MAX_NODES)
    most = _whole("nnodes", high, 1, _MAX_NODES) if high else least
    if most < least:
        raise UsageError(f"--nnodes {text} asks for at least {least} and at most {most} nodes", next=("give MIN:MAX, smallest first",))
    return least, most


def _endpoint(options: Mapping[str, str | None], environ: Mapping[str, str], backend: str) -> tuple[str, int]:
    """Host and port where torchrun's nodes would meet, else MASTER_* of the environment. The host is empty where none was named."""
    default = _PORTS.get(backend, _PORTS["c10d"])
    if endpoint := options.get("rdzv-endpoint"):
        host, _, port = endpoint.rpartition(":") if _has_port(endpoint) else (endpoint, "", "")
        return host.strip("[]"), _whole("rdzv-endpoint: port", port, 1, 65535) if port else default
    env = read_rank_env(environ)
    given = options.get("master-port")
    port_number = _whole("master-port", given, 1, 65535) if given is not None else env.master_port or default
    return options.get("master-addr") or env.master_addr or "", port_number


def _has_port(endpoint: str) -> bool:
    """`host:1`, `[::1]:1`, but not the bare address `fe80::1`."""
    return ":" in endpoint.rpartition("]")[2] and (endpoint.startswith("[") or endpoint.count(":") == 1)


def _whole(option: str, text: str, low: int, high: int) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 10 and low <= int(digits) <= high):
        why = "port 0 means any free port, which the other nodes could not know" if "port" in option and digits == "0" else ""
        raise UsageError(f"--{option} takes a whole number from {low} to {high}, not {text!r}", why=why, next=("rankwise check --help",))
    return int(digits)


def _nproc(text: str) -> str:
    return text if text in ("auto", "cpu", "gpu") else str(_whole("nproc-per-node", text, 1, _MAX_RANKS))


def _seconds(option: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e6:
        raise UsageError(f"--{option} takes a number of seconds above 0, not {text!r}", next=(f"rankwise check --{option} 60",))
    return seconds


def _script(text: str | None) -> Path | None:
    if not text:
        return None
    if "\0" in text or not Path(text).is_file():
        raise UsageError(f"--script: there is no file {text!r}", why=f"looked in {Path.cwd()}", next=("check the path",))
    return Path(text)


def _target(text: str) -> str:
    module, _, name = text.partition(":")
    if text and not (all(part.isidentifier() for part in module.split(".")) and name.isidentifier()):
        raise UsageError(f"--fit takes MODULE:FUNCTION, not {text!r}", next=("rankwise check --fit my_module:step",))
    return text


def _groups(text: str, wants_fit: bool) -> tuple[str, ...]:
    """The groups of checks to run; --fit asks for its own."""
    chosen = [word.strip() for word in text.split(",") if word.strip()] or [group for group in GROUPS if group != "fit"]
    for word in chosen:
        if word not in GROUPS:
            why = f"the groups are {', '.join(GROUPS)}"
            raise UsageError(f"--only: there is no group {word!r}", why=why, next=("rankwise check --help",))
    return tuple(group for group in GROUPS if group in chosen or (group == "fit" and wants_fit))
