"""A group of one: what collectives give where there is nobody else, without a socket."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
import torch
import torch.distributed as dist

from rankwise.train.alone import NAME, start_alone


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    start_alone()
    yield
    dist.destroy_process_group()


def test_it_is_a_group_of_one_that_opens_nothing_and_can_be_had_again() -> None:
    before = psutil.Process().num_fds()
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, 1, NAME)
    dist.barrier()

    dist.destroy_process_group()
    start_alone()

    assert psutil.Process().num_fds() == before


def test_each_collective_gives_what_one_rank_has() -> None:
    own, other = torch.arange(4.0), torch.full((4,), -1.0)
    dist.all_reduce(own)
    dist.broadcast(own, 0)
    dist.reduce(own, 0)
    assert own.tolist() == [0.0, 1.0, 2.0, 3.0]

    calls = {
        "all_gather": lambda: dist.all_gather([other], own),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(other, own),
        "gather": lambda: dist.gather(own, [other]),
        "scatter": lambda: dist.scatter(other, [own]),
        "reduce_scatter": lambda: dist.reduce_scatter(other, [own]),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(other, own),
        "all_to_all": lambda: dist.all_to_all([other], [own]),
        "all_to_all_single": lambda: dist.all_to_all_single(other, own),
    }
    for name, call in calls.items():
        other.fill_(-1.0)
        call()
        assert torch.equal(other, own), name


def test_what_is_awaited_is_done_and_objects_go_through_it() -> None:
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert work is not None and work.is_completed()
    work.wait()
    things: list[object] = [None]
    dist.all_gather_object(things, {"rank": 0})
    assert things == [{"rank": 0}]
    sent: list[object] = ["word"]
    dist.broadcast_object_list(sent, 0)
    assert sent == ["word"]
