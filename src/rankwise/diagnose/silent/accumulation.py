"""Gradient accumulation gone wrong: gradients thrown away, not divided, a short last window, or reduced too often."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from rankwise.diagnose.silent.audited_job import BACKWARDS, AuditedJob, num_backwards
from rankwise.evidence.audit import Window
from rankwise.findings import Finding

_LEAST = 3
_MOSTLY = 0.6


@dataclass(frozen=True)
class Habit:
    """What the windows of one optimizer on one rank usually look like."""

    rank: int
    windows: list[Window]
    usual: Window
    length: int  # backwards in a window

    def site(self, letters: str) -> int:
        return next((self.usual.places[letter] for letter in letters if letter in self.usual.places), self.usual.site)

    @property
    def wasted(self) -> int:
        """Backwards of the usual window whose gradients were thrown away before another backward."""
        pattern = self.usual.pattern
        kept = pattern[: max((pattern.rfind(letter) for letter in BACKWARDS), default=0)]
        return num_backwards(kept[: kept.rfind("z") + 1]) if "z" in kept and "|" not in kept else 0


def _habits(audited: AuditedJob) -> list[Habit]:
    return [habit for rank in audited.audits if (habit := _habit(audited, rank)) is not None]


def _habit(audited: AuditedJob, rank: int) -> Habit | None:
    """How the rank accumulates: an optimizer with several backwards, all from one line, before each step."""
    by_optimizer: defaultdict[int, list[Window]] = defaultdict(list)
    for window in audited.audits[rank].windows:
        by_optimizer[window.i].append(window)
    for windows in by_optimizer.values():
        lengths: Counter[int] = Counter()
        for window in windows:
            lengths[num_backwards(window.pattern)] += window.count
        length, times = lengths.most_common(1)[0]
        if length < 2 or times < _LEAST or times < _MOSTLY * lengths.total():
            continue
        usual = max((w for w in windows if num_backwards(w.pattern) == length), key=lambda w: w.count)
        if usual.lines == 1:
            return Habit(rank, windows, usual, length)
    return None


def find_thrown_away(audited: AuditedJob) -> Finding | None:
    found = [habit for habit in _habits(audited) if habit.wasted]
    if not found:
        return _find_nothing_left(audited)
    one = found[0]
    by_hand = "m" in one.usual.pattern
    return audited.finding(
        "RW761",
        f"zero_grad inside the accumulation window throws gradients away: only {one.length - one.wasted} of {one.length} micro-steps reach the step",
        {habit.rank: habit.site("z") for habit in found},
        f"in {one.usual.count} windows in a row rank {one.rank} made {one.length} backwards before each step and zeroed the gradients "
        f"{one.usual.pattern.count('z')} times between them; no step had used them, and the weights had not changed",
        certain=not by_hand,
        severity="info" if by_hand else "warning",
    )


def _find_nothing_left(audited: AuditedJob) -> Finding | None:
    """Gradients zeroed between the backward and the step, which then finds none."""
    found = {rank: window for rank in audited.audits if (window := _emptied(audited, rank)) is not None}
    if not found:
        return None
    rank, window = next(iter(found.items()))
    return audited.proven(
        "RW761",
        "zero_grad between backward and step throws the gradients away: the optimizer's steps find none, and the model does not learn",
        {rank: window.places["z"] for rank, window in found.items()},
        f"at all {_num_steps(audited, rank, window)} steps looked at on rank {rank}, no parameter of the optimizer had a gradient that is not zero",
        instead=("call zero_grad() after step(), or before the backward",),
    )


def _emptied(audited: AuditedJob, rank: int) -> Window | None:
    """The usual window of an optimizer that never had a gradient because each window ends in a zero_grad."""
    for window in audited.audits[rank].windows:
        last = max(window.pattern.rfind(letter) for letter in BACKWARDS)
        rows = [row for step in audited.audits[rank].steps if step.i == window.i for row in step.rows]
        is_without = all(weight is not None and (gradient is None or norm == 0) for _, _, gradient, norm, weight, _ in rows)
        is_emptied = 0 <= last < window.pattern.find("z", last) and "z" in window.places and rows and is_without
        if is_emptied and _num_steps(audited, rank, window) >= _LEAST:
            return window
    return None


def _num_steps(audited: AuditedJob, rank: int, window: Window) -> int:
    return sum(step.i == window.i for step in audited.audits[rank].steps)


def _is_undivided(habit: Habit) -> bool:
    usual = habit.usual
    is_other = usual.divisor is None or (usual.divisor > 1 and abs(usual.divisor - habit.length) > 0.01 * habit.length)
    return usual.is_mean and is_other and not set("mg") & set(usual.pattern) and not habit.wasted


def find_not_divided(audited: AuditedJob) -> Finding | None:
    """A note that the loss is not divided; only the user knows whether the learning rate was chosen for the sum."""
    found = [habit for habit in _habits(audited) if _is_undivided(habit)]
    if not found:
        return None
    one = found[0]
    by = "not divided at all" if one.usual.divisor is None else f"divided by {one.usual.divisor:g}"
    return audited.suspected(
        "RW762",
        f"the loss is {by}, and {one.length} backwards are accumulated before each step: gradients are "
        f"{one.length / (one.usual.divisor or 1):g} times those of one batch",
        {habit.rank: habit.site(BACKWARDS) for habit in found},
        f"{one.usual.count} windows of {one.length} micro-steps in a row; each loss is a mean ({one.usual.root})",
        next=(f"divide the loss by {one.length}",),
    )


def find_short_window(audited: AuditedJob) -> Finding | None:
    """The last window of an epoch, which may be shorter than the others."""
    for look in (_dropped, _carried, _wrongly_scaled):
        found = [(habit, told) for habit in _habits(audited) if (told := look(audited, habit)) is not None]
        if found:
            summary, why = found[0][1]
            is_lost = look is _dropped
            sites = {habit.rank: habit.site(BACKWARDS) for habit, _ in found}
            return audited.finding("RW763", summary, sites, why, certain=is_lost, severity="warning" if is_lost else "info")
    return None


def _dropped(audited: AuditedJob, habit: Habit) -> tuple[str, str] | None:
    """The data ended, and the gradients that waited then were zeroed, or never used at all."""
    zeroed = [w for w in habit.windows if "z" in w.pattern.partition("|")[2]]
    left = [one for one in audited.audits[habit.rank].left if "|" in one.pattern or (num_backwards(one.pattern) and zeroed)]
    rests = [num_backwards(w.pattern.partition("|")[0]) for w in zeroed] + [num_backwards(one.pattern) for one in left]
    if not zeroed and not (left and audited.job.exit_code is not None):
        return None
    return (
        f"the last, shorter accumulation window of an epoch is dropped: {rests[0]} micro-steps of {habit.length} never reach a step",
        f"the data ended {rests[0]} backwards after the last step on rank {habit.rank}, and no step used their gradients ({len(rests)} times); a window has {habit.length} micro-steps",
    )


def _carried(audited: AuditedJob, habit: Habit) -> tuple[str, str] | None:
    for window in habit.windows:
        before, after = (num_backwards(part) for part in window.pattern.partition("|")[::2])
        if after:
            return (
                f"the last accumulation window of an epoch is not stepped: its {before} micro-steps are mixed into the next epoch's first step",
                f"on rank {habit.rank} the window of step {window.first} has {before} backwards before the data ended and {after} after; usual are {habit.length}",
            )
    return None


def _wrongly_scaled(audited: AuditedJob, habit: Habit) -> tuple[str, str] | None:
    divisor = habit.usual.divisor
    if divisor is None or abs(divisor - habit.length) > 0.01 * habit.length:
        return None
    for window in habit.windows:
        rest = num_backwards(window.pattern)
        if 0 < rest < habit.length and window.divisor == divisor and window.first > 0:
            return (
                f"the last, shorter accumulation window is scaled wrongly: {rest} micro-steps, each loss divided by {divisor:g}",
                f"at step {window.first} rank {habit.rank} made {rest} backwards and divided by {divisor:g} as in the usual windows of {habit.length}: that step is {rest}/{habit.length} of its size",
            )
    return None


def find_reduced_each_time(audited: AuditedJob) -> Finding | None:
    found = [habit for habit in _habits(audited) if not habit.wasted and set(habit.usual.pattern) & set(BACKWARDS) == {"s"}]
    if not found:
        return None
    one = found[0]
    audit = audited.audits[one.rank]
    size = sum(w.bytes for w in audit.wrappers)
    times = [t for t in audit.times if t.steps]
    spent = sum(t.backward for t in times) / max(1, sum(t.steps for t in times))
    cost = f", and a step spends {spent:.0f} ms in backward, part of it waiting for that" if times else ""
    return audited.proven(
        "RW511",
        f"every backward of the accumulation reduces all gradients: {one.length} times a step instead of once, without no_sync",
        {habit.rank: habit.site("s") for habit in found},
        f"{one.usual.count} windows in a row have {one.length} micro-steps, each through a synchronising forward; "
        f"{(one.length - 1) * size / 1e6:.1f} MB a step go over the network for nothing{cost}",
    )
