"""The ranks' parts of the data: of very different size, the whole dataset on each, or padded in evaluation."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean

from rankwise.diagnose.silent.audited_job import AuditedJob, DataPass
from rankwise.findings import Finding

_UNEVEN = 1.25
_LARGER = 1.6


def find_uneven(audited: AuditedJob) -> Finding | None:
    return _first(audited, lambda passes: _uneven(audited, passes) or _larger(audited, passes))


def find_whole_on_each(audited: AuditedJob) -> Finding | None:
    return _first(audited, lambda passes: _whole_each(audited, passes))


def find_padded(audited: AuditedJob) -> Finding | None:
    return _first(audited, lambda passes: _padded(audited, passes))


def _first(audited: AuditedJob, look: Callable[[dict[int, DataPass]], Finding | None]) -> Finding | None:
    """What is found first in the first passes of ranks that train together."""
    for ranks in audited.groups():
        for loader in audited.shared_loaders(ranks):
            finding = look({rank: loader[rank][0] for rank in ranks})
            if finding is not None:
                return finding if audited.are_together(ranks) else finding.with_severity("info")
    return None


def _ended(passes: dict[int, DataPass]) -> bool:
    return all(one.ended is not None and one.ended.whole for one in passes.values())


def _uneven(audited: AuditedJob, passes: dict[int, DataPass]) -> Finding | None:
    batches = {rank: one.ended.batches for rank, one in passes.items() if one.ended is not None}
    if not _ended(passes) or not any(one.trains for one in passes.values()):
        return None
    most, least = max(batches, key=lambda rank: batches[rank]), min(batches.values())
    if least < 1 or batches[most] < max(_UNEVEN * least, least + 2):
        return None
    return audited.proven(
        "RW752",
        f"the ranks' shards are of very different length: rank {most} has {batches[most]} batches, another has {least}",
        {most: passes[most].begun.made},
        "batches of one pass: " + ", ".join(f"rank {rank} {count}" for rank, count in list(batches.items())[:8]),
    )


def _larger(audited: AuditedJob, passes: dict[int, DataPass]) -> Finding | None:
    """Batches of the same number of rows, but with much more in them on one rank."""
    if not all(one.trains and len(one.batches) >= 6 for one in passes.values()):
        return None
    sizes = {rank: mean(b.numel for b in one.batches.values()) for rank, one in passes.items()}
    most = max(sizes, key=lambda rank: sizes[rank])
    least = min(sizes.values())
    if least <= 0 or sizes[most] < _LARGER * least:
        return None
    return audited.proven(
        "RW752",
        f"rank {most}'s batches are {sizes[most] / least:.1f} times as large as another rank's: its shard has larger samples",
        {most: passes[most].begun.made},
        "numbers in a batch on average: " + ", ".join(f"rank {rank} {size:,.0f}" for rank, size in list(sizes.items())[:8]),
        instead=("balance batches by the size of their samples (tokens, pixels), not by their number",),
    )


def _whole_each(audited: AuditedJob, passes: dict[int, DataPass]) -> Finding | None:
    """Every rank draws all samples of the same dataset, each in its own order."""
    ones = list(passes.values())
    sums = {one.begun.data_sum for one in ones}
    if not _ended(passes) or not all(one.trains for one in ones) or len(sums) != 1 or None in sums:
        return None
    size = ones[0].begun.size
    builtin = all(one.begun.sampler in ("RandomSampler", "SequentialSampler") for one in ones)
    if not size or not builtin or any(one.ended is None or one.ended.samples != size or one.ended.repeats for one in ones):
        return None
    return audited.proven(
        "RW756",
        f"each rank draws all {size} samples of the dataset in one epoch, in its own order: no DistributedSampler shares them out",
        {rank: one.begun.made for rank, one in passes.items()},
        f"the sampler is a {ones[0].begun.sampler}, and every rank drew {size} of {size} samples: duplicates across the ranks",
    )


def _padded(audited: AuditedJob, passes: dict[int, DataPass]) -> Finding | None:
    ones = list(passes.values())
    size, world = ones[0].begun.size, len(ones)
    if not _ended(passes) or any(one.trains or not one.begun.is_distributed for one in ones) or not size or size % world == 0:
        return None
    drawn = sum(one.ended.samples for one in ones if one.ended)
    if drawn == size:
        return None
    what = f"counts {drawn - size} of {size} samples twice (padding)" if drawn > size else f"leaves out {size - drawn} of {size} samples"
    return audited.proven(
        "RW753",
        f"evaluation {what}: DistributedSampler gives every rank the same number of samples",
        {rank: one.begun.made for rank, one in passes.items()},
        f"the dataset has {size} samples, the {world} ranks drew {drawn} together (duplicate or dropped ones are "
        f"{'repeated from the beginning' if drawn > size else 'the last'}); metrics reduced over the ranks count them so",
    )
