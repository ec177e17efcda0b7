"""What the ranks of the farm do in the tests of metrics and of rank 0's own work."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rankwise.train import Loader, Means, Predictions, Step, group, rank_zero, wrap
from tests.train.jobs import Numbers, Stream


def predictions(lengths: list[int], batch_size: int = 3, stream: bool = False, **options: Any) -> dict[int, list[list[float]]]:
    """For each length what is gathered; the prediction for sample i is [i, 2 i]."""
    gathered = {}
    for length in lengths:
        loader = Loader(Stream(Numbers(length)) if stream else Numbers(length), batch_size=batch_size, **options)
        predictions = Predictions(loader)
        for batch in loader:
            predictions.add(torch.stack([batch, batch * 2], dim=1))
        gathered[length] = predictions.gather().tolist()
    return gathered


def predictions_of_dtype(dtype: str) -> tuple[str, list[float]]:
    loader = Loader(Numbers(5), batch_size=2)
    predictions = Predictions(loader)
    for batch in loader:
        predictions.add((batch % 2).to(getattr(torch, dtype)))
    everything = predictions.gather()
    return str(everything.dtype), everything.float().tolist()


def misused_predictions(how: str) -> None:
    loader = Loader(Numbers(8), batch_size=2)
    predictions = Predictions(loader)
    if how == "before the loop":
        predictions.add(torch.zeros(2))
    for number, batch in enumerate(loader):
        if how == "one for the batch":
            predictions.add(batch.float().mean())
        elif how == "wrong length":
            predictions.add(torch.zeros(5))
        elif how == "twice":
            predictions.add(batch)
            predictions.add(batch)
        elif how == "rows of another width":
            predictions.add(batch[:, None].repeat(1, 2 + group.rank()))
        elif how == "rows of another dtype":
            predictions.add(batch.float() if group.rank() else batch)
        elif how == "all ranks leave out":
            if number:
                predictions.add(batch)
        elif not (how == "one rank leaves out" and group.rank() == 1 and number):
            predictions.add(batch)
    predictions.gather()


def means(length: int) -> dict[str, float]:
    """The mean of 0 … length-1, from batches of different sizes on each rank."""
    loader = Loader(Numbers(length), batch_size=4)
    means = Means()
    for batch in loader:
        means.add(len(batch), number=batch.float().mean(), square=float((batch**2).float().mean()) if len(batch) else float("nan"))
    return means.compute()


def rank_zero_works_long(seconds: float) -> tuple[Any, float]:
    """With a timeout of the group far below what rank 0 takes."""
    store = dist.distributed_c10d._get_default_store()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.PrefixStore("again", store), rank=rank, world_size=world_size, timeout=timedelta(seconds=1))

    def work() -> dict[str, int]:
        time.sleep(seconds)
        return {"pid": group.rank()}

    began = time.monotonic()
    result = rank_zero(work)
    dist.barrier()
    return result, time.monotonic() - began


def rank_zero_fails() -> None:
    def work() -> None:
        raise ValueError("no such file")

    rank_zero(work)


def rank_zero_gives_much(num_bytes: int, port: int) -> tuple[int, str]:
    """Through the store that launchers keep, which takes no value of any size."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    return len(rank_zero(lambda: bytes(num_bytes))), rank_zero(lambda: "the next one")


def rank_zero_in_rank_zero() -> tuple[str, str]:
    return rank_zero(lambda: rank_zero(lambda: "inner") + " and outer"), rank_zero(lambda: "the next one")


def means_in_rank_zero() -> None:
    means = Means()
    means.add(2, loss=1.0)
    rank_zero(means.compute)


def evaluated_by_rank_zero() -> tuple[list[float], float]:
    """A wrapped model with buffers, which DDP sends in each forward, is called on rank 0 alone; then all train on."""
    torch.manual_seed(group.rank())
    model = wrap(nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), device="cpu")
    step, x = Step(model, torch.optim.SGD(model.parameters(), lr=0.1)), torch.ones(3, 1)
    seen = []
    for _ in range(2):
        for batch in step.over([x * group.rank() + torch.arange(3.0)[:, None]]):
            with step:
                loss = model(batch).mean()
            step.backward(loss)
        with torch.no_grad():
            seen.append(rank_zero(lambda: float(model(x).mean())))
    return seen, float(model.module[1].running_mean.sum())


def calls_left_out(how: str) -> None:
    """Rank 0 makes a call that the others leave out."""
    rank_zero(lambda: "the first")
    if group.rank() == 0:
        Means().compute() if how == "gathered" else rank_zero(lambda: "its own")
    elif how == "gathered":
        Predictions(Loader(Numbers(4), batch_size=2)).gather()
    rank_zero(lambda: "the next")
