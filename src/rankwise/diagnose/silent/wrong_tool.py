"""DDP for inference, and nn.DataParallel."""

from __future__ import annotations

from rankwise.diagnose.silent.audited_job import AuditedJob
from rankwise.findings import Finding, ranks_text

_LEAST = 8
_LEAST_LIVE = 200


def find_data_parallel(audited: AuditedJob) -> Finding | None:
    found = {rank: audit.data_parallel[0] for rank, audit in audited.audits.items() if audit.data_parallel}
    if not found:
        return None
    return audited.proven(
        "RW785",
        "nn.DataParallel runs the model from one process; DistributedDataParallel (DDP) is faster with one GPU or several",
        {rank: one.site for rank, one in found.items()},
        f"{ranks_text(list(found))} built nn.DataParallel over {next(iter(found.values())).devices} devices; it copies the model at each forward",
    )


def find_inference(audited: AuditedJob) -> Finding | None:
    ranks, audits = audited.job.ranks, {rank: audit for rank, audit in audited.audits.items() if audit.wrappers}
    if not audits or any(a.optimizers or a.windows or ranks[rank].counts.get("backward", 0) for rank, a in audits.items()):
        return None
    forwards = {rank: max((f.n + 1 for f in audit.forwards), default=0) for rank, audit in audits.items()}
    least = _LEAST if audited.job.exit_code is not None else _LEAST_LIVE
    if min(forwards.values()) < least:
        return None
    waited = {rank: _in_collectives_s(audited, rank) for rank in audits}
    most = max(waited, key=lambda rank: waited[rank])
    return audited.proven(
        "RW784",
        f"inference goes through DDP: {min(forwards.values())} forwards through the wrapper and no backward on any rank",
        {rank: audit.forwards[0].site for rank, audit in audits.items()},
        f"there is nothing to reduce, but the ranks still wait for each other: {waited[most]:.1f} s in collectives on rank {most} in this run",
    )


def _in_collectives_s(audited: AuditedJob, rank: int) -> float:
    others = ("forward", "backward", "init_process_group", "ddp")
    calls = (call for call in audited.job.ranks[rank].calls if call.ended_ns and call.op not in others)
    return sum(call.ended_ns - call.started_ns for call in calls) / 1e9
