"""What is sent to an actor, and when: few calls, also for large inputs."""

from __future__ import annotations

import marshal
from types import SimpleNamespace
from typing import Any

import pytest

from rankwise.cluster import actors
from rankwise.cluster.actors import _TOGETHER, ActorHandle
from rankwise.cluster.placement import Placement, Resources
from rankwise.version import __version__


class Method:
    """Of an actor; keeps the numbers of the tasks that each call carries."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def options(self, **_: Any) -> Method:
        return self

    def remote(self, message: bytes, *_: Any) -> None:
        self.calls.append([task[0] for task in marshal.loads(message)])


def large_task() -> Any:
    return SimpleNamespace(
        slots=["ref"], deadline=None, node=("N",), priority=0, seed=None, to_tensor=False, model=SimpleNamespace(number=0)
    )


def test_large_inputs_travel_together_while_the_actor_has_enough_to_do() -> None:
    run = Method()
    actor = ActorHandle(1, Placement(Resources(1.0), 1, 1), SimpleNamespace(run=run, answers=Method()))
    for number in (1, 2):  # something to do, and something to do next
        assert actor.may_be_sent
        actor.add(number, large_task())
        actor.flush(0.0)
    assert not actor.may_be_sent  # the others gather
    actor.heard(1)
    assert actor.may_be_sent
    for number in range(3, 3 + _TOGETHER + 1):
        assert actor.has_room_for(large_task())
        actor.add(number, large_task())
    actor.flush(0.0)
    assert [len(call) for call in run.calls] == [1, 1, _TOGETHER, 1]


def test_a_node_with_another_rankwise_is_not_used() -> None:
    actors._check_version("here", __version__)
    for version in ("0.0.1", None):
        with pytest.raises(RuntimeError, match=rf"node there has rankwise .*, and this program has {__version__}"):
            actors._check_version("there", version)


def test_why_an_actor_could_not_be_started_is_told() -> None:
    """As Ray 2.60 says it where rankwise is not installed on a node."""
    first = "The actor died because of an error raised in its creation task, ray::PoolActor.__init__() (pid=1)"
    text = f"{first}\n  File x\nModuleNotFoundError: No module named 'rankwise'"
    assert actors._told(RuntimeError(text)) == "it could not be started: ModuleNotFoundError: No module named 'rankwise'"
    assert (
        actors._told(RuntimeError("The actor is dead because its node has died.\nmore")) == "The actor is dead because its node has died."
    )
