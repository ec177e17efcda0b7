"""Decides which ranks are to blame where two ranks' histories diverge: by rank conditions, ends of data, loops left early, and habit."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rankwise.diagnose.blame import Blame, Side, by_rank_condition
from rankwise.diagnose.history import Divergence, History, Key, key_of, leads_to, times_between, times_followed, was_called
from rankwise.diagnose.passes import has_left_pass, passes_of, shorter_pass
from rankwise.diagnose.reasons import LeftLoops, Reason, find_catches, find_left_loops, find_skips, reasons_text
from rankwise.diagnose.wording import at, event_text, verb
from rankwise.evidence.collective_log import WRAPPER_CALLS
from rankwise.evidence.frames import is_user_file, user_frame, user_frames
from rankwise.evidence.records import Call, Frame, JobEvidence, Stack
from rankwise.findings import ranks_text
from rankwise.source.book import SourceBook
from rankwise.source.guards import Guard

_SAME_RANGE = re.compile(r"`range\(\d[\d_]*\)`")  # as many rounds on every rank
_FEW = 4  # how far back a call may lie that a rank has made again


def blame_for_divergence(job: JobEvidence, book: SourceBook, divergence: Divergence, mine: list[int], others: list[int]) -> Blame | None:
    """Which ranks left the common path, and why; None where neither the code nor earlier calls show it."""
    if divergence.is_of_roles:
        return None  # there is no common path: each runs functions and loops of its own
    if divergence.mine.rank not in mine:
        mine, others = others, mine
    sides = [side_of(mine, divergence.next), side_of(others, divergence.instead)]
    view, back = _View(job, book, divergence, mine, others), _View(job, book, divergence.swapped(), others, mine)
    arguments = (
        _by_handler,
        _by_data,
        _by_jump,
        _by_round,
        _by_loop,
        _by_exit,
        _by_order,
        _by_count,
        _by_novelty,
        _by_condition,
    )
    guarded = by_rank_condition(job, book, sides)
    if guarded is not None and guarded.code in ("RW201", "RW208"):  # RW201 blames the ranks that did not come to their own call
        guarded = _unpaired(guarded, view if (guarded.ranks == mine) == (guarded.code == "RW208") else back)
    return guarded or next((found for argue in arguments for one in (view, back) if (found := argue(one)) is not None), None)


@dataclass(frozen=True)
class _View:
    """One view of a divergence: `mine` followed the common path, `others` left it.

    Each argument below tries to explain that; in its docstring "these" are the ranks of `mine`.
    """

    job: JobEvidence
    book: SourceBook
    divergence: Divergence
    mine: list[int]
    others: list[int]

    def counts(self, op: str) -> tuple[int | None, int | None]:
        """How often each side did something that is only counted."""
        return tuple(self.job.ranks[ranks[0]].counts.get(op) for ranks in (self.mine, self.others))  # type: ignore[return-value]


def _unpaired(blame: Blame, view: _View) -> Blame | None:
    """Corrects a blame for a call under a condition on the rank.

    The call is fine where the other ranks made theirs in the same function, under the opposite condition (`main_process_first`). Then the
    call that no rank answered is to blame: it may have been long ago, and paired with another call.
    """
    answered, unanswered = _answered(view)
    blamed = view.divergence.next
    if blamed is None or key_of(blamed) not in answered:
        return blame
    if len(unanswered) != 1 or unanswered[0].call.op != blamed.op:
        return None
    alone = unanswered[0]
    own, others, guard = alone.own, alone.others, alone.guard
    why = (
        f"the {side_of(own, alone.call).text}{at(guard.frame)} stands under `{guard.text}` ({guard.place}), "
        f"so {verb(others, 'never makes', 'never make')} it; since then {ranks_text(own)} and {ranks_text(others)} meet in calls that do not "
        "belong together"
    )
    is_whole = not any(view.job.ranks[ranks[0]].num_forgotten for ranks in (own, others))
    return Blame("RW208", own, why, guard.frame, certain=is_whole)


@dataclass(frozen=True)
class _Guarded:
    """A call that a condition on the rank keeps the other ranks from."""

    own: list[int]
    others: list[int]
    guard: Guard
    call: Call


def _answered(view: _View) -> tuple[set[Key], list[_Guarded]]:
    """Sorts the calls under conditions on the rank.

    Returns the calls of `mine` that the others answered as often from the same function, and one of each call that the other side did not
    answer.
    """
    mine = _guarded_calls(view, view.divergence.mine, view.mine, view.others)
    theirs = _guarded_calls(view, view.divergence.other, view.others, view.mine)
    even = {where for where in mine if len(mine[where]) == len(theirs.get(where, ()))}
    unanswered = [calls[0] for side in (mine, theirs) for where, calls in side.items() if where not in even]
    return {key_of(one.call) for where in even for one in mine[where]}, unanswered


def _guarded_calls(view: _View, history: History, own: list[int], others: list[int]) -> dict[object, list[_Guarded]]:
    """The calls under a condition on the rank, by operation, group and the path to the call without the line of the condition."""
    world, ranks = view.job.world_size or len(view.job.ranks), sorted(view.job.ranks)
    found: dict[object, list[_Guarded]] = {}
    for call in history.calls:
        stack = _stack(call)
        reaching, guard = view.book.ranks_reaching(stack, ranks, world)
        if guard is not None and set(own) <= reaching and not reaching & set(others):
            frames = tuple((frame.file, frame.function, 0 if frame == guard.frame else frame.line) for frame in stack)
            found.setdefault((call.op, call.group, frames), []).append(_Guarded(own, others, guard, call))
    return found


def side_of(ranks: list[int], call: Call | None) -> Side:
    """The ranks that made a call, as the finding tells it; without a call they have gone."""
    if call is None:
        return Side(ranks, "exit", ())
    inside = call.op if call.op in WRAPPER_CALLS else ""
    return Side(ranks, WRAPPER_CALLS.get(call.op, call.op), user_frames(call.stack), inside)


def _by_handler(view: _View) -> Blame | None:
    """The others make a call in an except block, which only ranks reach that met an exception."""
    there = view.divergence.next_other
    if there is None or was_called(view.divergence, there):
        return None
    ours, theirs = (view.book.handlers_around(_stack(call)) for call in (view.divergence.next, there))
    if not theirs or ours:
        return None
    line = next(frame for frame in _stack(there) if frame.file == theirs[0].file and frame.function == theirs[0].function)
    why = (
        f"the call stands in the except block of {_place(theirs[0].file, theirs[0].line)}, into which {ranks_text(view.mine)} did not come"
    )
    return Blame("RW208", view.others, why, line)


def _by_data(view: _View) -> Blame | None:
    """The others' data has ended, while these have got more batches."""
    if view.divergence.next is None:
        return None
    found = shorter_pass(view.job.ranks[view.others[0]], view.job.ranks[view.mine[0]])
    if found is not None:
        short, long = found
        got = (
            f"{ranks_text(view.mine)} got {long.batches} out of"
            if long.is_over
            else f"{verb(view.mine, 'is', 'are')} at batch {long.batches} of"
        )
        ended_after = f"{short.batches} batches{at(user_frame(short.stack))}, {got} the same pass"
    else:
        (ends, ends_other), (batches, batches_other) = view.counts("end_of_data"), view.counts("next_batch")
        if all(passes_of(view.job.ranks[ranks[0]]) for ranks in (view.mine, view.others)):
            return None  # both ranks' passes are known, and none is shorter: batches of other passes do not count
        if (ends_other or 0) <= (ends or 0) or (batches or 0) <= (batches_other or 0):
            return None
        ended_after = f"{batches_other} batches in all, {verb(view.mine, 'is', 'are')} at {batches}"
    return Blame("RW213", view.others, f"its data ended after {ended_after}: fewer batches than the others (uneven data)")


def _by_jump(view: _View) -> Blame | None:
    """The others are at a call that usually comes a few calls later: they left out the calls between."""
    divergence, missed, there = view.divergence, view.divergence.next, view.divergence.next_other
    if missed is None or there is None or not leads_to(divergence, missed, there):
        return None
    usual, unusual = times_followed(divergence, divergence.before, missed), times_followed(divergence, divergence.before, there)
    if not usual or unusual:
        return None
    found = _skipped(view, f", as all ranks did {usual} times before")
    is_known = found.line is not None or bool(found.candidates) or missed.op == "backward" or bool(_other_mode(view))
    last_few = [divergence.mine.key(i) for i in range(max(0, divergence.at - _FEW), divergence.at)]
    if is_known or key_of(there) not in last_few:  # else the others may have made the call again, and left none out
        return found
    again = f"it called {side_of(view.others, there).text}{at(_line(there))} again, or left out what comes before it: {found.why}"
    return replace(found, why=again, certain=False)


def _by_round(view: _View) -> Blame | None:
    """The others are at a line at which both were before, now one round later: they left out what these do in this round."""
    missed, there, before = view.divergence.next, view.divergence.next_other, view.divergence.before
    if missed is None or there is None or before is None or key_of(there) != key_of(before) or key_of(missed) == key_of(before):
        return None
    reasons = find_skips(view.book, _stack(before), _stack(missed))
    if not any(reason.kind in ("continue", "except") for reason in reasons):
        return None
    found = _skipped(view, ", and came to the same line again")
    is_only = len(reasons) == 1 or missed.op == "backward"  # a round without a backward is never meant
    return found if is_only else replace(found, certain=False)


def _by_loop(view: _View) -> Blame | None:
    """These go round in a loop that the others have left."""
    missed, there = view.divergence.next, view.divergence.next_other
    if missed is None or (there is None and not was_called(view.divergence, missed)):
        return None
    left = find_left_loops(view.book, _stack(missed), _stack(there))
    if left is None or (there is not None and was_called(view.divergence, there) and _is_a_pass_ahead(view)):
        return None
    if not was_called(view.divergence, missed) and times_followed(view.divergence, view.divergence.before, there):
        return None  # the others do what is usual, these do something new
    if left.is_in_another and there is not None and not was_called(view.divergence, there) and not view.counts("next_batch")[0]:
        return None  # the others may be at the end of their round, with a call of their own
    before = _stack(view.divergence.before)  # empty for a call from an autograd thread
    if before and not any(left.are_around(frame) for frame in before):
        if there is not None and was_called(view.divergence, missed):
            return None  # both have been through the loop before, and these have only begun it anew
        if any(not left.are_around(reason.frame) for reason in find_skips(view.book, before, _stack(missed))):
            return replace(_skipped(view, ""), certain=False)  # the others may never have come to the loop
    batches, batches_other = view.counts("next_batch")
    ends = [reason for reason in left.reasons if reason.kind != "data"]
    is_abandoned = bool(ends) and has_left_pass(view.job.ranks[view.others[0]], view.job.ranks[view.mine[0]])
    if batches and batches == batches_other and not is_abandoned:
        return _skipped(view, f", though both sides fetched {batches} batches")
    loop = f"the loop in {left.place()} that {verb(view.mine, 'is', 'are')} still in"
    exits = ends if is_abandoned else _possible(view, left)
    ends = [reason for reason in exits if reason.kind != "data"]
    # Without a count of rounds, a round that left the call out looks like a round less.
    skips = (
        []
        if batches
        else [reason for reason in find_skips(view.book, _stack(view.divergence.before), _stack(missed)) if reason.kind != "condition"]
    )
    if skips and not exits:
        return _skipped(view, ", though its loop goes as many rounds")
    if skips:
        why = f"it made one round less of {loop}, or left this call out of one: {reasons_text([*skips, *exits])}"
        return Blame("RW201" if not ends else "RW219", view.others, why, certain=False, candidates=_frames([*skips, *exits]))
    if not exits:
        return _skipped(view, "")
    if not ends and left.is_in_another and there is not None and (reasons := _conditions_on(view, there)):
        why = f"{_call_text(there)} is made {reasons_text(reasons)}; or it went fewer rounds in {loop}: {reasons_text(exits)}"
        return Blame("RW209" if there.op == "forward" else "RW208", view.others, why, None, False, _frames([*reasons, *exits]))
    if not ends and (caught := find_catches(view.book, _stack(missed), _stack(there))):
        has_left = has_left_pass(view.job.ranks[view.others[0]], view.job.ranks[view.mine[0]])  # then its data did not end
        reasons = caught if has_left else [*caught, *exits]
        return Blame(
            "RW219",
            view.others,
            f"it left {loop}: {reasons_text(reasons)}",
            reasons[0].frame if len(reasons) == 1 else None,
            False,
            _frames(reasons),
        )
    if not ends and there is None:  # whichever number of rounds was meant, these wait for ranks that have ended
        why = f"it ended after fewer rounds than {ranks_text(view.mine)} in {loop}: {reasons_text(exits)}"
        return Blame("RW402", view.others, why, exits[0].frame if len(exits) == 1 else None, certain=False)
    if not ends:
        rounds = f"{ranks_text(view.others)} went fewer rounds than {ranks_text(view.mine)} in {loop}: {reasons_text(exits)}"
        return Blame("RW221", sorted([*view.mine, *view.others]), rounds, exits[0].frame if len(exits) == 1 else None, certain=False)
    is_only = len(ends) == len(exits)
    line = ends[0].frame if len(exits) == 1 else None
    why = f"it left {loop}: {reasons_text(exits)}" + (", which each rank decides for itself" if is_only else "")
    return Blame("RW219", view.others, why, line, is_only, () if line else _frames(exits))


def _by_exit(view: _View) -> Blame | None:
    """The others are gone, and these go on as all did before."""
    usual = times_followed(view.divergence, view.divergence.before, view.divergence.next)
    if view.divergence.next_other is not None or not usual:
        return None
    next_one = f"{side_of(view.mine, view.divergence.next).text}{at(_line(view.divergence.next))}"
    return Blame(
        "RW402",
        view.others,
        f"after {_call_text(view.divergence.before)} it ended instead of going on to {next_one}, as all did {usual} times before",
    )


def _is_a_pass_ahead(view: _View) -> bool:
    """These have begun a further pass over the data: then it is they who left out what the others are in."""
    begun, begun_other = view.counts("pass_start")
    return (begun or 0) > (begun_other or 0)


def _possible(view: _View, left: LeftLoops) -> list[Reason]:
    """The reasons that remain possible: not the end of a loader whose batches were counted, nor the end of a fixed range."""
    batches, batches_other = view.counts("next_batch")
    rest = [reason for reason in left.reasons if reason.kind != "data"]
    if (batches or batches_other) and rest:
        return rest
    others = [reason for reason in left.reasons if reason.kind != "data" or not _SAME_RANGE.search(reason.text)]
    return others if len(others) < 2 else [reason for reason in others if "`range(" not in reason.text] or others


def _by_order(view: _View) -> Blame | None:
    """Both are in the same function for the first time, and the others are further down: they went past the call that these are in."""
    missed, there = view.divergence.next, view.divergence.next_other
    if missed is None or there is None or was_called(view.divergence, missed) or was_called(view.divergence, there):
        return None
    shared = view.book.shared_frames(_stack(missed), _stack(there))
    if shared is None or shared[0].line >= shared[1].line or view.book.tree(shared[0].file) is None:
        return None
    if any(loop.start == shared[0].line for loop in view.book.loops_at(shared[1].file, shared[1].line)):
        return None  # the one that fetches the next item is a round ahead
    return _skipped(view, "")


def _by_count(view: _View) -> Blame | None:
    """The call that these make next came a fixed number of times before the others' call, and now less often: the others left some out."""
    missed, there = view.divergence.next, view.divergence.next_other
    if missed is None or there is None or key_of(missed) == key_of(there):
        return None
    usual, now = times_between(view.divergence, missed, there)
    if len(usual) != 1 or not 0 < now < min(usual):
        return None
    times = min(usual)
    what = event_text(missed.op) if missed.op in WRAPPER_CALLS else side_of(view.mine, missed).text
    reasons = find_skips(view.book, _stack(view.divergence.before), _stack(missed))
    why = f"it came to {_call_text(there)} after {now} times {what}, and before always after {times}" + (
        f": {reasons_text(reasons)}" if reasons else ""
    )
    return Blame("RW201", view.others, why, reasons[0].frame if len(reasons) == 1 else None, False, _frames(reasons))


def _skipped(view: _View, usual: str) -> Blame:
    """The others went past the call that these make next."""
    missed, before = view.divergence.next, view.divergence.before
    assert missed is not None
    reasons = find_skips(view.book, _stack(before), _stack(missed))
    leaving = [reason for reason in reasons if reason.kind != "condition"]
    what = event_text(missed.op) if missed.op in WRAPPER_CALLS else side_of(view.mine, missed).text
    if before is not None and before.op == "forward" and (mode := _other_mode(view)):
        return Blame("RW201", view.others, f"{mode}, so it made no {what}{at(_line(missed))}")
    why = f"after {_call_text(before)} it did not go on to {what}{at(_line(missed))}{usual}"
    if reasons:
        why += f": {reasons_text(reasons)}"
    line = reasons[0].frame if len(reasons) == 1 else leaving[0].frame if len(leaving) == 1 else None
    return Blame("RW201", view.others, why, line, bool(usual) or len(leaving) == 1, () if line else _frames(reasons))


def _other_mode(view: _View) -> str:
    """How the others' forward differed from these ranks' own: SyncBatchNorm, for one, does not synchronise in eval mode."""
    mine, theirs = view.divergence.before, view.divergence.other.calls[view.divergence.at_other - 1]
    if mine is None or theirs.op != "forward" or mine.mode == theirs.mode:
        return ""
    words = {"eval": "in eval mode", "no_grad": "without gradients (no_grad)", "no_sync": "with gradient sync off (no_sync)"}
    mode_text = " and ".join(words[mode] for mode in theirs.mode if mode in words) or "in training mode"
    return f"its forward{at(_line(theirs))} ran {mode_text}, {ranks_text(view.mine)}'s did not"


def _by_novelty(view: _View) -> Blame | None:
    """These do what was usual; the others make a call that no rank made before. A suspicion: these may have left it out."""
    divergence, call, there = view.divergence, view.divergence.next, view.divergence.next_other
    if call is None or there is None or was_called(divergence, there):
        return None
    usual = times_followed(divergence, divergence.before, call)
    if not usual:
        return None
    what, rest = side_of(view.others, there).text, ranks_text(view.mine)
    why = (
        f"after {_call_text(divergence.before)} it called {what}{at(_line(there))}, which no rank had called before; {rest} went on "
        f"to {side_of(view.mine, call).text}{at(_line(call))}, as all did {usual} times. "
        f"Either the call is one rank's alone, or {rest} left it out: compare the two lines"
    )
    ways = view.book.shared_frames(_stack(there), _stack(call))
    line = ways[0] if ways is not None else _line(there)
    if there.op == "forward":
        return Blame("RW209", view.others, why, line, certain=False)
    return Blame("RW208", view.others, why, line, certain=False)


def _by_condition(view: _View) -> Blame | None:
    """The others' call stands under conditions that came out differently on these. A suspicion: either call may be the intended one."""
    there, before = view.divergence.next_other, _stack(view.divergence.before)
    if there is None or view.divergence.next is None:
        return None
    if any(is_user_file(reason.frame.file) for reason in find_skips(view.book, before, _stack(view.divergence.next))):
        return None  # conditions in a library usually hold on all ranks alike
    conditions = _conditions_on(view, there)
    if not conditions:
        return None
    why = f"the call at {_place(_stack(there)[0].file, _stack(there)[0].line)} is made {reasons_text(conditions)}; {ranks_text(view.mine)} did not come to it"
    return Blame("RW209" if there.op == "forward" else "RW208", view.others, why, None, False, _frames(conditions))


def _conditions_on(view: _View, call: Call) -> list[Reason]:
    return [reason for reason in find_skips(view.book, _stack(view.divergence.before), _stack(call)) if reason.kind == "condition"]


def _frames(reasons: list[Reason]) -> tuple[Frame, ...]:
    return tuple(reason.frame for reason in reasons[:4])


def _call_text(call: Call | None) -> str:
    return f"{event_text(call.op)}{at(_line(call))}" if call is not None else "the start"


def _line(call: Call | None) -> Frame | None:
    return user_frame(call.stack) if call is not None else None


def _stack(call: Call | None) -> Stack:
    return user_frames(call.stack) if call is not None else ()


def _place(file: str, line: int) -> str:
    return f"{file.rsplit('/', 1)[-1]}:{line}"
