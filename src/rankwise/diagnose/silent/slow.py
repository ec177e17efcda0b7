"""Where the time goes: waiting for data, collectives of the script's own, and very small buckets of DDP's."""

from __future__ import annotations

from rankwise.causes import load_cause
from rankwise.diagnose.silent.audited_job import AuditedJob, DataPass
from rankwise.evidence.audit import Times, total_times
from rankwise.findings import Finding

_MUCH = 0.3
_SMALL, _MANY = 1 << 20, 16  # bytes of a bucket; buckets in a step
_LEAST_MS = 5.0  # a step: less is what a busy machine takes to fetch anything


def find(audited: AuditedJob) -> list[Finding]:
    totals = {rank: total for rank, audit in audited.audits.items() if (total := total_times(audit.times)) is not None}
    if not totals or len(totals) < len(audited.audits):
        return _small_buckets(audited)
    return _small_buckets(audited) + [finding for look in (_data, _collectives) if (finding := look(audited, totals)) is not None]


def _small_buckets(audited: AuditedJob) -> list[Finding]:
    """A note, by the sizes alone: what the all-reduces cost more depends on the network."""
    small = {
        rank: one
        for rank, audit in audited.audits.items()
        for one in audit.wrappers
        if 0 < one.cap < _SMALL and one.bytes > _MANY * one.cap
    }
    if not small:
        return []
    one = next(iter(small.values()))
    return [
        load_cause("RW514").finding(
            f"DDP reduces {one.bytes / 1e6:.1f} MB of gradients in buckets of at most {one.cap / 1e6:.2g} MB: up to "
            f"{min(one.reduced, -(-one.bytes // one.cap))} all-reduces a step (bucket_cap_mb)",
            certain=True,
            culprits=tuple(audited.place(rank, seen.site) for rank, seen in small.items()),
            why=f"with the default of 25 MB there would be {1 + one.bytes // (25 << 20)} or one more; each costs at least one trip over the network",
        )
    ]


def _data(audited: AuditedJob, totals: dict[int, Times]) -> Finding | None:
    """On every rank: where only one waits for its data, it is the straggler that is told of."""
    if min(total.data / max(total.wall, 1e-9) for total in totals.values()) < _MUCH:
        return None
    rank = max(totals, key=lambda r: totals[r].data)
    total = totals[rank]
    each = total.data / total.steps
    if each < _LEAST_MS:
        return None
    one = _training_pass(audited, rank)
    workers = one.begun.workers if one else 0
    setting = f"num_workers={max(4, 2 * workers)}, prefetch_factor=4, persistent_workers=True"
    return load_cause("RW512").finding(
        f"the ranks wait for data {100 * total.data / total.wall:.0f} % of the time: {each:.0f} ms of each {total.wall / total.steps:.0f} ms step "
        "pass in the DataLoader",
        certain=True,
        culprits=tuple(audited.place(r, seen.begun.made if (seen := _training_pass(audited, r)) else None) for r in totals),
        why=f"num_workers is {workers}; with the data there in time a step would take about {(total.wall - total.data) / total.steps:.0f} ms",
        next=(f"try DataLoader(…, {setting})",),
    )


def _training_pass(audited: AuditedJob, rank: int) -> DataPass | None:
    return next((one for passes in audited.loaders(rank).values() for one in passes if one.trains), None)


def _collectives(audited: AuditedJob, totals: dict[int, Times]) -> Finding | None:
    rank = min(
        totals, key=lambda r: totals[r].collective
    )  # the rank that waits least waits for no other: this is what the calls themselves cost
    total = totals[rank]
    each = total.collective / total.steps
    if total.collective < _MUCH * total.wall or each < _LEAST_MS:
        return None
    seen = [one for one in audited.audits[rank].reduces if not one.label]
    if any(one.label for one in audited.audits[rank].reduces):  # gradients or weights, reduced by hand: that has to be
        return None
    return load_cause("RW513").finding(
        f"{100 * total.collective / total.wall:.0f} % of the time passes in collectives that the script calls itself: {each:.0f} ms of each step",
        certain=True,
        culprits=tuple(audited.place(r, seen[-1].site if seen else None) for r in totals),
        why=f"{len(seen)} such calls were looked at on rank {rank}; DDP's own reduction is not among them",
    )
