"""Ranks that train together, or the DataLoader workers of one rank, draw the same samples."""

from __future__ import annotations

from dataclasses import replace

from rankwise.diagnose.silent.audited_job import AuditedJob, DataPass
from rankwise.findings import Finding, ranks_text

_LEAST = 3  # batches that have to be the same
_LEAST_FORWARDS = 6


def find(audited: AuditedJob) -> Finding | None:
    for ranks in audited.groups():
        trained = False
        for loader in audited.shared_loaders(ranks):
            for passes in zip(*(loader[rank] for rank in ranks)):
                by_rank = dict(zip(ranks, passes))
                trained = trained or any(one.trains for one in passes)
                alike = _alike(audited, by_rank)
                if alike and all(by_rank[rank].trains for rank in alike) and _matters(audited, by_rank, alike):
                    found = _finding(audited, by_rank, alike)
                    return found if audited.are_together(alike) else replace(found, severity="info", certain=False)
        if not trained and (seen := _from_forwards(audited, ranks)) is not None:
            return seen
    return None


def _matters(audited: AuditedJob, passes: dict[int, DataPass], alike: list[int]) -> bool:
    """False for ranks that got the same part and are not seen to average gradients: pipeline stages and tensor-parallel ranks."""
    return audited.are_together(alike) or not all(passes[rank].begun.is_distributed for rank in alike)


def _alike(audited: AuditedJob, passes: dict[int, DataPass]) -> list[int]:
    """The ranks whose batches were all the same, if there are such.

    The same indices are not enough: each rank may have a dataset of its own. The tensors of the batches have to be the same as well; where
    reading the dataset uses random numbers, one of them is enough, because augmentation may have changed the others.
    """
    common = set.intersection(*(set(one.batches) for one in passes.values()))
    best: list[int] = []
    for column in range(4):
        groups: dict[tuple[object, ...], list[int]] = {}
        for rank, one in passes.items():
            contents = _contents(one, common, column)
            if len(set(contents)) > 1 and None not in contents:
                groups.setdefault((_ids(one, common), contents), []).append(rank)
        best = max(best, *groups.values(), key=len) if groups else best
    if len(best) < 2 or not _is_proof(passes[best[0]], common):
        return []
    is_augmented = any(audited.audits[rank].randoms for rank in best)
    whole = {tuple(_contents(passes[rank], common, column) for column in range(4)) for rank in best}
    return best if is_augmented or len(whole) == 1 else []


def _ids(one: DataPass, common: set[int]) -> tuple[int, ...]:
    return () if one.begun.is_iterable else tuple(one.drawn[n].sum for n in sorted(common) if n in one.drawn)


def _contents(one: DataPass, common: set[int], column: int) -> tuple[int | None, ...]:
    """The checksums of one tensor of each batch."""
    rows = (one.batches[n].sums for n in sorted(common))
    return tuple(sums[column] if column < len(sums) else None for sums in rows)


def _is_proof(one: DataPass, common: set[int]) -> bool:
    """Enough batches, and they differ from each other."""
    is_short = one.ended is not None and one.ended.whole and len(common) >= 2 and len(common) == one.ended.batches
    contents = {one.batches[n].sums for n in common}
    return (len(common) >= _LEAST or is_short) and len(contents) > 1


def _finding(audited: AuditedJob, passes: dict[int, DataPass], alike: list[int]) -> Finding:
    one = passes[alike[0]]
    first, other = alike[0], alike[1]
    shown = next((n for n in sorted(one.drawn)), None)
    if one.begun.is_iterable or shown is None:
        proof = f"the first {len(one.batches)} batches are equal to the last number on {ranks_text(alike)}"
        fix = "have each rank yield its own part: islice(items, rank, None, world_size), and each DataLoader worker its part of that"
        why = "the iterable dataset does not split its items by rank"
    else:
        ids = ", ".join(str(i) for i in one.drawn[shown].ids[:6])
        proof = f"batch {shown} is made of samples {ids}, … on rank {first} and on rank {other}, and so on for {len(one.drawn)} batches"
        fix = "give the DataLoader sampler=DistributedSampler(dataset), and call its set_epoch(epoch) before every epoch"
        why = f"the loader's sampler is a {one.begun.sampler}" + (", which knows nothing of ranks" if not one.begun.is_distributed else "")
    return audited.proven(
        "RW750",
        f"{ranks_text(alike)} train on the same data: every batch has the same, identical samples",
        {rank: passes[rank].begun.made for rank in alike},
        f"{proof}; {why}. The job does the work of one rank, {len(alike)} times",
        instead=(fix,),
    )


def _from_forwards(audited: AuditedJob, ranks: list[int]) -> Finding | None:
    """The same finding for scripts without a DataLoader, from what goes into the wrapped model."""
    seen = {rank: {f.n: f for f in audited.audits[rank].forwards if f.with_grad and f.training} for rank in ranks}
    common = set.intersection(*(set(forwards) for forwards in seen.values()))
    values = {seen[ranks[0]][n].sums for n in common}
    are_same = all(len({seen[rank][n].sums for rank in ranks}) == 1 for n in common)
    if len(common) < _LEAST_FORWARDS or not are_same or len(values) < len(common) // 2 or any(None in v for v in values):
        return None
    return audited.proven(
        "RW750",
        f"{ranks_text(ranks)} train on the same data: what goes into the model is identical on all of them",
        {rank: next(iter(seen[rank].values())).site for rank in ranks},
        f"the inputs of {len(common)} forwards that were looked at have the same numbers on every rank, and others each time",
        instead=("give each rank its own part of the data, or its own seed for what is drawn at random",),
    )


def find_repeating_workers(audited: AuditedJob) -> Finding | None:
    """Each DataLoader worker of a rank yields the same data."""
    found = {rank: one for rank in audited.audits for passes in audited.loaders(rank).values() for one in passes if _repeats(one)}
    if not found:
        return None
    first, one = next(iter(found.items()))
    num_different = len({batch.sums for n, batch in one.batches.items() if n < 16})
    return audited.proven(
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
