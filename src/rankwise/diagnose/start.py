"""A job that never started together: who is missing, who went elsewhere, what is in the way."""

from __future__ import annotations

import re
from dataclasses import replace

from rankwise.causes import load_cause
from rankwise.diagnose.rank_state import RankStates, ended_well, first_raised, main_stack, place_at, wait_of, waits_except
from rankwise.diagnose.stuck import activity_of, loop_places
from rankwise.diagnose.wording import at, error_text, seconds_text, verb
from rankwise.evidence.frames import user_frame
from rankwise.evidence.records import Frame, Helper, HostFacts, Init, JobEvidence, PortHolder, RankEvidence
from rankwise.findings import Finding, Place, ranks_text
from rankwise.meet.differences import find_difference
from rankwise.meet.network import missing_interface
from rankwise.meet.roster import missing_numbers
from rankwise.source.book import SourceBook

_ALL_STARTED = ": the launcher has started all its processes and waits for them"
_NOT_SEEN = " (on this host, no process with that rank was seen)"
_THIS_HOST = re.compile(r"^(::1|0\.0\.0\.0|127\..*)$")
_PORT_TAKEN = ("eaddrinuse", "address already in use")


def find_start_problem(job: JobEvidence, states: RankStates, book: SourceBook) -> Finding | None:
    """Why ranks that are in init_process_group, or failed in it, did not come together; None if no rank is stuck there."""
    in_init = sorted(rank for rank, state in states.items() if state.kind == "init")
    failed = sorted(rank for rank, evidence in job.ranks.items() if not evidence.alive and evidence.inits and evidence.inits[-1].error)
    if not in_init and not failed:
        return _joined_with_different_world_sizes(job, states, book)
    for explain in (
        _port_taken, _interface_missing, _unresolvable, _duplicates, _different_world_sizes, _different_methods, _different_ports,
        _different_backends, _stale_store, _died_before, _late_before_init, _died_before_naming_rank, _missing, _different_names, _unreachable,
    ):  # fmt: skip
        finding = explain(job, states, book, in_init or failed)
        if finding is not None:
            return replace(finding, stage=load_cause(finding.code).stage)
    return None


def _joined_with_different_world_sizes(job: JobEvidence, states: RankStates, book: SourceBook) -> Finding | None:
    """Ranks with different world sizes whose init succeeded (a smaller world fits into a larger one's store), stuck in their first collective."""
    living = [rank for rank, evidence in sorted(job.ranks.items()) if evidence.alive]
    if not living or any(states[rank].kind != "waiting" for rank in living):
        return None
    return _different_world_sizes(job, states, book, living)


# -- one explanation each, from the hardest evidence to the softest -----------------------------------------------------------


def _port_taken(job: JobEvidence, states: RankStates, book: SourceBook, waiting: list[int]) -> Finding | None:
    for rank, evidence in sorted(job.ranks.items()):
        init = evidence.inits[-1] if evidence.inits else None
        raised = first_raised(evidence)
        text = f"{init.error if init else ''} {raised.message if raised else ''}".lower()
        if init is None or not any(words in text for words in _PORT_TAKEN):
            continue
        port = init.store_port
        holders = (h for host in job.hosts for h in host.holders if h.port == port and h.pid != evidence.pid)
        holder = init.holder or next(holders, None)
        by = f" by {_holder_text(holder)}" if holder else " by another program"
        line = _setting_line(job, book, evidence, "MASTER_PORT") or user_frame(init.stack)
        return load_cause("RW107").finding(
            f"rank {rank} cannot listen on port {port or '(unknown)'}: it is already in use{by} (EADDRINUSE){at(user_frame(init.stack))}",
            certain=True,
            culprits=(place_at(evidence, line),),
            waiting=waits_except(states, [rank]),
            why=f"rank {rank} has to open the store on MASTER_PORT {port or ''}, which another program holds",
            next=(f"free the port: kill {holder.pid}",) if holder and holder.pid else (),
            deadlock=True,
        )
    return None


def _interface_missing(job: JobEvidence, states: RankStates, book: SourceBook, waiting: list[int]) -> Finding | None:
    for evidence in job.ranks.values():
        host = next((host for host in job.hosts if host.name == evidence.host), job.hosts[0] if job.hosts else None)
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            wanted = evidence.env.get(variable, "")
            backend = evidence.inits[-1].backend if evidence.inits else ""
            if not wanted or not host or not host.interfaces or (variable.startswith("NCCL") and backend == "gloo"):
                continue
            if not missing_interface(variable, wanted, host.interfaces):
                continue
            ranks = [r for r, e in job.ranks.items() if e.env.get(variable) == wanted]
            line = _setting_line(job, book, evidence, variable)
            return load_cause("RW108").finding(
                f"{variable}={wanted} on {ranks_text(ranks)}: there is no such network interface on {host.name} (there are {', '.join(host.interfaces)})",
                certain=True,
                culprits=tuple(_place_of(job, states, r, line) for r in ranks),
                why="the backend can bind to no address, so the ranks never connect",
                next=(f"export {variable}={_likely_interface(host)}",),
                deadlock=True,
            )
    return None


def _unresolvable(job: JobEvidence, states: RankStates, book: SourceBook, waiting: list[int]) -> Finding | None:
    for host in job.hosts:
        for name in host.unresolved:
            ranks = [r for r in waiting if job.ranks[r].inits and job.ranks[r].inits[-1].store_address == name]
            if not ranks:
                continue
            line = _setting_line(job, book, job.ranks[ranks[0]], "MASTER_ADDR")
            return load_cause("RW106").finding(
                f"MASTER_ADDR={name} does not resolve on {host.name} (unknown host), so {ranks_text(ranks)} cannot reach the store",
                certain=True,
                culprits=tuple(place_at(job.ranks[r], line or states[r].frame) for r in ranks),
                waiting=waits_except(states, ranks),
                why="neither DNS nor /etc/hosts knows the name; torch retries silently until its timeout",
            )
    return None


def _duplicates(job: JobEvidence, states: RankStates, book: SourceBook, waiting: list[int]) -> Finding | None:
    twice = sorted({evidence.rank for evidence in job.duplicates if evidence.rank in job.ranks})
    if not twice:
        return None
    missing = _missing_ranks(job)
    rank = twice[0]
    pids = [job.ranks[rank].pid, *(e.pid for e in job.duplicates if e.rank == rank)]
    line = _setting_line(job, book, job.ranks[rank], "RANK")
    nobody = f", and nobody is {ranks_text(missing)}" if missing else ""
    return load_cause("RW102").finding(
        f"two processes are both rank {rank} (pids {', '.join(str(pid) for pid in pids if pid)}): RANK={rank} was given twice (duplicate rank){nobody}",
        certain=True,
        culprits=tuple(place_at(job.ranks[r], line or states[r].frame) for r in twice),
        waiting=tuple(wait_of(states[r]) for r in waiting if r not in twice),
        why="RANK must be unique over all nodes: node offset plus local rank",
        deadlock=True,
    )


def _different_world_sizes(job: JobEvidence, states: RankStates, book: SourceBook, waiting: list[int]) -> Finding | None:
    sizes = {r: e.inits[-1].world_size for r, e in job.ranks.items() if e.inits and e.inits[-1].world_size}
    differs = find_difference(sizes)
    if differs is None:
        return None
    line = _setting_line(job, book, job.ranks[differs.odd[0]], "WORLD_SIZE")
    others = f"; the others say {differs.usual}" if differs.usual is not None else ""
    return load_cause("RW112").finding(
        f"ranks disagree about the world size: {differs.text('WORLD_SIZE=')}",
        certain=True,
        culprits=tuple(_place_of(job, states, r, line) for r in differs.odd),
        waiting=waits_except(states, differs.odd),
        why=f"each rank waits for as many ranks as its own WORLD_SIZE says{others}",
        deadlock=True,
    )


def _different_methods(job: JobEvidence, states: RankStates, book: SourceBook, waiting: list[int]) -> Finding | None:
    inits = {r: e.inits[-1] for r, e in job.ranks.items() if e.inits}
    methods = {rank: init.method for rank, init in inits.items()}
    kinds = {rank: method.split("://")[0] if "://" in method else method for rank, method in methods.items()}
    stores = {rank: method if kinds[rank] == "file" else kinds[rank] for rank, method in methods.items()}
    if len(set(stores.values())) < 2 or (
        set(kinds.values()) == {"env", "tcp"} and len({(i.store_address, i.store_port) for i in inits.values()}) == 1
    ):
        return None
    differs, by_method = find_difference(stores), find_difference(methods)
    ranks = differs.odd if differs else tuple(sorted(methods))
    frame = user_frame(inits[ranks[0]].stack)
    return load_cause("RW104").finding(
        f"ranks use different init methods, and so different stores: {by_method.text() if by_method else ''}",
        certain=True,
        culprits=tuple(place_at(job.ranks[r], frame) for r in ranks),
        waiting=waits_except(states, ranks),
        why="ranks that meet in different stores (init_method mismatch) never find each other",
        deadlock=True,
    )


def _different_ports(job: JobEvidence, states: RankStates, book: SourceBook, waiting: list[int]) -> Finding | None:
    ports = {r: i.store_port for r, i in _store_inits(job).items()}
    return _different_stores(job, states, certain=True) if len(set(ports.values())) > 1 else None


def _different_names(job: JobEvidence, states: RankStates, book: SourceBook, waiting: list[int]) -> Finding | None:
    """Ranks that look for the store under different names: only a suspicion, since two names may mean one host."""
    names = {r: _THIS_HOST.sub("localhost", i.store_address) for r, i in _store_inits(job).items()}
    return _different_stores(job, states, certain=False) if len(set(names.values())) > 1 else None


def _different_stores(job: JobEvidence, states: RankStates, certain: bool) -> Finding:
    places = {r: _store_text(i) for r, i in _store_inits(job).items()}
    differs = find_difference(places)
    right = differs.usual if differs and differs.usual is not None else places.get(0, min(places.values()))
    odd = sorted(r for r, place in places.items() if place != right)
    return load_cause("RW103").finding(
        f"{verb(odd, 'looks', 'look')} for the store at {places[odd[0]]}, the others at {right} (MASTER_ADDR and port differ)",
        certain=certain,
        severity="error" if certain else "warning",
        culprits=tuple(_place_of(job, states, r) for r in odd),
        waiting=waits_except(states, odd),
        why=f"the store is where rank 0 opens it, at {right}; nothing answers at the other address and port",
        deadlock=certain,
    )


def _store_inits(job: JobEvidence) -> dict[int, Init]:
    return {r: e.inits[-1] for r, e in job.ranks.items() if e.inits and e.inits[-1].method.startswith(("env", "tcp"))}


def _different_backends(job: JobEvidence, states: RankStates, book: SourceBook, waiting: list[int]) -> Finding | None:
    backends = {r: e.inits[-1].backend for r, e in job.ranks.items() if e.inits and e.inits[-1].backend}
    differs = find_difference(backends)
    if differs is None:
        return None
    return load_cause("RW113").finding(
        f"ranks use different backends: {differs.text()}",
        certain=True,
        culprits=tuple(_place_of(job, states, r) for r in differs.odd),
        why="all ranks of a group must use the same backend",
        deadlock=True,
    )


def _stale_store(job: JobEvidence, states: RankStates, book: SourceBook, waiting: list[int]) -> Finding | None:
    started = min([job.started_ns, *(e.started_ns for e in job.ranks.values() if e.started_ns)]) / 1e9  # nodes start one after the other
    ranks = sorted(r for r, e in job.ranks.items() if e.inits and (e.inits[-1].file_mtime or started) < started - 0.5)
    if not ranks:
        return None
    init = job.ranks[ranks[0]].inits[-1]
    path = init.method.removeprefix("file://")
    return load_cause("RW105").finding(
        f"the file store {path} is left over (stale) from an earlier run: it was last written {seconds_text(started - (init.file_mtime or started))} before this job started",
        certain=True,
        culprits=tuple(_place_of(job, states, r) for r in ranks),
        why="ranks read the old job's entries in it and wait for, or connect to, processes that no longer exist",
        next=(f"rm {path}",),
        deadlock=True,
    )


def _died_before(job: JobEvidence, states: RankStates, book: SourceBook, waiting: list[int]) -> Finding | None:
    dead = sorted(r for r, e in job.ranks.items() if states[r].kind == "ended" and not e.inits and r not in waiting)
    if not dead:
        return None
    evidence = job.ranks[dead[0]]
    raised = first_raised(evidence)
    frame = user_frame(raised.stack) if raised else states[dead[0]].frame
    how = error_text(raised) if raised else _end_text(evidence)
    places = tuple(place_at(job.ranks[r], frame if r == dead[0] else states[r].frame) for r in dead)
    return _died_finding(states, dead[:1], f"{how}{at(frame)}", places, waiting)


def _died_finding(
    states: RankStates, ranks: list[int], how: str, places: tuple[Place, ...], waiting: list[int], proof: str = ""
) -> Finding:
    return load_cause("RW110").finding(
        f"{ranks_text(ranks)} died before init_process_group with {how}; {verb(waiting, 'waits', 'wait')} for it",
        certain=True,
        culprits=places,
        waiting=waits_except(states, [place.rank for place in places if place.rank is not None]),
        why=f"{proof}the launcher did not end the others, so they wait until their timeout",
        deadlock=True,
    )


def _end_text(evidence: RankEvidence) -> str:
    ended = evidence.ended
    if ended is None or ended.kind == "vanished":
        return "no trace (killed?)" if ended is None or ended.code is None else f"exit code {ended.code}"
    code = 0 if ended.code is None else ended.code
    if ended.signal:
        return f"signal {ended.signal}"
    return {"sys_exit": f"sys.exit({code})", "os_exit": f"os._exit({code})"}.get(ended.kind, f"exit code {code}")


def _late_before_init(job: JobEvidence, states: RankStates, book: SourceBook, waiting: list[int]) -> Finding | None:
    late = sorted(r for r, s in states.items() if s.kind == "before_init" or (s.kind == "ended" and not job.ranks[r].inits))
    if not late:
        return None
    evidence = job.ranks[late[0]]
    activity = activity_of(job, evidence, book)
    frame = activity.frame or (main_stack(evidence) or (None,))[0]
    since = (job.now_ns - evidence.started_ns) / 1e9
    timed_out = any(not job.ranks[r].alive for r in waiting)
    others = "gave up waiting for it (timeout)" if timed_out else "wait for it" if len(waiting) > 1 else "waits for it"
    moves = " and moves" if activity.moves else ""
    return load_cause("RW109").finding(
        f"{verb(late, 'has', 'have')} not reached init_process_group after {seconds_text(since)}: it {activity.doing}{moves}{at(frame)} (loading before init); {ranks_text(waiting)} {others}",
        certain=timed_out,
        severity="error" if timed_out else "warning",
        culprits=(*(place_at(job.ranks[r], frame if r == late[0] else states[r].frame) for r in late), *loop_places(evidence, book)),
        waiting=waits_except(states, late),
        why=activity.why or "the others wait in init_process_group and fail when its timeout is over",
    )


def _died_before_naming_rank(job: JobEvidence, states: RankStates, book: SourceBook, waiting: list[int]) -> Finding | None:
    """As many processes failed before they named their rank as ranks are missing, so those are the missing ranks."""
    missing = _missing_ranks(job)
    failed = [helper for helper in job.launchers if helper.raised is not None and helper.ended is not None and not ended_well(helper.ended)]
    if not missing or len(failed) != len(missing):
        return None
    raised = failed[0].raised
    assert raised is not None
    frame = user_frame(raised.stack)
    places = tuple(place_at(RankEvidence(rank, helper.pid), frame) for rank, helper in zip(missing, failed, strict=True))
    return _died_finding(states, missing, f"{error_text(raised)}{at(frame)}", places, waiting, "no other rank is missing, and ")


def _missing(job: JobEvidence, states: RankStates, book: SourceBook, waiting: list[int]) -> Finding | None:
    missing = _missing_ranks(job)
    if not missing:
        return None
    scripts = [launcher.script for launcher in job.launchers if launcher.script]
    lines = (Frame(script, number, "<module>") for script in scripts if (number := book.line_setting(script, "WORLD_SIZE")))
    line = next(lines, None)
    world, present = job.world_size or 0, len(job.ranks)
    all_started = any(_is_waiting_for_children(launcher) for launcher in job.launchers)
    return load_cause("RW101").finding(
        f"{ranks_text(missing)} never joined: WORLD_SIZE is {world} but only {present} of {world} ranks were started ({ranks_text(missing)} missing)",
        certain=all_started,
        severity="error" if all_started else "warning",
        culprits=tuple(place_at(RankEvidence(rank), line) for rank in missing[:64]),
        waiting=waits_except(states, missing),
        why="the world size is wrong, or a process was not started" + (_ALL_STARTED if all_started else _NOT_SEEN),
    )


def _is_waiting_for_children(launcher: Helper) -> bool:
    return any(
        frame.function in ("wait", "_wait", "join", "communicate") and ("subprocess" in frame.file or "multiprocessing" in frame.file)
        for thread in launcher.threads
        for frame in thread.frames
    )


def _unreachable(job: JobEvidence, states: RankStates, book: SourceBook, waiting: list[int]) -> Finding | None:
    """All ranks are here and agree, and still do not meet: they cannot reach the store, or each other."""
    init = job.ranks[waiting[0]].inits[-1] if job.ranks[waiting[0]].inits else None
    if init is None:
        return None
    holder = next((h for host in job.hosts for h in host.holders if h.port == init.store_port), None)
    ranks_here = {e.pid for e in job.ranks.values()} | {
        launcher.pid for launcher in job.launchers if "torch.distributed.run" in launcher.command
    }
    if holder is not None and holder.pid is not None and holder.pid not in ranks_here:
        return load_cause("RW107").finding(
            f"port {init.store_port} is held by another program, {_holder_text(holder)}, which is not a TCPStore; {verb(waiting, 'waits', 'wait')} for its answer",
            certain=False,
            culprits=tuple(place_at(job.ranks[r], states[r].frame) for r in waiting if r == 0),
            waiting=waits_except(states, [0]),
            why="the port is already in use, so rank 0 could not open the store there",
        )
    if 0 in states and states[0].kind == "init":
        return load_cause("RW114").finding(
            f"{verb(waiting, 'is', 'are')} in init_process_group and cannot connect to each other",
            certain=False,
            severity="warning",
            waiting=waits_except(states, []),
            why="every rank is registered with the same store; the connections between the ranks themselves (random high ports) are not made",
        )
    failed = any(not job.ranks[r].alive for r in waiting)
    return load_cause("RW111").finding(
        f"{ranks_text(waiting)} cannot reach the store at {_store_text(init)}",
        certain=failed,
        severity="error" if failed else "warning",
        culprits=tuple(place_at(job.ranks[r], states[r].frame) for r in waiting),
        why="nothing answers at that address and port: rank 0 is not there, or a firewall is in the way",
    )


# -- small helpers ------------------------------------------------------------------------------------------------------------


def _missing_ranks(job: JobEvidence) -> list[int]:
    sizes = [e.inits[-1].world_size for e in job.ranks.values() if e.inits and e.inits[-1].world_size]
    world = job.world_size or max(sizes, default=0)
    return missing_numbers(job.ranks.keys(), min(world, 1 << 20))


def _store_text(init: Init) -> str:
    return f"{init.store_address or 'an unknown address'}{f':{init.store_port}' if init.store_port else ''}"


def _place_of(job: JobEvidence, states: RankStates, rank: int, line: Frame | None = None) -> Place:
    """A rank at this line, or where it is, or where it called init_process_group."""
    evidence = job.ranks[rank]
    return place_at(evidence, line or states[rank].frame or (user_frame(evidence.inits[-1].stack) if evidence.inits else None))


def _setting_line(job: JobEvidence, book: SourceBook, evidence: RankEvidence, variable: str) -> Frame | None:
    """The user's line that sets a variable: in the rank's own files, else in the launcher's."""
    own = [frame.file for init in evidence.inits for frame in init.stack]
    files = dict.fromkeys([*own, *(launcher.script for launcher in job.launchers if launcher.script), *book.sources])
    return next((Frame(file, line, "") for file in files if (line := book.line_setting(file, variable))), None)


def _holder_text(holder: PortHolder) -> str:
    return (
        f"{holder.name or 'a process'} (pid {holder.pid}{': ' + holder.command[:80] if holder.command else ''})"
        if holder.pid
        else "a program of another user"
    )


def _likely_interface(host: HostFacts) -> str:
    return next((name for name in host.interfaces if name != "lo" and not name.startswith(("docker", "veth", "br-"))), "lo")
