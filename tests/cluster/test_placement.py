"""What is asked of which node, and who holds a model: decided without a cluster."""

from __future__ import annotations

import pytest

from rankwise.cluster.placement import (
    ClusterNode,
    Placement,
    Resources,
    check_placeable,
    fixed_placements,
    node_placements,
    spread_replicas,
)
from rankwise.errors import RankwiseError

GB = 1 << 30
CPU, GPU = Resources(1.0), Resources(1.0, 1.0)


def node(name: str, cpus: float, gpus: float = 0.0, memory: int = 8 * GB, busy: float = 0.0) -> ClusterNode:
    return ClusterNode(name, Resources(cpus - busy, gpus, memory), Resources(cpus, gpus, memory))


def test_each_node_with_something_free_gets_one_actor_for_all_of_it() -> None:
    nodes = [node("a", 4), node("b", 2, busy=2), node("c", 2.5), node("d", 8)]

    assert node_placements([CPU], nodes, ["d"]) == [Placement(Resources(4), 4, 1, "a"), Placement(Resources(2), 2, 1, "c")]
    assert node_placements([Resources(4.0)], nodes, []) == [Placement(Resources(4), 1, 4, "a"), Placement(Resources(8), 2, 4, "d")]


def test_models_on_gpus_go_where_gpus_are_and_others_everywhere() -> None:
    nodes = [node("a", 8), node("b", 8, gpus=2)]

    assert node_placements([GPU], nodes, []) == [Placement(Resources(4, 2.0), 4, 1, "b")]
    assert node_placements([GPU, CPU], nodes, []) == [Placement(Resources(8), 8, 1, "a"), Placement(Resources(4, 2.0), 4, 1, "b")]
    assert node_placements([CPU], nodes, []) == [Placement(Resources(8), 8, 1, "a"), Placement(Resources(8), 8, 1, "b")]


def test_a_model_that_says_how_large_it_is_goes_where_that_much_is_free() -> None:
    nodes, large = [node("a", 2, memory=GB), node("b", 2, memory=16 * GB)], Resources(1.0, 0.0, 4 * GB)

    assert node_placements([large], nodes, []) == [Placement(Resources(2, 0.0, 16 * GB), 2, 1, "b")]
    both = node_placements([large, CPU], nodes, [])
    assert [(placement.node, placement.can_hold(large), placement.can_hold(CPU)) for placement in both] == [
        ("a", False, True),
        ("b", True, True),
    ]


def test_so_many_workers_are_so_many_actors_less_those_that_are_there() -> None:
    nodes = [node("a", 4), node("b", 4, gpus=1)]

    assert fixed_placements(2, [CPU], nodes, []) == [Placement(CPU, 1, 1)] * 2
    assert fixed_placements(3, [CPU], nodes, [Placement(CPU, 1, 1)]) == [Placement(CPU, 1, 1)] * 2
    assert fixed_placements(1, [Resources(3.0, 1.0)], nodes, []) == [Placement(Resources(3.0, 1.0), 1, 3)]
    assert fixed_placements(3, [GPU, CPU], nodes, []) == [Placement(GPU, 1, 1), *[Placement(CPU, 1, 1)] * 2]
    assert fixed_placements(3, [GPU, CPU], nodes, [Placement(CPU, 1, 1)] * 2) == [Placement(GPU, 1, 1)]


def test_an_actor_has_memory_for_all_models_or_for_the_largest_where_no_node_has_so_much() -> None:
    needs = [Resources(1.0, 0.0, 3 * GB), Resources(1.0, 0.0, 2 * GB)]

    assert fixed_placements(1, needs, [node("a", 1, memory=5 * GB)], [])[0].share.memory == 5 * GB
    assert fixed_placements(1, needs, [node("a", 1, memory=4 * GB)], [])[0].share.memory == 3 * GB


def test_what_no_node_can_ever_hold_is_said_with_what_they_have() -> None:
    nodes = [node("a", 4, busy=4), node("b", 2, memory=2 * GB)]

    assert check_placeable({"m": Resources(4.0)}, nodes, "auto") == ""  # busy now, and free again one day
    with pytest.raises(RankwiseError, match="RW809") as refused:
        check_placeable({"m": CPU, "big": Resources(1.0, 0.0, 20 * GB)}, nodes, "auto")
    why = refused.value.finding.why
    assert "model 'big' needs 1 CPU, 20.0 GiB of memory" in why and "4 CPU, 8.0 GiB of memory" in why and "2 CPU, 2.0 GiB" in why
    assert "1 GPU" in check_placeable({"m": GPU}, nodes, 2)  # a number of workers: an autoscaler may bring one


def test_replicas_stay_where_they_are_and_go_to_the_emptiest() -> None:
    assert spread_replicas(3, {}, {1: 2, 2: 2}) == {1: 2, 2: 1}
    assert spread_replicas(3, {1: 2, 2: 1}, {2: 2, 3: 2}) == {2: 2, 3: 1}
    assert spread_replicas(9, {}, {1: 2}) == {1: 2}
