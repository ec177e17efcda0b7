"""hosts of the job

Who came to the meeting, when each was started, and what each was told about the job: its node rank, the number of nodes, ranks per node.

Fails with RW101 where a host is missing, with RW102 where two claim the same node rank, with RW112 where they disagree about the
number of nodes, with RW103 where a host of another job (`--rdzv-id`) came. Warns with RW601 where one was started more than 5 s after
the first, and with RW112 where the number of ranks differs between hosts.
"""

from __future__ import annotations

from rankwise.meet.differences import find_difference, hosts_text
from rankwise.meet.roster import claimed_twice, missing_numbers
from rankwise.preflight.facts import CheckedJob, Host, Seen
from rankwise.sizes import seconds_text

GROUP = "names"
ALWAYS = True  # with several nodes, whatever else was asked for
_LATE_S = 5.0


def judge(job: CheckedJob, seen: Seen) -> None:
    if job.plan.is_alone:
        seen.values |= {host.name: "alone" for host in job.hosts}
        return
    for host in job.hosts:
        rank = host.plan.get("node_rank")
        who = f"node {rank}" if rank is not None else f"node {host.node} (by arrival)"
        seen.values[host.name] = (
            f"{who} of {host.plan.get('nnodes')}, {host.plan.get('nproc')} rank{'s' * (host.plan.get('nproc') != 1)}, started at {host.started_s:.1f} s"
        )
    if not job.meeting.get("is_host", True):
        seen.blind[""] = str(job.meeting.get("why") or "the others could not be met")
        _find_unmet(job, job.hosts[0], seen)
        return
    for find in (_find_duplicates, _find_sizes, _find_strangers, _find_missing, _find_gone, _find_late):
        find(job, seen)


def _find_unmet(job: CheckedJob, host: Host, seen: Seen) -> None:
    """A finding for this host if it could not take part and no other check says why."""
    place = f"{job.plan.master}:{job.plan.port}"
    if job.meeting.get("refusal"):
        why, steps = str(job.meeting["refusal"]), ("give every node the same --rdzv-id",)
        seen.add("RW103", f"the host at {place} belongs to another job", host, why=why, next=steps)
    elif job.meeting.get("is_broken"):
        seen.add("RW101", f"the host of the meeting at {place} fell silent during the check", ())
    elif not {"names", "ports"} <= set(job.plan.only):
        seen.add("RW101", f"{host.name} met no other host", (), why=str(job.meeting.get("why", "")))


def _find_duplicates(job: CheckedJob, seen: Seen) -> None:
    for rank, hosts in claimed_twice((host.plan.get("node_rank"), host) for host in job.hosts).items():
        names, all_of_them = hosts_text([host.name for host in hosts]), "all" if len(hosts) > 2 else "both"
        seen.add(
            "RW102",
            f"{names} {all_of_them} say that they are node {rank}",
            hosts,
            why=f"their ranks would begin at {rank} × ranks per node on each of them; no host is node {_free_ranks(job)}".rstrip(),
            next=("give each node its own --node-rank, from 0 on",),
        )


def _free_ranks(job: CheckedJob) -> str:
    return ", ".join(map(str, missing_numbers({host.plan.get("node_rank") for host in job.hosts}, job.plan.nodes_max)))


def _find_sizes(job: CheckedJob, seen: Seen) -> None:
    for key, title, severity in (("nnodes", "number of nodes (--nnodes)", "error"), ("nproc", "number of ranks per node", "warning")):
        if differs := find_difference({host.name: str(host.plan.get(key)) for host in job.hosts}):
            seen.add(
                "RW112",
                f"the hosts disagree about the {title}: {differs.text()}",
                job.named(differs.odd),
                severity=severity,
                why="the world size is the sum of all nodes' ranks" if key == "nproc" else "",
                next=(f"give every node the same --{'nnodes' if key == 'nnodes' else 'nproc-per-node'}",),
            )


def _find_strangers(job: CheckedJob, seen: Seen) -> None:
    for stranger in job.meeting.get("strangers", ()):
        seen.add(
            "RW103",
            f"{stranger['name']} ({stranger['address']}) came with another --rdzv-id",
            Host(stranger["name"], -1),
            why="torchrun keeps jobs with different ids apart",
            next=("give every node the same --rdzv-id",),
        )


def _find_missing(job: CheckedJob, seen: Seen) -> None:
    expected, present = job.plan.nodes_max, len(job.hosts)
    if present >= expected:
        return
    is_static = all(host.plan.get("node_rank") is not None for host in job.hosts)
    lost = _free_ranks(job)
    who = f"node {lost}" if is_static and lost else f"{expected - present} host{'s' * (expected - present != 1)}"
    waited = seconds_text(float(job.meeting.get("waited_s", 0.0)))
    options = f"--master-addr {job.plan.master} --master-port {job.plan.port}"
    seen.add(
        "RW101",
        f"{who} did not come within {waited}: {present} of {expected} hosts are here",
        (),
        severity="warning" if present >= job.plan.nodes_min else "error",
        why=f"here are {hosts_text([host.name for host in job.hosts])}",
        next=(f"start the check there too, with {options}; its own report says what it sees",),
    )


def _find_gone(job: CheckedJob, seen: Seen) -> None:
    for name in job.meeting.get("gone", ()):
        why = "it was ended there, or its connection to the meeting broke off"
        seen.add("RW101", f"{name} came, but fell silent during the check", Host(name, -1), why=why)


def _find_late(job: CheckedJob, seen: Seen) -> None:
    first = min(host.started_s for host in job.hosts)
    for host in job.hosts:
        if host.started_s - first > _LATE_S:
            seen.add("RW601", f"{host.name} was started {seconds_text(host.started_s - first)} after the first host", host)
