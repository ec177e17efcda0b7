"""network interface

Which interface leads to the rendezvous address, which one gloo and NCCL would use by themselves, and whether the variables that choose it
name one that exists. The two variables have different syntaxes: gloo takes whole names, NCCL takes prefixes, `=` for whole names and `^`
for all but these. The lines to paste are printed at the end of the report.

Fails with RW108 where a variable names an interface this host does not have, and with RW114 where the others cannot reach the address
that gloo would offer; warns with RW114 where it is another interface than the one that leads to the rendezvous address.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankwise.meet import network
from rankwise.preflight.facts import CheckedJob, Facts, Here, Host, Seen, seeing_hosts

GROUP = "names"


def look(here: Here) -> Facts:
    known = network.interfaces()
    # Without a rendezvous address: the way to the world outside. The address is reserved for documentation, and nothing is sent.
    addresses = network.resolve(here.plan.master).addresses if here.plan.master else ("192.0.2.1",)
    own = network.own_addresses(here.plan.master, tuple(addresses), known)
    source = here.plan.local_addr or next((found for address in own or addresses if (found := network.source_address(address))), "")
    route = network.interface_of(source, known)
    gloo, gloo_address, gloo_why = network.gloo_interface(here.environ, here.name, known)
    nccl, nccl_address, nccl_why = network.nccl_interface(here.environ, known)
    return {
        "route": route.name if route else "",
        "source": source,
        "mtu": route.mtu if route else 0,
        "gloo": {"name": gloo, "address": gloo_address, "why": gloo_why},
        "nccl": {"name": nccl, "address": nccl_address, "why": nccl_why},
        "is_lost": bool(here.plan.local_addr) and route is None,
        "known": {interface.name: list(interface.addresses) for interface in known},
        "variables": {name: here.environ.get(name, "") for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")},
    }


def judge(job: CheckedJob, seen: Seen) -> None:
    for host, facts in seeing_hosts(job, "interface", seen):
        route = f"{facts['route']} ({facts['source']})" if facts["route"] else "no route"
        seen.values[host.name] = f"{route}, gloo {facts['gloo']['name'] or 'none'}, NCCL {facts['nccl']['name'] or 'none'}"
        if missing := list(_missing(host, facts)):
            for summary in missing:
                why = f"its interfaces are {', '.join(facts['known'])}"
                seen.add("RW108", summary, host, why=why, next=tuple(exports(host)))
        else:
            _find_wrong(job, host, facts, seen)


def exports(host: Host) -> list[str]:
    """The two variables, ready to paste; nothing where no interface leads to the others."""
    facts = host.of("interface")
    name, source = facts.get("route"), facts.get("source", "")
    if not name or network.is_loopback(source):
        return []
    return [f"export GLOO_SOCKET_IFNAME={name}", f"export NCCL_SOCKET_IFNAME=={name}"]


def _missing(host: Host, facts: Facts) -> Iterator[str]:
    names = list(facts["known"])
    if facts["is_lost"]:
        yield f"--local-addr {facts['source']} is not an address of {host.name}"
    gloo, nccl = facts["variables"]["GLOO_SOCKET_IFNAME"], facts["variables"]["NCCL_SOCKET_IFNAME"]
    if lost := network.missing_interface("GLOO_SOCKET_IFNAME", gloo, names):
        syntax = " (^ and = are NCCL's syntax: gloo takes whole names only)" if lost[0] in "^=" else ""
        yield f"GLOO_SOCKET_IFNAME={gloo} names {lost!r}, which {host.name} does not have{syntax}"
    if network.missing_interface("NCCL_SOCKET_IFNAME", nccl, names):
        yield f"NCCL_SOCKET_IFNAME={nccl} fits no interface of {host.name}"


def _find_wrong(job: CheckedJob, host: Host, facts: Facts, seen: Seen) -> None:
    """An offered address that no host can reach is proven by trying; one on another interface is only suspicious."""
    for backend in ("gloo", "nccl"):
        chosen = facts[backend]
        unheard = [other.name for other in job.hosts if other is not host and _is_closed(job, other, host)]
        if backend == "gloo" and unheard:
            seen.add(
                "RW114",
                f"gloo on {host.name} offers {chosen['address']} ({chosen['name']}), which {', '.join(unheard)} cannot reach",
                host,
                why=f"{chosen['why']}; {facts['route'] or 'no interface'} ({facts['source']}) leads to the rendezvous address",
                next=tuple(exports(host)),
            )
        elif not job.plan.is_alone and facts["route"] and chosen["name"] != facts["route"] and not network.is_loopback(facts["source"]):
            label = {"gloo": "gloo", "nccl": "NCCL"}[backend]
            seen.add(
                "RW114",
                f"{label} on {host.name} would use {chosen['name'] or 'no interface'}, but {facts['route']} leads to the rendezvous address",
                host,
                certain=False,
                severity="warning",
                why=f"{chosen['why']}; {facts['route']} has {facts['source']}",
                next=tuple(exports(host)),
            )


def _is_closed(job: CheckedJob, source: Host, target: Host) -> bool:
    """The address gloo offers does not answer, although the host does at the address that leads to the meeting."""
    answer = job.reached.get(source.name, {}).get(target.name, {})
    return answer.get("gloo") is False and bool(answer.get("high"))
