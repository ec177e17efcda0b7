"""Opens the ranks' store, or connects to it. On failure it says whether resolving, connecting or answering failed."""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from rankwise.errors import StartError
from rankwise.findings import Finding, Place
from rankwise.meet.network import interfaces, is_loopback, is_own, resolve
from rankwise.meet.ports import find_listeners, try_port
from rankwise.meet.threads import ThreadTask
from rankwise.ranks import MeetingPlace
from rankwise.stages import STORE
from rankwise.train.errors import start_finding
from rankwise.train.store_client import TELL_EVERY_S, StoreClient, pauses_s

logger = logging.getLogger("rankwise.session")

_CALL_TIMEOUT = timedelta(seconds=30)  # of single questions to the store; waiting means asking again
_CONNECT_S = 3.0
_ANSWER_S = 5.0
_ATTEMPTS = 3
_BULK_S = 5.0
_BULK_TRIES = 2
_SILENT = "it has not answered for"
_HOPELESS = re.compile(r"[\s/:@\[\]]")  # a host's name cannot have any of these
_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0
_kept: dict[tuple[int, MeetingPlace], tuple[Store, str]] = {}  # the stores that this process has opened


@dataclass(frozen=True)
class OpenStore:
    """A client of the store, how to get a second connection to it, and whether the store lives in this process."""

    client: StoreClient
    connect: Callable[[], Store]
    address: str
    is_ours: bool
    problem: Finding | None = None  # if the store can be reached, but large packets get lost


def open_store(place: MeetingPlace, me: Place, timeout_s: float) -> OpenStore:
    """Rank 0 opens the store, unless the launcher keeps it; all other ranks connect as soon as it is there."""
    deadline = time.monotonic() + timeout_s
    addresses = resolve_store(place, me, deadline)
    if me.rank == 0 and not place.kept_by_launcher:
        store, own_address = _kept_open(place, addresses, me)
        return OpenStore(StoreClient(store), partial(_client, own_address, place.port), addresses[0], is_ours=True)
    for attempt in range(_ATTEMPTS):
        address = reach(place, addresses, me, deadline)
        answering, said = _answered(address, place.port)
        if answering is not None:
            return _with_bulk_tried(
                OpenStore(StoreClient(answering), partial(_client, address, place.port), address, is_ours=False), place, me
            )
        if _SILENT in said:
            break
        time.sleep(_LONGEST_PAUSE_S * (attempt + 1) / _ATTEMPTS)  # the store of a job that is just ending hangs up too
    raise StartError(_not_a_store(place, address, me, said))


# -- stage: address resolved --------------------------------------------------------------------------------------------------


def resolve_store(place: MeetingPlace, me: Place, deadline: float) -> list[str]:
    """All addresses of the name. It is asked for until the deadline, because a service's name may come up after its first user."""
    began = told_at = time.monotonic()
    pauses = pauses_s(_PAUSE_S, _LONGEST_PAUSE_S)
    while True:
        pause_s = next(pauses)
        found = resolve(place.address, max(1.0, deadline - time.monotonic()))
        if found.addresses:
            return list(found.addresses)
        if time.monotonic() + pause_s > deadline or _HOPELESS.search(place.address):
            raise StartError(_unresolvable(place, me, found.error, time.monotonic() - began))
        if time.monotonic() - told_at > TELL_EVERY_S:
            told_at = time.monotonic()
            logger.warning("rank %s on %s: %s does not resolve yet (%s)", me.rank, me.host, place.address, found.error)
        time.sleep(pause_s)


def _unresolvable(place: MeetingPlace, me: Place, error: str, waited_s: float) -> Finding:
    summary = f"MASTER_ADDR={place.address} does not resolve on {me.host} (rank {me.rank}): {error}"
    why = f"{me.host} asked its resolver for {waited_s:.0f} s; neither DNS nor /etc/hosts there knows the name"
    return start_finding("RW106", summary, [me], why=why, next=(f"on {me.host}: getent hosts {place.address}",))


# -- stage: store reached -----------------------------------------------------------------------------------------------------


def _kept_open(place: MeetingPlace, addresses: list[str], me: Place) -> tuple[Store, str]:
    """The store, which stays open until this process ends: quick ranks come to the next session while it still leaves the last one."""
    key = os.getpid(), place
    if key not in _kept:
        _kept[key] = _opened(place, addresses, me)
    return _kept[key]


def _opened(place: MeetingPlace, addresses: list[str], me: Place) -> tuple[Store, str]:
    """Listen where the others will look: on loopback only if they were all told so, otherwise on every address, as torch does.

    A host's own name often resolves to loopback on that host, and to another address elsewhere. Also returns the address for ourselves.
    """
    is_local = place.address == "localhost" or is_loopback(place.address)
    loopback = next((address for address in addresses if ":" not in address), addresses[0])  # it may be 127.0.1.1, which is not 127.0.0.1
    own = loopback if is_local else "127.0.0.1"
    try:
        with _ear(loopback if is_local else "") as ear:
            ear.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            any_address = "::" if ear.family == socket.AF_INET6 else ""
            ear.bind((loopback if is_local else any_address, place.port))
            ear.listen(4096)
            fd = ear.detach()
    except OSError as error:
        raise StartError(_not_opened(place, me, error)) from None
    # multi_tenant: an init_process_group of the user's, after the session, shares the store
    store = TCPStore(own, place.port, is_master=True, timeout=_CALL_TIMEOUT, wait_for_workers=False, multi_tenant=True, master_listen_fd=fd)
    return store, own


def _ear(loopback: str) -> socket.socket:
    """A socket for that address; or for every address, of both families if this host has both."""
    if loopback:
        return socket.socket(socket.AF_INET6 if ":" in loopback else socket.AF_INET)
    try:
        ear = socket.socket(socket.AF_INET6)
    except OSError:  # a kernel that was started without IPv6
        return socket.socket(socket.AF_INET)
    ear.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return ear


def _not_opened(place: MeetingPlace, me: Place, error: OSError) -> Finding:
    if error.errno != errno.EADDRINUSE:
        summary = f"rank {me.rank} on {me.host} cannot open the store on port {place.port}: {error.strerror}"
        steps = ("ports below 1024 need root; use one above",) if error.errno == errno.EACCES else ()
        return start_finding("RW111", summary, [me], next=steps)
    holder = next(map(str, find_listeners(place.port)), "another program")
    summary = f"rank {me.rank} cannot open the store on {me.host}: port {place.port} is held by {holder}"
    why = "the port that MASTER_PORT names is already in use on the host of rank 0, so the other ranks have nowhere to meet"
    return start_finding("RW107", summary, [me], why=why)


def reach(place: MeetingPlace, addresses: list[str], me: Place, deadline: float) -> str:
    """The first address that accepts a connection. It is tried until the deadline, because rank 0 may start last."""
    began = told_at = time.monotonic()
    pauses = enumerate(pauses_s(_PAUSE_S / 10, _LONGEST_PAUSE_S), 1)
    while True:
        tries, pause_s = next(pauses)
        outcomes = {}
        for address in addresses:
            outcomes[address] = try_port(address, place.port, min(_CONNECT_S, max(0.2, deadline - time.monotonic())))
            if outcomes[address] == "connected":
                return address
        now = time.monotonic()
        if now + pause_s > deadline:
            raise StartError(_unreachable(place, me, outcomes, tries, now - began))
        if now - told_at > TELL_EVERY_S:
            told_at = now
            text = ", ".join(f"{address}: {outcome}" for address, outcome in outcomes.items())
            logger.warning("rank %s on %s waits for the store at %s, %.0f s (%s)", me.rank, me.host, place, now - began, text)
        time.sleep(pause_s)


_MEANING = {
    "connection refused": "nothing listens on that port: rank 0 is not there (yet), runs on another host, has ended, "
    "or was told localhost for MASTER_ADDR, where only its own host finds it",
    "no answer": "packets to that port vanish: a firewall drops them, or the host is down",
}


def _unreachable(place: MeetingPlace, me: Place, outcomes: dict[str, str], tries: int, waited_s: float) -> Finding:
    tried = ", ".join(f"{address} port {place.port}: {outcome}" for address, outcome in outcomes.items())
    outcome = next(iter(outcomes.values()), "")
    own = [address for address in outcomes if is_own(address, interfaces())]
    why = _MEANING.get(outcome, "the network has no way to that host: wrong address, wrong network, or the host is down")
    if own and outcome == "connection refused" and not is_loopback(own[0]):
        return start_finding(
            "RW103",
            f"rank {me.rank} on {me.host} looks for the store at {place}, which is {me.host} itself, and nothing listens there",
            [me],
            certain=False,
            why="the store is where rank 0 runs: MASTER_ADDR must name that host, and be the same on all hosts; "
            f"or rank 0, which should be on {me.host}, was not started. Tried {tries} times in {waited_s:.0f} s",
        )
    summary = f"rank {me.rank} on {me.host} cannot reach the store at {place}: {outcome}"
    step = f"on {me.host}, while rank 0 runs: nc -vz {place.address} {place.port}"
    return start_finding("RW111", summary, [me], why=f"{why}. Tried {tries} times in {waited_s:.0f} s: {tried}", next=(step,))


def _answered(address: str, port: int) -> tuple[Store | None, str]:
    """The store, or what happened instead. Asked in a thread, because torch's client waits for ever at a port that stays silent."""
    task = ThreadTask(lambda: _client(address, port), "store")
    if not task.wait(_ANSWER_S):
        return None, f"{_SILENT} {_ANSWER_S:.0f} s"
    return task.result, f"it hung up ({str(task.error).splitlines()[0][:120]})" if task.error else ""


def _with_bulk_tried(opened: OpenStore, place: MeetingPlace, me: Place) -> OpenStore:
    """Try large packets, because small ones are enough to connect. If they get lost, the connection is stuck, so it is replaced."""
    if is_loopback(opened.address):
        return opened
    for _ in range(_BULK_TRIES):
        if opened.client.carries_bulk(f"rankwise/bulk/{me.host}/{me.pid}", _BULK_S):
            return opened
        opened = replace(opened, client=StoreClient(opened.connect()))
    return replace(opened, problem=_swallowed(place, me))


def _swallowed(place: MeetingPlace, me: Place) -> Finding:
    summary = f"rank {me.rank} on {me.host} reaches the store at {place} with small packets only: large ones vanish on the way"
    why = f"8 KiB to the store and back did not arrive in {_BULK_TRIES} times {_BULK_S:.0f} s, while short questions were answered"
    return start_finding("RW608", summary, [me], certain=False, why=why, stage=STORE)


def _not_a_store(place: MeetingPlace, address: str, me: Place, said: str) -> Finding:
    holder = next(map(str, find_listeners(place.port)), "") if is_own(address, interfaces()) else ""
    return start_finding(
        "RW107",
        f"port {place.port} at {place.address} is held by {holder or 'a program that is not the store of this job'}",
        [Place(rank=0, host=place.address)],
        why=f"the port takes connections, but seen from rank {me.rank} on {me.host} {said}: rank 0 could not open its store there",
        next=(f"on {place.address}: ss -ltnp 'sport = :{place.port}'",),
    )


def _client(address: str, port: int) -> Store:
    return TCPStore(address, port, is_master=False, timeout=_CALL_TIMEOUT, wait_for_workers=False)
