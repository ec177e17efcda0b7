"""Ranks pass the same tensors to collectives, but in a different order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations, groupby

from rankwise.diagnose.silent.audited_job import AuditedJob
from rankwise.evidence.audit import Reduced
from rankwise.evidence.records import Frame
from rankwise.findings import Finding, Place

Series = defaultdict[tuple[str, str], dict[int, Reduced]]  # the calls of each kind, by number
Pair = tuple[str, Reduced, str, Reduced]  # a call of two ranks, with what each gave to it
_LEAST = 2  # places in the order that have to differ


def find(audited: AuditedJob) -> Finding | None:
    series = {rank: _by_kind(audit.reduces) for rank, audit in audited.audits.items()}
    for first, other in combinations(sorted(series), 2):
        if (found := _swapped(series[first], series[other])) is not None:
            return _finding(audited, [first, other], found)
    return None


def _by_kind(reduces: tuple[Reduced, ...]) -> Series:
    found: Series = defaultdict(dict)
    for one in reduces:
        found[one.op, one.group][one.n] = one
    return found


def _swapped(a: Series, b: Series) -> list[Pair] | None:
    """Places at which the labels differ, though both ranks use the same labels in all: one's order is a shuffling of the other's."""
    for kind in a.keys() & b.keys():
        common = sorted(a[kind].keys() & b[kind].keys())
        for name in _names(a[kind][n] for n in common):
            pairs = [(_label(a[kind][n], name), a[kind][n], _label(b[kind][n], name), b[kind][n]) for n in common]
            pairs = [pair for pair in pairs if pair[0] and pair[2]]
            different = [pair for pair in pairs if pair[0] != pair[2]]
            if len(different) >= _LEAST and _is_shuffled(pairs):
                return different
    return None


def _names(reduces: Iterable[Reduced]) -> list[str]:
    """The kinds of labels: a parameter's (""), and each variable that holds a text."""
    return list(dict.fromkeys(word.partition("=")[0] for one in reduces for word in (*([""] if one.label else []), *one.words)))


def _label(one: Reduced, name: str) -> str:
    return next((word for word in one.words if word.startswith(f"{name}=")), "") if name else one.label


def _is_shuffled(pairs: list[Pair]) -> bool:
    """Both ranks have several labels, and the same ones: neither one rank's name for itself, nor a value that goes with the rank."""
    left, right = {pair[0] for pair in pairs}, {pair[2] for pair in pairs}
    return len(left) > 1 and left == right


def _finding(audited: AuditedJob, ranks: list[int], different: list[Pair]) -> Finding:
    label_a, a, label_b, b = different[0]
    shown = [text.partition("=")[2] or text for text in (label_a, label_b)]
    firsts = [key for key, _ in groupby(text.partition("=")[2] or text for text, *_ in different[:6])]
    return audited.proven(
        "RW783",
        f"the ranks reduce different tensors together: {a.op} is called in a different order, {shown[0]} on rank {ranks[0]} with {shown[1]} "
        f"on rank {ranks[1]}",
        {},
        f"call {a.n} of {a.op} has {shown[0]} on rank {ranks[0]} and {shown[1]} on rank {ranks[1]}, and so on for {len(different)} calls "
        f"({', '.join(firsts[:4])}, …): sums of different things, a mismatch without an error",
        culprits=tuple(place for rank, one in zip(ranks, (a, b)) for place in _places(audited, rank, one)),
    )


def _places(audited: AuditedJob, rank: int, one: Reduced) -> list[Place]:
    """The line that decides the order, where the source shows a loop or a sorting around the call, and the call itself."""
    frame = audited.frame(rank, one.site)
    line = _line_of_order(audited, frame) if frame is not None else None
    lines = [Frame(frame.file, line, frame.function), frame] if frame is not None and line else [frame]
    return [audited.place(rank, line) for line in lines]


def _line_of_order(audited: AuditedJob, frame: Frame) -> int | None:
    """Upwards from the call: a sort in the same function, else the nearest loop."""
    lines = audited.job.sources.get(frame.file, "").splitlines()[: frame.line]
    loop = None
    for n in range(len(lines), 0, -1):
        text = lines[n - 1].split("#")[0].strip()
        if text.startswith("def "):
            break
        if "sort" in text:
            return n
        if loop is None and (text.startswith("for ") or " for " in text):
            loop = n
    return loop
