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
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankwise.causes import load_cause
from rankwise.diagnose import diagnose
from rankwise.evidence.collectives import CollectiveLog, Signature
from rankwise.evidence.records import Call, Ended, Frame, HostFacts, Init, JobEvidence, Raised, RankEvidence
from rankwise.findings import Finding, Place
from rankwise.launch import nodes, parcels
from rankwise.launch.courier import write_frame
from rankwise.launch.nodes import SeveralNodes, meeting_place
from rankwise.launch.parcels import Verdict, pack_job, pack_verdict, unpack_job, unpack_verdict
from rankwise.launch.peers import Peer, lost_job, merge_jobs
from rankwise.launch.plan import plan_run
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
LONG = pytest.mark.skipif(not os.environ.get("RANKWISE_LONG"), reason="the same on the other node; RANKWISE_LONG=1 runs it")
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


# -- without processes --------------------------------------------------------------------------------------------------------


LINE = Frame("train.py", 7, "main")


def a_rank(rank: int, host: str = "node-a", **details: Any) -> RankEvidence:
    log = CollectiveLog()
    log.add(1, Signature("0", "all_reduce", (4,), "float32"), 10, False, (LINE,))
    calls = (Call("all_reduce", 10, 0, (LINE,), sizes=(4,)), Call("barrier", 11, 12, (LINE,)))
    init = Init(rank, 2, "gloo", "env://", "node-a", 29400, None, started_ns=1, ended_ns=2)
    return RankEvidence(rank, 100 + rank, host, inits=(init,), collectives=log, calls=calls, **details)


def a_job(*ranks: RankEvidence, **details: Any) -> JobEvidence:
    facts = {"world_size": len(ranks), "hosts": (HostFacts("node-a"),), "now_ns": int(100e9), **details}
    return JobEvidence(("torchrun",), 1, stall_after_s=10.0, ranks={e.rank: e for e in ranks}, **facts)


def a_peer(evidence: JobEvidence | None = None, **details: Any) -> Peer:
    packed = pack_job(evidence) if evidence else b""
    return Peer(2, "node-b", heard_ns=int(90e9), snapshot=packed, fetched=int(bool(evidence)), **details)


def test_evidence_survives_the_journey() -> None:
    job = a_job(a_rank(0), a_rank(1), duplicates=(a_rank(0),), sources={"train.py": "pass"}, blind=("a spot",))

    assert unpack_job(pack_job(job)) == job


def test_evidence_that_is_too_much_is_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_job(a_rank(0), sources={"big.py": os.urandom(30_000).hex()})
    monkeypatch.setattr(parcels, "MAX_VALUE", 8_000)
    packed = pack_job(job)

    assert len(packed) <= 8_000
    assert unpack_job(packed) == replace(job, sources={})


@pytest.mark.parametrize("damage", ["cut", "noise", "list", "wrong", "deep", "bomb", "index"])
def test_what_is_no_evidence_is_dropped(damage: str) -> None:
    whole = pack_job(a_job(a_rank(0)))
    facts = json.loads(zlib.decompress(whole))
    bad_index = {**facts["ranks"][0], "calls": [[99, *facts["ranks"][0]["calls"][0][1:]]]}
    data = {
        "cut": whole[: len(whole) // 2],
        "noise": os.urandom(500),
        "list": zlib.compress(b"[1, 2]"),
        "wrong": zlib.compress(json.dumps({**facts, "ranks": {"0": 1}}).encode()),
        "deep": zlib.compress(b"[" * 200_000),
        "bomb": zlib.compress(b" " * (80 << 20)),
        "index": zlib.compress(json.dumps({**facts, "ranks": [bad_index]}).encode()),
    }[damage]

    assert unpack_job(data) is None
    assert unpack_verdict(data) is None


def test_a_verdict_survives_the_journey() -> None:
    finding = Finding("RW201", "skipped-collective", "error", True, "rank 1 …", (Place(rank=1, host="node-b"),), deadlock=True)
    verdict = Verdict("hung", [finding], a_job(a_rank(0)), 3.5, author=2)

    assert unpack_verdict(pack_verdict(verdict)) == verdict


def test_a_status_that_makes_no_sense_changes_nothing() -> None:
    peer = Peer(2)
    peer.take_status("store", json.dumps({"beat": 1, "serial": 4, "host": "node-b", "ranks": {"2": 77}, "ask": 3}), 1.0, 1)
    for text in ("", "[]", '{"beat": "x"}', '{"beat": 2, "serial": 9, "ranks": [1]}', '{"beat": 3, "serial": 2, "host": "old"}'):
        peer.take_status("store", text, 2.0, 2)

    assert (peer.host, peer.ranks, peer.ask, peer.serial) == ("node-b", {2: 77}, 3, 4)


def test_a_beat_that_another_store_showed_before_is_no_life() -> None:
    peer = Peer(2)
    for second, (store, beat) in enumerate([("one", 9), ("two", 8), ("one", 9), ("two", 8), ("one", 9)]):
        peer.take_status(store, json.dumps({"beat": beat}), float(second), second)

    assert peer.heard_s == 1.0 and peer.num_polls == 3


def test_ranks_of_all_nodes_become_one_job() -> None:
    here = a_job(a_rank(0), world_size=None, sources={"a.py": "here"})
    there = a_job(a_rank(1, "node-b"), world_size=2, hosts=(HostFacts("node-b"),), sources={"a.py": "there", "b.py": "there"}, blind=("x",))
    whole = merge_jobs(here, [there])

    assert sorted(whole.ranks) == [0, 1] and whole.world_size == 2
    assert [host.name for host in whole.hosts] == ["node-a", "node-b"]
    assert whole.sources == {"a.py": "here", "b.py": "there"} and whole.blind == ("x",)


def test_a_rank_that_two_nodes_claim_is_a_duplicate_unless_it_moved() -> None:
    old = a_rank(0, alive=False, ended=Ended("finished", 50), started_ns=1)
    twin, later = a_rank(0, "node-b", started_ns=2), a_rank(0, "node-b", started_ns=60)

    assert [e.host for e in merge_jobs(a_job(a_rank(0)), [a_job(twin)]).duplicates] == ["node-a"]
    moved = merge_jobs(a_job(old), [a_job(later)])
    assert moved.ranks[0].host == "node-b" and not moved.duplicates


def test_what_is_left_of_a_lost_node_are_its_ranks_and_its_last_words() -> None:
    finished = a_rank(3, "node-b", alive=False, ended=Ended("finished", 5))
    left = lost_job(a_peer(a_job(a_rank(2, "node-b"), finished), ranks={2: 102, 4: 104}))

    assert sorted(left.ranks) == [2, 3, 4]
    assert left.ranks[2].ended == left.ranks[4].ended == Ended("vanished", int(90e9)) and not left.ranks[2].alive
    assert left.ranks[3].ended == Ended("finished", 5), "what it said itself stays"
    assert sorted(lost_job(a_peer(ranks={2: 102})).ranks) == [2]


@pytest.mark.parametrize(
    ("silent_s", "details", "proven"),
    [
        (10, {"exit_code": 1}, True),  # the job is over
        (10, {}, False),  # a machine may be frozen for a while
        (25, {}, True),  # but not for ever
    ],
)
def test_a_lost_node_is_proven_when_the_others_cannot_go_on(silent_s: float, details: dict[str, Any], proven: bool) -> None:
    peer = a_peer(ranks={2: 102, 3: 103})
    here = a_job(a_rank(0), a_rank(1), now_ns=peer.heard_ns + int(silent_s * 1e9), **details)
    (root, *_) = diagnose(merge_jobs(here, [lost_job(peer)], ("node-b",)))

    assert (root.code, root.certain) == ("RW412", proven)
    assert root.summary == f"node node-b (ranks 2, 3) is gone: its watcher stopped answering {silent_s} s ago"
    assert [(place.rank, place.host) for place in root.culprits] == [(2, "node-b"), (3, "node-b")]
    assert root.next[:-1] == load_cause("RW412").next and root.name == load_cause("RW412").name


def test_a_lost_node_does_not_hide_a_proven_cause() -> None:
    raised = Raised("ValueError", "bad sample", (LINE,), int(80e9))
    failed = a_rank(0, alive=False, raised=(raised,), ended=Ended("exception", int(80e9), code=1))
    found = diagnose(merge_jobs(a_job(failed, exit_code=1), [lost_job(a_peer(ranks={1: 101}))], ("node-b",)))

    assert [finding.code for finding in found[:2]] == ["RW401", "RW412"]


def test_a_node_that_went_after_all_was_well_is_no_finding() -> None:
    for job in (a_job(a_rank(0), exit_code=0, lost_hosts=("node-b",)), a_job(a_rank(0))):
        assert not [finding for finding in diagnose(job) if finding.code == "RW412"]


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


def test_the_courier_ends_with_the_watcher(free_port: int) -> None:
    command = [sys.executable, Path(nodes.__file__).with_name("courier.py"), "127.0.0.1", str(free_port), "rankwise/x", "0"]
    courier = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    courier.stdin.close()

    assert courier.wait(20) == 0


def a_listener() -> SeveralNodes:
    """A node that hears, without a courier."""
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
    node._hear()

    assert node._number == 3


def test_a_courier_that_nobody_hears_is_ended() -> None:
    """Else the other nodes would seem silent, and their ranks lost."""
    courier = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert courier.stdin is not None
    write_frame(courier.stdin, {"news": "joined"})
    with pytest.raises(RuntimeError):
        nodes._receive(courier, DeafQueue())  # type: ignore[arg-type]

    assert courier.wait(timeout=60) == -signal.SIGKILL
    assert courier.stdin is not None
    courier.stdin.close()


class DeafQueue:
    def put(self, *args: object) -> None:
        raise RuntimeError("a bug of ours")
