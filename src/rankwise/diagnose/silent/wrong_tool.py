"""DDP for inference, and nn.DataParallel."""

from __future__ import annotations

from rankwise.causes import load_cause
from rankwise.diagnose.silent.audited_job import AuditedJob
from rankwise.findings import Finding, ranks_text

_LEAST = 8
_LEAST_LIVE = 200


def find(audited: AuditedJob) -> list[Finding]:
    return [*_data_parallel(audited), *_inference(audited)]


def _data_parallel(audited: AuditedJob) -> list[Finding]:
    found = {rank: audit.data_parallel[0] for rank, audit in audited.audits.items() if audit.data_parallel}
    if not found:
        return []
    return [
        load_cause("RW785").finding(
            "nn.DataParallel runs the model from one process; DistributedDataParallel (DDP) is faster with one GPU or several",
            certain=True,
            culprits=tuple(audited.place(rank, one.site) for rank, one in found.items()),
            why=f"{ranks_text(list(found))} built nn.DataParallel over {next(iter(found.values())).devices} devices; it copies the model at each forward",
        )
    ]


def _inference(audited: AuditedJob) -> list[Finding]:
    audits = {rank: audit for rank, audit in audited.audits.items() if audit.wrappers}
    if not audits or any(audit.optimizers or audit.windows or _backwards(audited, rank) for rank, audit in audits.items()):
        return []
    forwards = {rank: max((f.n + 1 for f in audit.forwards), default=0) for rank, audit in audits.items()}
    least = _LEAST if audited.job.exit_code is not None else _LEAST_LIVE
    if min(forwards.values()) < least:
        return []
    waited = {rank: _in_collectives_s(audited, rank) for rank in audits}
    cost = max(waited.values())
    return [
        load_cause("RW784").finding(
            f"inference goes through DDP: {min(forwards.values())} forwards through the wrapper and no backward on any rank",
            certain=True,
            culprits=tuple(audited.place(rank, audit.forwards[0].site) for rank, audit in audits.items()),
            why=f"there is nothing to reduce, but the ranks still wait for each other: {cost:.1f} s in collectives on rank "
            f"{max(waited, key=lambda rank: waited[rank])} in this run",
        )
    ]


def _backwards(audited: AuditedJob, rank: int) -> int:
    return audited.job.ranks[rank].counts.get("backward", 0)


def _in_collectives_s(audited: AuditedJob, rank: int) -> float:
    calls = [
        call
        for call in audited.job.ranks[rank].calls
        if call.ended_ns and call.op not in ("forward", "backward", "init_process_group", "ddp")
    ]
    return sum(call.ended_ns - call.started_ns for call in calls) / 1e9
