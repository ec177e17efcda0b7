"""Finds which hosts reach which: when the backend fails to connect, one rank of each host opens a port and tries the ports of others."""

from __future__ import annotations

import contextlib
import fcntl
import json
import socket
import struct
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rankwise.findings import Finding
from rankwise.meet.links import blame
from rankwise.meet.ports import try_port
from rankwise.stages import Stage
from rankwise.train.assembly import Assembly
from rankwise.train.errors import start_finding
from rankwise.train.rank_info import RankInfo

_PATIENCE_S = 4.0  # a healthy backend connects in a fraction of this
_LOOK_EVERY_S = 0.2
_PORT_S = 3.0
_CONNECT_S = 1.5
_TRY_S = 4.5
_BULK_S = 5.0
_BULK = bytes(16384)  # several packets of the largest size
_SWALLOWED = "small packets arrive, large ones vanish"
_MAX_PEERS = 16  # each host tries so many; with more hosts each tries the next ones in a ring


@dataclass(frozen=True)
class Path:
    """One attempt: from the host of one rank to an address of another's; `outcome` is empty if it worked."""

    source: int
    target: int
    address: str
    outcome: str


class Mesh:
    """One rank's part in the test. `turn` is called again and again while the backend is being connected."""

    def __init__(self, assembly: Assembly, info: RankInfo, stage: Stage) -> None:
        self._assembly, self._info, self._stage = assembly, info, stage
        self._key = f"mesh/{stage.name}"
        self._began = self._looked = time.monotonic()
        self._is_tested = False
        self.is_over = False  # the test was made and showed nothing

    def turn(self, has_failed: bool) -> Finding | None:
        """Take part once a rank has asked for the test; rank 0 gets the finding, if there is one."""
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY_S or self.is_over:
            return None
        self._looked = now
        if has_failed or now - self._began > _PATIENCE_S:
            self._assembly.post(f"{self._key}/ask", "yes")
        elif self._assembly.read(f"{self._key}/ask", 0.0) is None:
            return None
        if not self._is_tested:
            self._is_tested = True
            return self._test()
        self.is_over = self._assembly.read(f"{self._key}/none", 0.0) is not None
        return None

    def _test(self) -> Finding | None:
        firsts = first_of_each_host(self._assembly.infos)
        if len(firsts) < 2:
            return self._concluded(None)
        if self._info.rank in {first_rank.rank for first_rank in firsts}:
            self._try_peers(firsts)
        if self._info.rank != 0:
            return None
        deadline = time.monotonic() + _PORT_S + _TRY_S + _BULK_S + 1.0
        replies = [self._assembly.read(f"{self._key}/paths/{first.rank}", max(0.0, deadline - time.monotonic())) for first in firsts]
        paths = [Path(**path) for rows in replies if rows for path in json.loads(rows)]
        silent = [first for first, rows in zip(firsts, replies) if not rows]
        return self._concluded(find_broken_paths(paths, self._assembly.infos, self._stage) or find_silent(silent, self._stage))

    def _try_peers(self, firsts: list[RankInfo]) -> None:
        """Listen, post the port, try the others. The kernel completes connections before they are accepted, so listening is enough."""
        own = next(first_rank for first_rank in firsts if first_rank.rank == self._info.rank)
        with contextlib.ExitStack() as opened:
            listener = opened.enter_context(socket.socket(socket.AF_INET6 if ":" in own.address else socket.AF_INET))
            with contextlib.suppress(OSError):
                listener.bind((own.address, 0))
                listener.listen(len(firsts))
            self._assembly.post(f"{self._key}/listener/{own.rank}", str(listener.getsockname()[1]))
            with ThreadPoolExecutor(_MAX_PEERS) as pool:
                paths = list(pool.map(lambda peer: self._try(own, peer), peers_of(own, firsts)))
            self._assembly.post(f"{self._key}/paths/{own.rank}", json.dumps([vars(path) for path in paths]))
            for first_rank in firsts:  # the listener stays open until all have tried it
                self._assembly.read(f"{self._key}/paths/{first_rank.rank}", _PORT_S + _TRY_S + _BULK_S)

    def _try(self, own: RankInfo, peer: RankInfo) -> Path:
        port = self._assembly.read(f"{self._key}/listener/{peer.rank}", _PORT_S)
        outcome = try_port(peer.address, int(port), _TRY_S) if port else "it opened no port"
        if port and outcome == "connected":
            outcome = try_bulk(peer.address, int(port))
        return Path(own.rank, peer.rank, f"{peer.address}:{port}", outcome)

    def _concluded(self, finding: Finding | None) -> Finding | None:
        if finding is None and self._info.rank == 0:
            self._assembly.post(f"{self._key}/none", "yes")
        return finding


def try_bulk(address: str, port: int) -> str:
    """Empty unless the other host acknowledges a byte but not full packets. Its kernel does that; no program has to read them."""
    with contextlib.suppress(OSError), socket.create_connection((address, port), _CONNECT_S) as line:
        line.sendall(b"x")
        if _is_acknowledged(line):
            line.sendall(_BULK)
            return "" if _is_acknowledged(line, len(_BULK) - 1) else _SWALLOWED  # one full packet is enough: others may just be lost
    return ""


def _is_acknowledged(line: socket.socket, at_most: int = 0) -> bool:
    """Whether the other host has confirmed all but `at_most` bytes."""
    deadline = time.monotonic() + _BULK_S
    while time.monotonic() < deadline:
        if struct.unpack("i", fcntl.ioctl(line, termios.TIOCOUTQ, bytes(4)))[0] <= at_most:
            return True
        time.sleep(0.02)
    return False


def first_of_each_host(infos: list[RankInfo]) -> list[RankInfo]:
    """The first rank of each host."""
    first: dict[str, RankInfo] = {}
    for info in sorted(infos, key=lambda info: info.rank):
        first.setdefault(info.host, info)
    return list(first.values())


def peers_of(own: RankInfo, firsts: list[RankInfo]) -> list[RankInfo]:
    """The hosts that this one tries: all others, or the next ones in the ring if there are many."""
    index = [first_rank.rank for first_rank in firsts].index(own.rank)
    return (firsts[index + 1 :] + firsts[:index])[:_MAX_PEERS]


def find_broken_paths(paths: list[Path], infos: list[RankInfo], stage: Stage) -> Finding | None:
    """A finding with one path that did not work, and the hosts that most likely explain all such paths."""
    by_rank = {info.rank: info for info in infos}
    is_used = {path: path.outcome == _SWALLOWED or by_rank[path.source].dials(by_rank[path.target]) for path in paths}
    broken = [path for path in paths if path.outcome and is_used[path]]
    if not broken:
        return None
    hosts = {info.rank: info.host for info in infos}
    named = _culprit_hosts(broken, [path for path in paths if not path.outcome], hosts)
    first = next(path for path in broken if named & {hosts[path.source], hosts[path.target]})
    source, target = by_rank[first.source], by_rank[first.target]
    more = f", and {len(broken) - 1} more such paths" if len(broken) > 1 else ""
    verb = "reaches" if first.outcome == _SWALLOWED else "cannot connect to"
    ends = f"rank {source.rank} on {source.host} {verb} rank {target.rank} on {target.host}"
    is_elsewhere = bool(target.route) and target.address != target.route
    return start_finding(
        "RW608" if first.outcome == _SWALLOWED else "RW114",
        f"{ends} at {first.address}: {first.outcome}{more}",
        (info.place for info in infos if info.host in named),
        certain=first.outcome != _SWALLOWED,
        why=_why(target, first.outcome, is_elsewhere),
        next=(f"on {target.host}: export GLOO_SOCKET_IFNAME={target.route_interface}",) if is_elsewhere and target.route_interface else (),
        stage=stage,
    )


def find_silent(silent: list[RankInfo], stage: Stage) -> Finding | None:
    """A finding about hosts whose ranks registered, but did not take part in the test."""
    if not silent:
        return None
    summary = f"rank {silent[0].rank} on {silent[0].host} registered and then fell silent"
    why = "it no longer answers through the store: its process ended or is stopped, or its host lost the network"
    return start_finding("RW126", summary, (info.place for info in silent), certain=False, why=why, stage=stage)


def _culprit_hosts(broken: list[Path], whole: list[Path], hosts: dict[int, str]) -> set[str]:
    """The host that all broken paths lead to, because a closed port is a matter of its own host; else the fewest that explain them."""
    targets = {hosts[path.target] for path in broken}
    if len(targets) == 1:
        return targets
    bad, good = ([(hosts[path.source], hosts[path.target]) for path in paths] for paths in (broken, whole))
    return set(blame(bad, good).hosts())


def _why(target: RankInfo, outcome: str, is_elsewhere: bool) -> str:
    if outcome == _SWALLOWED:
        return (
            f"something on the way to {target.host} drops packets beyond a size without a word: an MTU that differs between the hosts, "
            "a tunnel or VPN, a firewall that drops ICMP. Connecting works, the first real collective hangs"
        )
    if is_elsewhere:
        return (
            f"{target.host} offers {target.address} (interface {target.interface or 'unknown'}) to the others, "
            f"but reaches the store from {target.route} (interface {target.route_interface or 'unknown'})"
        )
    if outcome == "no answer":
        return (
            f"the store's port is open, and so all ranks could register, but a firewall on or before {target.host} drops the other ports: "
            "the backend listens on ports that the system picks"
        )
    return f"the store could be reached, but {target.host} could not be at the address it offers"
