"""The meeting between hosts: it takes nobody's word for granted, listens where it was asked to, and always ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rankwise.meet.ports import connect
from rankwise.preflight.wire import GREETING, ConnectionLost, receive_message, send_message, token_of


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

    def test_a_killed_host_does_not_keep_the_first_one(self, free_port: int, tmp_path: Path) -> None:
        host = self.start(free_port, tmp_path, 0, "--nnodes", "3", "--wait", "3")
        remote = self.start(free_port, tmp_path, 1, "--nnodes", "3", "--wait", "30")
        assert host.stderr is not None
        seen = ""
        while "2 of 3" not in seen:
            seen += host.stderr.readline()
        remote.kill()
        remote.communicate()
        report = json.loads(host.communicate(timeout=60)[0])

        assert host.returncode == 1
        assert "RW101" in [finding["code"] for finding in report["findings"]]

    def test_a_killed_first_host_does_not_keep_the_others(self, free_port: int, tmp_path: Path) -> None:
        host = self.start(free_port, tmp_path, 0, "--nnodes", "3")
        remote = self.start(free_port, tmp_path, 1, "--nnodes", "3")
        assert remote.stderr is not None
        seen = ""
        while "2 of 3" not in seen:
            seen += remote.stderr.readline()
        host.kill()
        host.communicate()
        report = json.loads(remote.communicate(timeout=60)[0])

        assert remote.returncode == 1
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

        assert waiting.returncode == 130 and time.monotonic() - started < 15
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
def test_a_host_that_answers_nonsense_spoils_only_its_own_part(free_port: int, tmp_path: Path, answer: dict[str, Any]) -> None:
    meeting = ["--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", str(free_port)]
    command = [sys.executable, "-m", "rankwise", "check", "--json", "--only", "names,ports,links,resources", *meeting]
    host = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    remote = None
    while remote is None and host.poll() is None:
        remote, _ = connect("127.0.0.1", free_port, 1.0)
    assert remote is not None
    told = {"nnodes": 2, "node_rank": 1, "nproc": "1", "master": "127.0.0.1", "port": free_port}
    with remote:
        remote.recv(len(GREETING), socket.MSG_WAITALL)
        remote.sendall(GREETING)
        send_message(remote, {"name": "odd\x1b[31m", "told": told, "token": token_of("none"), "tries": []}, 5)
        try:
            while "report" not in (message := receive_message(remote, 30)):
                if "do" in message:
                    send_message(remote, answer, 5)
        except ConnectionLost:
            pass  # sent away: also an answer
    out, err = host.communicate(timeout=60)

    assert "Traceback" not in err, err
    report = json.loads(out)
    assert report["nodes"] == {"expected": 2, "present": 2}
    own = next(result for result in report["results"] if result["check"] == "disk")
    assert socket.gethostname() in own["values"]


def test_somebody_elses_server_at_the_rendezvous_port_is_named(free_port: int, tmp_path: Path) -> None:
    """A store of another job holds the port on a host we are not: it answers, but not as a check does."""
    with socket.create_server(("127.0.0.1", free_port)) as server:
        stop = threading.Event()

        def serve() -> None:
            server.settimeout(0.1)
            while not stop.is_set():
                try:
                    remote, _ = server.accept()
                    remote.sendall(b"SSH-2.0-OpenSSH_9.2 and more than a greeting\r\n")
                    remote.close()
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
    assert "a program other than rankwise check answers" in report["findings"][0]["summary"]
