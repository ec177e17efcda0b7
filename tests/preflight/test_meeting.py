"""The meeting between hosts: it takes nobody's word for granted, listens where it was asked to, and always ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rankwise.preflight.conduct import greet_guests
from rankwise.preflight.door import DOORS, Door
from rankwise.preflight.links import knock_at, measure_link
from rankwise.preflight.probes import TOKEN_BYTES, Probes
from rankwise.preflight.wire import GREETING, Gone, connect, receive_message, send_message, token_of

TOKEN = bytes(range(TOKEN_BYTES))


@pytest.fixture
def probes() -> Iterator[Probes]:
    found = Probes("127.0.0.1", "127.0.0.1")
    found.open()
    found.token = TOKEN
    yield found
    found.close()


@pytest.fixture
def door(free_port: int) -> Iterator[Door]:
    found = Door(["127.0.0.1"], free_port, lambda hello, address: None)
    yield found
    found.close()
    for guest in found.guests():
        guest.leave()


def test_a_healthy_link_is_measured_in_all_respects(probes: Probes) -> None:
    facts = measure_link(probes.offer(), TOKEN, 1500)

    assert facts["connected"] and facts["echoes"] == facts["sent"] == 100
    assert (facts["lost_out"], facts["lost_back"]) == (0.0, 0.0)
    assert 0 < facts["rtt_s"] < 0.1
    assert facts["largest"] == facts["wanted"] == 1472
    assert facts["up"] > 1e6 and facts["down"] > 1e6


def test_probes_answer_only_who_knows_the_token(probes: Probes) -> None:
    offer: dict[str, Any] = {"x": probes.offer()}

    assert knock_at(offer, TOKEN)["x"]["high"] is True
    assert knock_at(offer, bytes(TOKEN_BYTES))["x"]["high"] is False
    facts = measure_link(probes.offer(), bytes(TOKEN_BYTES), 1500)
    assert facts["lost_out"] is None  # no echo for strangers: nobody's packets are reflected


def test_a_closed_port_is_told_from_a_silent_one(free_port: int) -> None:
    assert connect("127.0.0.1", free_port, 1.0) == (None, "connection refused")
    with socket.socket() as full:  # a queue of one that is full answers nobody, as a firewall does
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
            fillers.append(filler)
        time.sleep(0.1)
        found, how = connect("127.0.0.1", full.getsockname()[1], 0.5)
        for filler in fillers:
            filler.close()
    assert (found, how) == (None, "no answer")


def test_the_door_listens_at_its_address_only(door: Door) -> None:
    own = [link for link in psutil.Process().net_connections("tcp") if link.status == "LISTEN" and link.laddr.port in door.ports]

    assert len(door.ports) == DOORS
    assert {link.laddr.ip for link in own} == {"127.0.0.1"}


RUBBISH = {
    "nothing": b"",
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a huge message": GREETING + struct.pack("!I", 1 << 31),
    "no JSON": GREETING + struct.pack("!I", 4) + b"\xff\xfe\x00{",
    "no object": GREETING + struct.pack("!I", 2) + b"[]",
    "deep JSON": GREETING + struct.pack("!I", 60000) + b"[" * 60000,
}


@pytest.mark.parametrize("data", RUBBISH.values(), ids=RUBBISH)
def test_rubbish_at_the_door_disturbs_nobody(door: Door, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", door.ports[0])) as stranger:
        with contextlib.suppress(OSError):  # the door may have heard enough before all is said
            stranger.sendall(data)
            stranger.shutdown(socket.SHUT_WR)
        guest, _ = connect("127.0.0.1", door.ports[0], 2.0)
        assert guest is not None
        with guest:
            guest.settimeout(5)
            assert guest.recv(len(GREETING)) == GREETING
            guest.sendall(GREETING)
            send_message(guest, {"name": "x", "told": {}}, 5)
            assert receive_message(guest, 5) == {"in": True}
            deadline = time.monotonic() + 5
            while not door.guests() and time.monotonic() < deadline:
                time.sleep(0.01)

    assert [each.hello["name"] for each in door.guests()] == ["x"]


def test_a_guest_that_falls_silent_is_left_behind(door: Door) -> None:
    guest, _ = connect("127.0.0.1", door.ports[0], 2.0)
    assert guest is not None
    with guest:
        guest.sendall(GREETING)
        send_message(guest, {"name": "x", "told": {}}, 5)
        while not door.guests():
            time.sleep(0.01)
        (inside,) = door.guests()
        started = time.monotonic()
        assert inside.ask({"do": "clock"}, 0.3) is None
        assert time.monotonic() - started < 2 and inside.is_gone


def test_a_message_that_stops_in_the_middle_ends_in_time() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(struct.pack("!I", 100) + b"{")
        with pytest.raises(Gone):
            receive_message(other, 0.2)


class TestTwoNodesOnOneMachine:
    """The whole command twice, at a loopback address: a rehearsal without a network."""

    def start(self, port: int, folder: Path, node: int, *more: str) -> subprocess.Popen[str]:
        meeting = ["--nnodes", "2", "--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port)]
        command = [sys.executable, "-m", "rankwise", "check", "--json", "--only", "names,ports", *meeting, *more]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder)

    def test_they_meet_and_say_the_same(self, free_port: int, tmp_path: Path) -> None:
        both = [self.start(free_port, tmp_path, node) for node in (0, 1)]
        reports = [json.loads(process.communicate(timeout=60)[0]) for process in both]

        assert [process.returncode for process in both] == [0, 0]
        assert reports[0] == reports[1]
        assert len({host["name"] for host in reports[0]["hosts"]}) == 2

    def test_a_guest_that_is_killed_does_not_keep_the_host(self, free_port: int, tmp_path: Path) -> None:
        host = self.start(free_port, tmp_path, 0, "--nnodes", "3", "--wait", "3")
        guest = self.start(free_port, tmp_path, 1, "--nnodes", "3", "--wait", "30")
        assert host.stderr is not None
        seen = ""
        while "2 of 3" not in seen:
            seen += host.stderr.readline()
        guest.kill()
        guest.communicate()
        report = json.loads(host.communicate(timeout=60)[0])

        assert host.returncode == 1
        assert "RW101" in [finding["code"] for finding in report["findings"]]

    def test_a_host_that_is_killed_does_not_keep_the_guest(self, free_port: int, tmp_path: Path) -> None:
        host = self.start(free_port, tmp_path, 0, "--nnodes", "3")
        guest = self.start(free_port, tmp_path, 1, "--nnodes", "3")
        assert guest.stderr is not None
        seen = ""
        while "2 of 3" not in seen:
            seen += guest.stderr.readline()
        host.kill()
        host.communicate()
        report = json.loads(guest.communicate(timeout=60)[0])

        assert guest.returncode == 1
        assert [finding["summary"] for finding in report["findings"]] == [
            f"the host of the meeting at 127.0.0.1:{free_port} fell silent during the check"
        ]

    def test_ctrl_c_ends_it_at_once_and_leaves_nothing(self, free_port: int, tmp_path: Path) -> None:
        waiting = self.start(free_port, tmp_path, 0)
        assert waiting.stderr is not None
        waiting.stderr.readline()
        started = time.monotonic()
        waiting.send_signal(signal.SIGINT)
        out, err = waiting.communicate(timeout=20)

        assert waiting.returncode == 130 and time.monotonic() - started < 5
        assert "Traceback" not in err and not out

    def test_the_time_limit_holds_also_while_waiting(self, free_port: int, tmp_path: Path) -> None:
        started = time.monotonic()
        lonely = self.start(free_port, tmp_path, 1, "--wait", "500", "--time-limit", "6")
        report = json.loads(lonely.communicate(timeout=60)[0])

        assert time.monotonic() - started < 20
        assert [finding["code"] for finding in report["findings"]][-1] == "RW111"
        assert report["note"].startswith("this host alone: nobody was met")


ODD_MEMORY = {"left": 10**400, "ranks": [], "source": {}, "limit": None}
NONSENSE: dict[str, Any] = {
    "nothing": {},
    "wrong kinds": {"facts": [1], "offer": "x", "ranks": {}, "now": "late", "answers": {"vm": 7}},
    "wrong facts": {"facts": {"memory": ODD_MEMORY}, "offer": {"address": 5, "port": "x"}, "ranks": None},
    "an error": {"error": "I would rather not"},
}


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE)
def test_a_guest_that_answers_nonsense_spoils_only_its_own_part(free_port: int, tmp_path: Path, answer: dict[str, Any]) -> None:
    meeting = ["--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", str(free_port)]
    command = [sys.executable, "-m", "rankwise", "check", "--json", "--only", "names,ports,links,resources", *meeting]
    host = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    guest = None
    while guest is None and host.poll() is None:
        guest, _ = connect("127.0.0.1", free_port, 1.0)
    assert guest is not None
    told = {"nnodes": 2, "node_rank": 1, "nproc": "1", "master": "127.0.0.1", "port": free_port}
    with guest:
        guest.recv(len(GREETING), socket.MSG_WAITALL)
        guest.sendall(GREETING)
        send_message(guest, {"name": "odd\x1b[31m", "told": told, "token": token_of("none"), "tries": []}, 5)
        try:
            while "report" not in (message := receive_message(guest, 30)):
                if "do" in message:
                    send_message(guest, answer, 5)
        except Gone:
            pass  # shown the door: also an answer
    out, err = host.communicate(timeout=60)

    assert "Traceback" not in err, err
    report = json.loads(out)
    assert report["nodes"] == {"expected": 2, "present": 2}
    own = next(result for result in report["results"] if result["check"] == "disk")
    assert socket.gethostname() in own["values"]


@pytest.mark.parametrize(
    "told", [None, [], {}, {"nnodes": "2"}, {"nnodes": 2, "node_rank": [], "nproc": "1", "master": "x", "port": 1}], ids=str
)
def test_a_hello_that_makes_no_sense_is_refused(told: Any) -> None:
    greet = greet_guests("none", [])

    assert "refusal" in (greet({"name": "x", "told": told, "token": token_of("none")}, "10.0.0.1") or {})


def test_somebody_elses_server_at_the_rendezvous_port_is_named(free_port: int, tmp_path: Path) -> None:
    """A store of another job holds the port on a host we are not: it answers, but not as a check does."""
    with socket.create_server(("127.0.0.1", free_port)) as server:
        stop = threading.Event()

        def serve() -> None:
            server.settimeout(0.1)
            while not stop.is_set():
                try:
                    guest, _ = server.accept()
                    guest.sendall(b"SSH-2.0-OpenSSH_9.2 and more than a greeting\r\n")
                    guest.close()
                except TimeoutError:
                    continue

        thread = threading.Thread(target=serve)
        thread.start()
        meeting = ["--nnodes", "2", "--node-rank", "1", "--master-addr", "127.0.0.1", "--master-port", str(free_port), "--wait", "2"]
        command = [sys.executable, "-m", "rankwise", "check", "--json", "--only", "ports", *meeting]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=dict(os.environ))
        stop.set()
        thread.join()
    report = json.loads(done.stdout)

    assert report["findings"][0]["code"] == "RW107"
    assert "no rankwise check answers" in report["findings"][0]["summary"]
