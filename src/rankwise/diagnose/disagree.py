"""Ranks that disagree about what comes next: different collectives in a slot, skipped ones, ranks that left."""

from __future__ import annotations

from dataclasses import replace

from rankwise.causes import load_cause
from rankwise.diagnose.blame import (
    COMPARE,
    Blame,
    Side,
    by_branch,
    by_majority,
    by_missing_gradients,
    by_rank_condition,
    by_sync_off,
    finding_of,
    minority,
    undecided,
)
from rankwise.diagnose.divergence import blame_for_divergence, side_of
from rankwise.diagnose.groups import find_group_disagreement
from rankwise.diagnose.history import Divergence, find_divergence, find_other_sizes, history_of, is_beside, key_of, was_called
from rankwise.diagnose.match import Conflict, find_conflict, value_of
from rankwise.diagnose.p2p import circle_finding, find_circle, find_unmatched_p2p
from rankwise.diagnose.rank_state import P2P, RankStates, end_of, last_call_frame, place_at, wait_of
from rankwise.diagnose.splits import find_split_disagreement
from rankwise.diagnose.waiting import doomed_ranks, members_of, needed_by
from rankwise.diagnose.wording import at, group_text, verb
from rankwise.evidence.collective_log import LoggedCollective, Signature
from rankwise.evidence.flight import base_group
from rankwise.evidence.frames import user_frame, user_frames
from rankwise.evidence.records import Frame, JobEvidence
from rankwise.findings import Finding, ranks_text
from rankwise.source.book import SourceBook

_ODD_ONE_OUT = ("RW201", "RW208", "RW209")  # about what a few ranks did: that most ranks did otherwise is proof enough
_LEAVING = "a rank that leaves takes its part of every further collective with it"
_ORDER = ("go over the tensors in the same order on every rank: sort them by name, never iterate over a set",)
_SAME_SLOT = {
    "size": ("RW204", "different shapes", "shape"),
    "dtype": ("RW205", "different dtypes", "dtype"),
    "src": ("RW206", "different src (root) ranks", "src"),
    "reduce_op": ("RW207", "different reduce operations", "op"),
}


def find_disagreement(job: JobEvidence, states: RankStates, book: SourceBook) -> Finding | None:
    """The first disagreement between ranks, if there is one."""
    return (
        find_group_disagreement(job, states)
        or _slot_disagreement(job, states, book)
        or find_split_disagreement(job, states)
        or _missing_in_slot(job, states, book)
        or find_unmatched_p2p(job, states, book)
        or _circular_wait(job, states, book)
    )


# -- the same slot, different things ------------------------------------------------------------------------------------------


def _slot_disagreement(job: JobEvidence, states: RankStates, book: SourceBook) -> Finding | None:
    conflict = find_conflict(job)
    if conflict is None:
        return None
    if (beside := _by_helper_thread(job, conflict)) is not None:
        return _with_helper_thread(job, states, conflict, beside)
    if conflict.about == "op":
        return _different_ops(job, states, book, conflict)
    certain = True
    first, second = list(conflict.by_value().values())[:2]
    if find_divergence(job, first[0], second[0], conflict.group) is not None:  # then these two calls never belonged together
        diverged = _different_ops(job, states, book, conflict)
        if diverged.code != "RW202":
            return diverged
        certain = False
    return _same_slot(job, states, book, conflict, certain)


def find_other_size(job: JobEvidence, states: RankStates, book: SourceBook) -> Finding | None:
    """Ranks that were in step until one gave a tensor of another size or dtype: seen in their Python calls where a crash lost torch's record."""
    first, *others = sorted(job.ranks)
    found = {other: pair for other in others if (pair := find_other_sizes(job, first, other)) is not None}
    if not found:
        return None
    calls = {first: next(iter(found.values()))[0], **{other: pair[1] for other, pair in found.items()}}
    entries = {
        rank: LoggedCollective(0, Signature(call.group, call.op, call.sizes, call.dtype), call.started_ns, False, -1)
        for rank, call in calls.items()
    }
    about = "size" if len({call.sizes for call in calls.values()}) > 1 else "dtype"
    conflict = Conflict(calls[first].group, 0, about, entries, {rank: call.stack for rank, call in calls.items()})
    return _same_slot(job, states, book, conflict, certain=True)


def _same_slot(job: JobEvidence, states: RankStates, book: SourceBook, conflict: Conflict, certain: bool) -> Finding:
    """The finding where all ranks called the same operation in a slot, with different arguments."""
    values = conflict.by_value()
    code, words, argument = _SAME_SLOT[conflict.about]
    certain = certain and len({user_frame(stack) for stack in conflict.stacks.values()}) < 2  # calls of one line belong together
    order = (
        conflict.about == "size"
        and certain
        and (_size_varies_at_line(job, conflict) or not _differ_in_one_dimension(conflict) or _goes_over_tensors(job, book, conflict))
    )
    proven = minority(values) or _ranks_unlike_before(job, conflict)
    guessed = [] if proven else _ranks_with_named_dtype(job, conflict)  # the ranks do differ; which of them is wrong is a guess
    culprits = proven or guessed or sorted(conflict.entries)
    op = next(iter(conflict.entries.values())).what.op
    sides = "; ".join(f"{verb(ranks, 'has', 'have')} {_argument_text(conflict, ranks[0])}" for ranks in values.values())
    frames = {rank: user_frame(conflict.stacks[rank]) for rank in conflict.entries}
    return load_cause(code).finding(
        f"{op}{group_text(conflict.group)} gets {words}: {', '.join(f'{ranks_text(ranks)} {_argument_text(conflict, ranks[0])}' for ranks in list(values.values())[:2])}",
        certain=certain and not order and not guessed,
        culprits=tuple(place_at(job.ranks[rank], frames[rank]) for rank in culprits),
        waiting=tuple(
            wait_of(states[rank]) for rank in sorted(conflict.entries) if rank not in culprits and states[rank].kind == "waiting"
        ),
        why=f"{sides}; every rank must call {op}{f' #{conflict.seq}' if conflict.seq else ''} with the same {argument};{_call_places_text(frames)}"
        + (
            ". These may be different tensors: the ranks may go over them in a different order (a set, a dict), or one left one out"
            if order
            else ". Which of them is meant is not proven: the code asks for the one by name, the other is what torch takes by itself"
            if guessed
            else ""
        ),
        deadlock=_is_stuck(states, conflict),
        instead=(*_ORDER, *load_cause(code).next[:1]) if order else () if certain else COMPARE,
    )


def find_paired_collectives(job: JobEvidence, guess: Finding) -> list[Finding]:
    """Different operations that NCCL paired in one slot without an error: the job may end with success and wrong results."""
    conflict = find_conflict(job)
    if conflict is None or conflict.about != "op":
        return []
    ops_text = [f"{ranks_text(ranks)} {op}" for op, ranks in conflict.by_value().items()]
    return [
        load_cause("RW202").finding(
            f"different collectives were paired: {', '.join(ops_text[:2])}",
            certain=True,
            culprits=tuple(place_at(job.ranks[rank], user_frame(stack)) for rank, stack in conflict.stacks.items()),
            why=f"slot #{conflict.seq}{group_text(conflict.group)} of torch's own record holds both; the backend does not compare them, so their results are garbage. It may be that {guess.summary.split(';')[0]}: {guess.why}",
            instead=COMPARE,
        )
    ]


def _by_helper_thread(job: JobEvidence, conflict: Conflict) -> list[int] | None:
    """The ranks whose call in this slot came from a helper thread, where other ranks' came from the main thread."""
    beside = {rank: {call.stack for call in e.calls if is_beside(call)} for rank, e in job.ranks.items()}
    ranks = [rank for rank, stack in conflict.stacks.items() if stack and stack in beside[rank]]
    return ranks if 0 < len(ranks) < len(conflict.stacks) else None


def _with_helper_thread(job: JobEvidence, states: RankStates, conflict: Conflict, ranks: list[int]) -> Finding:
    op = conflict.entries[ranks[0]].what.op
    others = [rank for rank in conflict.entries if rank not in ranks]
    return load_cause("RW208").finding(
        f"a helper thread of {ranks_text(ranks)} called {op} beside the main thread",
        certain=True,
        culprits=tuple(place_at(job.ranks[rank], user_frame(conflict.stacks[rank])) for rank in ranks),
        waiting=tuple(wait_of(states[rank]) for rank in others if states[rank].kind == "waiting"),
        why=f"its call took slot #{conflict.seq} of the group, in which {verb(others, 'is', 'are')} with the main thread's "
        f"{conflict.entries[others[0]].what.op}: collectives of two threads come in any order, and here the ranks' orders differ",
        deadlock=_is_stuck(states, conflict),
        instead=("give the thread a process group of its own (dist.new_group), or make its collectives from the main thread",),
    )


def _goes_over_tensors(job: JobEvidence, book: SourceBook, conflict: Conflict) -> bool:
    """Whether the call stands in a loop over something other than numbers or a DataLoader: then each round may have a tensor of its own."""
    for rank, stack in conflict.stacks.items():
        frame = user_frame(stack)
        fetches = {one.line for call in job.ranks[rank].calls if call.op == "pass_start" for one in call.stack}
        loops = book.loops_at(frame.file, frame.line)[:1] if frame is not None else []
        if any(
            not loop.is_while and not loop.text.startswith(("range(", "enumerate(range(")) and loop.start not in fetches for loop in loops
        ):
            return True
    return False


def _differ_in_one_dimension(conflict: Conflict) -> bool:
    """Whether the tensors differ in one dimension only, as a longer and a shorter batch do."""
    shapes = [entry.what.sizes for entry in conflict.entries.values()]
    return len({len(shape) for shape in shapes}) == 1 and sum(len(set(sizes)) > 1 for sizes in zip(*shapes, strict=True)) == 1


def _size_varies_at_line(job: JobEvidence, conflict: Conflict) -> bool:
    """Whether the line was called with other sizes before: then the ranks may go over their tensors in another order."""
    for rank in conflict.entries:
        log, calls = job.ranks[rank].collectives, job.ranks[rank].calls
        here = {e.what.sizes for e in log if log.stack_of(e) == conflict.stacks[rank]}
        here |= {call.sizes for call in calls if call.dtype and call.stack == conflict.stacks[rank]}
        if len(here) > 2:
            return True
    return False


def _ranks_unlike_before(job: JobEvidence, conflict: Conflict) -> list[int]:
    """The ranks whose call differs from every earlier call of the same line, if all those calls were the same."""
    before: set[str] = set()
    for rank in conflict.entries:
        log = job.ranks[rank].collectives
        before |= {value_of(e.what, conflict.about) for e in log if e.seq < conflict.seq and log.stack_of(e) == conflict.stacks[rank]}
    odd = [rank for rank, entry in conflict.entries.items() if value_of(entry.what, conflict.about) not in before]
    return odd if len(before) == 1 and 0 < len(odd) < len(conflict.entries) else []


_DTYPE_SPELLINGS = {
    "int32": ("torch.int32", "torch.int)", ".int()", "torch.IntTensor"),
    "int64": ("torch.int64", "torch.long", ".long()", "torch.LongTensor"),
    "float64": ("torch.float64", "torch.double", ".double()"),
    "float16": ("torch.float16", "torch.half", ".half()"),
    "bfloat16": ("torch.bfloat16", ".bfloat16()"),
    "float32": ("torch.float32", ".float()", "torch.float)", "dtype=torch.float"),
}


def _ranks_with_named_dtype(job: JobEvidence, conflict: Conflict) -> list[int]:
    """The ranks with the dtype that the user's code names, if the other dtype is torch's default."""
    if conflict.about != "dtype":
        return []
    files = {frame.file for stack in conflict.stacks.values() for frame in user_frames(stack)}
    text = "".join(job.sources.get(file, "") for file in files)
    dtypes = {rank: entry.what.dtype for rank, entry in conflict.entries.items()}
    named = {dtype for dtype in dtypes.values() if any(word in text for word in _DTYPE_SPELLINGS.get(dtype, (f"torch.{dtype}",)))}
    if len(named) != 1 or set(dtypes.values()) - named - {"float32"}:
        return []
    return [rank for rank, dtype in dtypes.items() if dtype in named]


def _argument_text(conflict: Conflict, rank: int) -> str:
    what = conflict.entries[rank].what
    if conflict.about == "size":
        return str(list(what.sizes))
    return {"dtype": what.dtype, "src": f"src={what.peer}", "reduce_op": f"op={what.reduce_op}"}[conflict.about]


def _different_ops(job: JobEvidence, states: RankStates, book: SourceBook, conflict: Conflict) -> Finding:
    values = conflict.by_value()
    sides = []
    for ranks in values.values():
        entry = conflict.entries[ranks[0]]
        inside = entry.origin if entry.origin != "user" else ""
        sides.append(Side(ranks, entry.what.op, user_frames(conflict.stacks[ranks[0]]), inside))
    return _finding_for(job, states, book, sides, f"slot #{conflict.seq}{group_text(conflict.group)}", _is_stuck(states, conflict))


def _finding_for(job: JobEvidence, states: RankStates, book: SourceBook, sides: list[Side], slot: str, deadlock: bool) -> Finding:
    group = states[sides[0].ranks[0]].group
    divergences = [find_divergence(job, sides[0].ranks[0], other.ranks[0], group) for other in sides[1:]]
    blame = _blame(job, book, sides, divergences)
    return finding_of(job, states, blame, sides, _headline(blame, sides, divergences[0]), slot=f" ({slot})", deadlock=deadlock)


def _blame(job: JobEvidence, book: SourceBook, sides: list[Side], divergences: list[Divergence | None]) -> Blame:
    """Who is to blame, by the strongest argument there is; where there is none, both sides are named."""
    found = []
    for divergence, other in zip(divergences, sides[1:], strict=True):
        one = by_sync_off(job, book, sides[0], other) or by_sync_off(job, book, other, sides[0])
        if one is None and divergence is not None:
            one = blame_for_divergence(job, book, divergence, sides[0].ranks, other.ranks)
        elif one is None:
            one = (
                by_missing_gradients(job, sides[0], other)
                or by_missing_gradients(job, other, sides[0])
                or by_rank_condition(job, book, [sides[0], other])
            )
        if one is not None:
            found.append(one)
    agreed = found[0] if found and len(found) == len(sides) - 1 and len({(one.code, one.certain) for one in found}) == 1 else None
    if agreed is not None:
        agreed = replace(agreed, ranks=sorted({rank for one in found for rank in one.ranks}))
    most = by_majority(sides)
    branch = by_branch(job, book, sides[0], sides[1]) if agreed is None or not agreed.certain else None
    if branch is not None:
        return branch
    if agreed is not None and most is not None and set(most.ranks) < set(agreed.ranks):
        return replace(agreed, ranks=most.ranks)  # the argument says how they diverged, the majority says who did
    if agreed is not None and (agreed.certain or most is None or agreed.ranks == most.ranks):
        return replace(agreed, certain=agreed.certain or (most is not None and agreed.code in _ODD_ONE_OUT))
    if most is not None or divergences[0] is None:
        return most or undecided(sides)
    first, second = sides[:2] if divergences[0].mine.rank in sides[0].ranks else sides[1::-1]
    return undecided([side_of(first.ranks, divergences[0].next), side_of(second.ranks, divergences[0].next_other), *sides[2:]])


def _headline(blame: Blame, sides: list[Side], divergence: Divergence | None) -> str:
    """One short sentence: who, and what."""
    who = ranks_text(blame.ranks)
    theirs = next((side for side in sides if set(side.ranks) & set(blame.ranks)), sides[0])
    others = next((side for side in sides if side is not theirs), theirs)
    alone, missed = theirs, others
    if divergence is not None:
        first, second = sides[:2] if divergence.mine.rank in sides[0].ranks else sides[1::-1]
        ways = [side_of(first.ranks, divergence.next), side_of(second.ranks, divergence.next_other)]
        alone, missed = ways if set(ways[0].ranks) & set(blame.ranks) else ways[::-1]
    rest = verb(others.ranks, "waits", "wait")
    is_in_it = missed.short_text == others.short_text
    return {
        "RW201": f"{who} skipped {missed.short_text} that {rest} in"
        if is_in_it
        else f"{who} skipped {missed.short_text}; {rest} in {others.short_text}",
        "RW202": f"{ranks_text(sides[0].ranks)} and {ranks_text([r for side in sides[1:] for r in side.ranks])} are in different collectives",
        "RW203": f"{who} calls collectives in a different order",
        "RW208": f"only {who} called {alone.short_text}; {rest} in {others.short_text}",
        "RW209": f"only {who} ran a forward through the DDP wrapper; {rest} in {others.short_text}",
        "RW213": f"{who} finished with fewer batches; {rest} in {others.short_text}",
        "RW402": f"{who} left; {rest} in {others.short_text}",
        "RW215": f"{who} reduced fewer gradients in the last backward; {rest} in {others.short_text}",
        "RW221": f"{ranks_text(sides[0].ranks)} and {ranks_text([r for side in sides[1:] for r in side.ranks])} went different numbers of rounds in a loop"
        if len(blame.ranks) == sum(len(side.ranks) for side in sides)
        else f"{who} went another number of rounds in the loop; {rest} in {others.short_text}",
        "RW219": f"{who} left the loop early; {rest} in {others.short_text}",
        "RW220": f"{who} ran a step with gradient sync off; {rest} in {others.short_text}",
    }[blame.code]


def find_out_of_step(job: JobEvidence, states: RankStates, book: SourceBook, failed: list[int]) -> Finding | None:
    """Ranks that were no longer in step when a collective failed on some of them: its error is only a consequence."""
    sides: dict[object, list[int]] = {}
    last = {rank: history.calls[-1] for rank, e in sorted(job.ranks.items()) if (history := history_of(e)).calls}
    for rank in failed[:1]:  # only the members of the failed collective's group have to be in step
        last = {r: last[r] for r in members_of(job, last[rank].group, rank) if r in last} if rank in last else last
    for rank, call in last.items():
        sides.setdefault(key_of(call), []).append(rank)
    ordered = sorted(sides.values(), key=lambda ranks: -len(ranks))
    if len(ordered) == 1:  # all are in the same call, but some may have made it more often
        diverged = [rank for rank in ordered[0][1:] if find_divergence(job, ordered[0][0], rank) is not None]
        ordered = [[rank for rank in ordered[0] if rank not in diverged], diverged] if diverged else ordered
    if len(ordered) < 2 or find_divergence(job, ordered[0][0], ordered[1][0]) is None:
        return None
    if any(set(ranks) - set(members_of(job, last[other[0]].group)) for ranks in ordered for other in ordered):
        return None  # some ranks are not members of the collective's group, so they need not call it
    return _finding_for(job, states, book, [side_of(ranks, last[ranks[0]]) for ranks in ordered], "as their last calls show", True)


# -- a circle of groups -------------------------------------------------------------------------------------------------------


def _circular_wait(job: JobEvidence, states: RankStates, book: SourceBook) -> Finding | None:
    """Ranks that wait for each other in different groups: one side made a call that the others never make, or their orders differ."""
    ring = find_circle(job, states)
    if not ring:
        return None
    by_group: dict[str, list[int]] = {}
    for rank, state in sorted(states.items()):
        if state.kind == "waiting":
            by_group.setdefault(state.group, []).append(rank)
    sides = _merged([Side.at(ranks, states[ranks[0]]) for ranks in by_group.values()])
    is_one_group = len({base_group(group) for group in by_group}) == 1  # a group that gloo and NCCL both serve
    if len(sides) == 2 and not is_one_group and (blame := _alone_in_a_group(job, book, sides, next(iter(by_group)))) is not None:
        there, others = _alone_and_other(blame, sides)
        summary = f"only {ranks_text(there.ranks)} called {there.short_text}; {verb(others.ranks, 'waits', 'wait')} in {others.short_text}"
        return finding_of(job, states, blame, sides, summary)
    return circle_finding(job, states, ring)


def _alone_in_a_group(job: JobEvidence, book: SourceBook, sides: list[Side], group: str) -> Blame | None:
    """Why only one side makes its call: a condition on the rank, an exception that only this side met, a line that the others have passed."""
    divergence = find_divergence(job, sides[0].ranks[0], sides[1].ranks[0], group)
    blame = blame_for_divergence(job, book, divergence, sides[0].ranks, sides[1].ranks) if divergence is not None else None
    blame = blame or by_rank_condition(job, book, sides)
    if blame is None or blame.code not in ("RW201", "RW208") or not any(side.ranks == blame.ranks for side in sides):
        return None
    alone, other = _alone_and_other(blame, sides)
    is_new = blame.code == "RW208" and divergence is not None and _is_new(divergence, blame.ranks)
    is_certain = blame.code == "RW208" and blame.certain
    return blame if is_certain or is_new or _has_passed(book, other, alone) else None


def _alone_and_other(blame: Blame, sides: list[Side]) -> list[Side]:
    """The side that is alone with its call, then the other one. RW208 blames the first, RW201 the second, which skipped the call."""
    return sides if (sides[0].ranks == blame.ranks) == (blame.code == "RW208") else sides[::-1]


def _has_passed(book: SourceBook, other: Side, alone: Side) -> bool:
    """Whether one side can no longer come to the other's call: it is further down in the function they share, out of all loops around it."""
    shared = book.shared_frames(other.stack, alone.stack)
    if shared is None or book.tree(shared[0].file) is None:
        return False
    here, there = shared
    return here.line > there.line and not any(loop.end >= here.line for loop in book.loops_at(there.file, there.line))


def _is_new(divergence: Divergence, ranks: list[int]) -> bool:
    """Whether these ranks came to a call never made before and the others to a usual one: then the order of the groups is not the cause."""
    seen = divergence if divergence.mine.rank in ranks else divergence.swapped()
    if seen.next is None or seen.next_other is None:
        return False
    return not was_called(divergence, seen.next) and was_called(divergence, seen.next_other)


# -- one side is missing ------------------------------------------------------------------------------------------------------


def _missing_in_slot(job: JobEvidence, states: RankStates, book: SourceBook) -> Finding | None:
    """Some ranks wait in a collective that the others will not join: those have left, or wait in another one for good."""
    doomed = doomed_ranks(job, states)
    slots: dict[tuple[str, str, int | None], list[int]] = {}
    for rank, state in sorted(states.items()):
        if state.kind == "waiting" and state.op not in P2P and state.op not in ("new_group", "unknown", "destroy_process_group"):
            slots.setdefault((state.op, state.group, state.seq), []).append(rank)
    for waiting in slots.values():
        rank, state = waiting[0], states[waiting[0]]
        missing = needed_by(job, states, rank)
        gone = sorted(r for r in missing if r in states and states[r].kind == "ended" and _left_quietly(job, r))
        if gone:
            return _left_while_waited_for(job, states, book, waiting, gone)
        elsewhere = sorted(r for r in missing if r in states and states[r].kind == "waiting" and states[r].op not in P2P)
        if (
            elsewhere
            and elsewhere == sorted(missing)
            and {rank, *elsewhere} <= doomed
            and all(states[r].group == state.group for r in elsewhere)
        ):
            sides = [Side.at(waiting, state), *(Side.at([other], states[other]) for other in elsewhere)]
            if len({side.op for side in sides}) > 1 or len({side.frame for side in sides}) > 1:
                return _finding_for(job, states, book, _merged(sides), "as their calls show", True)
    return None


def _left_quietly(job: JobEvidence, rank: int) -> bool:
    ended = end_of(job.ranks[rank])
    return ended is not None and ended.kind in ("finished", "sys_exit", "os_exit") and not (ended.code or 0)


def _left_while_waited_for(job: JobEvidence, states: RankStates, book: SourceBook, waiting: list[int], gone: list[int]) -> Finding:
    state = states[waiting[0]]
    side = Side.at(waiting, state)
    divergence = find_divergence(job, waiting[0], gone[0], state.group)
    blame = blame_for_divergence(job, book, divergence, waiting, gone) if divergence is not None else None
    blame = blame or by_rank_condition(job, book, [side, Side(gone, "exit", ())]) or _odd_ones_out(job, waiting, gone)
    if blame is not None and set(blame.ranks) == set(waiting):
        alone = side
        if divergence is not None:
            alone = side_of(waiting, divergence.next if divergence.mine.rank in waiting else divergence.next_other)
        summary = f"only {ranks_text(waiting)} called {alone.short_text}; {verb(gone, 'has', 'have')} already finished and left"
        return finding_of(job, states, blame, [side], summary)
    ended = end_of(job.ranks[gone[0]])
    assert ended is not None
    frame = states[gone[0]].frame
    how = {"os_exit": f"called os._exit({ended.code or 0})", "sys_exit": f"called sys.exit({ended.code or 0})"}.get(
        ended.kind, "finished and exited with code 0" if not job.ranks[gone[0]].alive else "has come to the end of its script"
    )
    rest = f"{verb(waiting, 'waits', 'wait')} in {side.short_text}"
    if ended.kind in ("os_exit", "sys_exit"):
        blame = Blame("RW402", gone, _LEAVING)
    elif blame is None:
        why = f"{ranks_text(gone)} may have left too early, or {verb(waiting, 'makes', 'make')} a call that is not meant for all: compare the lines"
        blame = Blame("RW402", [*gone, *waiting], why, certain=False)
    places = tuple(place_at(job.ranks[rank], blame.line or states[rank].frame or last_call_frame(job.ranks[rank])) for rank in gone)
    is_one_side = blame.certain or (blame.code == "RW402" and blame.ranks == gone)
    return load_cause(blame.code).finding(
        f"{ranks_text(gone)} {how}; {rest}",
        certain=blame.certain,
        culprits=places if is_one_side else (*places, *(place_at(job.ranks[rank], state.frame) for rank in waiting)),
        waiting=tuple(wait_of(states[rank]) for rank in waiting) if is_one_side else (),
        why=f"{blame.why}; it left{at(frame)}, {verb(waiting, 'is', 'are')} in {side.text}{at(state.frame)}",
        deadlock=True,
        instead=() if is_one_side else COMPARE,
    )


def _odd_ones_out(job: JobEvidence, waiting: list[int], gone: list[int]) -> Blame | None:
    """Blame the minority: the ranks that wait, or the ranks that left."""
    if len(gone) > len(job.ranks) / 2:
        return Blame("RW208", waiting, f"{ranks_text(gone)} ended without this call")
    return Blame("RW402", gone, _LEAVING) if len(waiting) > len(job.ranks) / 2 else None


def _merged(sides: list[Side]) -> list[Side]:
    found: dict[tuple[str, Frame | None], Side] = {}
    for side in sides:
        key = (side.op, side.frame)
        earlier = found.get(key)
        found[key] = Side(sorted({*side.ranks, *(earlier.ranks if earlier else [])}), side.op, side.stack, side.inside)
    return sorted(found.values(), key=lambda side: -len(side.ranks))


# -- small helpers ------------------------------------------------------------------------------------------------------------


def _is_stuck(states: RankStates, conflict: Conflict) -> bool:
    """Whether ranks wait in the slot of the conflict. If all ranks have passed it, their results are wrong, but it is not a deadlock."""
    return any(
        states[rank].kind == "waiting" and states[rank].group == conflict.group and (states[rank].seq or 0) >= conflict.seq
        for rank in conflict.entries
        if rank in states
    ) and not any(states[rank].kind == "busy" for rank in conflict.entries if rank in states)


def _call_places_text(frames: dict[int, Frame | None]) -> str:
    tops = set(frames.values())
    return f" called{' and'.join(at(frame) for frame in sorted(tops, key=str) if frame)}" if len(tops) < 4 else ""
