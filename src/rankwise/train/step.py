"""The step: accumulation, mixed precision, clipping and the optimizer, each in its place."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from typing import Any, Literal, cast

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from rankwise.errors import TrainError, UsageError
from rankwise.train import group
from rankwise.train.batches import num_samples_in
from rankwise.train.errors import train_error
from rankwise.train.loader import Loader, Loop
from rankwise.train.parameters import check_optimizer, check_unchanged
from rankwise.train.windows import Count, Micro, counted, planned, streamed

log = logging.getLogger("rankwise.train")

Precision = Literal["fp32", "bf16", "fp16"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_NOTHING: AbstractContextManager[Any] = nullcontext()
MAX_SKIPS_IN_A_ROW = 25  # fp16 begins with a loss scale that is too high, and needs about ten skips to lower it


class Step:
    """Takes losses, and steps the optimizer when a window of `accumulate` batches is complete.

    ```python
    for x, y in step.over(loader):
        with step:                                   # no_sync and autocast, where they belong
            loss = cross_entropy(model(x), y)        # the mean over the batch
        step.backward(loss)
    ```

    Every sample of a window has the same weight, whichever rank and batch it came in, so the result is that of one process with
    the whole window as its batch.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        accumulate: int = 1,
        precision: Precision = "fp32",
        clip_norm: float | None = None,
        scheduler: Any = None,
    ) -> None:
        device = check_options(model, optimizer, accumulate, precision, clip_norm)
        check_steps(optimizer, scheduler)
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.accumulate, self.clip_norm = accumulate, clip_norm
        self.count = 0  # steps of the optimizer
        self.num_skipped = 0  # windows whose gradients were not finite
        self.num_samples: float = 0  # samples of this rank's batch that count: 0 for a batch that only keeps the ranks in step
        self.grad_norm = math.nan  # of the last window, before clipping
        self._autocast: AbstractContextManager[Any] = torch.autocast(device.type, DTYPES[precision]) if precision in DTYPES else _NOTHING
        self.scaler = _scaler_of(model, device.type) if precision == "fp16" else None
        self._micro: Micro | None = None  # the batch that still waits for its loss
        self._loop: tuple[Loader, Loop] | None = None  # the loader and the loop that the batch is from
        self._is_window_open = False
        self._is_first = True
        self._num_loops = 0  # over batches; all ranks make the same ones
        self._skips_in_a_row = 0
        self._open_no_sync = _NOTHING
        check_synchronised(model)

    def over(self, batches: Iterable[Any], count: Count | None = None) -> Iterator[Any]:
        """The batches, from a `Loader` or from anything else that can be iterated.

        `count` says how much a batch counts, if that is not its number of samples (tokens, for example).
        """
        check_synchronised(self.model)  # again, because a process group may have been made since `__init__`
        check_unchanged(self.model)
        check_optimizer(self.optimizer, self.model)
        self._num_loops += 1
        try:
            for micro in self._micros(batches, count):
                self._clear_others()
                self._micro, self.num_samples = micro, micro.num_samples
                self._loop = (batches, batches.loop) if isinstance(batches, Loader) else None
                yield micro.batch
                if self._micro is not None:
                    raise _out_of_order("a batch was left out: no loss was given to `step.backward` for it")
        finally:
            if self._is_window_open:
                log.debug("the loop was left inside a window; the gradients added so far are dropped")
                self.optimizer.zero_grad(set_to_none=True)
            self._micro, self._is_window_open = None, False

    def __enter__(self) -> Step:
        if self._micro is None:
            raise _out_of_order("`with step` outside of `for … in step.over(…)`")
        self._clear_others()
        self._open_no_sync = self._no_sync(self._micro)
        self._open_no_sync.__enter__()
        self._autocast.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._autocast.__exit__(*error)
        self._open_no_sync.__exit__(*error)

    def backward(self, loss: torch.Tensor) -> bool:
        """Add the batch's gradients; True if that completed a window, so that the optimizer has stepped or its step was skipped."""
        micro = self._awaited(loss)
        if micro.weight != 1.0:
            loss = loss * micro.weight
        with self._no_sync(micro):
            (self.scaler.scale(loss) if self.scaler else loss).backward()  # type: ignore[no-untyped-call]
        self._micro, self._is_window_open, self._is_first = None, not micro.closes, False
        if micro.closes:
            self._close_window()
        return micro.closes

    def state_dict(self) -> dict[str, Any]:
        if self._is_window_open:
            raise _out_of_order("a checkpoint inside a window would lose the gradients that were added so far")
        state = {"count": self.count, "num_skipped": self.num_skipped, "scaler": self.scaler.state_dict() if self.scaler else {}}
        return {**state, "scheduler": self.scheduler.state_dict()} if hasattr(self.scheduler, "state_dict") else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.num_skipped = int(state["count"]), int(state["num_skipped"])
        if self.scaler and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        if self.scheduler is not None and "scheduler" in state:  # checkpoints of earlier versions have none
            self.scheduler.load_state_dict(state["scheduler"])

    def _micros(self, batches: Iterable[Any], count: Count | None) -> Iterator[Micro]:
        if isinstance(batches, Loader):
            batches.suit(fewest_samples(self.model))
            batches.check_agreement()
            if count is None:
                return streamed(batches, self.accumulate, self._num_loops) if batches.is_stream else planned(batches, self.accumulate)
        return counted(batches, self.accumulate, count or num_samples_in, self._num_loops)

    def _clear_others(self) -> None:
        """Drop gradients from before a window: the loss of another model that goes through this one (GANs) leaves some."""
        if not self._is_window_open:
            self.optimizer.zero_grad(set_to_none=True)

    def _awaited(self, loss: torch.Tensor) -> Micro:
        if self._micro is None:
            raise _out_of_order("`step.backward` without a batch from `step.over` that still waits for its loss")
        if not isinstance(loss, torch.Tensor):
            raise UsageError(f"the loss is a {type(loss).__name__}, not a tensor", next=("give the tensor itself, without .item()",))
        if loss.numel() != 1:
            raise UsageError(f"the loss has shape {tuple(loss.shape)}", next=("take its mean over the batch",))
        if not loss.requires_grad:
            why = "it was computed under no_grad, detached, or does not depend on the model"
            raise UsageError("the loss has no gradient", why=why)
        return self._micro

    def _no_sync(self, micro: Micro) -> AbstractContextManager[Any]:
        """No exchange of gradients except for the window's last batch; DDP looks at this in forward, other wrappers in backward.

        A static graph is learned in the first backward, which therefore exchanges gradients; doing so early changes no sum.
        """
        if micro.closes or not hasattr(self.model, "no_sync") or (self._is_first and getattr(self.model, "static_graph", False)):
            return _NOTHING
        return self.model.no_sync()  # type: ignore[no-any-return,operator]

    def _close_window(self) -> None:
        """Unscale, then clip, then step. The gradients are the same on every rank by now, so all ranks decide alike."""
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        parameters = [p for parameters in self.optimizer.param_groups for p in parameters["params"] if p.grad is not None]
        sparse = [p for p in parameters if p.grad.is_sparse]
        for p in sparse:
            p.grad = p.grad.coalesce()  # a row that occurs twice must count as one number in the norm
        clip_parts = getattr(self.model, "clip_grad_norm_", None)  # of FSDP1, where a rank's gradients are plain tensors, and parts
        if clip_parts is not None:
            norm = clip_parts(math.inf if self.clip_norm is None else self.clip_norm)
        else:
            norm = get_total_norm([p.grad._values() if p.grad.is_sparse else p.grad for p in parameters])
        self.grad_norm = norm.item()
        if math.isfinite(self.grad_norm):
            self._skips_in_a_row = 0
            if self.clip_norm is not None and clip_parts is None:
                clip_grads_with_norm_([p for p in parameters if not p.grad.is_sparse], self.clip_norm, norm)
                for p in sparse:
                    p.grad._values().mul_(torch.clamp(self.clip_norm / (norm + 1e-6), max=1.0))
            self._step_optimizer()
        else:
            self._skip()
        if self.scaler:
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self._loop is not None:
            loader, loop = self._loop
            loader.note_stepped(loop)

    def _step_optimizer(self) -> None:
        if self.scaler:
            self.scaler.step(self.optimizer)
        else:
            self.optimizer.step()
        self.count += 1
        if self.scheduler is not None:
            self.scheduler.step()

    def _skip(self) -> None:
        self.num_skipped += 1
        self._skips_in_a_row += 1
        summary = f"gradients after step {self.count} are not finite (norm {self.grad_norm}); the step was skipped on every rank"
        if self._skips_in_a_row > MAX_SKIPS_IN_A_ROW:
            raise train_error("RW704", summary)
        if group.rank() == 0:
            log.log(logging.DEBUG if self.scaler else logging.WARNING, "RW704 %s", summary)


def _scaler_of(model: nn.Module, device_type: str) -> torch.amp.GradScaler:
    """The gradient scaler. With FSDP1 each rank checks only its own part, so all ranks share what they find."""
    if not hasattr(model, "clip_grad_norm_"):
        return torch.amp.GradScaler(device_type)
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    return ShardedGradScaler(device_type)


def check_options(model: nn.Module, optimizer: Any, accumulate: int, precision: str, clip_norm: float | None) -> torch.device:
    """Raise clear errors for what would fail later; returns the model's device."""
    if accumulate < 1:
        raise UsageError(f"accumulate={accumulate}: a window has at least one batch")
    if precision not in ("fp32", *DTYPES):
        raise UsageError(f"precision={precision!r}", next=(f"one of 'fp32', {', '.join(map(repr, DTYPES))}",))
    if clip_norm is not None and not clip_norm > 0:
        raise UsageError(f"clip_norm={clip_norm}: gradients are clipped to a norm above zero", next=("clip_norm=None does not clip",))
    if not hasattr(optimizer, "param_groups"):
        usual = "train.Step(model, torch.optim.AdamW(model.parameters()))"
        raise UsageError(f"the optimizer is a {type(optimizer).__name__}, without parameters to step", next=(usual,))
    if (first := next(model.parameters(), None)) is None:
        raise UsageError(f"{type(model).__name__} has no parameters, so there is nothing to train")
    return first.device


def check_steps(optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    """Raise if a `step` needs an argument that is not known here: a closure (LBFGS), a metric (ReduceLROnPlateau)."""
    for name, stepper in (("optimizer", optimizer), ("scheduler", scheduler)):
        wanted = (
            signature(type(stepper).step).parameters.values() if hasattr(type(stepper), "step") else ()
        )  # of the class, because torch replaces the object's own
        for parameter in list(wanted)[1:]:
            if parameter.default is parameter.empty and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                kind = type(stepper).__name__
                summary = f"the {name} is a {kind}, whose step() has to be given {parameter.name}, and train.Step calls it without"
                own = f"leave out scheduler=, and call {kind}.step({parameter.name}) yourself, on all ranks with the same value"
                raise UsageError(summary, next=(own if name == "scheduler" else "use another optimizer, or a loop without train.Step",))


def check_synchronised(model: nn.Module) -> None:
    """Raise if nothing would average the gradients over the ranks."""
    if group.world_size() > 1 and not (hasattr(model, "no_sync") or hasattr(model, "set_requires_gradient_sync")):
        summary = f"{type(model).__name__} is not wrapped, and there are {group.world_size()} ranks"
        raise train_error("RW714", summary)
    is_cut_twice = any(isinstance(p, DTensor) and sum(not place.is_replicate() for place in p.placements) > 1 for p in model.parameters())
    averaged_over = min(_sizes_of_averages(model), default=group.world_size())
    is_over_part = averaged_over != group.world_size()
    if is_cut_twice or is_over_part:
        found = "tensor parallelism inside FSDP on" if is_cut_twice else f"gradients are averaged over {averaged_over} of"
        raise UsageError(
            f"{found} {group.world_size()} ranks: train.Step and train.Loader give each rank samples of its own",
            why="ranks that share a layer take the same samples, and what each sample weighs depends on how many ranks do not",
            next=("a loop of your own; train.Checkpoints(…, sharded=True) saves such models",),
        )


def _sizes_of_averages(model: nn.Module) -> Iterator[int]:
    """Over how many ranks gradients are averaged: by DDP, by FSDP1 (whose copies of the parts have a group of their own), by FSDP2."""
    for module in model.modules():
        if isinstance(module, (DistributedDataParallel, FullyShardedDataParallel)):
            parts, copies = cast(Any, module).process_group, getattr(module, "_inter_node_pg", None)
            yield parts.size() * (copies.size() if copies else 1)
    yield from (parameter.device_mesh.size() for parameter in model.parameters() if isinstance(parameter, DTensor))


def fewest_samples(model: nn.Module) -> int:
    """The fewest samples for the model's layers: BatchNorm takes statistics over a rank's batch, SyncBatchNorm over all ranks' batches."""
    by_rank = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and not isinstance(m, nn.SyncBatchNorm)]
    return 2 if any(module.training for module in by_rank) else 1


def _out_of_order(summary: str) -> TrainError:
    return train_error("RW705", summary)


def sharded_optimizer(kind: type[torch.optim.Optimizer], parameters: Iterable[torch.Tensor], **options: Any) -> torch.optim.Optimizer:
    """The optimizer, with each rank keeping the state of its own part of the parameters; the plain optimizer if there is one rank."""
    if group.world_size() == 1:
        return kind(parameters, **options)
    from torch.distributed.optim import ZeroRedundancyOptimizer  # imported late, because it takes a second

    return ZeroRedundancyOptimizer(parameters, optimizer_class=kind, **options)
