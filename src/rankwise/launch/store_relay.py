"""Relays messages between the watchers of several nodes through torch's TCPStore: a process of its own, as the watcher imports no torch.

Run by path, so it imports nothing of rankwise. Arguments: host and port of the rendezvous, key prefix, this node's number (0: none yet).
Frames come in on stdin and go out on stdout; when stdin ends, so does the relay.

The rendezvous store dies with the torchrun that opened it, often just when there is something to say. So the first nodes to join open a
store of their own, and every message is written to every store that can be reached: each store is one channel, in a thread that may block.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any

NUM_OWN_STORES = 2  # so many nodes open a store of their own: one more than may be lost at once
MAX_VALUE = 4 << 20  # torch's store drops the connection at 8 MiB
POLL_S = 0.2
_BEAT_S = 1.0
_STORE_TIMEOUT = datetime.timedelta(seconds=5)
_PR_SET_PDEATHSIG = 1
_HEAD = struct.Struct("<II")
_out_lock = threading.Lock()


def poll_interval_s(num_nodes: int) -> float:
    """Seconds between reads of a channel: more, the more nodes read it."""
    return POLL_S + 0.01 * num_nodes


def write_frame(stream: IO[bytes], facts: dict[str, Any], body: bytes = b"") -> None:
    head = json.dumps(facts).encode()
    stream.write(_HEAD.pack(len(head), len(body)) + head + body)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """The next frame; None where the stream ends."""
    sizes = stream.read(_HEAD.size)
    if len(sizes) < _HEAD.size:
        return None
    num_head, num_body = _HEAD.unpack(sizes)
    head, body = stream.read(num_head), stream.read(num_body)
    if len(head) + len(body) < num_head + num_body:
        return None
    facts: dict[str, Any] = json.loads(head)
    return facts, body


def main(argv: list[str]) -> None:
    host, port, prefix, number = argv[1], int(argv[2]), argv[3], int(argv[4])
    _die_with_parent()
    relay = Relay(prefix, number, host, port)
    relay.add_channel("rendezvous", lambda: _connect(host, port))
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        relay.take(*frame)
    os._exit(0)  # a channel may be blocked in a store that no longer answers


class Relay:
    """What this node wants to send and what it has received; shared by the channels."""

    def __init__(self, prefix: str, number: int, host: str, port: int) -> None:
        self.prefix, self.number, self.top = prefix, number, number
        self.facts: dict[str, Any] = {}
        self.snapshot, self.verdict = b"", b""
        self.fetched: dict[int, int] = {}  # node: the newest version of its snapshot that was passed on
        self.own_address = ""
        self._host, self._port = host, port
        self._channels: set[str] = set()
        self._changed = threading.Condition()

    def take(self, facts: dict[str, Any], body: bytes) -> None:
        """Take one frame from the watcher: its status, perhaps with a snapshot or a verdict."""
        with self._changed:
            self.facts = facts["status"]
            if facts["post"] == "snapshot":
                self.snapshot = body
            elif facts["post"] == "verdict":
                self.verdict = body
            self._changed.notify_all()

    def outgoing(self) -> tuple[dict[str, Any], bytes, bytes]:
        """The present status, snapshot and verdict, taken together."""
        with self._changed:
            return self.facts, self.snapshot, self.verdict

    def wait(self, serial: int) -> None:
        """Wait until the next look is due, or the watcher has news."""
        with self._changed:
            if self.facts.get("serial", 0) == serial:
                self._changed.wait(poll_interval_s(self.top))

    def join(self, store: Any) -> None:
        """Get this node's number, once; the first nodes then open a store for the others."""
        if not self.number:
            self.number = int(store.add(f"{self.prefix}/joined", 1))
        send_news({"news": "joined", "number": self.number})
        if self.number <= NUM_OWN_STORES and not self.own_address:
            with contextlib.suppress(RuntimeError, OSError):
                self._open_own_store()

    def _open_own_store(self) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        local = _address_towards(self._host, self._port)
        store = TCPStore(local, 0, is_master=True, timeout=_STORE_TIMEOUT, wait_for_workers=False)
        # The rendezvous host may see itself at a loopback address; the others reach it by the name they were given.
        self.own_address = f"{self._host if local.startswith('127.') or local == '::1' else local} {store.port}"
        self.add_channel(self.own_address, lambda: store)

    def add_channel(self, name: str, open_store: Callable[[], Any]) -> None:
        if name not in self._channels and len(self._channels) < 16:
            self._channels.add(name)
            threading.Thread(target=Channel(name, open_store, self).run, name=name, daemon=True).start()

    def add_store_of(self, number: int, address: object) -> None:
        """Another node offers its store: use it as well."""
        if number <= NUM_OWN_STORES and isinstance(address, str) and len(parts := address.split()) == 2 and parts[1].isdigit():
            self.add_channel(address, lambda: _connect(parts[0], int(parts[1])))


class Channel:
    """One store: writes all messages of this node to it, and reads those of the others from it."""

    def __init__(self, name: str, open_store: Callable[[], Any], relay: Relay) -> None:
        self._name, self._open_store, self._relay = name, open_store, relay

    def run(self) -> None:
        while True:
            with contextlib.suppress(RuntimeError, OSError, ValueError):  # torch's store errors are RuntimeErrors
                self._follow(self._open_store())
            send_news({"news": "broken", "channel": self._name})
            time.sleep(1.0)

    def _follow(self, store: Any) -> None:
        if self._name == "rendezvous":
            self._relay.join(store)
        self._beat, self._beaten_s = 0, 0.0
        self._serial, self._version, self._known = -1, 0, set[int]()
        self._has_published = self._has_sent_verdict = False
        while True:
            self._write(store)
            statuses = self._read(store)
            send_news({"news": "peers", "channel": self._name, "serial": self._serial, "statuses": statuses})
            self._relay.wait(self._serial)

    def _write(self, store: Any) -> None:
        """The snapshot before the status that announces it."""
        relay = self._relay
        facts, snapshot, verdict = relay.outgoing()
        if verdict and not self._has_published:
            store.compare_set(self._key("verdict"), "", verdict)  # the first verdict counts
            self._has_published = True
        if snapshot and facts.get("version", 0) != self._version:
            store.set(self._key(relay.number, "snapshot"), snapshot)
            self._version = facts["version"]
        if facts.get("serial", 0) != self._serial or time.monotonic() - self._beaten_s >= _BEAT_S:
            self._beat += 1
            self._beaten_s = time.monotonic()
            status = {**facts, "beat": self._beat, "store": relay.own_address}
            store.set(self._key(relay.number, "status"), json.dumps(status))
            self._serial = facts.get("serial", 0)

    def _read(self, store: Any) -> dict[int, str]:
        relay = self._relay
        if self._name == "rendezvous":
            relay.top = int(store.add(f"{relay.prefix}/joined", 0))
        self._known |= {n for n in range(1, relay.top + 1) if n not in self._known and store.check([self._key(n, "status")])}
        others = sorted(self._known - {relay.number})
        values = store.multi_get([self._key(n, "status") for n in others]) if others else []
        statuses = {n: bytes(value).decode(errors="replace") for n, value in zip(others, values, strict=True)}
        for n, text in statuses.items():
            self._look_at(store, n, text)
        if not self._has_sent_verdict and store.check([self._key("verdict")]):
            send_news({"news": "verdict", "channel": self._name}, store.get(self._key("verdict")))
            self._has_sent_verdict = True
        return statuses

    def _look_at(self, store: Any, number: int, text: str) -> None:
        """Read a peer's status; one that cannot be read is ignored."""
        try:
            facts = json.loads(text)
            version, address = int(facts.get("version", 0)), facts.get("store")
        except (ValueError, TypeError, AttributeError, RecursionError):
            return
        if version > self._relay.fetched.get(number, 0) and store.check([self._key(number, "snapshot")]):
            send_news({"news": "snapshot", "number": number, "version": version}, store.get(self._key(number, "snapshot")))
            self._relay.fetched[number] = version
        self._relay.add_store_of(number, address)

    def _key(self, *parts: object) -> str:
        return "/".join(map(str, (self._relay.prefix, *parts)))


def send_news(facts: dict[str, Any], body: bytes = b"") -> None:
    with _out_lock:
        try:
            write_frame(sys.stdout.buffer, facts, bytes(body))
        except OSError:
            os._exit(0)


def _connect(host: str, port: int) -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(host, port, is_master=False, timeout=_STORE_TIMEOUT, wait_for_workers=False)


def _address_towards(host: str, port: int) -> str:
    """The address of this node as the rendezvous host sees it; connecting a datagram socket sends nothing."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _die_with_parent() -> None:
    """Ignore the terminal's signals, because the watcher needs its relay to the end, and end when the watcher does."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main(sys.argv)
