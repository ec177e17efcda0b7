"""Logged numbers that come from one rank only, or are a mean of means."""

from __future__ import annotations

import re

from rankwise.diagnose.silent.audited_job import AuditedJob
from rankwise.evidence.records import Frame
from rankwise.findings import Finding, Place

_LOSS = re.compile(r"loss\W{0,3}[^\n\d]{0,16}(-?\d+\.?\d*(?:e[-+]?\d+)?)", re.I)
_METRIC = re.compile(r"(?:acc\w*|metric|score|f1|auc|bleu|error|val\w*|ppl|perplexity|mae|rmse)\W{0,3}[^\n\d]{0,16}(-?\d+\.?\d*)", re.I)
_APART = 1.2
_LEAST = 8
_COMBINING = ("all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "gather")
_RECORDS = re.compile(r"(loss|metric|log|history|train|result|score)[^/]*$|\.(csv|jsonl?|tsv)$", re.I)


def find(audited: AuditedJob) -> Finding | None:
    return _mean_of_means(audited) or _local_loss(audited) or _local_metric(audited)


def _speaks_alone(audited: AuditedJob, pattern: re.Pattern[str]) -> bool:
    """Whether only rank 0 prints such numbers, or writes a file for them."""
    tails = {rank: audited.job.log_tails.get(f"rank-{rank}", "") for rank in list(audited.audits)[:4]}
    printing = {rank for rank, text in tails.items() if pattern.search(text)}
    writing = {rank for rank, e in audited.audits.items() if any(_RECORDS.search(one.path) for one in e.writes if one.how == "open")}
    return (writing == {0} or 0 in printing) and not printing - {0}


def _local_loss(audited: AuditedJob) -> Finding | None:
    """The losses of the ranks differ, no rank ever reduced a number, and rank 0 alone prints one."""
    losses = {rank: _mean_loss(audited, rank) for rank in audited.audits}
    known = {rank: loss for rank, loss in losses.items() if loss is not None}
    if len(known) < 2 or 0 not in known or _combines(audited) or not _speaks_alone(audited, _LOSS):
        return None
    highest, lowest = max(known.values()), min(known.values())
    if highest < _APART * lowest or lowest < 0:
        return None
    by_rank_text = ", ".join(f"rank {rank} {loss:.4g}" for rank, loss in list(known.items())[:8])
    return audited.suspected(
        "RW780",
        f"the loss in the log is that of rank 0 only, its local one: {known[0]:.4g} on average, over all ranks it is "
        f"{sum(known.values()) / len(known):.4g}",
        {},
        f"mean loss so far: {by_rank_text}; rank 0 alone prints a loss, and no collective of the script ever combined the ranks' numbers: it is not reduced",
        culprits=_lines(audited, "loss"),
    )


def _mean_loss(audited: AuditedJob, rank: int) -> float | None:
    audit = audited.audits[rank]
    if audit.ends and audit.ends[-1].losses >= _LEAST:
        return audit.ends[-1].loss
    seen = [step.loss for step in audit.steps if step.loss is not None]
    return sum(seen) / len(seen) if len(seen) >= _LEAST else None


def _combines(audited: AuditedJob) -> bool:
    """Whether the script itself ever reduced or gathered anything but gradients and weights."""
    labels = {bool(one.label) for audit in audited.audits.values() for one in audit.reduces}
    counted = any(e.counts.get(op, 0) for e in audited.job.ranks.values() for op in (*_COMBINING, "all_gather_object", "gather_object"))
    return False in labels or (counted and not labels)


def _lines(audited: AuditedJob, word: str) -> tuple[Place, ...]:
    """Where rank 0 reads the number, and where it prints it, as far as the source shows."""
    audit = audited.audits[0]
    frame = audited.frame(0, audit.windows[-1].site if audit.windows else next((f.site for f in audit.forwards), 0))
    if frame is None:
        return (audited.place(0, None),)
    found = [audited.line_with(frame.file, words, frame.line) for words in ((word, ".item()"), ("print", word), ("log", word))]
    lines = [Frame(frame.file, line, frame.function) for line in found if line]
    return tuple(audited.place(0, line) for line in lines[:2] or [frame])


def _evaluations(audited: AuditedJob) -> dict[int, int]:
    """How many samples each rank evaluated in its first whole pass without backwards; empty where not all did."""
    found: dict[int, int] = {}
    for rank in audited.audits:
        for passes in audited.loaders(rank).values():
            for one in passes:
                if rank not in found and not one.trains and one.ended is not None and one.ended.whole and one.ended.batches:
                    rows = sum(b.rows for b in one.batches.values()) if one.begun.is_iterable else one.ended.samples
                    found[rank] = rows
    return found if len(found) == len(audited.audits) > 1 else {}


def _local_metric(audited: AuditedJob) -> Finding | None:
    """Each rank evaluates its own part, nothing is combined, and rank 0 alone prints a metric."""
    sizes = _evaluations(audited)
    if not sizes or _combines(audited) or not _speaks_alone(audited, _METRIC) or not _differ(audited):
        return None
    by_rank_text = ", ".join(f"rank {rank} {size}" for rank, size in list(sizes.items())[:8])
    return audited.suspected(
        "RW780",
        "the metric in the log is that of rank 0's shard only: each rank evaluates its own part, and nothing combines them",
        {},
        f"samples evaluated: {by_rank_text}, and not the same ones; rank 0 alone prints a metric, and no collective of the script ever combined "
        "the ranks' local numbers: it is not reduced",
        culprits=_lines(audited, "acc"),
    )


def _differ(audited: AuditedJob) -> bool:
    """Whether the ranks evaluated different samples."""
    firsts = {
        rank: next(
            (one.batches[0].sums for passes in audited.loaders(rank).values() for one in passes if not one.trains and 0 in one.batches),
            None,
        )
        for rank in audited.audits
    }
    return len(set(firsts.values())) > 1


def _mean_of_means(audited: AuditedJob) -> Finding | None:
    """After an evaluation of uneven parts one number per rank is reduced, without a count of samples."""
    sizes = _evaluations(audited)
    if not sizes or max(sizes.values()) == min(sizes.values()):
        return None
    reduces = {rank: [one for one in audited.audits[rank].reduces if one.op in _COMBINING and not one.label] for rank in sizes}
    single = {rank: [one for one in found if one.values] for rank, found in reduces.items()}
    if not all(single.values()) or any(not one.values for found in reduces.values() for one in found):
        return None
    values = {rank: [value for one in found for value in one.values if value is not None] for rank, found in single.items()}
    if any(abs(value - size) < 0.5 for rank, size in sizes.items() for value in values[rank] if size > 1) or not all(values.values()):
        return None
    by_rank_text = ", ".join(f"rank {rank}: {values[rank][0]:.4g} over {size} samples" for rank, size in list(sizes.items())[:8])
    return audited.suspected(
        "RW781",
        "a metric is averaged over ranks with different numbers of samples: a mean of means, not the mean over all samples",
        {rank: found[0].site for rank, found in single.items()},
        f"{by_rank_text}; only one number per rank is reduced, and no count: unequal shards get equal weight",
    )
