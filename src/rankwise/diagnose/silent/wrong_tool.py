"""DDP for inference, and nn.DataParallel."""

from __future__ import annotations

from rankwise.causes import load_cause
from rankwise.diagnose.silent.scene import Scene
from rankwise.findings import Finding, ranks_text

_LEAST = 8
_LEAST_LIVE = 200


def find(scene: Scene) -> list[Finding]:
    return [*_data_parallel(scene), *_inference(scene)]


def _data_parallel(scene: Scene) -> list[Finding]:
    found = {rank: audit.data_parallel[0] for rank, audit in scene.audits.items() if audit.data_parallel}
    if not found:
        return []
    return [
        load_cause("RW785").finding(
            "nn.DataParallel runs the model from one process; DistributedDataParallel (DDP) is faster with one GPU or several",
            certain=True,
            culprits=tuple(scene.place(rank, one.site) for rank, one in found.items()),
            why=f"{ranks_text(list(found))} built nn.DataParallel over {next(iter(found.values())).devices} devices; it copies the model at each forward",
        )
    ]


def _inference(scene: Scene) -> list[Finding]:
    audits = {rank: audit for rank, audit in scene.audits.items() if audit.wrappers}
    if not audits or any(audit.optimizers or audit.windows or _backwards(scene, rank) for rank, audit in audits.items()):
        return []
    forwards = {rank: max((f.n + 1 for f in audit.forwards), default=0) for rank, audit in audits.items()}
    least = _LEAST if scene.job.exit_code is not None else _LEAST_LIVE
    if min(forwards.values()) < least:
        return []
    waited = {rank: _in_collectives_s(scene, rank) for rank in audits}
    cost = max(waited.values())
    return [
        load_cause("RW784").finding(
            f"inference goes through DDP: {min(forwards.values())} forwards through the wrapper and no backward on any rank",
            certain=True,
            culprits=tuple(scene.place(rank, audit.forwards[0].site) for rank, audit in audits.items()),
            why=f"there is nothing to reduce, but the ranks still wait for each other: {cost:.1f} s in collectives on rank "
            f"{max(waited, key=lambda rank: waited[rank])} in this run",
        )
    ]


def _backwards(scene: Scene, rank: int) -> int:
    return scene.job.ranks[rank].counts.get("backward", 0)


def _in_collectives_s(scene: Scene, rank: int) -> float:
    calls = [
        call
        for call in scene.job.ranks[rank].calls
        if call.ended_ns and call.op not in ("forward", "backward", "init_process_group", "ddp")
    ]
    return sum(call.ended_ns - call.started_ns for call in calls) / 1e9
