"""A sampler that shuffles gives the same order in every epoch."""

from __future__ import annotations

from itertools import pairwise

from rankwise.diagnose.silent.audited_job import AuditedJob, DataPass
from rankwise.findings import Finding, ranks_text

_LEAST_SAMPLES = 8


def find(audited: AuditedJob) -> Finding | None:
    for ranks in audited.groups() or [[rank] for rank in audited.audits]:
        for loader in audited.shared_loaders(ranks):
            repeated = {rank: pair for rank, passes in loader.items() if (pair := _repeated(passes)) is not None}
            if repeated:
                return _finding(audited, repeated, len(ranks))
    return None


def _repeated(passes: list[DataPass]) -> tuple[DataPass, DataPass] | None:
    """Two passes after each other, both for training, whose sampler should have shuffled and did not."""
    for a, b in pairwise(passes):
        if a.trains and b.trains and _should_shuffle(b) and a.begun.epoch == b.begun.epoch and _is_same(a, b):
            return a, b
    return None


def _should_shuffle(one: DataPass) -> bool:
    """A fixed order of the user's own (a curriculum) is theirs to choose; one that waits for `set_epoch` is a fault."""
    return (one.begun.shuffles and (one.begun.is_distributed or one.begun.sampler == "RandomSampler")) or one.begun.has_epoch


def _is_same(a: DataPass, b: DataPass) -> bool:
    common = sorted(set(a.drawn) & set(b.drawn))
    ids = [i for n in common for i in a.drawn[n].ids]
    if sum(a.drawn[n].size for n in common) < _LEAST_SAMPLES or (len(common) < 2 and not (b.ended and b.ended.whole)):
        return False
    whole = a.ended is None or b.ended is None or not b.ended.whole or a.ended.sum == b.ended.sum
    return whole and all(a.drawn[n].sum == b.drawn[n].sum for n in common) and ids != sorted(ids)


def _finding(audited: AuditedJob, repeated: dict[int, tuple[DataPass, DataPass]], num_ranks: int) -> Finding:
    ranks = sorted(repeated)
    a, b = repeated[ranks[0]]
    ids = ", ".join(str(i) for i in a.drawn[min(a.drawn)].ids[:6])
    some = "" if len(ranks) == num_ranks else f" on {ranks_text(ranks)} only, so that the ranks' parts of the data overlap"
    if b.begun.has_epoch:
        how = f"{b.begun.sampler}.epoch is {b.begun.epoch} in both: set_epoch() was not called between them, or with the same number"
        fix = "call sampler.set_epoch(epoch) at the start of every epoch, on every rank"
    else:
        how = "its generator starts from the same seed in each epoch"
        fix = "make the generator once, before the first epoch, or seed it with the epoch's number"
    return audited.proven(
        "RW751",
        f"every epoch has the same order of samples{some}: {'set_epoch is never called' if b.begun.has_epoch else 'the shuffling repeats itself'}",
        {rank: repeated[rank][1].begun.site for rank in ranks},
        f"epochs {a.begun.n} and {b.begun.n} both begin with samples {ids}, … on rank {ranks[0]}; {how}",
        instead=(fix,),
    )
