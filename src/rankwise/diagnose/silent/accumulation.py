"""Gradient accumulation gone wrong: gradients thrown away, not divided, a short last window, or reduced too often."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rankwise.causes import load_cause
from rankwise.diagnose.silent.audited_job import BACKWARDS, AuditedJob, num_backwards
from rankwise.evidence.audit import Window
from rankwise.findings import Finding, Place

_LEAST = 3
_MOSTLY = 0.6


@dataclass(frozen=True)
class Habit:
    """What the windows of one optimizer on one rank usually look like."""

    rank: int
    windows: list[Window]
    usual: Window
    share: float  # of all windows but the first that are so long
    length: int  # backwards in a window


def find(audited: AuditedJob) -> list[Finding]:
    habits = [habit for rank in audited.audits if (habit := _habit(audited, rank)) is not None]
    if not habits:
        return []
    looks = (_thrown_away, _short, _not_divided, _reduced_each_time)
    return [finding for look in looks if (finding := look(audited, habits)) is not None]


def _habit(audited: AuditedJob, rank: int) -> Habit | None:
    """Of the optimizer that accumulates: several backwards, all from one line, before each step."""
    for windows in audited.windows(rank).values():
        lengths: Counter[int] = Counter()
        for window in windows:
            lengths[num_backwards(window.pattern)] += window.count
        total = sum(lengths.values())
        length, times = lengths.most_common(1)[0]
        if length < 2 or times < _LEAST or times < _MOSTLY * total:
            continue
        usual = max((w for w in windows if num_backwards(w.pattern) == length), key=lambda w: w.count)
        if usual.lines == 1:
            return Habit(rank, windows, usual, times / total, length)
    return None


def _place(audited: AuditedJob, habit: Habit, letters: str) -> Place:
    site = next((habit.usual.places[letter] for letter in letters if letter in habit.usual.places), habit.usual.site)
    return audited.place(habit.rank, site)


def _wasted(pattern: str) -> int:
    """Backwards of a window whose gradients were thrown away before another backward."""
    kept = pattern[: max((pattern.rfind(letter) for letter in BACKWARDS), default=0)]
    return sum(letter in BACKWARDS for letter in kept[: kept.rfind("z") + 1]) if "z" in kept and "|" not in kept else 0


def _thrown_away(audited: AuditedJob, habits: list[Habit]) -> Finding | None:
    found = [habit for habit in habits if _wasted(habit.usual.pattern)]
    if not found:
        return None
    one = found[0]
    wasted, by_hand = _wasted(one.usual.pattern), "m" in one.usual.pattern
    return load_cause("RW761").finding(
        f"zero_grad inside the accumulation window throws gradients away: only {one.length - wasted} of {one.length} micro-steps reach the step",
        certain=not by_hand,
        severity="info" if by_hand else "warning",
        culprits=tuple(_place(audited, habit, "z") for habit in found),
        why=f"in {one.usual.count} windows in a row rank {one.rank} made {one.length} backwards before each step and zeroed the gradients "
        f"{one.usual.pattern.count('z')} times between them; no step had used them, and the weights had not changed",
    )


def _not_divided(audited: AuditedJob, habits: list[Habit]) -> Finding | None:
    """Only the user can know whether the learning rate was chosen for the sum: a note."""
    found = [h for h in habits if not _wasted(h.usual.pattern) and "m" not in h.usual.pattern and h.usual.is_mean]
    found = [h for h in found if h.usual.divisor is None or (h.usual.divisor > 1 and abs(h.usual.divisor - h.length) > 0.01 * h.length)]
    found = [h for h in found if "g" not in h.usual.pattern]
    if not found:
        return None
    one = found[0]
    by = "not divided at all" if one.usual.divisor is None else f"divided by {one.usual.divisor:g}"
    return load_cause("RW762").finding(
        f"the loss is {by}, and {one.length} backwards are accumulated before each step: gradients are "
        f"{one.length / (one.usual.divisor or 1):g} times those of one batch",
        certain=False,
        culprits=tuple(_place(audited, habit, BACKWARDS) for habit in found),
        why=f"{one.usual.count} windows of {one.length} micro-steps in a row; each loss is a mean ({one.usual.root})",
        next=(f"divide the loss by {one.length}",),
    )


def _short(audited: AuditedJob, habits: list[Habit]) -> Finding | None:
    for look in (_dropped, _carried, _wrongly_scaled):
        found = [(habit, seen) for habit in habits if (seen := look(audited, habit)) is not None]
        if found:
            _one, (what, why) = found[0]
            return load_cause("RW763").finding(
                what,
                certain=look is _dropped,
                severity="warning" if look is _dropped else "info",
                culprits=tuple(_place(audited, habit, BACKWARDS) for habit, _ in found),
                why=why,
            )
    return None


def _dropped(audited: AuditedJob, habit: Habit) -> tuple[str, str] | None:
    """The data ended, and the gradients that waited then were zeroed, or never used at all."""
    zeroed = [w for w in habit.windows if "z" in w.pattern.partition("|")[2] and "|" in w.pattern]
    left = [one for one in audited.audits[habit.rank].left if "|" in one.pattern or (num_backwards(one.pattern) and zeroed)]
    rests = [num_backwards(w.pattern.partition("|")[0]) for w in zeroed] + [num_backwards(one.pattern) for one in left]
    ended = audited.job.exit_code is not None
    if not zeroed and not (left and ended):
        return None
    return (
        f"the last, shorter accumulation window of an epoch is dropped: {rests[0]} micro-steps of {habit.length} never reach a step",
        (
            f"the data ended {rests[0]} backwards after the last step on rank {habit.rank}, and no step used their gradients "
            f"({len(rests)} times); a window has {habit.length} micro-steps"
        ),
    )


def _carried(audited: AuditedJob, habit: Habit) -> tuple[str, str] | None:
    mixed = [w for w in habit.windows if "|" in w.pattern and num_backwards(w.pattern.partition("|")[2])]
    if not mixed:
        return None
    before, _, after = mixed[0].pattern.partition("|")
    return (
        f"the last accumulation window of an epoch is not stepped: its {num_backwards(before)} micro-steps are mixed into the next epoch's first step",
        (
            f"on rank {habit.rank} the window of step {mixed[0].first} has {num_backwards(before)} backwards before the data ended and "
            f"{num_backwards(after)} after; usual are {habit.length}"
        ),
    )


def _wrongly_scaled(audited: AuditedJob, habit: Habit) -> tuple[str, str] | None:
    divisor = habit.usual.divisor
    if divisor is None or abs(divisor - habit.length) > 0.01 * habit.length:
        return None
    short = [w for w in habit.windows if 0 < num_backwards(w.pattern) < habit.length and w.divisor == divisor and w.first > 0]
    if not short:
        return None
    rest = num_backwards(short[0].pattern)
    return (
        f"the last, shorter accumulation window is scaled wrongly: {rest} micro-steps, each loss divided by {divisor:g}",
        (
            f"at step {short[0].first} rank {habit.rank} made {rest} backwards and divided by {divisor:g} as in the usual windows of "
            f"{habit.length}: that step is {rest}/{habit.length} of its size"
        ),
    )


def _reduced_each_time(audited: AuditedJob, habits: list[Habit]) -> Finding | None:
    found = [h for h in habits if not _wasted(h.usual.pattern) and {c for c in h.usual.pattern if c in BACKWARDS} == {"s"}]
    if not found:
        return None
    one = found[0]
    size = sum(w.bytes for w in audited.audits[one.rank].wrappers)
    times = [t for t in audited.audits[one.rank].times if t.steps]
    spent = sum(t.backward for t in times) / max(1, sum(t.steps for t in times))
    cost = f", and a step spends {spent:.0f} ms in backward, part of it waiting for that" if times else ""
    return load_cause("RW511").finding(
        f"every backward of the accumulation reduces all gradients: {one.length} times a step instead of once, without no_sync",
        certain=True,
        culprits=tuple(_place(audited, habit, "s") for habit in found),
        why=f"{one.usual.count} windows in a row have {one.length} micro-steps, each through a synchronising forward; "
        f"{(one.length - 1) * size / 1e6:.1f} MB a step go over the network for nothing{cost}",
    )
