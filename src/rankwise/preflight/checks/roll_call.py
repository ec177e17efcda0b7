"""hosts of the job

Who came to the meeting, when each was started, and what each was told about the job: its node rank, the number of nodes, ranks per node.

Fails with RW101 where a host is missing, with RW102 where two claim the same node rank, with RW112 where they disagree about the
number of nodes, with RW103 where a host of another job (`--rdzv-id`) came. Warns with RW601 where one was started more than 5 s after
the first, and with RW112 where the number of ranks differs between hosts.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankwise.causes import load_cause
from rankwise.findings import Finding, Place
from rankwise.meet.differences import find_difference, hosts_text
from rankwise.meet.roster import claimed_twice, missing_numbers
from rankwise.preflight.job import Host, Job, Seen
from rankwise.sizes import seconds_text

GROUP = "names"
ALWAYS = True  # with several nodes, whatever else was asked for
_LATE_S = 5.0


def judge(job: Job) -> Seen:
    if job.is_alone:
        return Seen(values={host.name: "alone" for host in job.hosts})
    seen = Seen()
    for host in job.hosts:
        rank = host.plan.get("node_rank")
        who = f"node {rank}" if rank is not None else f"node {host.node} (by arrival)"
        seen.values[host.name] = (
            f"{who} of {host.plan.get('nnodes')}, {host.plan.get('nproc')} rank{'s' * (host.plan.get('nproc') != 1)}, started at {host.started_s:.1f} s"
        )
    if not job.meeting.get("is_host", True):
        seen.blind[""] = str(job.meeting.get("why") or "the others could not be met")
        seen.findings += _unmet(job, job.hosts[0])
        return seen
    seen.findings += [*_duplicates(job), *_sizes(job), *_strangers(job), *_missing(job), *_gone(job), *_late(job)]
    return seen


def _unmet(job: Job, host: Host) -> Iterator[Finding]:
    """This host could not take part; said here where no other check says why."""
    place = f"{job.plan.master}:{job.plan.port}"
    if job.meeting.get("refusal"):
        yield load_cause("RW103").finding(
            f"the host at {place} belongs to another job",
            certain=True,
            culprits=(host.place,),
            why=str(job.meeting["refusal"]),
            next=("give every node the same --rdzv-id",),
        )
    elif job.meeting.get("is_broken"):
        yield load_cause("RW101").finding(f"the host of the meeting at {place} fell silent during the check", certain=True)
    elif not {"names", "ports"} <= set(job.plan.only):
        yield load_cause("RW101").finding(f"{host.name} met nobody", certain=True, why=str(job.meeting.get("why", "")))


def _duplicates(job: Job) -> Iterator[Finding]:
    for rank, hosts in claimed_twice((host.plan.get("node_rank"), host) for host in job.hosts).items():
        names, all_of_them = hosts_text([host.name for host in hosts]), "all" if len(hosts) > 2 else "both"
        yield load_cause("RW102").finding(
            f"{names} {all_of_them} say that they are node {rank}",
            certain=True,
            culprits=tuple(host.place for host in hosts),
            why=f"their ranks would begin at {rank} × ranks per node on each of them; nobody is node {_free_ranks(job)}".rstrip(),
            next=("give each node its own --node-rank, from 0 on",),
        )


def _free_ranks(job: Job) -> str:
    return ", ".join(map(str, missing_numbers({host.plan.get("node_rank") for host in job.hosts}, job.plan.nodes_max)))


def _sizes(job: Job) -> Iterator[Finding]:
    for key, title, severity in (("nnodes", "number of nodes (--nnodes)", "error"), ("nproc", "number of ranks per node", "warning")):
        if differs := find_difference({host.name: str(host.plan.get(key)) for host in job.hosts}):
            yield load_cause("RW112").finding(
                f"the hosts disagree about the {title}: {differs.text()}",
                certain=True,
                severity=severity,
                culprits=tuple(host.place for host in job.hosts if host.name in differs.odd),
                why="the world size is the sum of all nodes' ranks" if key == "nproc" else "",
                next=(f"give every node the same --{'nnodes' if key == 'nnodes' else 'nproc-per-node'}",),
            )


def _strangers(job: Job) -> Iterator[Finding]:
    for stranger in job.meeting.get("strangers", ()):
        yield load_cause("RW103").finding(
            f"{stranger['name']} ({stranger['address']}) came with another --rdzv-id",
            certain=True,
            culprits=(Place(host=stranger["name"]),),
            why="torchrun keeps jobs with different ids apart",
            next=("give every node the same --rdzv-id",),
        )


def _missing(job: Job) -> Iterator[Finding]:
    expected, present = job.plan.nodes_max, len(job.hosts)
    if present >= expected:
        return
    is_static = all(host.plan.get("node_rank") is not None for host in job.hosts)
    lost = _free_ranks(job)
    who = f"node {lost}" if is_static and lost else f"{expected - present} host{'s' * (expected - present != 1)}"
    waited = seconds_text(float(job.meeting.get("waited_s", 0.0)))
    is_enough = present >= job.plan.nodes_min
    yield load_cause("RW101").finding(
        f"{who} did not come within {waited}: {present} of {expected} hosts are here",
        certain=True,
        severity="warning" if is_enough else "error",
        why=f"here are {hosts_text([host.name for host in job.hosts])}",
        next=(
            f"start the check there too, with --master-addr {job.plan.master} --master-port {job.plan.port}; its own report says what it sees",
        ),
    )


def _gone(job: Job) -> Iterator[Finding]:
    for name in job.meeting.get("gone", ()):
        yield load_cause("RW101").finding(
            f"{name} came, but fell silent during the check",
            certain=True,
            culprits=(Place(host=name),),
            why="it was ended there, or its connection to the meeting broke off",
        )


def _late(job: Job) -> Iterator[Finding]:
    first = min(host.started_s for host in job.hosts)
    for host in job.hosts:
        if host.started_s - first > _LATE_S:
            yield load_cause("RW601").finding(
                f"{host.name} was started {seconds_text(host.started_s - first)} after the first host", certain=True, culprits=(host.place,)
            )
