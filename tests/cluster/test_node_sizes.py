"""Nodes of different sizes: models go where the GPU and the memory are that they say they need, and nowhere else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rankwise import Model, Pool
from rankwise.errors import RankwiseError
from tests.cluster.conftest import Nodes
from tests.cluster.test_engine import pytestmark  # noqa: F401  the same for this file

ECHO = "tests.pool.models:Echo"
HUGE = "300GB"  # more than any machine that runs these tests is likely to have


@pytest.fixture
def sizes(nodes: Nodes) -> Iterator[dict[str, str]]:
    """Two more nodes, which say of themselves what they have; their ids by what that is."""
    added = {"memory": nodes.add(memory=400 << 30), "gpu": nodes.add(num_gpus=1)}
    yield {name: node.node_id for name, node in added.items()}
    for node in added.values():
        nodes.dismiss(node)


def where(pool: Pool) -> set[str]:
    return {actor.node for actor in pool._backend.actors.ready}  # type: ignore[attr-defined]


def ran_on(pool: Pool, model: str, eventually: Callable[..., Any]) -> set[str]:
    """The nodes whose workers hold the model, after enough tasks that all who may have had one."""
    assert list(pool.map(model, range(200))) == list(range(200))

    def told() -> set[str]:
        actors = pool._backend.actors.ready  # type: ignore[attr-defined]
        return {actor.node for actor in actors if actor.numbers and actor.numbers["models"][model]["completed"]}

    eventually(told)
    return told()


def test_each_model_runs_where_it_fits(nodes: Nodes, sizes: dict[str, str], eventually: Callable[..., Any]) -> None:
    models = {
        "huge": Model(ECHO, memory=HUGE, device="cpu"),
        "drawn": Model(ECHO, device="cuda"),
        "small": Model(ECHO, device="cpu"),
    }
    with Pool(models, engine="ray", address=nodes.address) as pool:
        eventually(lambda: len(where(pool)) == 4)
        assert ran_on(pool, "huge", eventually) == {sizes["memory"]}
        backend: Any = pool._backend  # of the one on a GPU only where it may go: the GPU is but declared
        assert {actor.node for actor in backend.actors.ready if backend._actor_scheduler.can_run(actor, backend.models["drawn"])} == {
            sizes["gpu"]
        }
        eventually(lambda: len(ran_on(pool, "small", eventually)) >= 2)  # actors tell their numbers once a second


def test_so_many_workers_of_a_model_with_a_need_share_the_nodes_that_have_it(
    nodes: Nodes, sizes: dict[str, str], eventually: Callable[..., Any]
) -> None:
    larger = nodes.add(num_cpus=2, memory=900 << 30)
    try:
        with Pool({"huge": Model(ECHO, memory=HUGE, device="cpu")}, engine="ray", address=nodes.address, workers=3) as pool:
            eventually(lambda: len(pool._backend.actors.ready) == 3)  # type: ignore[attr-defined]
            assert sorted(actor.node for actor in pool._backend.actors.ready) == sorted(  # type: ignore[attr-defined]
                [sizes["memory"], larger.node_id, larger.node_id]
            )
            assert pool.submit("huge", 1).result() == 1
    finally:
        nodes.dismiss(larger)


def test_what_no_node_can_hold_is_said_at_once(nodes: Nodes) -> None:
    with pytest.raises(RankwiseError) as refused:
        Pool({"m": ECHO, "huge": Model(ECHO, memory=HUGE, device="cpu")}, engine="ray", address=nodes.address)
    assert "model 'huge' needs 1 CPU, 279.4 GiB of memory, and no node" in refused.value.finding.why
    with pytest.raises(RankwiseError, match="RW809"):
        Pool({"drawn": Model(ECHO, device="cuda")}, engine="ray", address=nodes.address)


def test_with_a_number_of_workers_it_waits_for_a_node_that_joins(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), Pool({"m": Model(ECHO, memory=HUGE)}, engine="ray", address=nodes.address, workers=1) as pool:
        waiting = pool.submit("m", 5)
        assert "no node of the Ray cluster has that" in caplog.text
        joined = nodes.add(memory=400 << 30)
        assert waiting.result(timeout=120) == 5
    nodes.dismiss(joined)
