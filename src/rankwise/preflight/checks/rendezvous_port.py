"""rendezvous port

Is the rendezvous port free on the host that has to open it, and if not, which process of which user holds it? May this user open it at
all? With several nodes: does it let every other node in?

Fails with RW107 where another program holds it, with RW602 where it may not be opened, with RW111 where another node cannot reach it.
"""

from __future__ import annotations

import errno
import os
import socket

from rankwise.findings import Place
from rankwise.meet.differences import hosts_text
from rankwise.meet.network import interfaces, own_addresses, resolve
from rankwise.meet.ports import ListeningProcess, find_listeners, try_port
from rankwise.preflight.facts import CheckedJob, Facts, Here, Host, Seen, seeing_hosts

GROUP = "ports"
_CONNECT_S = 4.0
_STATES = {"met": "reached", "foreign": "held by something else"}
_ANSWERED = ("connected", "connection refused")


def look(here: Here) -> Facts:
    plan = here.plan
    if plan.is_standalone:
        return {"port": 0, "opens": False, "free": True, "reached": "", "error": "", "holders": []}
    addresses = resolve(plan.master).addresses if plan.master else ("127.0.0.1",)
    own = next(iter(own_addresses(plan.master or "127.0.0.1", addresses, interfaces())), "")
    opens = plan.node_rank in (0, None) and bool(own)
    error = _why_not_open(own, plan.port) if opens else None
    # Alone on a host that is not the rendezvous host: "refused" is fine, as no process listens before the job starts; no answer is not.
    reached = "" if opens or not plan.is_alone or not addresses else try_port(addresses[0], plan.port, _CONNECT_S)
    is_held = opens and error == errno.EADDRINUSE
    return {
        "port": plan.port,
        "opens": opens,
        "free": error is None,
        "reached": reached,
        "error": "" if error is None else errno.errorcode.get(error, str(error)),
        "holders": [vars(found) for found in find_listeners(plan.port) if found.pid != os.getpid()] if is_held else [],
    }


def judge(job: CheckedJob, seen: Seen) -> None:
    for host, facts in seeing_hosts(job, "rendezvous-port", seen):
        if facts["opens"] or job.plan.is_alone:
            state = "torchrun picks one" if not facts["port"] else facts["reached"] or ("free" if facts["free"] else facts["error"])
            seen.values[host.name] = f"{facts['port'] or ''} {state}".strip()
        if facts["reached"] and facts["reached"] not in _ANSWERED:
            _add_blocked(facts["reached"], [host], seen)
        if facts["opens"] and not facts["free"]:
            _add_not_free(host, facts, seen)
    _find_unreachable(job, seen)


def _why_not_open(address: str, port: int) -> int | None:
    """The error of trying to listen; with SO_REUSEADDR as torch sets it, so that a port in TIME_WAIT counts as free."""
    try:
        socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET).close()
    except OSError as error:
        return error.errno or errno.EIO
    return None


def _add_not_free(host: Host, facts: Facts, seen: Seen) -> None:
    port = facts["port"]
    if facts["error"] == "EADDRINUSE":
        who = [str(ListeningProcess(**holder)) for holder in facts["holders"]] or ["a process this user may not look at"]
        pid = next((holder["pid"] for holder in facts["holders"] if holder["pid"]), None)
        held, why = (Place(host=host.name, pid=pid),), "the rendezvous store has to open this port itself"
        seen.add("RW107", f"port {port} on {host.name} is held by {' and '.join(who)}", host, culprits=held, why=why)
    else:
        why = "ports below 1024 are for root" if port < 1024 else ""
        seen.add("RW602", f"{host.name} may not open port {port}: {facts['error']}", host, why=why)


def _find_unreachable(job: CheckedJob, seen: Seen) -> None:
    """Nodes that could not reach the port when they tried."""
    is_held = any(host.of("rendezvous-port").get("opens") and not host.of("rendezvous-port").get("free", True) for host in job.hosts)
    blocked: dict[str, list[Host]] = {}
    for host in job.hosts:
        state = (host.plan.get("tries") or {}).get(str(host.plan.get("port")))
        if state is None or host.of("rendezvous-port").get("opens"):
            continue
        seen.values[host.name] = _STATES.get(state, state)
        if state == "foreign" and not is_held:
            place = f"{host.plan.get('master')}:{host.plan.get('port')}"
            summary = f"a program other than rankwise check answers {host.name} at the rendezvous port {place}"
            seen.add("RW107", summary, host, certain=False, why="another job's store, or another program, holds it")
        elif state not in _STATES and not is_held:
            blocked.setdefault(state, []).append(host)
    for state, hosts in blocked.items():
        _add_blocked(state, hosts, seen)


def _add_blocked(state: str, hosts: list[Host], seen: Seen) -> None:
    port = hosts[0].plan.get("port")
    beside = next((port for host in hosts for port, how in (host.plan.get("tries") or {}).items() if how == "met"), "")
    seen.add(
        "RW111",
        f"{hosts_text([host.name for host in hosts])} cannot reach the rendezvous port {hosts[0].plan.get('master')}:{port}: {state}",
        hosts,
        certain=bool(beside),
        why=f"port {beside} of the same host answers, so a firewall between them holds back port {port}" if beside else "",
    )
