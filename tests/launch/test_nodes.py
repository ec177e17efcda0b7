"""Two nodes in two network namespaces: the verdict is right, the same, and told on every node that is still there."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankwise.launch import nodes
from rankwise.launch.nodes import SeveralNodes, meeting_place
from rankwise.launch.plan import plan_run
from rankwise.launch.store_relay import write_frame
from tests.families import LONG
from tests.lab.hosts import Host, lab, why_no_lab

C10D = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "node-a:29400", "--rdzv-id", "7")


SCRIPT = """\
import os
import sys
import time

import torch
import torch.distributed as dist

fault, culprit = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank, x = dist.get_rank(), torch.ones(4)
print("started", flush=True)
for i in range(1_000_000 if fault == "none, for ever" else 40):
    chosen = rank == culprit and i == 20
    if chosen and fault == "skip":
        continue  # skip
    if chosen and fault == "stuck":
        os.read(os.pipe()[0], 1)  # stuck
    if chosen and fault == "raise":
        raise ValueError("bad sample")  # raise
    dist.all_reduce(x)
    time.sleep(0.02)
dist.barrier()
dist.destroy_process_group()
"""


LINES = {line.rpartition("# ")[2]: number for number, line in enumerate(SCRIPT.splitlines(), 1) if "  # " in line}


PATIENCE_S = 120.0  # for a loaded machine; a quiet one needs a tenth


class Job:
    """`rankwise run` on every host of a lab, as a user would start it there."""

    def __init__(self, hosts: list[Host], folder: Path, fault: str, culprit: int, num_ranks: int = 1, static: bool = False) -> None:
        self.hosts, self._folder = hosts, folder
        script = folder / "train.py"
        script.write_text(SCRIPT)
        for i, host in enumerate(hosts):
            meeting = ("--node-rank", str(i), "--master-addr", "node-a", "--master-port", "29511") if static else C10D
            own = ("--stall-after", "4", "--out", self.out(host), "--nnodes", str(len(hosts)), "--nproc-per-node", str(num_ranks))
            command = (sys.executable, "-m", "rankwise", "run", *own, *meeting, script, fault, str(culprit))
            with (folder / f"{host.name}.txt").open("wb") as output:
                host.start(command, output=output, cwd=folder)

    def out(self, host: Host) -> Path:
        return self._folder / host.name

    def text(self, host: Host) -> str:
        return (self._folder / f"{host.name}.txt").read_text(errors="replace")

    def verdict(self, host: Host) -> dict[str, Any]:
        path = self.out(host) / "verdict.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def root(self, host: Host) -> dict[str, Any]:
        """The first finding told on a host; empty as long as there is none."""
        return next(iter(self.verdict(host).get("findings", ())), {})

    def ended(self, host: Host) -> bool:
        return all(process.poll() is not None for process in host.processes)

    def codes(self) -> list[int]:
        self.wait(lambda: all(map(self.ended, self.hosts)), "the job to end")
        return [process.returncode for host in self.hosts for process in host.processes]

    def wait(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            if time.monotonic() > deadline:
                pytest.fail(f"waited in vain for {what}\n" + "\n".join(f"--- {host.name}\n{self.text(host)}" for host in self.hosts))
            time.sleep(0.1)

    def wait_until_running(self) -> None:
        self.wait(lambda: all("started" in self.text(host) for host in self.hosts), "the ranks to start")


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    if reason := why_no_lab():
        pytest.skip(reason)
    with lab(2) as found:
        yield found


@pytest.mark.live
@pytest.mark.netns
@pytest.mark.timeout(240)
class TestTwoNodes:
    def test_a_healthy_job_completes_on_both(self, hosts: list[Host], tmp_path: Path) -> None:
        job = Job(hosts, tmp_path, "none", 0, static=True)

        assert job.codes() == [0, 0], [job.text(host) for host in hosts]
        for host in hosts:
            verdict = job.verdict(host)
            assert (verdict["outcome"], verdict["world_size"]) == ("completed", 2)
            assert not [f for f in verdict["findings"] if f["severity"] == "error"]

    @pytest.mark.parametrize(("culprit", "static"), [(0, True), (1, False)], ids=["on-a", "on-b"])
    def test_a_skipped_collective_is_stopped_on_both(self, hosts: list[Host], tmp_path: Path, culprit: int, static: bool) -> None:
        job = Job(hosts, tmp_path, "skip", culprit, static=static)

        assert job.codes() == [70, 70], [job.text(host) for host in hosts]
        first, second = (job.verdict(host) for host in hosts)
        assert first["findings"] == second["findings"]
        assert first["outcome"] == second["outcome"] == "hung"
        check_culprit(job.root(hosts[0]), {"RW201"}, culprit, hosts[culprit], LINES["skip"])
        assert [wait["rank"] for wait in job.root(hosts[0])["waiting"]] == [1 - culprit]

    @pytest.mark.parametrize("culprit", [0, pytest.param(1, marks=LONG)], ids=["on-a", "on-b"])
    def test_a_rank_stuck_elsewhere_is_named_on_both(self, hosts: list[Host], tmp_path: Path, culprit: int) -> None:
        job = Job(hosts, tmp_path, "stuck", culprit)
        job.wait(lambda: all(job.root(host).get("code") == "RW305" for host in hosts), "the verdict on both")

        for host in hosts:
            check_culprit(job.root(host), {"RW305"}, culprit, hosts[culprit], LINES["stuck"])
            assert job.verdict(host)["outcome"] == "stalled" and not job.ended(host), "only suspected: the job goes on"
        for host in hosts:
            host.processes[0].send_signal(signal.SIGTERM)
        job.codes()

    # On node A the exception takes the rendezvous store with it: the nodes must have another way to talk.
    @pytest.mark.parametrize("culprit", [0, pytest.param(1, marks=LONG)], ids=["on-a", "on-b"])
    def test_an_exception_is_the_root_cause_on_both(self, hosts: list[Host], tmp_path: Path, culprit: int) -> None:
        job = Job(hosts, tmp_path, "raise", culprit)

        codes = job.codes()
        assert codes[culprit] == 1 and codes[1 - culprit] in (1, 70)
        for host in hosts:
            check_culprit(job.root(host), {"RW401"}, culprit, hosts[culprit], LINES["raise"])
            assert "ValueError: bad sample" in job.root(host)["summary"]
            assert "RW401" in job.text(host)

    @pytest.mark.parametrize(("victim", "num_ranks"), [pytest.param(0, 1, marks=LONG), (1, 2)], ids=["a", "b"])
    def test_a_node_without_power_is_named_on_the_other(self, hosts: list[Host], tmp_path: Path, victim: int, num_ranks: int) -> None:
        job = Job(hosts, tmp_path, "none, for ever", 0, num_ranks)
        job.wait_until_running()
        time.sleep(2.0)
        gone, survivor = hosts[victim], hosts[1 - victim]
        folders = live_folders(gone)
        gone.pull_the_plug()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)  # with launcher and guardian gone, nobody else does
        off_s = time.monotonic()
        job.wait(lambda: job.ended(survivor), "the survivor to end")

        assert time.monotonic() - off_s < 45
        root = job.root(survivor)
        ranks = [victim * num_ranks + i for i in range(num_ranks)]
        assert root["code"] == "RW412" and root["certain"], job.text(survivor)
        assert [(place["rank"], place["host"]) for place in root["culprits"]] == [(rank, gone.name) for rank in ranks]
        assert {wait["rank"] for wait in root["waiting"]} <= set(range(2 * num_ranks)) - set(ranks)
        assert f"node {gone.name}" in job.text(survivor)


def check_culprit(finding: dict[str, Any], codes: set[str], rank: int, host: Host, line: int) -> None:
    assert finding["code"] in codes, finding
    assert {(place["rank"], place["host"], os.path.basename(place["file"])) for place in finding["culprits"]} == {
        (rank, host.name, "train.py")
    }
    assert finding["culprits"][0]["line"] == line


def live_folders(host: Host) -> set[str]:
    found = set()
    for pid in host.pids():
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        found |= {entry.partition(b"=")[2].decode() for entry in entries if entry.startswith(b"RANKWISE_PROBE=")}
    return found


@pytest.mark.parametrize(
    ("options", "place"),
    [
        (("--nnodes", "2", *C10D), ("node-a", 29400, "rankwise/7")),
        (("--nnodes=2", "--rdzv_backend=c10d", "--rdzv-endpoint=[fd00::1]:1234"), ("fd00::1", 1234, "rankwise/none")),
        (("--nnodes", "1:4", "--rdzv-backend", "c10d", "--rdzv-endpoint", "node-a"), ("node-a", 29400, "rankwise/none")),
        (("--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.1"), ("10.0.0.1", 29500, "rankwise/none")),
        (("--nnodes", "2", "--rdzv-backend", "etcd-v2", "--rdzv-endpoint", "node-a:2379"), None),
        (("--nnodes", "1", *C10D), None),
        (("--standalone", "--nnodes", "2"), None),
    ],
)
def test_the_nodes_meet_where_torchrun_meets(options: tuple[str, ...], place: tuple[str, int, str] | None) -> None:
    assert meeting_place(plan_run([*options, __file__])) == place


def a_listener() -> SeveralNodes:
    """A node that hears, without a relay."""
    node = object.__new__(SeveralNodes)
    node._inbox, node._number = queue.SimpleQueue(), 0
    node._peers, node._channels, node._verdicts = {}, {}, {}
    return node


@pytest.mark.parametrize(
    "garbage",
    [
        {},
        {"news": "joined"},
        {"news": "peers", "serial": 1, "statuses": ["?"]},
        {"news": "snapshot", "number": [], "version": 1},
        {"news": 7},
    ],
    ids=str,
)
def test_a_message_that_makes_no_sense_costs_no_other(garbage: dict[str, Any]) -> None:
    node = a_listener()
    for facts in (garbage, {"news": "joined", "number": 3}):
        node._inbox.put((facts, b"", 1.0, 1))
    node._receive_news()

    assert node._number == 3


def test_a_relay_that_nobody_hears_is_ended() -> None:
    """Else the other nodes would seem silent, and their ranks lost."""
    relay = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert relay.stdin is not None
    write_frame(relay.stdin, {"news": "joined"})
    with pytest.raises(RuntimeError):
        nodes._receive(relay, DeafQueue())  # type: ignore[arg-type]

    assert relay.wait(timeout=60) == -signal.SIGKILL
    assert relay.stdin is not None
    relay.stdin.close()


class DeafQueue:
    def put(self, *args: object) -> None:
        raise RuntimeError("a bug of ours")
