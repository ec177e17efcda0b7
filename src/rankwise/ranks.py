"""RankEnv: the only reader of RANK, WORLD_SIZE, LOCAL_RANK, MASTER_* and of their Slurm, MPI and Kubernetes cousins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# (rank, world size, local rank), in the order they are believed: torchrun's own first
_FAMILIES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMIX_RANK", "PMIX_SIZE", "PMIX_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


@dataclass(frozen=True)
class RankEnv:
    """What the environment says about this process's place in the job; None where it says nothing."""

    rank: int | None
    world_size: int | None
    local_rank: int | None
    master_addr: str | None
    master_port: int | None
    restarts: int = 0


def read_rank_env(environ: Mapping[str, str]) -> RankEnv:
    """Read the first family of variables that names a rank."""
    rank = world_size = local_rank = None
    for names in _FAMILIES:
        if _number(environ, names[0]) is not None:
            rank, world_size, local_rank = (_number(environ, name) for name in names)
            break
    else:
        world_size = _number(environ, "WORLD_SIZE")
    return RankEnv(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        master_addr=environ.get("MASTER_ADDR") or None,
        master_port=_number(environ, "MASTER_PORT"),
        restarts=_number(environ, "TORCHELASTIC_RESTART_COUNT") or 0,
    )


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "").strip()
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else None
