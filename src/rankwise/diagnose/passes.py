"""Each rank's passes over its data: where they began, how many batches they gave, and whether they came to their end."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rankwise.evidence.records import RankEvidence, Stack


@dataclass(frozen=True)
class Pass:
    """One iteration over a DataLoader. `batches` counts those fetched so far; `is_over` says that the data ended."""

    stack: Stack
    batches: int
    is_over: bool = False


def passes_of(evidence: RankEvidence) -> list[Pass]:
    """The passes over data, in the order they began, as far as the ring still holds them."""
    found: list[Pass] = []
    for call in evidence.calls:
        if call.op == "pass_start":
            found.append(Pass(call.stack, call.peer or 0))
        elif call.op == "pass_end":
            opened = next((i for i in range(len(found) - 1, -1, -1) if not found[i].is_over), None)
            if opened is not None:
                found[opened] = replace(found[opened], batches=call.peer or 0, is_over=True)
    fetched = evidence.counts.get("next_batch", 0)
    for i in range(len(found) - 1, -1, -1):
        if not found[i].is_over:  # its `batches` is still the count at its beginning; passes that began later took some of those since
            shares = sum(one.batches for one in found[i + 1 :])
            found[i] = replace(found[i], batches=max(0, fetched - found[i].batches - shares))
    return found


def shorter_pass(evidence: RankEvidence, other: RankEvidence) -> tuple[Pass, Pass] | None:
    """A pass of this rank that ended while the other rank got more batches out of the same one."""
    mine, theirs = passes_of(evidence), passes_of(other)
    for stack in dict.fromkeys(one.stack for one in reversed(theirs)):
        a, b = ([one for one in passes if one.stack == stack] for passes in (mine, theirs))
        is_all_known = not evidence.num_forgotten and not other.num_forgotten
        if stack == theirs[-1].stack and not theirs[-1].is_over and is_all_known:
            pairs = list(zip(a, b, strict=False))  # the first that differed has shifted all later ones
        else:
            pairs = [(a[-1], b[-1])] if a and len(a) == len(b) else []
        if (found := next(((one, two) for one, two in pairs if one.is_over and one.batches < two.batches), None)) is not None:
            return found
    return None


def has_left_pass(evidence: RankEvidence, other: RankEvidence) -> bool:
    """True where this rank, now elsewhere, never came to the end of the pass that the other one is in."""
    opened = [one for one in passes_of(other) if not one.is_over]
    if not opened:
        return False
    mine, theirs = ([one for one in passes_of(rank) if one.stack == opened[-1].stack] for rank in (evidence, other))
    return len(mine) == len(theirs) and not mine[-1].is_over
