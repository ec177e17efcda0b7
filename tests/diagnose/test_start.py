"""Jobs that never started together: who is missing, who went elsewhere, what is in the way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwise.diagnose import diagnose
from rankwise.evidence.records import Ended, Helper, HostFacts, PortHolder, RankEvidence
from tests.diagnose.jobs import (
    NOW_NS,
    PYTHON,
    SECOND,
    START_NS,
    alarms,
    before_init,
    busy,
    cast,
    ended,
    expect,
    helper,
    in_init,
    job,
    joined,
    numbered,
    others,
    path_of,
    raised,
    rank,
    root,
    samples,
    terminated,
    waiting,
    waiting_ranks,
)

LAUNCH, LAUNCH_LINES = numbered("""\
import os, subprocess, sys
for rank in range(3):
    env = dict(os.environ, RANK=str(rank),   # <- rank
               WORLD_SIZE="4")               # <- world
    subprocess.Popen([sys.executable, "train.py"], env=env)
""")


def failed_in_init(evidence: RankEvidence, error: str, name: str = "torch.distributed.DistNetworkError") -> RankEvidence:
    """The same rank, whose init_process_group raised."""
    init = replace(evidence.inits[-1], ended_ns=NOW_NS - SECOND, error=f"{name.rsplit('.', 1)[-1]}: {error}")
    return raised(replace(evidence, inits=(init,)), name, error, "train.py:3 main", ago_s=1)


def host(**facts) -> HostFacts:
    return HostFacts("node-a", **facts)


def launcher(*places: str) -> Helper:
    return helper(4100, 1, *places, command="python launch.py", script=path_of("launch.py"))


def all_in_init(world_size: int = 4, **facts) -> list[RankEvidence]:
    return [in_init(r, world_size=world_size, **facts) for r in range(world_size)]


# -- RW101, RW102, RW112: numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world_size", "missing"), [(4, [3]), (4, [0]), (3, [1]), (8, [2, 5, 7])])
def test_rw101_a_rank_that_nobody_started(world_size: int, missing: list[int]) -> None:
    present = [in_init(r, world_size=world_size) for r in others(missing, world_size)]
    waiting_launcher = launcher(f"{PYTHON}/subprocess.py:1200 wait", "launch.py:6")

    found = root(job(*present, world_size=world_size, launchers=(waiting_launcher,), sources={"launch.py": LAUNCH}))

    expect(found, "RW101", missing, "never joined", f"WORLD_SIZE is {world_size}", deadlock=False, at=f"launch.py:{LAUNCH_LINES['world']}")
    assert found.severity == "error"
    assert waiting_ranks(found) == others(missing, world_size)


def test_rw101_on_several_nodes_the_other_node_may_still_come() -> None:
    found = root(job(in_init(0), in_init(1), world_size=4))

    expect(found, "RW101", [2, 3], "never joined", certain=False, deadlock=False)
    assert found.severity == "warning"


def test_rw101_after_the_others_gave_up() -> None:
    timeout = "Timed out after 31 seconds waiting for clients. 3/4 clients joined."

    found = root(
        job(*[failed_in_init(in_init(r), timeout, "torch.distributed.DistStoreError") for r in (0, 1, 2)], world_size=4, exit_code=1)
    )

    assert (found.code, [place.rank for place in found.culprits]) == ("RW101", [3])


@pytest.mark.parametrize("twice", [0, 1, 2])
def test_rw102_a_rank_given_twice(twice: int) -> None:
    twin = replace(in_init(twice), pid=9999)
    present = [r for r in range(4) if r != (twice + 1) % 4]

    found = root(
        job(*[in_init(r) for r in present], duplicates=(twin,), world_size=4, sources={"launch.py": LAUNCH}, launchers=(launcher(),))
    )

    expect(found, "RW102", [twice], f"both rank {twice}", str(4200 + twice), "9999", f"nobody is rank {(twice + 1) % 4}")


@pytest.mark.parametrize(("sizes", "culprits"), [([4, 4, 4, 5], [3]), ([2, 4, 4, 4], [0]), ([2, 3], [0, 1]), ([3, 3, 2], [2])])
def test_rw112_different_world_sizes(sizes: list[int], culprits: list[int]) -> None:
    found = root(job(*[in_init(r, world_size=size) for r, size in enumerate(sizes)]))

    expect(found, "RW112", culprits, "world size", *[f"WORLD_SIZE={size}" for size in sizes])


# -- RW103, RW104, RW113: places ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("culprits", [[1], [3], [1, 2]])
def test_rw103_another_port(culprits: list[int]) -> None:
    found = root(job(*cast(culprits, 4, lambda r: in_init(r, port=29501), lambda r: in_init(r))))

    expect(found, "RW103", culprits, "localhost:29501", "localhost:29500", at="train.py:3")
    assert waiting_ranks(found) == others(culprits, 4)


def test_rw103_another_port_on_rank_zero_is_rank_zeros_fault() -> None:
    found = root(job(in_init(0, port=29999), *[in_init(r) for r in (1, 2, 3)]))

    assert found.code == "RW103"
    assert [place.rank for place in found.culprits] == [0], "three ranks agree, one does not"


def test_rw103_another_host() -> None:
    found = root(job(in_init(0, address="10.0.0.1"), in_init(1, address="10.0.0.1"), in_init(2, address="10.0.0.9")))

    assert (found.code, [place.rank for place in found.culprits]) == ("RW103", [2])
    assert "10.0.0.9:29500" in found.summary and "10.0.0.1:29500" in found.summary


def test_rw103_through_tcp_addresses() -> None:
    found = root(job(in_init(0, method="tcp://10.0.0.1:5000"), in_init(1, method="tcp://10.0.0.1:5001")))

    assert (found.code, found.certain) == ("RW103", True)
    assert "10.0.0.1:5001" in found.summary


@pytest.mark.parametrize(
    "names", [("localhost", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("localhost", "::1"), ("node-a", "node-a.cluster.internal")]
)
def test_one_host_under_two_names_is_not_proof_of_anything(names: tuple[str, str]) -> None:
    evidence = job(in_init(0, address=names[0]), in_init(1, address=names[1]), before_init(2, samples=samples(cpu=1.0)), hosts=(host(),))

    found = root(evidence)

    assert (found.code, found.culprits[0].rank) == ("RW109", 2)
    assert alarms(evidence) == []


METHODS, METHOD_LINES = numbered("""\
def main(rank):
    method = "env://" if rank == 0 else "file:///tmp/store"   # <- method
    dist.init_process_group("gloo", init_method=method)       # <- init
""")


def test_rw104_different_init_methods() -> None:
    at = f"train.py:{METHOD_LINES['init']} main"
    evidence = job(
        in_init(0, at),
        in_init(1, at, method="file:///tmp/store"),
        in_init(2, at, method="file:///tmp/store"),
        sources={"train.py": METHODS},
    )

    expect(root(evidence), "RW104", [0], "init methods", "env://", "file:///tmp/store", at=f"train.py:{METHOD_LINES['init']}")


def test_rw104_a_file_store_of_each_ranks_own() -> None:
    found = root(job(*[in_init(r, method=f"file:///tmp/store-{r}") for r in range(3)]))

    expect(found, "RW104", [0, 1, 2], "store-0", "store-2")


def test_the_same_address_by_environment_and_by_tcp_is_one_store() -> None:
    evidence = job(in_init(0), in_init(1, method="tcp://localhost:29500"), before_init(2))

    assert root(evidence).code == "RW109"


@pytest.mark.parametrize(("culprits", "world_size"), [([1], 3), ([0], 4), ([0, 1], 2)])
def test_rw113_different_backends(culprits: list[int], world_size: int) -> None:
    backends = ["nccl" if r == culprits[-1] else "gloo" for r in range(world_size)]

    found = root(job(*[in_init(r, backend=backend) for r, backend in enumerate(backends)]))

    expect(found, "RW113", culprits, "backends", "gloo", "nccl")


# -- RW105: the stale file ----------------------------------------------------------------------------------------------------


def test_rw105_a_file_store_of_an_earlier_run() -> None:
    old = (START_NS - 300 * SECOND) / 1e9

    found = root(job(*[in_init(r, method="file:///scratch/rdzv", file_mtime=old) for r in range(3)]))

    expect(found, "RW105", [0, 1, 2], "/scratch/rdzv", "stale", "5 min", at="train.py:3")
    assert found.next[0] == "rm /scratch/rdzv"


def test_a_file_store_that_the_first_rank_has_just_made_is_not_stale() -> None:
    fresh = (START_NS + 2 * SECOND) / 1e9
    evidence = job(
        in_init(0, method="file:///scratch/rdzv"), in_init(1, method="file:///scratch/rdzv", file_mtime=fresh), before_init(2), world_size=3
    )

    assert alarms(evidence) == []


def test_a_file_store_made_by_a_node_that_started_earlier_is_not_stale() -> None:
    earlier = START_NS - 60 * SECOND
    first = replace(in_init(0, method="file:///nfs/rdzv"), host="node-b", started_ns=earlier)
    second = in_init(1, method="file:///nfs/rdzv", file_mtime=(earlier + 2 * SECOND) / 1e9)

    assert alarms(job(first, second, before_init(2))) == []


# -- RW106, RW107, RW108, RW111, RW114: the network ---------------------------------------------------------------------------


def test_rw106_an_address_that_does_not_resolve() -> None:
    source = 'import os\nos.environ["MASTER_ADDR"] = "node-x"\nmain()\n'
    evidence = job(*all_in_init(2, address="node-x"), hosts=(host(unresolved=("node-x",)),), sources={"train.py": source})

    expect(root(evidence), "RW106", [0, 1], "node-x", "does not resolve", deadlock=False, at="train.py:2")


def test_rw106_on_one_rank_only() -> None:
    evidence = job(in_init(0), in_init(1, address="node-x"), in_init(2), hosts=(host(unresolved=("node-x",)),))

    expect(root(evidence), "RW106", [1], "node-x", deadlock=False)


@pytest.mark.parametrize("style", ["taken when it failed", "found by the watcher"])
def test_rw107_a_port_that_another_program_holds(style: str) -> None:
    holder = PortHolder(29500, 777, "python", "python old_job.py")
    facts = {"holder": holder} if style == "taken when it failed" else {}
    zero = failed_in_init(in_init(0, **facts), "The server socket has failed to listen: EADDRINUSE, address already in use")
    evidence = job(zero, in_init(1), in_init(2), hosts=(host(holders=(holder,)),), exit_code=1)

    found = root(evidence)

    expect(found, "RW107", [0], "port 29500", "already in use", "777", "old_job.py")
    assert found.next[0] == "free the port: kill 777"
    assert waiting_ranks(found) == [1, 2]


def test_rw107_a_program_that_answers_but_is_no_store() -> None:
    holder = PortHolder(29500, 777, "nginx")
    evidence = job(in_init(1), in_init(2), in_init(0), hosts=(host(holders=(holder,)),))

    expect(root(evidence), "RW107", [0], "29500", "nginx", certain=False, deadlock=False)


def test_the_store_that_rank_zero_holds_itself_is_no_intruder() -> None:
    evidence = job(*all_in_init(3), hosts=(host(holders=(PortHolder(29500, 4200, "python"),)),))

    assert alarms(evidence) == []
    assert root(evidence).code != "RW107"


@pytest.mark.parametrize("variable", ["GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"])
def test_rw108_an_interface_that_is_not_there(variable: str) -> None:
    source = f'import os\nos.environ["{variable}"] = "eth7"\n'
    evidence = job(
        in_init(0),
        in_init(1, env={variable: "eth7"}),
        in_init(2),
        hosts=(host(interfaces=("lo", "docker0", "ens5")),),
        sources={"train.py": source},
    )

    found = root(evidence)

    expect(found, "RW108", [1], f"{variable}=eth7", "interface", "ens5", at="train.py:2")
    assert found.next[0] == f"export {variable}=ens5"


def test_rw108_with_nccl() -> None:
    ranks = [in_init(r, backend="nccl", env={"NCCL_SOCKET_IFNAME": "=ib0"}) for r in range(2)]

    expect(root(job(*ranks, hosts=(host(interfaces=("lo", "eth0")),))), "RW108", [0, 1], "NCCL_SOCKET_IFNAME==ib0")


@pytest.mark.parametrize("wanted", ["eth", "^docker,lo", "=eth0", "eth0,ens5", "=ens5,eth0"])
def test_ncclss_own_way_of_naming_interfaces_is_known(wanted: str) -> None:
    ranks = [in_init(r, backend="nccl", env={"NCCL_SOCKET_IFNAME": wanted}) for r in range(2)]

    assert root(job(*ranks, hosts=(host(interfaces=("lo", "eth0")),))).code != "RW108"


def test_an_interface_for_nccl_does_not_matter_to_gloo() -> None:
    ranks = [in_init(r, env={"NCCL_SOCKET_IFNAME": "ib0"}) for r in range(2)]

    assert root(job(*ranks, hosts=(host(interfaces=("lo", "eth0")),))).code != "RW108"


def joined_at(address: str, number: int, world_size: int) -> RankEvidence:
    return replace(busy(number), host="node-b", inits=(replace(joined(number, world_size), address=address),))


def test_rw111_the_store_does_not_answer() -> None:
    evidence = job(joined_at("10.0.0.1", 0, 2), in_init(1, address="10.0.0.1", world_size=2))

    found = root(evidence)

    expect(found, "RW111", [1], "10.0.0.1:29500", "reach the store", certain=False, deadlock=False)
    assert found.severity == "warning"


def test_rw111_one_rank_failed_to_connect() -> None:
    error = "The client socket has timed out after 60000ms while trying to connect to (10.0.0.1, 29500)"
    failed = failed_in_init(in_init(1, address="10.0.0.1", world_size=3), error)
    evidence = job(joined_at("10.0.0.1", 0, 3), failed, joined_at("10.0.0.1", 2, 3), exit_code=1)

    found = root(evidence)

    assert (found.code, [place.rank for place in found.culprits]) == ("RW111", [1])
    assert found.severity == "error", "it has failed"


def test_rw114_all_are_there_and_do_not_connect() -> None:
    found = root(job(*all_in_init(4)))

    expect(found, "RW114", [], "cannot connect", certain=False, deadlock=False)
    assert found.severity == "warning"
    assert waiting_ranks(found) == [0, 1, 2, 3]


def test_rw114_all_are_in_the_same_collective_and_nothing_arrives() -> None:
    found = root(job(*[waiting(r, "broadcast", peer=0) for r in range(4)]))

    expect(found, "RW114", [], "same broadcast", "does not complete", certain=False, deadlock=False)
    assert waiting_ranks(found) == [0, 1, 2, 3]


# -- RW109, RW110: slow, or dead, before the start ----------------------------------------------------------------------------


@pytest.mark.parametrize(("world_size", "culprit"), [(2, 0), (3, 1), (4, 3), (8, 5)])
def test_rw109_a_rank_that_is_slow_before_it_joins(world_size: int, culprit: int) -> None:
    ranks = cast(
        [culprit],
        world_size,
        lambda r: before_init(r, "data.py:9 unpack", samples=samples(cpu=1.0)),
        lambda r: in_init(r, world_size=world_size),
    )

    found = root(job(*ranks))

    expect(
        found,
        "RW109",
        [culprit],
        "not reached init_process_group",
        "1 min 40 s",
        "data.py:9",
        certain=False,
        deadlock=False,
        at="data.py:9",
    )
    assert found.severity == "warning"
    assert waiting_ranks(found) == others([culprit], world_size)


def test_rw109_is_an_error_once_the_others_have_given_up() -> None:
    timeout = "Timed out after 31 seconds waiting for clients. 1/2 clients joined."
    evidence = job(failed_in_init(in_init(0), timeout, "torch.distributed.DistStoreError"), before_init(1, "data.py:9 unpack"), exit_code=1)

    found = root(evidence)

    expect(found, "RW109", [1], "gave up", "data.py:9", deadlock=False)
    assert found.severity == "error"


@pytest.mark.parametrize(("world_size", "culprits"), [(2, [1]), (4, [0]), (4, [2]), (8, [3, 6])])
def test_rw110_a_rank_that_died_before_it_joined(world_size: int, culprits: list[int]) -> None:
    ranks = cast(
        culprits,
        world_size,
        lambda r: raised(before_init(r), "FileNotFoundError", "[Errno 2] No such file: 'part.bin'", "data.py:4 open_part"),
        lambda r: in_init(r, world_size=world_size),
    )

    found = root(job(*ranks))

    expect(found, "RW110", culprits, "died before init_process_group", "FileNotFoundError", "part.bin", at="data.py:4")
    assert waiting_ranks(found) == others(culprits, world_size)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ({"kind": "sys_exit", "code": 2}, "sys.exit(2)"),
        ({"kind": "os_exit", "code": 3}, "os._exit(3)"),
        ({"kind": "signal", "signal": 9}, "signal 9"),
        ({"kind": "vanished"}, "no trace"),
        ({"kind": "vanished", "code": 1}, "exit code 1"),
    ],
)
def test_rw110_tells_how_it_ended(end, words: str) -> None:
    found = root(job(in_init(0), ended(before_init(1), **end), in_init(2)))

    expect(found, "RW110", [1], words)


def test_rw110_when_the_launcher_has_ended_the_others() -> None:
    dead = raised(before_init(1), "ImportError", "No module named 'apex'", "train.py:1", ago_s=20)

    found = root(job(terminated(in_init(0)), dead, terminated(in_init(2)), exit_code=1))

    assert found.code in ("RW110", "RW401")
    assert [place.rank for place in found.culprits] == [1]
    assert "apex" in found.summary


# -- healthy starts -----------------------------------------------------------------------------------------------------------

HEALTHY = {
    "all are joining": all_in_init(4),
    "some are still importing": [in_init(0), in_init(1), before_init(2), before_init(3)],
    "nobody has got there yet": [before_init(r) for r in range(4)],
    "one has already joined and works": [busy(0), in_init(1), in_init(2)],
    "a second process group, later": [replace(in_init(r), inits=(joined(r, 4), in_init(r).inits[0])) if r else busy(0) for r in range(4)],
    "waiting for a rank that is merely busy, after the start": [busy(0), waiting(1), waiting(2)],
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_starts_raise_no_alarm(kind: str) -> None:
    assert alarms(job(*HEALTHY[kind])) == []


def test_a_job_of_which_nothing_is_known_has_nothing_to_say() -> None:
    assert diagnose(job(world_size=None)) == []
    assert diagnose(job(world_size=4)) == []


def test_what_the_environment_says_is_not_held_against_ranks_that_have_joined() -> None:
    ranks = [busy(r, env={"GLOO_SOCKET_IFNAME": "eth7"}) for r in range(3)]

    assert alarms(job(*ranks, hosts=(host(interfaces=("lo",), unresolved=("localhost",)),))) == []


# -- the launcher itself waits ------------------------------------------------------------------------------------------------

RENDEZVOUS = f"{PYTHON}/site-packages/torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py:67 next_rendezvous"


@pytest.mark.parametrize("options", [("--nnodes", "2", "--master-addr", "node-a", "--master-port", "29500"), ("--nnodes=2:4",)])
def test_rw101_torchrun_waits_for_another_node(options: tuple[str, ...]) -> None:
    command = ("python", "-m", "torch.distributed.run", *options, "train.py")
    evidence = replace(job(launchers=(helper(99, 1, RENDEZVOUS),)), command=command)

    found = root(evidence)

    expect(found, "RW101", [], "1 of 2 nodes", "no rank has been started", certain=False, deadlock=False)
    assert ("node-a:29500" in found.summary) == (len(options) > 1)


def test_a_launcher_that_has_its_ranks_does_not_wait_for_nodes() -> None:
    assert not alarms(job(busy(0), launchers=(helper(99, 1, RENDEZVOUS),)))


def test_rw110_a_process_that_failed_before_it_said_which_rank_it_is() -> None:
    failure = raised(rank(9), "ValueError", "could not convert", at="agent.py:7 read").raised[0]
    dead = helper(77, 1, "agent.py:7 read", raised=failure, ended=Ended("exception", NOW_NS, code=1))
    evidence = job(in_init(0, world_size=3), in_init(2, world_size=3), launchers=(dead,), world_size=3)

    found = root(evidence)

    expect(found, "RW110", [1], "ValueError: could not convert", at="agent.py:7")
    assert sorted(waiting_ranks(found)) == [0, 2]


def test_of_two_missing_ranks_one_failure_names_neither() -> None:
    failure = raised(rank(9), "ValueError", "could not convert", at="agent.py:7 read").raised[0]
    dead = helper(77, 1, "agent.py:7 read", raised=failure, ended=Ended("exception", NOW_NS, code=1))

    assert root(job(in_init(0), in_init(2), launchers=(dead,), world_size=4)).code == "RW101"


def test_rw112_worlds_of_different_size_that_met_all_the_same() -> None:
    waiting_there = [waiting(r, after=[], world_size=2 if r == 1 else 3) for r in range(3)]

    found = root(job(*waiting_there, world_size=3))

    expect(found, "RW112", [1], "world size")
