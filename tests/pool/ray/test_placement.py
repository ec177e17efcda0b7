"""Where actors go, and who holds a model: decided without a cluster."""

from __future__ import annotations

from rankwise.pool.ray.cluster import ClusterNode
from rankwise.pool.ray.placement import Placement, fixed_placements, node_placements, spread_replicas


def test_each_node_with_something_free_gets_one_actor_for_all_of_it() -> None:
    nodes = [ClusterNode("a", 4.0, 0.0), ClusterNode("b", 0.0, 0.0), ClusterNode("c", 2.5, 0.0), ClusterNode("d", 8.0, 0.0)]

    assert node_placements(nodes, ["d"], None, wants_gpu=False) == [Placement(4, 0.0, 4, 1, "a"), Placement(2, 0.0, 2, 1, "c")]
    assert node_placements(nodes, [], 4, wants_gpu=False) == [Placement(4, 0.0, 1, 4, "a"), Placement(8, 0.0, 2, 4, "d")]


def test_models_on_gpus_go_where_gpus_are() -> None:
    nodes = [ClusterNode("a", 8.0, 0.0), ClusterNode("b", 8.0, 2.0)]

    assert node_placements(nodes, [], None, wants_gpu=True) == [Placement(4, 2.0, 4, 1, "b")]


def test_so_many_workers_are_so_many_actors_wherever_ray_finds_room() -> None:
    assert fixed_placements(2, None, wants_gpu=False) == [Placement(1, 0.0, 1, 1)] * 2
    assert fixed_placements(1, 3, wants_gpu=True) == [Placement(3, 1.0, 1, 3)]


def test_replicas_stay_where_they_are_and_go_to_the_emptiest() -> None:
    assert spread_replicas(3, {}, {1: 2, 2: 2}) == {1: 2, 2: 1}
    assert spread_replicas(3, {1: 2, 2: 1}, {2: 2, 3: 2}) == {2: 2, 3: 1}
    assert spread_replicas(9, {}, {1: 2}) == {1: 2}
