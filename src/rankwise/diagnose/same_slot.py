"""Ranks that called different things, or the same with different arguments, in one slot of a group."""

from __future__ import annotations

from rankwise.causes import load_cause
from rankwise.diagnose.blame import (
    COMPARE,
    Side,
    minority,
)
from rankwise.diagnose.different_calls import finding_of_sides
from rankwise.diagnose.history import find_divergence, find_other_sizes, is_beside
from rankwise.diagnose.match import Conflict, find_conflict, value_of
from rankwise.diagnose.rank_state import RankStates, place_at, wait_of
from rankwise.diagnose.wording import at, group_text, verb
from rankwise.evidence.collective_log import LoggedCollective, Signature
from rankwise.evidence.frames import user_frame, user_frames
from rankwise.evidence.records import Frame, JobEvidence
from rankwise.findings import Finding, ranks_text
from rankwise.source.book import SourceBook

_ORDER = ("go over the tensors in the same order on every rank: sort them by name, never iterate over a set",)
_SAME_SLOT = {
    "size": ("RW204", "different shapes", "shape"),
    "dtype": ("RW205", "different dtypes", "dtype"),
    "src": ("RW206", "different src (root) ranks", "src"),
    "reduce_op": ("RW207", "different reduce operations", "op"),
}


def find_slot_disagreement(job: JobEvidence, states: RankStates, book: SourceBook) -> Finding | None:
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
    return finding_of_sides(job, states, book, sides, f"slot #{conflict.seq}{group_text(conflict.group)}", _is_stuck(states, conflict))


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
