"""What the ranks of the farm do in the tests of checkpoints."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import pickle
import random
import resource
import signal
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.nn.functional import mse_loss

from rankwise.errors import UsageError
from rankwise.train import Checkpoints, Loader, Step, committed, group, sharded, sharded_optimizer, wrap
from rankwise.train.captured import seed_rng
from tests.train.jobs import flat, regression_data, small_model


def trained(
    folder: Path | None = None,
    until: int = 20,
    every: int = 4,
    stop_at: int | None = None,
    zero: bool = False,
    dropout: float = 0.0,
    precision: str = "fp32",
    killed: tuple[int, int, bool] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train until a step of the optimizer, saving on the way; `stop_at` leaves without a last checkpoint, like a crash.

    `killed` is a rank, a number, and whether it dies at that call that touches the disk or at that batch.
    """
    torch.manual_seed(0)
    model = wrap(nn.Sequential(nn.Linear(6, 16), Counting(), nn.Dropout(dropout), nn.Linear(16, 3)), device="cpu")
    seed_rng(group.rank())
    make = sharded_optimizer if zero else lambda kind, parameters, **kw: kind(parameters, **kw)
    optimizer = make(torch.optim.AdamW, model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    step = Step(model, optimizer, accumulate=2, scheduler=scheduler, precision=precision)
    loader = Loader(regression_data(27), global_batch_size=4, shuffle=True, seed=5)
    things = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "step": step, "loader": loader}
    checkpoints = Checkpoints(folder, **things, **options) if folder else None
    resumed = checkpoints.resume() if checkpoints else 0
    rank, number, in_save = killed or (None, 0, False)
    if rank == group.rank() and in_save:
        KilledAt(number)
    while step.count < until and step.count != stop_at:
        for x, y in step.over(loader):
            with step:
                loss = mse_loss(model(x).float(), y)
            number -= 1
            if rank == group.rank() and not in_save and not number:
                os.kill(os.getpid(), signal.SIGKILL)
            if step.backward(loss) and checkpoints and step.count % every == 0:
                checkpoints.save(step.count)
            if step.count in (until, stop_at):
                break
    if checkpoints:
        checkpoints.wait()
    return {
        "weights": flat(model),
        "resumed": resumed,
        "lr": scheduler.get_last_lr(),
        "draws": [torch.rand(()).item(), random.random(), float(np.random.rand())],
        "findings": [finding.code for finding in checkpoints.findings] if checkpoints else [],
        "scale": step.scaler.get_scale() if step.scaler else None,
    }


class Counting(nn.Module):
    """A module with a buffer that changes in training, as BatchNorm's do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("num_forwards", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_forwards += 1
        return torch.tanh(x + 0.001 * self.num_forwards)


class KilledAt:
    """Makes the process kill itself at the n-th call that touches the disk."""

    NAMES = ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "symlink", "open")

    def __init__(self, number: int) -> None:
        self.left = number
        for name in self.NAMES:
            setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
            return original(*args, **kwargs)

        return call


def commit_and_die(folder: Path, step: int, number: int) -> int:
    """Commit a small checkpoint, dying at the n-th call; returns how many calls were left."""
    killed = KilledAt(number)
    partial = committed.begin(folder, step)
    line = committed.write_file(partial / "state.pt", lambda file: file.write(str(step).encode() * 1000))
    committed.commit(partial, step, {"state.pt": line}, {})
    committed.prune(folder, 2)
    return killed.left


def two_writers(folder: Path) -> tuple[str, list[int]]:
    """A writer that was thought dead goes on when another has begun the same checkpoint; what that came to, and what is there."""
    first = committed.begin(folder, 4)
    line = committed.write_file(first / "state.pt", lambda file: file.write(b"old" * 1000))
    second = committed.begin(folder, 4)
    try:
        committed.commit(first, 4, {"state.pt": line}, {})
        said = "committed"
    except OSError as error:
        said = type(error).__name__
    line = committed.write_file(second / "state.pt", lambda file: file.write(b"new" * 1000))
    committed.commit(second, 4, {"state.pt": line}, {})
    return said, [saved.step for saved in committed.all_saved(folder) if committed.find_damage(saved) is None]


def newest_committed(folder: Path) -> tuple[int, list[Any]]:
    saved = committed.all_saved(folder)
    return (saved[0].step if saved else 0), [committed.find_damage(one) for one in saved]


def disk_that_is_full(folder: Path, limit: int, **options: Any) -> dict[str, Any]:
    """Files may not grow beyond the limit for a while, as on a full disk; then they may again."""
    model = wrap(nn.Linear(64, 64), device="cpu")
    checkpoints = Checkpoints(folder, model=model, **options)
    said = []
    for step in (1, 2, 3):
        if step == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        said.append(checkpoints.save(step))
        checkpoints.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return {
        "saved": [saved.step for saved in committed.all_saved(folder)],
        "returned": said,
        "findings": [(finding.code, finding.summary) for finding in checkpoints.findings],
        "left": sorted(path.name for path in folder.iterdir() if path.name.startswith(".step")),
    }


def sharded_on_a_full_disk(folder: Path) -> tuple[str, str]:
    """torch gathers what failed on any rank, and raises it on all of them."""
    failures: Any = {0: (RuntimeError("unexpected pos"), None), 1: (OSError(errno.ENOSPC, "No space left on device"), None)}
    checkpoints = Checkpoints(folder, model=wrap(small_model(), device="cpu"), sharded=True)
    with mock.patch.object(sharded.dcp_saver, "save", side_effect=CheckpointException("save", failures)):
        checkpoints.save(1)
    return checkpoints.findings[0].summary, checkpoints.findings[0].next[0]


def slow_disk(folder: Path, asynchronous: bool) -> bool:
    """Whether the checkpoint was there when `save` returned; where it is written beside the training, the disk waits for that."""
    model = wrap(nn.Linear(8, 8), device="cpu")
    checkpoints = Checkpoints(folder, model=model, asynchronous=asynchronous)
    original, has_returned = os.fsync, threading.Event()

    def slow(fd: int) -> None:
        assert not asynchronous or has_returned.wait(60), "save waits for the disk"
        original(fd)

    os.fsync = slow
    checkpoints.save(1)
    was_there = bool(committed.all_saved(folder))
    has_returned.set()
    before = flat(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)  # the training goes on; what is written must be from before
    checkpoints.wait()
    state = torch.load(checkpoints.latest(), weights_only=True)["model"]
    assert torch.cat([tensor.flatten() for tensor in state.values()]).tolist() == before
    assert threading.active_count() < 8
    return was_there


def loads_plainly(folder: Path) -> list[str]:
    state = torch.load(folder / "last.pt", weights_only=True)
    assert isinstance(state["model"], dict)
    return list(state["model"])


class Bomb:
    """Unpickled, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def tamper(folder: Path, where: str, exploded: Path) -> None:
    """Put a bomb into a sharded checkpoint, as somebody would who also corrects its manifest."""
    bomb, shards = Bomb(exploded), folder / "shards"
    path = folder / "state.pt" if where == "state" else shards / ".metadata"
    metadata = pickle.loads((shards / ".metadata").read_bytes())
    if where == "metadata":
        path.write_bytes(pickle.dumps(bomb))
    elif where == "inside":
        metadata.planner_data = bomb
        path.write_bytes(pickle.dumps(metadata))
    elif where == "state":
        torch.save({"model": {}, "rng": bomb}, path)
    elif where == "value":
        index = next(index for index in metadata.storage_data if index.fqn.endswith(".lr"))
        torch.save(bomb, buffer := io.BytesIO())
        info = metadata.storage_data[index]
        data = (shards / info.relative_path).read_bytes()
        (shards / info.relative_path).write_bytes(data + buffer.getvalue())
        info.offset, info.length = len(data), len(buffer.getvalue())
        path.write_bytes(pickle.dumps(metadata))
    elif where == "elsewhere":
        for info in metadata.storage_data.values():
            info.relative_path = "../../other"
        path.write_bytes(pickle.dumps(metadata))
    elif where == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in manifest["files"]:
        data = (folder / name).read_bytes()
        manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def misused_checkpoints(folder: Path, how: str, sharded: bool = False) -> None:
    model = wrap(nn.Linear(4, 4), device="cpu")
    if how == "no resume":
        Checkpoints(folder, model=model).save(2)
    elif how == "other model":
        Checkpoints(folder, model=wrap(nn.Linear(4, 5), device="cpu")).resume()
    elif how == "other names":
        Checkpoints(folder, model=wrap(nn.Sequential(nn.Linear(4, 4)), device="cpu")).resume()
    elif how == "more things":
        Checkpoints(folder, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)).resume()
    elif how == "not plain":
        Checkpoints(folder / "new", model=model, strange=Strange()).save(1)
    elif how == "optimizer not plain":
        optimizer = torch.optim.SGD([{"params": model.parameters(), "note": Strange()}], lr=0.1)
        Checkpoints(folder / "new", model=model, optimizer=optimizer, sharded=sharded).save(1)
    elif how == "zero sharded":
        optimizer = sharded_optimizer(torch.optim.SGD, model.parameters(), lr=0.1)
        Checkpoints(folder / "new", model=model, optimizer=optimizer, sharded=True)
    elif how == "no step":
        Checkpoints(folder / "new", model=model).save(-1)
    elif how == "no model":
        Checkpoints(folder, net=model)
    elif how == "no state":
        Checkpoints(folder, model=model, epoch=3)
    else:
        Checkpoints(folder, model=model, sharded=sharded).save(1)


def saved_twice(folder: Path, **options: Any) -> tuple[bool, list[str]]:
    """A second checkpoint of the same step must not take the place of the first, which is good."""
    model = wrap(nn.Linear(2, 2), device="cpu")
    checkpoints = Checkpoints(folder, model=model, **options)
    checkpoints.save(1)
    began = [path.stat().st_mtime_ns for path in sorted(folder.glob("step-*/*"))]
    checkpoints.save(1)
    after = [path.stat().st_mtime_ns for path in sorted(folder.glob("step-*/*"))]
    return began == after, sorted(path.name for path in folder.iterdir())


class Strange:
    def state_dict(self) -> dict[str, Any]:
        return {"self": self}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def tied_and_cut(folder: Path) -> tuple[int, bool]:
    """The size of a checkpoint of two layers with one weight, and of a buffer that is a small part of a large memory."""
    net = nn.Sequential(nn.Linear(256, 256, bias=False), nn.Linear(256, 256, bias=False))
    net[1].weight = net[0].weight
    net.register_buffer("part", torch.zeros(1_000_000)[:4])
    checkpoints = Checkpoints(folder, model=net, asynchronous=True)
    checkpoints.save(1)
    checkpoints.wait()
    state = torch.load(checkpoints.latest(), weights_only=True)["model"]
    return os.path.getsize(checkpoints.latest()), state["0.weight"].data_ptr() == state["1.weight"].data_ptr()


def saved_in_parts(folder: Path, kind: str) -> tuple[str, float]:
    """What is said where rank 0 alone would write, and how far a model is from the one whose parts all ranks wrote."""
    models = [in_parts(nn.Linear(8, 6), kind) for _ in range(2)]
    try:
        Checkpoints(folder / "whole", model=models[0])
        said = ""
    except UsageError as error:
        said = str(error)
    Checkpoints(folder / "parts", model=models[0], sharded=True).save(1)
    Checkpoints(folder / "parts", model=models[1], sharded=True).resume()
    x = torch.ones(3, 8)
    return said, (models[0](x) - models[1](x)).abs().max().item()


def in_parts(model: nn.Module, kind: str) -> nn.Module:
    if kind == "fsdp1":
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    if kind == "fsdp2":
        return fully_shard(model)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "part"))
    if kind == "fsdp2 in copies":
        return fully_shard(model, mesh=mesh)
    return FullyShardedDataParallel(model, device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_id=torch.device("cpu"))


def train_in_parts(kind: str, num_steps: int, clip_norm: float) -> list[float]:
    """What `train_by_hand` does, with the model in parts."""
    model = in_parts(small_model(), kind)
    step = Step(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), clip_norm=clip_norm)
    loader = Loader(regression_data(37), global_batch_size=8, shuffle=True, seed=3)
    while step.count < num_steps:
        for x, y in step.over(loader):
            with step:
                loss = mse_loss(model(x), y)
            if step.backward(loss) and step.count == num_steps:
                break
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    return torch.cat([tensor.flatten() for tensor in whole.values()]).tolist() if group.rank() == 0 else []


def scale_after_an_overflow_in_one_part() -> tuple[float, int]:
    """The loss scale, and how many steps were skipped, where one rank's part of the gradients was not finite."""
    model = in_parts(small_model(), "fsdp1")
    step = Step(model, torch.optim.SGD(model.parameters(), lr=0.01), precision="fp16")
    unscale = step.scaler.unscale_

    def poisoned(optimizer: Any) -> None:
        if step.count == 1 and group.rank() == 1:
            for parameter in model.parameters():
                parameter.grad.fill_(torch.inf)
        unscale(optimizer)

    step.scaler.unscale_ = poisoned
    for x, y in step.over(Loader(regression_data(16), global_batch_size=4)):
        with step:
            loss = mse_loss(model(x).float(), y)
        step.backward(loss)
    return step.scaler.get_scale(), step.num_skipped


def others_in_parts(folder: Path, kind: str) -> list[str]:
    """What is said of an optimizer, or of a second model, that only rank 0 would write."""
    model, average = in_parts(nn.Linear(8, 6), kind), in_parts(nn.Linear(8, 6), kind)
    said = []
    for thing in ({"opt": torch.optim.AdamW(model.parameters())}, {"average": average}):
        try:
            Checkpoints(folder, model=model, sharded=True, **thing)
        except UsageError as error:
            said.append(error.finding.summary)
    return said


class HalfUsed(nn.Module):
    """Of two layers one is used."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)  # type: ignore[no-any-return]


def half_used(folder: Path, kind: str, save_at: tuple[int, ...], until: int = 4) -> tuple[int, list[float]]:
    """Where it began, and the weights of the used half after so many steps; what is saved before the first step has no state yet."""
    torch.manual_seed(0)
    model = HalfUsed()
    model = wrap(model, device="cpu", sample=torch.zeros(2, 6)) if kind == "ddp" else in_parts(model, kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = Step(model, optimizer)
    loader = Loader(regression_data(16), global_batch_size=4)
    checkpoints = Checkpoints(folder, model=model, optimizer=optimizer, step=step, loader=loader, sharded=True)
    began = checkpoints.resume()
    if step.count in save_at:
        checkpoints.save(step.count)
    for x, y in step.over(loader):
        if step.count == until:
            break
        with step:
            loss = mse_loss(model(x), y)
        step.backward(loss)
        if step.count in save_at:
            checkpoints.save(step.count)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=False))
    return began, torch.cat([tensor.flatten() for tensor in whole.values()]).tolist() if whole else []


def numbers_of_numpy(folder: Path, sharded: bool) -> tuple[int, list[float], str]:
    """A schedule that gives Python's numbers first and numpy's later: what is resumed, the rates, and their type."""

    def made() -> tuple[Checkpoints, Any]:
        model = wrap(nn.Linear(2, 2), device="cpu")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 1 else np.cos(step))
        return Checkpoints(folder, model=model, optimizer=optimizer, scheduler=scheduler, sharded=sharded), scheduler

    first, scheduler = made()
    for step in range(3):
        first.save(step)
        scheduler.optimizer.step()
        scheduler.step()
    second, scheduler = made()
    resumed = second.resume()
    rates = [*scheduler.get_last_lr(), scheduler.optimizer.param_groups[0]["lr"]]
    return resumed, rates, type(rates[0]).__name__


def uncollectable(folder: Path, sharded: bool, rank: int) -> None:
    model = wrap(small_model(), device="cpu")
    if group.rank() == rank:
        model.module[0].register_state_dict_pre_hook(_raise)
    Checkpoints(folder, model=model, sharded=sharded).save(1)


def _raise(*_: Any) -> None:
    raise ValueError("no state today")


def saved_inside_a_window(folder: Path) -> None:
    model = wrap(small_model(), device="cpu")
    step = Step(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulate=2)
    checkpoints = Checkpoints(folder, model=model, step=step)
    for x, y in step.over(Loader(regression_data(8), batch_size=2)):
        step.backward(mse_loss(model(x), y))
        checkpoints.save(1)


def whole_of_parts(folder: Path) -> tuple[list[float], list[float]]:
    """Layers of one shape, in FSDP2 on one rank: what the parameters of a checkpoint add up to, before and after."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)))
    fully_shard(model)

    def sums() -> list[float]:
        return [parameter.full_tensor().sum().item() for parameter in model.parameters()]  # type: ignore[attr-defined]

    before = sums()
    Checkpoints(folder, model=model).save(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    Checkpoints(folder, model=model).resume()
    return before, sums()


class OwnPart:
    """A rank's own part of ten numbers, which knows where it stands, as torchdata's StatefulDataLoader does."""

    def __init__(self, part: int) -> None:
        self.numbers, self.place = list(range(10 * part, 10 * part + 10)), 0

    def __iter__(self) -> Any:
        while self.place < len(self.numbers):
            self.place += 1
            yield self.numbers[self.place - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


def reads_on_its_own(folder: Path, taken: list[int]) -> int:
    """What this rank reads next, after a checkpoint in which each rank had taken so many, if any are given."""
    part = OwnPart(group.rank())
    checkpoints = Checkpoints(folder, model=nn.Linear(1, 1), data=part)
    if not taken:
        checkpoints.resume()
        return int(next(iter(part)))
    part.place = taken[group.rank()]
    checkpoints.save(1)
    return 0


class Cursor:
    """A rank's place in a file of tokens, read by a method of its own."""

    def __init__(self, is_tensor: bool) -> None:
        self.place, self.is_tensor = 0, is_tensor

    def state_dict(self) -> dict[str, Any]:
        return {"place": torch.tensor(self.place) if self.is_tensor else self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = int(state["place"])


def stands_somewhere(folder: Path, place: int | None = None, is_tensor: bool = False) -> int:
    """Where this rank stands after resuming, or after a checkpoint of `place` and its own number."""
    cursor = Cursor(is_tensor)
    checkpoints = Checkpoints(folder, model=nn.Linear(1, 1), data=cursor)
    if place is None:
        checkpoints.resume()
    else:
        cursor.place = place + group.rank()
        checkpoints.save(1)
    return cursor.place


def sums_of_a_metric(folder: Path, is_saved: bool) -> float:
    """The sum of a metric as torchmetrics makes them: a module whose buffers are what this rank has seen."""
    metric = nn.Module()
    metric.register_buffer("total", torch.tensor(0.0))
    checkpoints = Checkpoints(folder, model=wrap(nn.Linear(2, 2), device="cpu"), metric=metric)
    if is_saved:
        metric.get_buffer("total").add_(group.rank() + 1)
        checkpoints.save(1)
    else:
        checkpoints.resume()
    return metric.get_buffer("total").item()
