"""What is to be checked, from options named as torchrun's are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankwise.errors import UsageError
from rankwise.preflight.job_options import GROUPS, CheckPlan, plan_check

MEET = {"rdzv-endpoint": "head:1"}


def plan(environ: dict[str, str] | None = None, **options: str | None) -> CheckPlan:
    return plan_check({name.replace("_", "-"): value for name, value in options.items()}, environ or {})


def test_one_host_alone_where_nothing_is_said() -> None:
    found = plan()

    assert (found.nodes_min, found.nodes_max, found.node_rank, found.nproc, found.master, found.port) == (1, 1, 0, "1", "", 29500)
    assert (found.wait_s, found.limit_s, found.job_id, found.script) == (30, 120, "none", None)
    assert found.is_alone
    assert found.only == tuple(group for group in GROUPS if group != "fit")


@pytest.mark.parametrize(("nnodes", "least", "most"), [("2", 2, 2), ("1:4", 1, 4), ("4:4", 4, 4), ("4096", 4096, 4096)])
def test_numbers_of_hosts(nnodes: str, least: int, most: int) -> None:
    found = plan(nnodes=nnodes, rdzv_endpoint="head")

    assert (found.nodes_min, found.nodes_max, found.is_alone) == (least, most, False)


@pytest.mark.parametrize(
    ("options", "environ", "wanted"),
    [
        ({"rdzv-endpoint": "head:1"}, {}, ("head", 1)),
        ({"rdzv-endpoint": "head"}, {}, ("head", 29500)),
        ({"rdzv-endpoint": "head", "rdzv-backend": "c10d"}, {}, ("head", 29400)),
        ({"rdzv-endpoint": "head", "rdzv-backend": "etcd"}, {}, ("head", 29400)),
        ({"rdzv-endpoint": "[fe80::1]:7"}, {}, ("fe80::1", 7)),
        ({"rdzv-endpoint": "[fe80::1]"}, {}, ("fe80::1", 29500)),
        ({"rdzv-endpoint": "fe80::1"}, {}, ("fe80::1", 29500)),
        ({"rdzv-endpoint": "a:1", "master-addr": "b", "master-port": "2"}, {"MASTER_ADDR": "c"}, ("a", 1)),
        ({"master-addr": "b", "master-port": "2"}, {"MASTER_ADDR": "c", "MASTER_PORT": "3"}, ("b", 2)),
        ({"master-addr": "b"}, {"MASTER_PORT": "3"}, ("b", 3)),
        ({}, {"MASTER_ADDR": "c", "MASTER_PORT": "3"}, ("c", 3)),
    ],
)
def test_the_place_to_meet_is_where_torchrun_would_meet(options: Any, environ: dict[str, str], wanted: tuple[str, int]) -> None:
    found = plan_check(options, environ)

    assert (found.master, found.port) == wanted


@pytest.mark.parametrize(("backend", "node_rank"), [("static", 3), ("c10d", None)])
def test_only_a_static_meeting_has_numbers_of_nodes_beforehand(backend: str, node_rank: int | None) -> None:
    assert plan(rdzv_backend=backend, node_rank="3").node_rank == node_rank


def test_the_groups_come_in_their_own_order_and_fit_only_if_asked_for() -> None:
    assert plan(only="gpus, names").only == ("names", "gpus")
    assert plan(only="gpus", fit="net:step").only == ("gpus", "fit")
    assert plan(only="fit").only == ("fit",)
    assert plan(fit="net:step").only == GROUPS


def test_a_script_that_is_there_is_taken(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()

    assert plan(script=str(tmp_path / "train.py")).script == tmp_path / "train.py"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nnodes": "2"}, "need a place to meet"),
        ({"nnodes": "0", **MEET}, "--nnodes takes a whole number from 1 to 4096"),
        ({"nnodes": "4097", **MEET}, "--nnodes takes"),
        ({"nnodes": "2:1", **MEET}, "asks for at least 2 and at most 1 nodes"),
        ({"nnodes": "²", **MEET}, "--nnodes takes"),
        ({"nnodes": "1" * 10, **MEET}, "--nnodes takes"),
        ({"node-rank": "-1"}, "--node-rank takes a whole number from 0"),
        ({"master-port": "0"}, "--master-port takes"),
        ({"master-port": "65536"}, "--master-port takes"),
        ({"rdzv-endpoint": "head:x"}, "rdzv-endpoint: port takes"),
        ({"nproc-per-node": "tpu"}, "--nproc-per-node takes"),
        ({"nproc-per-node": "0"}, "--nproc-per-node takes"),
        ({"script": "gone.py"}, "there is no file 'gone.py'"),
        ({"script": "a\0b"}, "there is no file"),
        ({"fit": "net"}, "--fit takes MODULE:FUNCTION"),
        ({"fit": "net:1"}, "--fit takes"),
        ({"fit": "a b:step"}, "--fit takes"),
        ({"only": "disk"}, "there is no group 'disk'"),
        ({"wait": "0"}, "--wait takes a number of seconds above 0"),
        ({"wait": "nan"}, "--wait takes"),
        ({"wait": "soon"}, "--wait takes"),
        ({"time-limit": "1e6"}, "--time-limit takes"),
    ],
)
def test_what_cannot_be_meant_is_told(options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan_check(options, {})


def test_why_port_0_cannot_be() -> None:
    with pytest.raises(UsageError) as caught:
        plan(master_port="0")

    assert "the other nodes could not know" in caught.value.finding.why


@pytest.mark.parametrize("nproc", ["auto", "cpu", "gpu", "8", "4096"])
def test_processes_may_be_counted_by_torchrun(nproc: str) -> None:
    assert plan(nproc_per_node=nproc).nproc == nproc


def test_a_port_is_not_refused_at_its_bounds() -> None:
    assert [plan(master_port=port).port for port in ("1", "65535", " 7 ")] == [1, 65535, 7]
