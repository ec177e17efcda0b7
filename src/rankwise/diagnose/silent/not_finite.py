"""A loss that is not finite, on which rank first, and what became of the weights."""

from __future__ import annotations

from rankwise.diagnose.silent.audited_job import BACKWARDS, AuditedJob
from rankwise.findings import Finding, ranks_text


def find(audited: AuditedJob) -> Finding | None:
    bad = {rank: audit.bad_losses[0] for rank, audit in audited.audits.items() if audit.bad_losses}
    if not bad:
        return None
    first = min(one.n for one in bad.values())
    if (found := _in_backward(audited, first)) is not None:
        return found
    ranks = sorted(rank for rank, one in bad.items() if one.n == first)
    spoiled = _spoiled(audited)
    some = len(ranks) < len(audited.audits)
    what = f"{ranks_text(ranks)} alone" if some else "all ranks"
    inputs = _bad_inputs(audited, ranks)
    after = f"; from step {spoiled[1]} on parameter {spoiled[0]} is not finite on {ranks_text(spoiled[2])}" if spoiled else ""
    return audited.proven(
        "RW766",
        f"the loss became {bad[ranks[0]].value} on {what} at step {first}{after}",
        {rank: bad[rank].site for rank in ranks},
        (inputs or "the batch itself is finite, as far as was looked")
        + ("; the all-reduce carries the gradients (inf or nan) to every rank" if some else ""),
        severity="warning" if some and spoiled else "info",
    )


def _in_backward(audited: AuditedJob, before: int) -> Finding | None:
    """Gradients that were not finite on some ranks before DDP spread them to all, while every loss was still finite."""
    seen = [
        (step.n, rank, step, name)
        for rank, audit in audited.audits.items()
        for step in audit.steps
        for name, norm in step.local
        if norm is None
    ]
    if not seen or min(n for n, *_ in seen) >= before:
        return None
    first, _, step, name = min(seen, key=lambda one: one[:2])
    ranks = sorted({rank for n, rank, _, _ in seen if n == first})
    finite = [rank for rank, audit in audited.audits.items() if any(s.n == first and s.local for s in audit.steps) and rank not in ranks]
    if not finite:
        return None
    return audited.proven(
        "RW766",
        f"the gradients became inf or nan on {ranks_text(ranks)} alone at step {first}, first seen in {name}; the losses were still finite",
        {rank: _backward_of(audited, rank, step.i) for rank in ranks},
        f"before DDP reduced it, the gradient of {name} was not finite on {ranks_text(ranks)} and finite on {ranks_text(finite)}; the "
        f"all-reduce carried it to every rank, and from step {before} on a loss is not finite",
        severity="warning",
    )


def _backward_of(audited: AuditedJob, rank: int, i: int) -> int | None:
    places = next((window.places for window in audited.audits[rank].windows if window.i == i), {})
    return next((places[letter] for letter in BACKWARDS if letter in places), None)


def _spoiled(audited: AuditedJob) -> tuple[str, int, list[int]] | None:
    """The first parameter whose weights are no longer finite, the step, and on which ranks."""
    bad = {
        rank: [(s.n, row[0]) for s in audit.steps for row in s.rows if row[4] is not None and row[5] is None]
        for rank, audit in audited.audits.items()
    }
    found = {rank: seen[0] for rank, seen in bad.items() if seen}
    if not found:
        return None
    step, name = min(found.values())
    return name, step, sorted(found)


def _bad_inputs(audited: AuditedJob, ranks: list[int]) -> str:
    bad = ((rank, batch) for rank in ranks for batch in audited.audits[rank].batches if batch.bad)
    return next((f"batch {batch.n} of rank {rank}'s epoch {batch.p} already holds inf or nan" for rank, batch in bad), "")
