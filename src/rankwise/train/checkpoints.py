"""Checkpoints: save everything that a training needs to go on, and go on, on the same number of ranks or another."""

from __future__ import annotations

import contextlib
import logging
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves, tree_map_only

from rankwise.errors import TrainError, UsageError
from rankwise.findings import Finding
from rankwise.meet.threads import ThreadTask
from rankwise.train import committed, group
from rankwise.train.captured import (
    check_plain,
    find_misfit,
    find_order_misfit,
    first_not_plain,
    misfit,
    on_cpu,
    plain_numbers,
    restore_rng,
    rng_state,
    same_weights,
    seed_rng,
)
from rankwise.train.committed import MANIFEST, STATE, Saved, not_written, unsafe
from rankwise.train.distcp import asked_for
from rankwise.train.errors import train_error
from rankwise.train.group import rank_zero
from rankwise.train.loader import Loader
from rankwise.train.sharded import load_sharded, save_sharded
from rankwise.train.step import Step
from rankwise.train.wrapping import unwrap

log = logging.getLogger("rankwise.train")

_RESERVED = {"rng", "rankwise"}
_BY_RANK = "rankwise_by_rank"
_SMALL = 1 << 16  # bytes of tensors; the state of a random generator has 5,000
_SHARDED = ("model", "optimizer")  # the things that all ranks write with sharded=True


class Checkpoints:
    """Saves and restores the things it is given: `model`, and whatever else has `state_dict` and `load_state_dict`.

    ```python
    checkpoints = train.Checkpoints("runs/a", model=model, optimizer=optimizer, loader=loader, step=step)
    checkpoints.resume()
    ...
    if step.backward(loss) and step.count % 100 == 0:
        checkpoints.save(step.count)
    ```

    All ranks call its methods; rank 0 writes. With `asynchronous=True` it writes a copy beside the training; `wait` (or leaving
    `with`) waits for that. With `sharded=True` all ranks write their part with `torch.distributed.checkpoint`.
    """

    def __init__(self, folder: str | Path, *, keep: int = 3, asynchronous: bool = False, sharded: bool = False, **things: Any) -> None:
        if re.match(r"\w+:/", str(folder)):  # Path would make a folder of it, in the working directory
            summary = f"{folder} is an address, and checkpoints are written to folders"
            raise UsageError(summary, next=("a folder that all nodes see, and a copy of checkpoints.latest() behind each save",))
        if "model" not in things:
            raise UsageError("a checkpoint without model=", next=("Checkpoints(folder, model=model, optimizer=optimizer, …)",))
        if wrong := [name for name, thing in things.items() if name in _RESERVED or not hasattr(thing, "load_state_dict")]:
            raise UsageError(f"{', '.join(wrong)} cannot be saved", why="it has no state_dict and load_state_dict, or its name is taken")
        if keep < 1 or (asynchronous and sharded):
            raise UsageError("keep=0 keeps nothing" if keep < 1 else "sharded checkpoints are not written asynchronously")
        if sharded and any(isinstance(thing, ZeroRedundancyOptimizer) for thing in things.values()):
            why = "ZeroRedundancyOptimizer can be saved only from one rank, which it sends everything to"
            raise UsageError("sharded checkpoints cannot hold a sharded_optimizer", why=why, next=("leave out sharded=True",))
        all_write = _SHARDED if sharded else ()
        if group.world_size() > 1 and (parts := [name for name in _in_parts(things) if name not in all_write]):
            why = "rank 0 would save its own part as if it were the whole: FSDP or tensor parallelism keeps the others on other ranks"
            own = "all ranks write what is called model= and optimizer=; a second model needs a Checkpoints of its own"
            step = own if sharded else "Checkpoints(…, sharded=True)"
            raise UsageError(f"{', '.join(parts)} is in parts on several ranks", why=why, next=(step,))
        others = [thing for thing in things.values() if not isinstance(thing, (nn.Module, Loader))]
        if others and all(isinstance(thing, Step) for thing in others) and group.rank() == 0:
            log.warning("no optimizer= is saved, and step= does not hold it: after resume() it would begin with an empty state")
        self.folder, self.keep = Path(folder).absolute(), keep  # absolute, because a program may change its working directory
        self.asynchronous, self.sharded = asynchronous, sharded
        self.findings: list[Finding] = []  # checkpoints that could not be written, or not be read
        self._things = things
        self._is_first, self._has_resumed = True, False
        self._damaged: list[Saved] = []  # checkpoints that resume() passed over, on rank 0
        self._writer: ThreadTask[Finding | None] | None = None

    def resume(self) -> int:
        """Restore the newest good checkpoint; returns its step, or 0 if there is none yet."""
        self.wait()
        saved, damaged = rank_zero(self._newest)
        self._has_resumed = True
        for finding in damaged:
            self._tell(finding)
        self._check_visible(saved)
        if saved is None:
            return 0
        self._load(saved, _read(saved.state))
        if group.rank() == 0:
            log.info("resumed from %s", saved.path)
        return saved.step

    def save(self, step: int) -> bool:
        """Write a checkpoint of this step. If that fails, returns False and adds to `findings`; the training can go on in either case."""
        if not isinstance(step, int) or step < 0:
            raise UsageError(f"a checkpoint of step {step!r}", next=("give the number of the step: checkpoints.save(step.count)",))
        self.wait()
        generators, places = self._gather()
        own: dict[str, Any] = {}

        def collect() -> None:
            own.update(self._collect(step, generators, places))
            self._check({**own, **self._beside()})

        rank_zero(collect)
        self._is_first = False
        if self.sharded:
            return self._settle(save_sharded(self.folder, step, self._things, own, self.keep))
        if not self.asynchronous:
            return self._settle(rank_zero(lambda: self._write(step, own)))
        if group.rank() == 0:
            self._writer = ThreadTask(lambda: self._write_beside(step, own), "checkpoint", daemon=False)  # a program that ends waits for it
        return True

    def wait(self) -> None:
        """Wait until what `save` began is on the disk, on all ranks."""
        if self.asynchronous and not self._is_first:
            self._settle(rank_zero(self._join), is_logged=True)

    def latest(self) -> Path | None:
        """The newest checkpoint's file, for `rankwise.load_weights`; on rank 0 what `save` began beside the training is waited for."""
        if self._writer is not None:
            self._writer.wait()
        return next((saved.state for saved in committed.all_saved(self.folder)), None)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.wait()
        else:
            self._settle(self._join(), is_logged=True)  # other ranks may never come to wait

    def _gather(self) -> tuple[list[Any], dict[str, Any]]:
        """What rank 0 needs from the others: all ranks' random generators, and their places in what each rank reads on its own."""
        for thing in self._things.values():
            if isinstance(thing, ZeroRedundancyOptimizer):
                thing.consolidate_state_dict(to=0)
        mine = {name: thing.state_dict() for name, thing in self._things.items() if _is_read_by_rank(thing)}
        large: dict[str, Any] = {}  # rank 0 saves its own of these
        for name, thing in self._things.items():
            if name not in mine and not _is_alike(thing):
                with contextlib.suppress(Exception):  # rank 0's state is asked for again, and raises there
                    state = thing.state_dict()
                    is_small = _is_small(state)
                    (mine if is_small else large)[name] = on_cpu(state, copy=False) if is_small else state
        everyone = group.gathered((rng_state(), mine), "checkpoints.save()")
        names = [name for name in mine if all(name in theirs for _, theirs in everyone)]
        places = {name: _places([theirs[name] for _, theirs in everyone]) for name in names}
        return [generators for generators, _ in everyone], {**large, **places}

    def _collect(self, step: int, generators: list[Any], places: dict[str, Any]) -> dict[str, Any]:
        """The content of the file."""
        state = {name: places[name] if name in places else thing.state_dict() for name, thing in self._in_file(self.sharded).items()}
        about = {"schema": 1, "step": step, "world_size": group.world_size()}
        return {**on_cpu(state, copy=self.asynchronous), "rng": generators, "rankwise": about}

    def _in_file(self, is_sharded: bool) -> dict[str, Any]:
        """The things that are not in the shards; models without their wrappers."""
        things = {name: thing for name, thing in self._things.items() if not (is_sharded and name in _SHARDED)}
        return {name: unwrap(thing) if isinstance(thing, nn.Module) else thing for name, thing in things.items()}

    def _beside(self) -> dict[str, Any]:
        """The things that a sharded checkpoint keeps elsewhere and that might not be loadable again: the optimizer's state."""
        return {"optimizer": plain_numbers(self._things["optimizer"].state_dict())} if self.sharded and "optimizer" in self._things else {}

    def _check(self, state: dict[str, Any]) -> None:
        """Check that the state can be loaded again, and that no other process writes to the folder: both may change between saves."""
        try:
            check_plain(state)
        except Exception as error:
            why = first_not_plain(state) or (str(error).splitlines()[0] if str(error) else type(error).__name__)
            raise train_error("RW710", "the state to be saved could not be loaded again", why=why) from error
        if self._is_first and not self._has_resumed and (there := committed.all_saved(self.folder)):
            raise train_error("RW709", f"{self.folder} holds checkpoints up to step {there[0].step}, and resume() was not called")
        may_write = True
        with contextlib.suppress(OSError):  # the folder cannot be made or written to: writing the checkpoint will say so
            may_write = committed.lock(self.folder)
        if not may_write:
            step = "end the other training, or use another folder"
            raise train_error("RW709", f"another process is writing its checkpoints to {self.folder}", next=(step,))
        while self._damaged:
            committed.set_aside(self._damaged.pop())

    def _write(self, step: int, state: dict[str, Any]) -> Finding | None:
        """Write and commit. A failure is returned, not raised, and leaves nothing behind."""
        partial = committed.begin(self.folder, step)
        if isinstance(partial, Path):
            return committed.finish(partial, step, state, self.keep)
        return partial or self._find_other_weights(step, state["model"])

    def _write_beside(self, step: int, state: dict[str, Any]) -> Finding | None:
        """Write in a thread; a failure is logged at once, because a program may end without asking for it."""
        try:
            finding = self._write(step, state)
        except Exception:
            log.exception("the checkpoint of step %d was not written", step)
            raise
        if finding is not None:
            _log(finding)
        return finding

    def _find_other_weights(self, step: int, weights: dict[str, Any]) -> Finding | None:
        """A finding if the checkpoint that is there, which is never replaced, has other weights than this one."""
        try:
            there = _read(committed.path_of(self.folder, step) / STATE)
        except OSError as error:
            return not_written(self.folder, step, error)
        return None if same_weights(weights, there.get("model", {}), unwrap(self._things["model"])) else committed.other_weights(step)

    def _join(self) -> Finding | None:
        writer, self._writer = self._writer, None
        if writer is None:
            return None
        writer.wait()
        if writer.error is not None:
            raise writer.error
        return writer.result

    def _settle(self, finding: Finding | None, *, is_logged: bool = False) -> bool:
        if finding is not None:
            self._tell(finding, is_logged=is_logged)
        return finding is None

    def _tell(self, finding: Finding, *, is_logged: bool = False) -> None:
        self.findings.append(finding)
        if group.rank() == 0 and not is_logged:
            _log(finding)

    def _newest(self) -> tuple[Saved | None, list[Finding]]:
        """The newest checkpoint whose bytes are right, and findings about newer ones that are damaged."""
        damaged: list[Finding] = []
        self._damaged = []
        for saved in committed.all_saved(self.folder):
            if (problem := committed.find_damage(saved)) is None:
                return saved, damaged
            self._damaged.append(saved)
            damaged.append(committed.damaged(f"the checkpoint of step {saved.step}", problem))
        if damaged:
            raise TrainError(damaged[0])
        return None, []

    def _check_visible(self, saved: Saved | None) -> None:
        """Raise unless all ranks see what rank 0 sees, because each reads by itself: nodes may have a folder of their own by that name."""
        mine: Any = self.latest()
        if saved is not None:
            mine = (saved.path / MANIFEST).read_bytes() if saved.state.is_file() else None
        everyone = group.gathered(mine, "checkpoints.resume()")
        for rank, theirs in enumerate(everyone):
            if theirs != everyone[0]:
                found = f"cannot see {saved.state}, rank 0 can" if saved else f"sees {theirs}, rank 0 sees no checkpoint"
                if saved and theirs:
                    found = f"has other files in {saved.path} than rank 0"
                raise train_error("RW710", f"rank {rank} {found}", why="the folder has to be the same on all nodes")

    def _load(self, saved: Saved, state: dict[str, Any]) -> None:
        is_sharded = (saved.path / "shards").is_dir()
        targets = self._in_file(is_sharded)
        state |= {name: _place_of_this_rank(name, thing, state[name], saved.path) for name, thing in targets.items() if name in state}
        for name, target in targets.items():  # all are checked first, so that no training goes on with half of a checkpoint
            if finding := find_misfit(name, target, state, saved.path):
                raise TrainError(finding)
        steps = any(isinstance(target, torch.optim.Optimizer) for target in targets.values())
        for name, model in targets.items():
            if steps and isinstance(model, nn.Module) and (finding := find_order_misfit(name, model, state, saved.path)):
                raise TrainError(finding)
        if is_sharded:
            load_sharded(saved.path, self._things)
        for name, target in targets.items():
            target.load_state_dict(on_cpu(state[name], copy=True))
        generators = state["rng"]
        if len(generators) == group.world_size():
            restore_rng(generators[group.rank()])
        else:
            seed_rng(saved.step, group.rank(), group.world_size())


def _log(finding: Finding) -> None:
    log.error("%s %s; %s", finding.code, finding.summary, finding.next[0])


def _is_read_by_rank(thing: Any) -> bool:
    """Whether each rank has its own, at its own place: a StatefulDataLoader, a sampler. A `Loader` counts for all ranks together."""
    return hasattr(thing, "__iter__") and not isinstance(thing, (nn.Module, Loader))


def _is_alike(thing: Any) -> bool:
    """Whether it is the same on all ranks. A module without parameters may not be: a metric of torchmetrics has each rank's own sums."""
    is_model = isinstance(thing, nn.Module) and any(True for _ in thing.parameters())
    return is_model or isinstance(thing, (torch.optim.Optimizer, Loader, Step))


def _places(states: list[Any]) -> Any:
    """A single state if all ranks have the same one, which then serves any number of ranks; otherwise the states of all ranks."""
    # A tensor's own pickle holds its address.
    said = {pickle.dumps(tree_map_only(torch.Tensor, torch.Tensor.tolist, state)) for state in states}
    return states[0] if len(said) == 1 else {_BY_RANK: states}


def _is_small(state: Any) -> bool:
    """Whether the state is small and may be the rank's own: a place in a file of tokens, a best loss, a random generator."""
    leaves = tree_leaves(state)
    tensors = [leaf for leaf in leaves if type(leaf) is torch.Tensor and not leaf.is_meta]
    numbers = [leaf for leaf in leaves if isinstance(leaf, (int, float, complex, str, bytes, np.generic, type(None)))]
    return len(tensors) + len(numbers) == len(leaves) and sum(tensor.nbytes for tensor in tensors) <= _SMALL


def _place_of_this_rank(name: str, thing: Any, state: Any, path: Path) -> Any:
    if not isinstance(state, dict) or _BY_RANK not in state:
        return state
    states, now = state[_BY_RANK], group.world_size()
    if len(states) != now and not _is_read_by_rank(thing):
        if group.rank() == 0:
            log.warning("%s of %d ranks differed, and there are %d now: all of them get that of rank 0", name, len(states), now)
        return states[0]
    if len(states) != now:
        why = "each rank's own place in what it reads was saved, and says nothing to another number of ranks; that of a train.Loader does"
        raise TrainError(misfit(f"{path} holds {name} of {len(states)} ranks, and there are {now}", why))
    return states[group.rank()]


def _in_parts(things: dict[str, Any]) -> list[str]:
    """Names of models whose weights are split over the ranks, and of the optimizers of such weights."""
    models = [thing for thing in things.values() if isinstance(thing, nn.Module)]
    wrapped = [module for model in models for module in model.modules() if isinstance(module, FullyShardedDataParallel)]
    in_fsdp1 = {id(tensor) for module in wrapped for tensor in module.parameters()}  # from outside, these look like plain tensors

    def is_part(tensor: torch.Tensor) -> bool:
        is_cut = isinstance(tensor, DTensor) and not all(placement.is_replicate() for placement in tensor.placements)
        return is_cut or id(tensor) in in_fsdp1

    return [name for name, thing in things.items() if any(map(is_part, _parameters_of(thing)))]


def _parameters_of(thing: Any) -> list[torch.Tensor]:
    if isinstance(thing, nn.Module):
        return list(thing.parameters())
    return [tensor for options in getattr(thing, "param_groups", ()) for tensor in options["params"]]


def _read(path: Path) -> dict[str, Any]:
    """The checkpoint's file, without what is sharded; raises if it holds anything but tensors and plain values."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)  # type: ignore[no-any-return]
    except pickle.UnpicklingError as error:
        raise TrainError(unsafe(path, asked_for(error))) from None
