"""What the ranks of the farm do in the tests of the loader, the step and the metrics."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info, random_split

from rankwise.train import Loader, Step, group, wrap
from rankwise.train.sample_plan import epoch_order


def small_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def regression_data(length: int, seed: int = 1) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(length, 6, generator=generator)
    return TensorDataset(inputs, torch.sin(inputs[:, :3] * 2) + inputs[:, 3:])


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


def flat(model: nn.Module) -> list[float]:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def train_with_rankwise(
    optimizer: str = "sgd",
    accumulate: int = 1,
    length: int = 37,
    global_batch: int = 8,
    num_steps: int = 50,
    stream: bool = False,
    **options: Any,
) -> list[float]:
    """The parameters after so many steps of the optimizer."""
    data = regression_data(length)
    model = wrap(small_model(), device="cpu")
    stepper = optimizer_of(optimizer, model)
    step = Step(model, stepper, accumulate=accumulate, **options)
    if stream:
        loader = Loader(Stream(data), global_batch_size=global_batch)
    else:
        loader = Loader(data, global_batch_size=global_batch, shuffle=True, seed=3)
    while True:
        for x, y in step.over(loader):
            with step:
                loss = mse_loss(model(x), y)
            if step.backward(loss) and step.count == num_steps:
                return flat(model)


def train_with_batch_norm(
    length: int = 103, global_batch: int = 12, stream: bool = False, **options: Any
) -> tuple[list[float], list[list[int]], list[str]]:
    """The parameters after two epochs, how many samples this rank's batches had in the last one, and what was logged before it."""
    with logs_of("rankwise.train") as lines:
        data = regression_data(length)
        torch.manual_seed(0)
        model = wrap(nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)), device="cpu")
        step = Step(model, optimizer_of("sgd", model))
        loader = Loader(Stream(data) if stream else data, global_batch_size=global_batch, **options)
        for _ in loader.epochs(2):
            sizes = []
            for x, y in step.over(loader):
                with step:
                    loss = mse_loss(model(x), y)
                step.backward(loss)
                sizes.append([len(x), step.num_samples])
    return flat(model), sizes, lines


@contextmanager
def logs_of(name: str) -> Iterator[list[str]]:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(name).addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger(name).removeHandler(handler)


def train_by_hand(
    optimizer: str = "sgd",
    accumulate: int = 1,
    length: int = 37,
    global_batch: int = 8,
    num_steps: int = 50,
    shuffle: bool = True,
    bf16: bool = False,
    clip_norm: float | None = None,
) -> list[float]:
    """The same in one process, written as one would without rankwise: one backward for all samples of a window."""
    data = regression_data(length)
    model = small_model()
    stepper = optimizer_of(optimizer, model)
    epoch = 0
    while True:
        order = epoch_order(length, 3, epoch) if shuffle else torch.arange(length)
        for window in order.split(global_batch * accumulate):
            x, y = (tensor[window] for tensor in data.tensors)
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = mse_loss(model(x), y)
            stepper.zero_grad()
            loss.backward()
            if clip_norm:
                nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            stepper.step()
            num_steps -= 1
            if not num_steps:
                return flat(model)
        epoch += 1


def equality_grid(
    lengths: list[int], accumulates: list[int], optimizers: list[str], by_hand: bool = False
) -> dict[tuple[Any, ...], list[float]]:
    """The parameters for every combination."""
    work = train_by_hand if by_hand else train_with_rankwise
    return {
        (length, accumulate, optimizer): work(optimizer=optimizer, accumulate=accumulate, length=length, global_batch=8)
        for length in lengths
        for accumulate in accumulates
        for optimizer in optimizers
    }


class Stream(IterableDataset[Any]):
    """A dataset that can only be read from its beginning; it may shuffle, with the generators of the process it is read in."""

    def __init__(self, data: Dataset[Any], shuffled: bool = False) -> None:
        self.data, self.shuffled = data, shuffled

    def __iter__(self) -> Any:
        numbers = list(range(len(self.data)))  # type: ignore[arg-type]
        if self.shuffled:
            random.shuffle(numbers)
            np.random.shuffle(numbers)
            numbers = [numbers[number] for number in torch.randperm(len(numbers))]
        return (self.data[i] for i in numbers)


class Numbers(Dataset[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Draws(Dataset[Any]):
    """What a random augmentation would draw for a sample, from each of the generators people use."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([torch.rand(()).item(), random.random(), np.random.rand()], dtype=torch.float64)


def read_epochs(length: int = 20, num_epochs: int = 1, stream: bool = False, **options: Any) -> list[list[list[int]]]:
    """The numbers of each batch of each epoch."""
    loader = Loader(Stream(Numbers(length)) if stream else Numbers(length), **options)
    return [[batch.tolist() for batch in loader] for _ in range(num_epochs)]


def read_with_breaks(num_epochs: int) -> list[list[int]]:
    """The first batch of each epoch, left after it."""
    loader = Loader(Numbers(30), batch_size=5, shuffle=True)
    first = []
    for _ in loader.epochs(num_epochs):
        for batch in loader:
            first.append(batch.tolist())
            break
    return first


def loader_of_numbers(length: int, stream: bool = False, shuffled: bool = False, **options: Any) -> Loader:
    random.seed(group.rank())
    return Loader(Stream(Numbers(length), shuffled) if stream else Numbers(length), **options)


def read_some_then_say_where(num_batches: int, **options: Any) -> tuple[list[list[int]], dict[str, Any]]:
    loader = loader_of_numbers(**options)
    read = []
    for batch in loader:
        read.append(batch.tolist())
        if len(read) == num_batches:
            break
    return read, loader.state_dict()


def go_on_reading(state: dict[str, Any], num_epochs: int, **options: Any) -> list[list[list[int]]]:
    loader = loader_of_numbers(**options)
    loader.load_state_dict(state)
    return [[batch.tolist() for batch in loader] for _ in loader.epochs(num_epochs)]


class StreamOfRank(IterableDataset[Any]):
    """A stream that is another one on each rank."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __iter__(self) -> Any:
        rank, xs = group.rank(), torch.arange(20.0).sin()
        own = random.Random(rank)
        numbers = list(range(rank, 20, 2) if self.how == "split by rank" else range(20))
        if self.how == "empty on one rank" and rank:
            numbers.clear()
        if self.how == "shuffled by a generator of its own":
            own.shuffle(numbers)
        if self.how == "skips a sample" and rank:
            del numbers[7]
        if self.how == "ends earlier" and rank:
            del numbers[14:]
        noise = own.random() if self.how == "changed at random" else 0.0
        return ({"name": f"sample {number}", "x": xs[number] + noise, "kind": "number"} for number in numbers)


def train_over_streams_of_ranks(how: str, num_workers: int = 0, is_counted: bool = False) -> int:
    """How many samples all ranks trained."""
    model = wrap(nn.Linear(1, 1), device="cpu")
    step = Step(model, optimizer_of("sgd", model))
    num_samples = 0.0
    loader = Loader(StreamOfRank(how), batch_size=3, num_workers=num_workers)
    for batch in step.over(loader, (lambda batch: len(batch["x"])) if is_counted else None):
        with step:
            loss = model(batch["x"][:, None]).mean()
        num_samples += step.num_samples
        step.backward(loss)
    return int(sum(sum(numbers) for numbers in group.gathered_numbers([num_samples])))


class WorkerSeeds(Draws):
    """The number that a dataset which draws from a generator of its own seeds it with."""

    def __getitem__(self, index: int) -> Any:
        worker = get_worker_info()
        return torch.tensor(worker.seed if worker else 0)


def seeds_of_workers() -> list[list[int]]:
    """For each epoch those of both workers."""
    loader = Loader(WorkerSeeds(), batch_size=1, num_workers=2)
    return [sorted({int(batch) for batch in loader}) for _ in range(2)]


def draws_of_workers() -> list[list[float]]:
    loader = Loader(Draws(), batch_size=1, num_workers=2)
    return [batch[0].tolist() for _ in range(2) for batch in loader]


def loader_on_ranks_that_disagree(name: str, value: Any) -> None:
    options: dict[str, Any] = {"length": 20, "batch_size": 2, "seed": 0, "shuffle": True}
    if group.rank() == 1:
        options[name] = value
    loader = Loader(Numbers(options.pop("length")), **options)
    loader.check_agreement()


def loader_of_a_random_split(seeds: list[int]) -> None:
    torch.manual_seed(seeds[group.rank()])
    part, _ = random_split(Numbers(20), [15, 5])
    Loader(part, batch_size=2).check_agreement()


def loader_made_before_the_group() -> None:
    with mock.patch.object(group, "world_size", lambda: 1):
        loader = Loader(Numbers(8), batch_size=2)
    list(loader)


def examples_against_one_process(examples: list[dict[str, Any]]) -> list[list[float]]:
    return [train_with_rankwise(**example) for example in examples]


def train_over_plain_dataloader(lengths: list[int], num_steps: int = 12, accumulate: int = 2) -> list[float]:
    """Each rank has a DataLoader of its own, over so many samples; the ranks' parts lie behind each other in the whole."""
    rank = group.rank()
    begin = sum(lengths[:rank])
    data = regression_data(sum(lengths))
    own = TensorDataset(*(tensor[begin : begin + lengths[rank]] for tensor in data.tensors))
    model = wrap(small_model(), device="cpu")
    step = Step(model, optimizer_of("sgd", model), accumulate=accumulate)
    while step.count < num_steps:
        for x, y in step.over(DataLoader(own, batch_size=3)):
            with step:
                loss = mse_loss(model(x), y)
            step.backward(loss)
    return flat(model)


def plain_dataloaders_by_hand(lengths: list[int], num_steps: int = 12, accumulate: int = 2) -> list[float]:
    data = regression_data(sum(lengths))
    model = small_model()
    optimizer = optimizer_of("sgd", model)
    begins = [sum(lengths[:rank]) for rank in range(len(lengths))]
    window = 3 * accumulate
    while True:
        for first in range(0, max(lengths), window):
            parts = [range(begin + first, begin + min(first + window, length)) for begin, length in zip(begins, lengths)]
            indices = [index for part in parts for index in part]
            x, y = (tensor[indices] for tensor in data.tensors)
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
            num_steps -= 1
            if not num_steps:
                return flat(model)


def train_counting_tokens(by_hand: bool = False, scale: float = 1) -> list[float]:
    """Samples of different weight: the mean over all tokens of a window, not over the means of its batches."""
    data = regression_data(24)
    tokens = (torch.arange(24) % 5 + 1) * scale
    model = small_model() if by_hand else wrap(small_model(), device="cpu")
    optimizer = optimizer_of("sgd", model)
    if by_hand:
        for window in torch.arange(24).split(8):
            x, y = (tensor[window] for tensor in data.tensors)
            optimizer.zero_grad()
            losses = (model(x) - y).square().mean(dim=1)
            ((losses * tokens[window]).sum() / tokens[window].sum()).backward()
            optimizer.step()
        return flat(model)
    step = Step(model, optimizer, accumulate=2)
    loader = Loader(TensorDataset(*data.tensors, tokens), global_batch_size=4)
    for x, y, n in step.over(loader, count=lambda batch: batch[2].sum().item()):
        with step:
            loss = ((model(x) - y).square().mean(dim=1) * n).sum() / n.sum()
        step.backward(loss)
    return flat(model)


def train_with_a_batch_without_tokens() -> tuple[int, int, list[float]]:
    """Rank 1 has nothing to learn from in the second step; the mean over nothing is not a number."""
    data = regression_data(16)
    tokens = torch.ones(16)
    tokens[6:8] = 0
    model = wrap(small_model(), device="cpu")
    step = Step(model, optimizer_of("sgd", model))
    loader = Loader(TensorDataset(*data.tensors, tokens), global_batch_size=4)
    for x, y, n in step.over(loader, count=lambda batch: int(batch[2].sum())):
        with step:
            loss = ((model(x) - y).square().mean(dim=1) * n).sum() / n.sum()
        step.backward(loss)
    return step.count, step.num_skipped, flat(model)


def tokens_by_hand() -> list[float]:
    data = regression_data(16)
    model = small_model()
    optimizer = optimizer_of("sgd", model)
    for window in [range(4), range(4, 6), range(8, 12), range(12, 16)]:
        x, y = (tensor[list(window)] for tensor in data.tensors)
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    return flat(model)


def collectives_in_windows(accumulate: int) -> list[int]:
    """How many gradient exchanges each batch caused."""
    model = wrap(small_model(), device="cpu")
    step = Step(model, optimizer_of("sgd", model), accumulate=accumulate)
    exchanged = [0]

    def count(_, bucket):  # DDP reads annotations as objects, not as text
        exchanged[-1] += 1
        return default_hooks.allreduce_hook(dist.group.WORLD, bucket)

    model.register_comm_hook(None, count)
    for x, y in step.over(Loader(regression_data(14), global_batch_size=2)):
        with step:
            loss = mse_loss(model(x), y)
        step.backward(loss)
        exchanged.append(0)
    return exchanged[:-1]


def train_with_a_poisoned_batch(precision: str) -> dict[str, Any]:
    """Rank 1 meets a sample that makes its gradients infinite in the second of four windows."""
    model = wrap(small_model(), device="cpu")
    optimizer = optimizer_of("adamw", model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    step = Step(model, optimizer, precision=precision, clip_norm=1.0, scheduler=scheduler)
    seen = []
    for number, (x, y) in enumerate(step.over(Loader(regression_data(16), global_batch_size=4))):
        before = flat(model)
        with step:
            loss = mse_loss(model(x).float(), y)
        if number == 1 and group.rank() == 1:
            loss = loss * float("inf")
        step.backward(loss)
        seen.append(flat(model) != before)
    return {"stepped": seen, "skipped": step.num_skipped, "count": step.count, "lr": scheduler.get_last_lr()[0], "weights": flat(model)}


def train_with_infinite_losses() -> None:
    model = wrap(small_model(), device="cpu")
    step = Step(model, optimizer_of("sgd", model))
    for x, y in step.over(Loader(regression_data(60), global_batch_size=2)):
        with step:
            loss = mse_loss(model(x), y) * float("nan")
        step.backward(loss)


def clipped_norms(precision: str) -> list[float]:
    """Norms of the gradients the optimizer is given, where they would be far above 0.01."""
    model = wrap(small_model(), device="cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    norms = []
    optimizer.register_step_pre_hook(lambda *_: norms.append(nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()))
    step = Step(model, optimizer, precision=precision, clip_norm=0.01)
    for x, y in step.over(Loader(regression_data(32), global_batch_size=4)):
        with step:
            loss = mse_loss(model(x).float(), y)
        step.backward(loss)
    return norms


def misuse_step(how: str) -> None:
    model = wrap(small_model(), device="cpu")
    optimizer = optimizer_of("sgd", model)
    if how == "wrapped before the group":
        with mock.patch.object(group, "world_size", lambda: 1):
            list(Step(bare := small_model(), optimizer_of("sgd", bare)).over(()))
            early = Step(bare, optimizer_of("sgd", bare))
        list(early.over(Loader(regression_data(16), global_batch_size=4)))
    if how == "bare model":
        model = small_model()
        optimizer = optimizer_of("sgd", model)
    if how == "other parameters":
        optimizer = optimizer_of("sgd", small_model())
    if how == "no optimizer":
        optimizer = None
    step = Step(model, optimizer, accumulate=2, clip_norm=0 if how == "clipped to nothing" else None)
    if how == "with outside":
        with step:
            return
    loader = Loader(regression_data(16), global_batch_size=4)
    for number, (x, y) in enumerate(step.over(loader)):
        if how == "batch left out" and number == 1:
            continue
        with step:
            loss = mse_loss(model(x), y, reduction="none" if how == "no mean" else "mean")
        step.backward({"no gradient": loss.detach(), "no tensor": 0.5}.get(how, loss))
        if how == "backward twice":
            step.backward(loss)
        if how == "save inside":
            step.state_dict()


def loops_left_by_one_rank() -> None:
    """As reinforcement learning does: each rank makes steps with samples of its own, and leaves them by a number of its own."""
    model = wrap(small_model(), device="cpu")
    step = Step(model, optimizer_of("sgd", model))
    for _ in range(3):
        samples = regression_data(16, seed=group.rank()).tensors
        for x, y in step.over(zip(*(tensor.split(4) for tensor in samples))):
            with step:
                loss = mse_loss(model(x), y)
            step.backward(loss)
            if (step.count, group.rank()) == (6, 1):
                break


def step_of_ranks_that_share_samples(how: str) -> None:
    """Two pairs of ranks; each pair has a model, or half of it on either."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "layer"))
    model = small_model()
    if how == "ddp":
        model = DistributedDataParallel(model, process_group=mesh.get_group("data"))
    elif how == "fsdp1":
        model = FullyShardedDataParallel(model, process_group=mesh.get_group("data"), device_id=torch.device("cpu"))
    elif how == "fsdp2":
        fully_shard(model, mesh=mesh["data"])
    else:
        parallelize_module(model, mesh["layer"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(model, mesh=mesh["data"])
    Step(model, torch.optim.SGD(model.parameters(), lr=0.1))
