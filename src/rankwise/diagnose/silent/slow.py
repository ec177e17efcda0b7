"""Where the time goes: waiting for data, collectives that the script calls, and very small DDP buckets."""

from __future__ import annotations

from rankwise.diagnose.silent.audited_job import AuditedJob, DataPass
from rankwise.evidence.audit import Times, total_times
from rankwise.findings import Finding

_MUCH = 0.3
_SMALL, _MANY = 1 << 20, 16  # bytes of a bucket; buckets in a step
_LEAST_MS = 5.0  # a step: less is what a busy machine takes to fetch anything


def find_small_buckets(audited: AuditedJob) -> Finding | None:
    """A note from the sizes alone: how much the additional all-reduces cost depends on the network."""
    small = {
        rank: one
        for rank, audit in audited.audits.items()
        for one in audit.wrappers
        if 0 < one.cap < _SMALL and one.bytes > _MANY * one.cap
    }
    if not small:
        return None
    one = next(iter(small.values()))
    return audited.proven(
        "RW514",
        f"DDP reduces {one.bytes / 1e6:.1f} MB of gradients in buckets of at most {one.cap / 1e6:.2g} MB: up to "
        f"{min(one.reduced, -(-one.bytes // one.cap))} all-reduces a step (bucket_cap_mb)",
        {rank: seen.site for rank, seen in small.items()},
        f"with the default of 25 MB there would be {1 + one.bytes // (25 << 20)} or one more; each costs at least one trip over the network",
    )


def _total_times(audited: AuditedJob) -> dict[int, Times]:
    """The total times by rank; empty where some are not known."""
    totals = {rank: total for rank, audit in audited.audits.items() if (total := total_times(audit.times)) is not None}
    return totals if len(totals) == len(audited.audits) else {}


def find_wait_for_data(audited: AuditedJob) -> Finding | None:
    """Only where every rank waits for data: a single rank that does is reported as a straggler."""
    totals = _total_times(audited)
    if not totals:
        return None
    rank = max(totals, key=lambda r: totals[r].data)
    total = totals[rank]
    each = total.data / total.steps
    if min(one.data / max(one.wall, 1e-9) for one in totals.values()) < _MUCH or each < _LEAST_MS:
        return None
    passes = {r: _training_pass(audited, r) for r in totals}
    workers = one.begun.workers if (one := passes[rank]) else 0
    setting = f"num_workers={max(4, 2 * workers)}, prefetch_factor=4, persistent_workers=True"
    return audited.proven(
        "RW512",
        f"the ranks wait for data {100 * total.data / total.wall:.0f} % of the time: {each:.0f} ms of each {total.wall / total.steps:.0f} ms step "
        "pass in the DataLoader",
        {r: one.begun.made if one else None for r, one in passes.items()},
        f"num_workers is {workers}; with the data there in time a step would take about {(total.wall - total.data) / total.steps:.0f} ms",
        next=(f"try DataLoader(…, {setting})",),
    )


def _training_pass(audited: AuditedJob, rank: int) -> DataPass | None:
    return next((one for passes in audited.loaders(rank).values() for one in passes if one.trains), None)


def find_own_collectives(audited: AuditedJob) -> Finding | None:
    totals = _total_times(audited)
    if not totals:
        return None
    # The rank that waits least waits for no other: this is what the calls themselves cost.
    rank = min(totals, key=lambda r: totals[r].collective)
    total, seen = totals[rank], audited.audits[rank].reduces
    each = total.collective / total.steps
    is_by_hand = any(one.label for one in seen)  # gradients or weights: that has to be
    if total.collective < _MUCH * total.wall or each < _LEAST_MS or is_by_hand:
        return None
    return audited.proven(
        "RW513",
        f"{100 * total.collective / total.wall:.0f} % of the time passes in collectives that the script calls itself: {each:.0f} ms of each step",
        dict.fromkeys(totals, seen[-1].site if seen else None),
        f"{len(seen)} such calls were looked at on rank {rank}; DDP's own reduction is not among them",
    )
