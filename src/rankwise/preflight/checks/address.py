"""rendezvous address

Does `MASTER_ADDR` (`--master-addr`, or the host in `--rdzv-endpoint`) resolve on this host, to which addresses, and to the same on every
host? With several nodes a loopback address means another machine on each of them.

Fails with RW106 where the name does not resolve, with RW103 where the hosts were told different addresses or ports, or where the name
means a host itself that is not node 0.
"""

from __future__ import annotations

from rankwise.meet.differences import find_difference, hosts_text
from rankwise.meet.network import Resolved, interfaces, is_loopback, is_own, resolve
from rankwise.preflight.facts import CheckedJob, Facts, Here, Seen, seeing_hosts

GROUP = "names"


def look(here: Here) -> Facts:
    name, known = here.plan.master, interfaces()
    found = resolve(name) if name else Resolved()
    is_here = any(is_own(address, known) for address in found.addresses)
    return {"name": name, "addresses": list(found.addresses), "error": found.error, "own": is_here}


def judge(job: CheckedJob, seen: Seen) -> None:
    for host, facts in seeing_hosts(job, "address", seen):
        name, addresses = facts["name"], facts["addresses"]
        seen.values[host.name] = f"{name} → {', '.join(addresses) or 'nothing'}" if name else "none given"
        if facts["error"]:
            able = [host.name for host in job.hosts if host.of("address").get("name") == name and host.of("address").get("addresses")]
            why = f"{hosts_text(able)} can" if able else ""
            seen.add("RW106", f"{host.name} cannot resolve the rendezvous address {name!r}: {facts['error']}", host, why=why)
    _find_different_places(job, seen)
    _find_own_loopback(job, seen)


def _find_different_places(job: CheckedJob, seen: Seen) -> None:
    places = {host.name: f"{host.plan['master']}:{host.plan['port']}" for host in job.hosts if host.plan.get("master")}
    resolved = {host.name: ",".join(sorted(host.of("address").get("addresses", []))) for host in job.hosts}
    are_names_of_one = len({host.plan.get("port") for host in job.hosts}) == 1 and not find_difference(resolved)
    if (differs := find_difference(places)) and not are_names_of_one:
        summary = f"the hosts were given different meeting places: {differs.text()}"
        seen.add("RW103", summary, job.named(differs.odd), why="each host waits at its own address")


def _find_own_loopback(job: CheckedJob, seen: Seen) -> None:
    """A name that means "this machine" where it should mean another."""
    for host in job.hosts:
        facts = host.of("address")
        is_first = host.plan.get("node_rank") in (0, None)
        # Two nodes on one machine, as in a rehearsal: node 0 is here as well and was met.
        is_rehearsal = bool(job.meeting.get("is_broken")) or any(other is not host and other.node == 0 for other in job.hosts)
        if job.plan.is_alone or is_first or not facts.get("own") or is_rehearsal:
            continue
        loopback = all(is_loopback(address) for address in facts["addresses"])
        what = "a loopback address" if loopback else "an address of this very host"
        seen.add(
            "RW103",
            f"{host.name} is node {host.plan['node_rank']}, but its rendezvous address {facts['name']} is {what}",
            host,
            certain=False,
            why=f"{facts['name']} → {', '.join(facts['addresses'])}; node 0 must run there, and only node 0",
            next=("give every node the address of node 0, as the other nodes see it",),
        )
