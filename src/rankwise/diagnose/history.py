"""Aligns the calls of two ranks: where they diverge, and what was usual until then."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import prod

from rankwise.diagnose.rank_state import end_of
from rankwise.evidence.collective_log import SAME_SIZE, WRAPPER_CALLS
from rankwise.evidence.frames import user_frame
from rankwise.evidence.records import Call, JobEvidence, NewGroup, RankEvidence

_NOT_TOGETHER = frozenset(
    {
        "init_process_group", "destroy_process_group", "next_batch", "end_of_data", "pass_start", "pass_end", "send", "recv", "isend", "irecv",
        "batch_isend_irecv", "send_object_list", "recv_object_list",
    }
)  # fmt: skip
# What a pair of calls costs in an alignment; two calls that are the same cost nothing.
_NEAR = 1  # the same operation from the same line of the user's, by another way through a library
_TWIN = 2  # the same operation from another line
_GAP = 4  # a call that only one rank made
_TURN = 5  # the same operation from another line to which both ranks come: more likely one of them is a call ahead
_NEVER = 1 << 20
_BAND = 40  # how far two ranks may be apart
_LONGEST = 1500  # calls after the first difference that are laid side by side
_SOME_PAST = 8  # with fewer calls, nothing is usual yet
_SOME_CALLS = 4  # the last calls before a divergence, which show whether two ranks run the same code at all
_LOOK_AHEAD = 24  # how many calls a rank may leave out at once

Key = tuple[object, ...]


@dataclass(frozen=True)
class History:
    """One rank's calls that all ranks make together, oldest first; `numbers` are their numbers among all calls of the rank."""

    rank: int
    calls: tuple[Call, ...]
    numbers: tuple[int, ...]
    first: int = 0  # calls before this number have left the ring
    quiet: frozenset[int] = frozenset()  # numbers of forwards and backwards that are known to have called no collective
    evaluations: frozenset[int] = frozenset()  # numbers of forwards without gradients that are over, where there is one model

    def key(self, i: int) -> Key:
        return key_of(self.calls[i])

    def only(self, is_kept: Callable[[int, Call], bool]) -> History:
        """The same history with only the calls that `is_kept` chooses, by number and call."""
        kept = [(number, call) for number, call in zip(self.numbers, self.calls, strict=True) if is_kept(number, call)]
        return replace(self, calls=tuple(call for _, call in kept), numbers=tuple(number for number, _ in kept))


@dataclass(frozen=True)
class Divergence:
    """Where two ranks diverge: what both did last, and what each did next (None: nothing more, it is gone or not there yet)."""

    mine: History
    other: History
    at: int  # index in mine of the first call that the other did not make there
    at_other: int
    is_in_step_again: bool = False  # the other made no call in place of mine: after mine both go on alike

    @property
    def before(self) -> Call | None:
        return self.mine.calls[self.at - 1] if self.at else None

    @property
    def next(self) -> Call | None:
        return self.mine.calls[self.at] if self.at < len(self.mine.calls) else None

    @property
    def next_other(self) -> Call | None:
        return self.other.calls[self.at_other] if self.at_other < len(self.other.calls) else None

    def swapped(self) -> Divergence:
        return Divergence(self.other, self.mine, self.at_other, self.at)

    @property
    def instead(self) -> Call | None:
        """What the other did in place of my next call; None where it did nothing in its place."""
        return None if self.is_in_step_again else self.next_other

    @property
    def is_of_roles(self) -> bool:
        """Whether each rank runs its own part of the program: both made calls lately, and none in the same function."""
        mine, other = self.mine.calls[: self.at][-_SOME_CALLS:], self.other.calls[: self.at_other][-_SOME_CALLS:]
        functions, others = _functions(mine), _functions(other)
        are_apart = min(len(mine), len(other)) > 1 and bool(functions and others) and functions.isdisjoint(others)
        return are_apart and {key_of(call) for call in mine}.isdisjoint(key_of(call) for call in other)

    def past(self) -> Iterator[tuple[Key, ...]]:
        """The keys of both ranks' calls up to here."""
        yield tuple(self.mine.key(i) for i in range(self.at))
        yield tuple(self.other.key(i) for i in range(self.at_other))


def _functions(calls: Sequence[Call]) -> set[tuple[str, str]]:
    return {(frame.file, frame.function) for call in calls if (frame := user_frame(call.stack)) is not None}


def key_of(call: Call) -> Key:
    """What makes two calls the same: the operation, the group and the way through the code that led to it."""
    return (call.op, call.group, call.stack)


def history_of(evidence: RankEvidence) -> History:
    first = evidence.num_forgotten
    numbered = [(first + i, call) for i, call in enumerate(evidence.calls) if call.op not in _NOT_TOGETHER and not is_beside(call)]
    kept = list(_outermost(numbered))
    quiet = frozenset(number for number, call in kept if call.op in WRAPPER_CALLS and _made_none(evidence, number - first))
    evaluations = frozenset(number for number, call in kept if call.op == "forward" and "no_grad" in call.mode and not call.is_open)
    own = History(evidence.rank, tuple(call for _, call in kept), tuple(number for number, _ in kept), first, quiet)
    return replace(own, evaluations=evaluations) if len(evidence.models) == 1 else own


def _together(evidence: RankEvidence, other: RankEvidence, group: str) -> tuple[History, History]:
    """Both histories without calls in groups that the other rank is not in, unless each such group has a counterpart on the other rank.

    Two rows of a mesh do the same in groups of their own, so their groups get the same names here. The groups of a player and its trainers
    (reinforcement learning) have no counterparts.
    """
    mine, theirs = history_of(evidence), history_of(other)
    own, others = _own_groups(evidence, other.rank), _own_groups(other, evidence.rank)
    if [len(made.ranks) for made in own] == [len(made.ranks) for made in others]:
        names = {made.name: twin.name for made, twin in zip(others, own, strict=True)}
        calls = tuple(replace(call, group=names[call.group]) if call.group in names else call for call in theirs.calls)
        return mine, replace(theirs, calls=calls)
    mine = _without(mine, evidence, other.rank, {made.name for made in own} - {group})
    return mine, _without(theirs, other, evidence.rank, {made.name for made in others} - {group})


def _own_groups(evidence: RankEvidence, other: int) -> list[NewGroup]:
    return [made for made in evidence.groups if evidence.rank in made.ranks and other not in made.ranks]


def _without(history: History, evidence: RankEvidence, other: int, groups: set[str]) -> History:
    """The history without the calls of some groups, and without those of a model that DDP keeps in step among other ranks."""
    wrapped = evidence.audit.wrappers
    is_apart = bool(wrapped) and not any(other in one.ranks or not one.ranks for one in wrapped)
    return history.only(lambda _, call: not (is_apart if call.op in WRAPPER_CALLS else call.group in groups))


def _made_none(evidence: RankEvidence, i: int) -> bool:
    """Whether a forward or backward is known to have called no collective: an evaluation without buffers, a step under no_sync."""
    call, times = evidence.calls[i], evidence.collectives.created_ns
    if call.op == "forward" and not any(call.mode):
        return False  # a training forward: its backward reduces gradients, whatever the forward itself did
    if evidence.collectives.is_partial:  # torch's own record died with the process
        following = evidence.calls[i + 1 : i + 2]
        is_over = not call.is_open and all(one.started_ns >= call.ended_ns for one in following)
        return call.op == "forward" and is_over and _broadcasts_nothing(evidence)
    if call.is_open or not times or not times[0] <= call.started_ns <= call.ended_ns <= times[-1]:
        return False
    return bisect_left(times, call.started_ns) == bisect_right(times, call.ended_ns)


def _broadcasts_nothing(evidence: RankEvidence) -> bool:
    """Whether DDP has nothing to send in a forward: models without buffers, or told to leave them alone."""
    has_buffers = any(model.has_buffers for model in evidence.models)
    told_not_to = bool(evidence.audit.wrappers) and not any(one.broadcast_buffers for one in evidence.audit.wrappers)
    return bool(evidence.models) and (not has_buffers or told_not_to)


def is_beside(call: Call) -> bool:
    """Whether a helper thread of the user's made the call, at any time. Autograd's threads show no line of the user's, or only a backward."""
    return call.by_helper and bool(call.stack) and not any(frame.function == "backward" for frame in call.stack)


def _outermost(numbered: list[tuple[int, Call]]) -> Iterator[tuple[int, Call]]:
    """The outermost calls only: all_gather_object itself calls all_gather, from the same line and within its own time."""
    around: Call | None = None
    for number, call in numbered:
        is_inner = around is not None and call.stack == around.stack and (around.is_open or call.started_ns < around.ended_ns)
        if is_inner:
            continue
        yield number, call
        if call.op not in WRAPPER_CALLS:
            around = call


def find_divergence(job: JobEvidence, rank: int, other: int, group: str = "0") -> Divergence | None:
    """The place after which two ranks were no longer in step; None where one is only further than the other."""
    mine, theirs = _from_the_same_call(*_together(job.ranks[rank], job.ranks[other], group))
    mine, theirs = _with_quiet_evaluations(mine, theirs), _with_quiet_evaluations(theirs, mine)
    mine, theirs = _without_quiet_of_its_own(mine, theirs), _without_quiet_of_its_own(theirs, mine)
    start = _common_prefix(mine, theirs)
    if start is None:
        return None
    are_over = _has_left(job.ranks[rank], mine), _has_left(job.ranks[other], theirs)
    blocks = _differences(mine, theirs, start, are_over)
    found, ahead = None, 0
    for i, j, i_end, j_end in blocks:
        num, num_other = _num_in(mine, i, i_end, group), _num_in(theirs, j, j_end, group)
        if ahead == 0 and (num or num_other or i_end == len(mine.calls) or j_end == len(theirs.calls)):
            found = (i, j, i_end, j_end)
        ahead += num - num_other
    if found is None:
        return None
    i, j, i_end, j_end = found
    if (i == len(mine.calls) and not are_over[0]) or (j == len(theirs.calls) and not are_over[1]):
        return None  # that rank is only behind
    if i == i_end and j_end < len(theirs.calls):  # only the other rank made calls here, so its history comes first
        return Divergence(theirs, mine, j, i, is_in_step_again=True)
    return Divergence(mine, theirs, i, j, is_in_step_again=j == j_end and i_end < len(mine.calls))


def find_other_sizes(job: JobEvidence, rank: int, other: int) -> tuple[Call, Call] | None:
    """The first collective that both ranks called from the same place, but with tensors of different size or dtype."""
    mine, theirs = _from_the_same_call(history_of(job.ranks[rank]), history_of(job.ranks[other]))
    for a, b in zip(mine.calls, theirs.calls, strict=False):
        if _cost(a, b) > _TWIN:
            return None
        if key_of(a) == key_of(b) and a.op in SAME_SIZE and a.dtype and b.dtype and (a.sizes, a.dtype) != (b.sizes, b.dtype):
            return a, b
    return None


def _has_left(evidence: RankEvidence, history: History) -> bool:
    """True for a rank that will make no further call, and did not end in the middle of its last one."""
    return end_of(evidence) is not None and not (history.calls and _is_unfinished(history.calls[-1]))


def _num_in(history: History, start: int, end: int, group: str) -> int:
    """How many of these calls are collectives of the group, as far as can be told; DDP's stand for one each."""
    return sum(
        number not in history.quiet if call.op in WRAPPER_CALLS else call.group == group
        for number, call in zip(history.numbers[start:end], history.calls[start:end], strict=True)
    )


def _from_the_same_call(a: History, b: History) -> tuple[History, History]:
    """Both histories from the same number on: rings forget their oldest calls, and ranks in step give their calls the same numbers."""
    first = max(a.first, b.first)
    a, b = (replace(one.only(lambda number, _: number >= first), first=first) for one in (a, b))
    return a, b


def _with_quiet_evaluations(history: History, other: History) -> History:
    """The history with evaluations counted as quiet that a training forward makes up for.

    DDP's broadcast in the first forward of an evaluation replaces that of the next training forward: of this rank, or where the other rank
    made more training forwards, of the other.
    """
    trained, trained_other = ([n for n, call in zip(one.numbers, one.calls, strict=True) if _trains(call)] for one in (history, other))
    last = max(trained, default=-1) if len(trained) >= len(trained_other) else _NEVER
    return replace(history, quiet=history.quiet | {number for number in history.evaluations if number < last})


def _trains(call: Call) -> bool:
    return call.op == "forward" and "no_grad" not in call.mode


def _without_quiet_of_its_own(history: History, other: History) -> History:
    """The history without quiet forwards from places that the other rank never reaches: no rank waits for those."""
    known = {key_of(call) for call in other.calls}
    return history.only(lambda number, call: number not in history.quiet or key_of(call) in known)


def _common_prefix(a: History, b: History) -> int | None:
    """How many calls are the same from the start; None where the starts do not fit each other, so that nothing can be said."""
    shared = min(len(a.calls), len(b.calls))
    same = next((i for i in range(shared) if key_of(a.calls[i]) != key_of(b.calls[i])), shared)
    return None if a.first and same == 0 else same


def _differences(a: History, b: History, start: int, are_over: tuple[bool, bool]) -> list[tuple[int, int, int, int]]:
    """The blocks in which the cheapest alignment of the rest is not one to one: first and end index in each history."""
    mine, theirs = a.calls[start : start + _LONGEST], b.calls[start : start + _LONGEST]
    pairs = [(start + i, start + j) for i, j in _align(mine, theirs, are_over)]
    blocks, last = [], (start - 1, start - 1)
    for i, j in [*pairs, (start + len(mine), start + len(theirs))]:
        if i - last[0] > 1 or j - last[1] > 1:
            blocks.append((last[0] + 1, last[1] + 1, i, j))
        last = (i, j)
    return blocks


def _align(a: Sequence[Call], b: Sequence[Call], are_over: tuple[bool, bool]) -> list[tuple[int, int]]:
    """The pairs of the cheapest alignment (Needleman-Wunsch within a band).

    Calls that only one side has at the end cost nothing, because that side is just further; they do cost where the other side is over and
    never comes to them. Of several equally cheap places for a gap (in rounds that are all alike) the last counts: until then both were in
    step.
    """
    own_a, own_b = ([user_frame(call.stack) for call in calls] for calls in (a, b))
    shared = {key_of(call) for call in a} & {key_of(call) for call in b}
    both_a, both_b = ([key_of(call) in shared for call in calls] for calls in (a, b))
    costs: dict[tuple[int, int], int] = {(0, 0): 0}
    steps: dict[tuple[int, int], tuple[int, int]] = {}
    for i in range(len(a) + 1):
        for j in range(max(0, i - _BAND), min(len(b), i + _BAND) + 1):
            options = []
            if i and (i - 1, j) in costs:
                options.append((costs[i - 1, j] + _GAP, (i - 1, j)))
            if j and (i, j - 1) in costs:
                options.append((costs[i, j - 1] + _GAP, (i, j - 1)))
            if i and j and (i - 1, j - 1) in costs:
                cost = _cost(a[i - 1], b[j - 1])
                if cost == _TWIN and own_a[i - 1] == own_b[j - 1]:
                    cost = _NEAR
                elif cost == _TWIN and (both_a[i - 1] or both_b[j - 1]):
                    cost = _TURN
                options.append((costs[i - 1, j - 1] + cost, (i - 1, j - 1)))
            if options:
                costs[i, j], steps[i, j] = min(options, key=lambda option: option[0])
    edge = [cell for cell in costs if cell[0] == len(a) or cell[1] == len(b)]
    rest = _GAP if are_over[1] else 0, _GAP if are_over[0] else 0
    cell = min(
        edge, key=lambda cell: (costs[cell] + rest[0] * (len(a) - cell[0]) + rest[1] * (len(b) - cell[1]), -sum(cell)), default=(0, 0)
    )
    pairs = []
    while cell in steps:
        before = steps[cell]
        if cell[0] - before[0] == cell[1] - before[1] == 1:
            pairs.append(before)
        cell = before
    return pairs[::-1]


def _cost(a: Call, b: Call) -> int:
    if key_of(a) == key_of(b):
        return 0
    is_twin = a.op == b.op and a.op not in WRAPPER_CALLS and a.group == b.group and not (_is_unfinished(a) and _is_unfinished(b))
    return _TWIN if is_twin and _fit(a, b) else _NEVER


def _is_unfinished(call: Call) -> bool:
    return call.is_open or call.failed


def _fit(a: Call, b: Call) -> bool:
    """False where the arguments alone show that these two calls never belonged together."""
    if a.op in SAME_SIZE and a.dtype and b.dtype and (prod(a.sizes) != prod(b.sizes) or a.dtype != b.dtype):
        return False
    return a.peer is None or b.peer is None or a.peer == b.peer


# -- what was usual -----------------------------------------------------------------------------------------------------------


def times_followed(divergence: Divergence, first: Call | None, second: Call | None) -> int:
    """How often one call came right after another before the ranks diverged, on either rank.

    Where the first was made several times in a row (once per layer, once per parameter), only rows of that length count.
    """
    if first is None or second is None:
        return 0
    start, end = key_of(first), key_of(second)
    pasts = list(divergence.past())
    mine, other = map(_rows, pasts)
    length = mine[-1][1] if mine and mine[-1][0] == start else 0
    is_known = any(start in past[: len(past) - length] for past in pasts)  # else it is the first row of its kind
    if start == end:
        return sum(num - 1 if not is_known else num > length for key, num in [*mine, *other] if key == start)
    pairs = [*pairwise(mine), *pairwise(other)]
    return sum(key == start and after == end and (num == length or not is_known) for (key, num), (after, _) in pairs)


def _rows(past: tuple[Key, ...]) -> list[tuple[Key, int]]:
    """Calls that were made several times in a row, and how often."""
    return [(key, len(list(same))) for key, same in groupby(past)]


def times_between(divergence: Divergence, missed: Call, end: Call) -> tuple[set[int], int]:
    """How often `missed` was called before each earlier `end`, on either rank, and how often on the other rank since its last `end`."""
    key, last = key_of(missed), key_of(end)
    before: set[int] = set()
    row = 0
    for past in divergence.past():  # the other rank's comes last, so `row` ends as its count
        row = 0
        for one in past:
            row += one == key
            if one == last:
                before.add(row)
                row = 0
    return before, row


def has_unusual_step(evidence: RankEvidence) -> bool:
    """Whether the rank's last call followed one that it never followed before (transfers count); False for a rank with few calls."""
    keys = [key_of(call) for call in evidence.calls if call.op not in ("pass_start", "pass_end")]
    steps = list(pairwise(keys))
    return len(steps) > _SOME_PAST and steps[-1] not in steps[:-1]


def leads_to(divergence: Divergence, first: Call, later: Call) -> bool:
    """True if, before the ranks diverged, `later` came some calls after `first`: a rank that is at `later` now has skipped the calls between."""
    start, end = key_of(first), key_of(later)
    return any(end in past[i + 1 : i + 1 + _LOOK_AHEAD] for past in divergence.past() for i, key in enumerate(past) if key == start)


def was_called(divergence: Divergence, call: Call) -> bool:
    return any(key_of(call) in past for past in divergence.past())


def different_modes(job: JobEvidence, rank: int, other: int, mode: str) -> Call | None:
    """The first forward that this rank made in a mode (no_sync, eval) and the other rank did not, while both were in step."""
    mine, theirs = _from_the_same_call(history_of(job.ranks[rank]), history_of(job.ranks[other]))
    for a, b in zip(mine.calls, theirs.calls):
        if key_of(a) != key_of(b):
            return None
        if a.op == "forward" and mode in a.mode and mode not in b.mode:
            return a
    return None
