"""Connects the backend and runs the first collective, in a thread, so that a rank that is stuck there still hears from the others."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Store, distributed_c10d  # type: ignore[attr-defined]

from rankwise.errors import StartError
from rankwise.findings import Finding
from rankwise.meet.threads import ThreadTask
from rankwise.stages import BACKEND, COLLECTIVE, Stage
from rankwise.train.assembly import Assembly
from rankwise.train.errors import start_finding
from rankwise.train.mesh import Mesh
from rankwise.train.rank_info import RankInfo

_NUM_NUMBERS = 8192


def connect_backend(assembly: Assembly, info: RankInfo, device: torch.device, collective_timeout_s: float | None) -> None:
    """Connect the process group on every rank. This has the stage's time limit; later collectives have the user's."""
    limit_s = BACKEND.limit_s or 60.0
    store = assembly.connection

    def connect() -> None:
        use_device(device)
        dist.init_process_group(
            info.backend,
            store=store,
            rank=info.rank,
            world_size=info.world_size,
            timeout=timedelta(seconds=limit_s),
            device_id=device if info.uses_nccl else None,
        )

    _together(assembly, BACKEND, ThreadTask(connect, "connect"), info)
    _together(assembly, COLLECTIVE, ThreadTask(lambda: _first_collective(info, device), "collective"), info)
    _set_timeout(collective_timeout_s, store)


def use_device(device: torch.device) -> None:
    """Make this the thread's current device; CUDA keeps one for each thread, which is the first GPU unless it is set."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def _together(assembly: Assembly, stage: Stage, task: ThreadTask[None], info: RankInfo) -> None:
    """Run a task that all ranks take part in. If it fails or takes too long, find out which ranks cannot reach each other."""
    mesh = Mesh(assembly, info, stage)

    def is_done() -> bool:
        has_failed = task.is_done() and task.error is not None
        if finding := mesh.turn(has_failed):
            raise StartError(finding)
        if has_failed and mesh.is_over:
            assert task.error is not None
            raise StartError(_failed(stage, info, task.error))
        return task.is_done() and not has_failed

    assembly.pass_stage(stage, (stage.limit_s or 60.0) + 5.0, is_done)


def _first_collective(info: RankInfo, device: torch.device) -> None:
    """Compute a sum that every rank knows beforehand, of so many numbers that full-size packets are needed."""
    use_device(device)
    total = torch.full((_NUM_NUMBERS,), info.rank + 1.0, dtype=torch.float64, device=device if info.uses_nccl else "cpu")
    dist.all_reduce(total)
    expected = info.world_size * (info.world_size + 1) / 2
    if not bool((total == expected).all()):
        raise RuntimeError(f"the first all_reduce gave {total[total != expected][0]:g}, but the ranks' numbers add up to {expected:g}")


def _failed(stage: Stage, info: RankInfo, error: BaseException) -> Finding:
    said = str(error).strip().splitlines()
    how = said[0][:200] if said else type(error).__name__
    summary = f"rank {info.rank} on {info.host} could not connect its {info.backend} backend: {how}"
    why = "every rank is registered in the same store; the connections between the ranks themselves were not made"
    return start_finding("RW114", summary, [info.place], certain=False, why=why, stage=stage)


def _set_timeout(collective_timeout_s: float | None, store: Store) -> None:
    """Set the user's timeout, or torch's default, for all later collectives."""
    is_nccl = "nccl" in str(dist.get_backend())
    c10d: Any = distributed_c10d
    default = c10d.default_pg_nccl_timeout if is_nccl else c10d.default_pg_timeout
    timeout: Any = timedelta(seconds=collective_timeout_s) if collective_timeout_s else default
    store.set_timeout(timeout)
    distributed_c10d._set_pg_timeout(timeout)  # private, but the only way once the group is made
