"""Puts the root cause first: asks the families of causes in order, because some faults only follow from others."""

from __future__ import annotations

from dataclasses import replace

from rankwise.causes import load_cause
from rankwise.diagnose.at_exit import find_stuck_at_exit
from rankwise.diagnose.crash import failed_in_collective, find_crash
from rankwise.diagnose.different_calls import find_out_of_step
from rankwise.diagnose.disagree import find_disagreement
from rankwise.diagnose.lost import with_lost_nodes
from rankwise.diagnose.match import find_conflict, last_seq
from rankwise.diagnose.model_mismatch import model_difference
from rankwise.diagnose.no_ranks import find_command_failure, find_rendezvous_wait
from rankwise.diagnose.notes import find_notes
from rankwise.diagnose.p2p import find_crossed_queues, find_unanswered
from rankwise.diagnose.rank_state import RankStates, ended_well, first_raised, gave_up, place_at, rank_states, wait_of
from rankwise.diagnose.restarts import find_stale_store
from rankwise.diagnose.same_slot import find_other_size, find_paired_collectives
from rankwise.diagnose.silent import find_silent
from rankwise.diagnose.start import find_start_problem
from rankwise.diagnose.stuck import find_all_idle, find_stuck
from rankwise.diagnose.waiting import members_of, needed_by
from rankwise.diagnose.wording import at, error_text, in_short, op_text, relative_to, seconds_text, verb
from rankwise.evidence.records import JobEvidence, RankEvidence
from rankwise.findings import Finding, ranks_text
from rankwise.source.book import SourceBook

_RAISED_BY_WRONG_VALUES = (
    "AssertionError",
    "ValueError",
    "RuntimeError",
    "FloatingPointError",
    "IndexError",
    "ZeroDivisionError",
    "OverflowError",
)


def diagnose(job: JobEvidence) -> list[Finding]:
    """All findings about a job, the root cause first."""
    states = rank_states(job)
    book = SourceBook.of_job(job)
    found: list[Finding] = []
    root = find_root(job, states, book)
    found += root
    found += find_silent(job)
    found += find_notes(job, states, is_well=not root)
    return [in_short(relative_to(finding, job.cwd)) for finding in with_lost_nodes(found, job, states)]


def find_root(job: JobEvidence, states: RankStates, book: SourceBook) -> list[Finding]:
    """The root cause and its companions; empty where the job is well."""
    if job.exit_code == 0 and all(e.alive or ended_well(e.ended) for e in job.ranks.values()):
        silent = find_disagreement(job, states, book)
        if silent is None:
            return []
        if load_cause(silent.code).unnoticed or (silent.certain and find_conflict(job) is not None):
            return [silent]
        return find_paired_collectives(job, silent) if not silent.certain else []
    early = find_command_failure(job) or find_stale_store(job)
    if early is not None:
        return [early]
    start = find_start_problem(job, states, book)
    crash = find_crash(job, states, book)
    disagreement = find_disagreement(job, states, book)
    if start is not None and (crash is None or start.code in ("RW107", "RW108", "RW110", "RW105") or not start.certain):
        return [start] if crash is None or start.certain else [crash, start]
    if crash is not None:
        if (left_out := _before_the_end(job, crash, book)) is not None:
            return [left_out, crash]
        failed = [place.rank for place in crash.culprits if place.rank is not None]
        if failed_in_collective(job, crash) and (diverged := find_out_of_step(job, states, book, failed)) is not None:
            return [diverged]
        if disagreement is not None and _explains(disagreement, crash):
            return [disagreement]
        if crash.code == "RW204" and not crash.certain and (other_size := find_other_size(job, states, book)) is not None:
            return [other_size]
        if disagreement is None or not load_cause(disagreement.code).unnoticed:
            return [crash]
        return [disagreement, crash] if _failed_on_its_result(job, crash) else [crash, disagreement]
    if disagreement is not None:
        return [disagreement]
    if (at_exit := find_stuck_at_exit(job, book)) is not None:
        return [at_exit]
    stuck = find_stuck(job, states, book)
    timeout = _timed_out(job, states, list(job.suspected) or stuck)
    if timeout is not None:
        return [timeout, *stuck]
    if stuck:
        return stuck
    outside = find_unanswered(job, states) or find_rendezvous_wait(job) or find_all_idle(job, states, book)
    if outside is not None:
        return [outside]
    return _unknown(job, states)


def _before_the_end(job: JobEvidence, crash: Finding, book: SourceBook) -> Finding | None:
    """What the ranks disagreed about, where the crash came only after a rank's script had ended and while the others waited for it."""
    ranks = {rank: _without_late_crash(evidence) for rank, evidence in job.ranks.items()}
    if not all(place.rank in ranks and ranks[place.rank] is not job.ranks[place.rank] for place in crash.culprits):
        return None
    calm = replace(job, ranks=ranks)
    return find_disagreement(calm, rank_states(calm), book)


def _without_late_crash(evidence: RankEvidence) -> RankEvidence:
    ended = evidence.ended
    if ended is None or not ended.crashed_after_its_end:
        return evidence
    return replace(evidence, ended=replace(ended, kind="finished", signal=None))


def _explains(disagreement: Finding, crash: Finding) -> bool:
    """Whether the crash follows from the disagreement: different sizes make gloo abort a rank, different models make DDP's constructor fail."""
    if disagreement.code not in ("RW204", "RW205") or crash.code not in ("RW405", "RW401", "RW204"):
        return False
    sites = {(place.file, place.line) for place in disagreement.culprits} | {(wait.file, wait.line) for wait in disagreement.waiting}
    return any((place.file, place.line) in sites for place in crash.culprits)


def _failed_on_its_result(job: JobEvidence, crash: Finding) -> bool:
    """Whether ranks failed right after the collective they silently disagreed about, as a check or a computation on its wrong result does."""
    conflict = find_conflict(job)
    failed = [place.rank for place in crash.culprits if place.rank is not None]
    raised = [first_raised(job.ranks[rank]) for rank in failed]
    return (
        conflict is not None
        and bool(failed)
        and all(one is not None and one.type in _RAISED_BY_WRONG_VALUES for one in raised)
        and all(last_seq(job.ranks[rank].collectives, conflict.group) == conflict.seq for rank in failed)
    )


def _timed_out(job: JobEvidence, states: RankStates, stuck: list[Finding]) -> Finding | None:
    """The finding where torch itself gave up waiting: which rank it waited for, and what that rank was doing."""
    late = sorted(rank for rank, evidence in job.ranks.items() if not evidence.alive and gave_up(evidence))
    late = [rank for rank in late if states[rank].kind == "waiting"]
    if not late:
        return None
    missing = sorted({r for rank in late for r in needed_by(job, states, rank) if r in states} - set(late))
    state = states[late[0]]
    if stuck:
        doing = f"{stuck[0].summary.split(';')[0]}. {stuck[0].why}"
    else:
        doing = "; ".join(f"rank {r} is{at(states[r].frame) or ' elsewhere'}" for r in missing[:3]) or "no rank is known to be missing"
    limit = next((e.inits[-1].timeout_s for r in late if (e := job.ranks[r]).inits and e.inits[-1].timeout_s), None)
    after = f" of {seconds_text(limit)}" if limit else ""
    who = f"{ranks_text(missing)} did not arrive" if missing else "who did not arrive is not known"
    return load_cause("RW410").finding(
        f"{ranks_text(late)} gave up waiting in {op_text(state.op, '')} (timeout{after}): {who}",
        certain=bool(missing),
        culprits=stuck[0].culprits if stuck else tuple(place_at(job.ranks[r], states[r].frame) for r in missing),
        waiting=tuple(wait_of(states[r]) for r in late),
        why=f"the process group's timeout{after} was over while {ranks_text(late)} waited in {state.op_text}{at(state.frame)}; {doing}",
    )


def _all_in_the_same(job: JobEvidence, states: RankStates, waiting: list[int], longest_s: float) -> Finding:
    """The finding where all ranks are in the same collective for long: nothing in the program explains it."""
    state, lasting = states[waiting[0]], seconds_text(longest_s)
    if any("nccl" in e.inits[-1].backend for e in job.ranks.values() if e.inits):
        code, summary = "RW502", f"all ranks have queued the same {state.op}; the GPUs have not finished it for {lasting}"
        why = f"every rank arrived with the same call{at(state.frame)}; a long kernel before it, or a slow or broken link, would look like this"
    else:
        code, summary = "RW114", f"all ranks are in the same {state.op} and it does not complete for {lasting}{at(state.frame)}"
        why = "every rank arrived with the same call; the network or the backend between them does not deliver"
    finding = load_cause(code).finding(summary, certain=False, waiting=tuple(wait_of(states[r]) for r in waiting), why=why)
    return finding.with_severity("warning") if finding.severity == "error" else finding


def _unknown(job: JobEvidence, states: RankStates) -> list[Finding]:
    """Nothing fits: say so, and show which ranks wait, and where."""
    differing = model_difference(job, deadlock=False)
    if differing is not None and any(s.inside == "ddp" for s in states.values()):
        return [differing]
    waiting = sorted(rank for rank, s in states.items() if s.kind == "waiting")
    ended = [rank for rank, e in sorted(job.ranks.items()) if not e.alive and not ended_well(e.ended)]
    longest = max(((job.now_ns - states[r].since_ns) / 1e9 for r in waiting), default=0.0)
    if not ended and (not waiting or longest < job.stall_after_s):
        return []
    if job.exit_code is None and longest >= job.stall_after_s and (crossed := find_crossed_queues(job, states)) is not None:
        return [crossed]
    doing = "; ".join(f"rank {r} waits in {states[r].op_text}{at(states[r].frame)}" for r in waiting[:4])
    if ended and not waiting:
        raised = first_raised(job.ranks[ended[0]])
        doing = f"rank {ended[0]} ended" + (f" with {error_text(raised)}" if raised else "")
    together = {(states[r].op, states[r].group, states[r].seq) for r in waiting}
    unseen = sorted(set(members_of(job, states[waiting[0]].group)) - set(job.ranks)) if waiting else []
    if job.exit_code is None and len(waiting) == len(job.ranks) and len(together) == 1 and not unseen:
        return [_all_in_the_same(job, states, waiting, longest)]
    if unseen and waiting:
        where = f"on {', '.join(job.lost_hosts)}, which stopped answering" if job.lost_hosts else "on another node?"
        doing += f"; {verb(unseen, 'was', 'were')} not seen here ({where})"
    return [
        load_cause("RW900").finding(
            f"the cause is not one rankwise knows: {doing or 'nothing moves'}",
            certain=False,
            culprits=tuple(place_at(job.ranks[r], states[r].frame) for r in ended[:8] if r not in waiting),
            waiting=tuple(wait_of(states[r]) for r in waiting),
            why=f"{verb(waiting, 'waits', 'wait')}, for {seconds_text(longest)}" if waiting else "",
        )
    ]
