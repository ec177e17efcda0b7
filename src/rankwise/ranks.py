"""RankEnv: the only reader of RANK, WORLD_SIZE, LOCAL_RANK, MASTER_* and of their Slurm, MPI and Kubernetes cousins."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

# (rank, world size, local rank), in the order they are believed: torchrun's own first
RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMIX_RANK", "PMIX_SIZE", "PMIX_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
_PALS = ("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK")


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
    """Read the first family of variables that names a rank. What a launcher's own family lacks, another one of the same world tells:
    PMIx names no size, and PMI no local rank, but Slurm, under which both are found, names all three."""
    if "SLURM_STEP_NUM_TASKS" in environ:  # in the shell that salloc opens, SLURM_NTASKS is how many may be started, not how many were
        environ = {**environ, "SLURM_NTASKS": environ["SLURM_STEP_NUM_TASKS"]}
    families = [[_number(environ, name) for name in names] for names in (*RANK_VARIABLES, _PALS)]
    rank, world_size, local_rank = next((family for family in families if family[0] is not None), [None, families[0][1], None])
    if families[0][0] is None and rank is not None:  # torchrun's own family is taken as it is
        for other in families:
            if other[0] == rank and world_size in (None, other[1]):
                world_size = other[1]
                local_rank = other[2] if local_rank is None else local_rank
    return RankEnv(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        master_addr=environ.get("MASTER_ADDR") or None,
        master_port=_number(environ, "MASTER_PORT"),
        restarts=_number(environ, "TORCHELASTIC_RESTART_COUNT") or 0,
    )


@dataclass(frozen=True)
class MeetingPlace:
    """Where the ranks' store is. A launcher that keeps the store itself (torchrun) outlives the ranks; otherwise rank 0 opens it."""

    address: str
    port: int
    kept_by_launcher: bool = False

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def read_meeting_place(environ: Mapping[str, str]) -> MeetingPlace | None:
    """MASTER_ADDR and MASTER_PORT; under Slurm or Open MPI, which may set neither, a place that all ranks work out alike; else None."""
    env = read_rank_env(environ)
    address = env.master_addr or _first_slurm_host(environ) or ("127.0.0.1" if _is_mpi_on_one_host(environ) else None)
    port = env.master_port if "MASTER_PORT" in environ else _port_of_job(environ)
    if address is None or port is None or not 0 < port < 1 << 16:
        return None
    return MeetingPlace(address, port, environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True")


def read_job_name(environ: Mapping[str, str]) -> str:
    """The name that distinguishes this job from others at the same address; empty where the launcher gives none."""
    run_id = environ.get("TORCHELASTIC_RUN_ID", "none")
    if run_id != "none":
        return run_id
    if "SLURM_JOB_ID" in environ:
        return f"slurm {environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '0')}"
    return environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid", "")


def _port_of_job(environ: Mapping[str, str]) -> int | None:
    """A port that is the same on every rank of a job, differs for the next job, and is below those the system hands out."""
    name = read_job_name(environ)
    return 20000 + zlib.crc32(name.encode()) % 10000 if name and "TORCHELASTIC_RUN_ID" not in environ else None


def _is_mpi_on_one_host(environ: Mapping[str, str]) -> bool:
    size = environ.get("OMPI_COMM_WORLD_SIZE")
    return size is not None and size == environ.get("OMPI_COMM_WORLD_LOCAL_SIZE")


def _first_slurm_host(environ: Mapping[str, str]) -> str | None:
    """`gpu[07-09,12],cpu1` begins with gpu07, `rack[0-1]node[3-4]-ib` with rack0node3-ib."""
    if "SLURM_PROCID" not in environ:
        return None
    hosts = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or ""
    found = re.match(r"(?:[^,\[]|\[[^\]]*\])+", hosts)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", found[0]) if found else None


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "").strip()
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else None
