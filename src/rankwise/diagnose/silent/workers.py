"""Each DataLoader worker of a rank yields the same data."""

from __future__ import annotations

from collections.abc import Iterator

from rankwise.diagnose.silent.audited_job import AuditedJob, DataPass
from rankwise.findings import Finding


def find(audited: AuditedJob) -> Iterator[Finding]:
    found = {rank: one for rank in audited.audits for passes in audited.loaders(rank).values() for one in passes if _repeats(one)}
    for first in list(found)[:1]:
        one = found[first]
        num_different = len({batch.sums for n, batch in one.batches.items() if n < 16})
        yield audited.proven(
            "RW755",
            f"every DataLoader worker yields the same data: the loop gets each batch {one.begun.workers} times (duplicate samples)",
            {rank: one.begun.made for rank, one in found.items()},
            f"of the first {len(one.batches)} batches of rank {first} only {num_different} are different; the dataset is iterable, "
            f"is copied into {one.begun.workers} workers, and does not split its items between them",
        )


def _repeats(one: DataPass) -> bool:
    """Batches come in turn from each worker: with W workers, W in a row are the same, and the next W are others."""
    workers = one.begun.workers
    rounds = [[one.batches[n] for n in range(k, k + workers) if n in one.batches] for k in range(0, 16, max(1, workers))]
    whole = [batches for batches in rounds if len(batches) == workers]
    if not one.begun.is_iterable or workers < 2 or len(whole) < 2 or any(None in b.sums or not b.sums for r in whole for b in r):
        return False
    return all(len({b.sums for b in batches}) == 1 for batches in whole) and len({batches[0].sums for batches in whole}) == len(whole)
