"""One training loop per library, as its documentation writes it, behind one face: what the step and misuse measurements drive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

Loss = Callable[[nn.Module, Any], torch.Tensor | None]  # None: the user leaves this batch out


class ByHand:
    name = "DDP by hand"

    def __init__(self, net: nn.Module, optimizer: torch.optim.Optimizer, data: Dataset[Any], batch_size: int, accumulate: int) -> None:
        self.model, self.optimizer, self.accumulate = DistributedDataParallel(net), optimizer, accumulate
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, batch_size=batch_size, sampler=self.sampler)

    def epoch(self, loss_of: Loss, model: nn.Module | None = None) -> None:
        """`model` is called instead of the wrapped one, where a misuse wants that."""
        for number, batch in enumerate(self.loader, 1):
            if number % self.accumulate == 0 or number == len(self.loader):
                loss = loss_of(model or self.model, batch)
                if loss is None:
                    continue
                (loss / self.accumulate).backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
            else:
                with self.model.no_sync():
                    loss = loss_of(model or self.model, batch)
                    if loss is None:
                        continue
                    (loss / self.accumulate).backward()

    def predictions(self, data: Dataset[Any]) -> list[int]:
        loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
        rows = torch.cat([batch[-1] for batch in loader])
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows)
        return torch.cat(parts).tolist()

    def save(self, path: str) -> None:
        if dist.get_rank() == 0:
            torch.save({"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict()}, path)
        dist.barrier()

    def resume(self, path: str) -> None:
        saved = torch.load(path, weights_only=True)
        self.model.module.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])


class WithRankwise:
    name = "rankwise"

    def __init__(self, net: nn.Module, optimizer: torch.optim.Optimizer, data: Dataset[Any], batch_size: int, accumulate: int) -> None:
        from rankwise import train

        self.train, self.optimizer = train, optimizer
        self.model = train.wrap(net, device="cpu")
        self.loader = train.Loader(data, batch_size=batch_size, shuffle=True)
        self.accumulate = accumulate
        self.step: Any = None

    def epoch(self, loss_of: Loss, model: nn.Module | None = None) -> None:
        if self.step is None:
            self.step = self.train.Step(model or self.model, self.optimizer, accumulate=self.accumulate, clip_norm=1.0)
        step = self.step
        for batch in step.over(self.loader):
            with step:
                loss = loss_of(model or self.model, batch)
            if loss is None:
                continue
            step.backward(loss)

    def predictions(self, data: Dataset[Any]) -> list[int]:
        loader = self.train.Loader(data, batch_size=4)
        predictions = self.train.Predictions(loader)
        for batch in loader:
            predictions.add(batch[-1])
        return predictions.gather().tolist()

    def _checkpoints(self, path: str) -> Any:
        return self.train.Checkpoints(path, model=self.model, optimizer=self.optimizer, loader=self.loader)

    def save(self, path: str) -> None:
        checkpoints = self._checkpoints(path)
        checkpoints._has_resumed = True  # a new object for each save, where a training has one
        checkpoints.save(self.saves)
        self.saves += 1

    saves = 1

    def resume(self, path: str) -> None:
        assert self._checkpoints(path).resume(), "nothing to resume from"


class WithAccelerate:
    name = "Accelerate"

    def __init__(self, net: nn.Module, optimizer: torch.optim.Optimizer, data: Dataset[Any], batch_size: int, accumulate: int) -> None:
        from accelerate import Accelerator

        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
        loader = DataLoader(data, batch_size=batch_size, shuffle=True)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(net, optimizer, loader)

    def epoch(self, loss_of: Loss, model: nn.Module | None = None) -> None:
        for batch in self.loader:
            with self.accelerator.accumulate(self.model):
                loss = loss_of(model or self.model, batch)
                if loss is None:
                    continue
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()

    def predictions(self, data: Dataset[Any]) -> list[int]:
        loader = self.accelerator.prepare(DataLoader(data, batch_size=4))
        return torch.cat([self.accelerator.gather_for_metrics(batch[-1]) for batch in loader]).tolist()

    def save(self, path: str) -> None:
        self.accelerator.save_state(path)

    def resume(self, path: str) -> None:
        self.accelerator.load_state(path)


class WithFabric:
    name = "Fabric"

    def __init__(self, net: nn.Module, optimizer: torch.optim.Optimizer, data: Dataset[Any], batch_size: int, accumulate: int) -> None:
        from lightning_fabric import Fabric

        self.fabric = Fabric(accelerator="cpu", strategy="ddp", devices=dist.get_world_size())
        self.fabric.launch()
        self.accumulate = accumulate
        self.model, self.optimizer = self.fabric.setup(net, optimizer)
        self.loader = self.fabric.setup_dataloaders(DataLoader(data, batch_size=batch_size, shuffle=True))

    def epoch(self, loss_of: Loss, model: nn.Module | None = None) -> None:
        for number, batch in enumerate(self.loader, 1):
            is_last = number % self.accumulate == 0 or number == len(self.loader)
            with self.fabric.no_backward_sync(self.model, enabled=not is_last):
                loss = loss_of(model or self.model, batch)
                if loss is None:
                    continue
                self.fabric.backward(loss / self.accumulate)
            if is_last:
                self.fabric.clip_gradients(self.model, self.optimizer, max_norm=1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()

    def predictions(self, data: Dataset[Any]) -> list[int]:
        loader = self.fabric.setup_dataloaders(DataLoader(data, batch_size=4))
        return torch.cat([self.fabric.all_gather(batch[-1]).flatten() for batch in loader]).tolist()

    def save(self, path: str) -> None:
        self.fabric.save(path, {"model": self.model, "optimizer": self.optimizer})

    def resume(self, path: str) -> None:
        self.fabric.load(path, {"model": self.model, "optimizer": self.optimizer})


LOOPS = {"by_hand": ByHand, "with_rankwise": WithRankwise, "with_accelerate": WithAccelerate, "with_fabric": WithFabric}


def in_turns(names: list[str], round_number: int) -> Iterator[str]:
    """All of them, beginning with another one each time."""
    first = round_number % len(names)
    yield from names[first:] + names[:first]
