"""Looks at optimizer steps: the window of backwards before each, and on sampled ones fingerprints of gradients, weights and state."""

import functools
import itertools
import sys
import time
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .. import hooks, sites
from . import fingerprints, local_gradients, loss, models, record, reduces, times, window

_MOST = 16  # tensors looked at in one sample; in larger models each sample takes another part
_BUFFERS = 6
_FIRST_STEPS = 8
_MOST_PENDING = 16
_SETTINGS = ("lr", "momentum", "weight_decay", "betas", "eps", "nesterov")


class OptimizerState:
    """One optimizer: its number, its steps so far, its last window."""

    def __init__(self, number: int, optimizer: Any) -> None:
        self.number = number
        self.optimizer = weakref.ref(optimizer)
        self.steps = 0
        self.pattern: str | None = None
        self.first = 0
        self.site = 0
        self.facts: dict[str, Any] = {}


_by_id: dict[int, OptimizerState] = {}  # an id is found quicker than a key of a weak dictionary
_all: list[OptimizerState] = []
_pending: list[tuple[fingerprints.PendingNumbers, Callable[[list[Any]], None]]] = []
_has_joined = False
in_scaler = False


def attach(module: ModuleType) -> None:
    module.register_optimizer_step_pre_hook(_before)
    module.register_optimizer_step_post_hook(_after)
    cls = module.Optimizer
    cls.zero_grad = _noted_zero(cls.zero_grad)
    cls.load_state_dict = hooks.wrap(cls.load_state_dict, after=functools.partial(_note_load, "optimizer"))
    cls.__init__ = hooks.wrap(cls.__init__, after=_note_built)


def attach_module(module: ModuleType) -> None:
    module.Module.zero_grad = _noted_zero(module.Module.zero_grad)
    module.Module.load_state_dict = hooks.wrap(module.Module.load_state_dict, after=functools.partial(_note_load, "model"))


def _before(optimizer: Any, args: Any, kwargs: Any) -> None:
    import torch

    if not torch.compiler.is_compiling():
        times.optimizer_begins()
        _look(optimizer, sys._getframe(1))


def _after(optimizer: Any, args: Any, kwargs: Any) -> None:
    import torch

    if not torch.compiler.is_compiling():
        times.optimizer_ends()
        if len(_all) == 1:
            record.choose_step(_all[0].steps)
        else:
            record.choose_step(steps_so_far(), [seen.steps for seen in _all])


@record.budgeted
def _look(optimizer: Any, frame: Any) -> None:
    seen = _by_id.get(id(optimizer))
    if seen is None or seen.optimizer() is not optimizer:
        seen = _by_id[id(optimizer)] = OptimizerState(len(_all), optimizer)
        _all.append(seen)
    if not seen.steps:
        seen.site = sites.number_of_caller(frame)
        _write_optimizer(optimizer, seen)
    letters, lines = window.close()
    if record.is_step_observed:
        _note_window(seen, letters + ("G" if in_scaler else ""), lines)
        if record.is_sampled(seen.steps):
            _take_fingerprints(optimizer, seen)
    if _pending:
        _write_arrived()
    seen.steps += 1


def _note_window(seen: OptimizerState, pattern: str, lines: int) -> None:
    """Write the window when it changes, and now and then how many steps it has stayed the same."""
    n, is_new = seen.steps, pattern != seen.pattern
    if is_new:
        end_window(seen)
        seen.pattern, seen.first = pattern, n
    if is_new or record.is_sampled(n):
        places = {letter: site for letter, site in window.where.items() if letter in pattern}
        seen.facts = {"lines": lines, "places": places, **loss.facts()}
        _write_window(seen, n - seen.first + 1)


def end_window(seen: OptimizerState) -> None:
    if seen.pattern is not None and seen.steps - seen.first > 0:
        _write_window(seen, seen.steps - seen.first)


def _write_window(seen: OptimizerState, count: int) -> None:
    record.write("window", i=seen.number, pattern=seen.pattern, first=seen.first, count=count, site=seen.site, **seen.facts)


def _write_optimizer(optimizer: Any, seen: OptimizerState) -> None:
    """Record, at its first step, which of the optimizer's parameters belong to a wrapped model."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    names = models.names()
    window.watch(held)
    if not models.known:
        reduces.optimized[:] = [weakref.ref(p) for p in held]
    record.write(
        "optimizer",
        i=seen.number,
        site=seen.site,
        built=_built.get(optimizer, 0),
        held=len(held),
        of_model=sum(id(p) in names for p in held),
        with_grad=sum(p.grad is not None for p in held),
        model_with_grad=sum(p.grad is not None for one in models.known for _, p in one.named()),
    )


def _take_fingerprints(optimizer: Any, seen: OptimizerState) -> None:
    global _has_joined
    _has_joined = _has_joined or models.is_joining()
    names, own = models.names(), models.own()
    held = [p for group in optimizer.param_groups for p in group["params"]]
    labelled = [(names.get(id(p), (f"parameter {i}", False)), p) for i, p in enumerate(held) if p.requires_grad and id(p) not in own]
    picked = _part_of(labelled, seen.steps)
    state, buffers, computed = _state_of(optimizer, [p for _, p in picked]), _buffers(), local_gradients.taken()
    pending = fingerprints.PendingNumbers(
        [*(t for _, p in picked for t in (p.grad, p)), *state, *(b for _, b in buffers), *(numbers for numbers in computed.values())]
    )
    facts = {
        "i": seen.number,
        "n": seen.steps,
        "t": time.time_ns(),
        "syncs": window.syncs,
        "joined": _has_joined,
        "hooked": models.has_hook(),
        "of_model": any(id(p) in names for _, p in picked),
        "settings": _settings(optimizer),
        **(_mismatched_parameters(names, held) if seen.steps < _FIRST_STEPS else {}),
        "site": seen.site,
        "loss": loss.last(),
    }
    labels = [label for label, _ in picked]
    _pending.append((pending, functools.partial(_write_step, facts, labels, len(state), ([name for name, _ in buffers], list(computed)))))


def _write_arrived() -> None:
    """Write the steps whose numbers have arrived from the GPU, in their order."""
    while _pending and (_pending[0][0].have_arrived() or len(_pending) > _MOST_PENDING):
        pending, write = _pending.pop(0)
        if pending.have_arrived():
            write(pending.numbers())


def _write_step(facts: dict[str, Any], labels: list[Any], num_state: int, names: tuple[list[str], list[str]], numbers: list[Any]) -> None:
    found = iter(zip(map(fingerprints.of_numbers, numbers), numbers))
    pairs = [(next(found)[0] or (None, None), next(found)[0] or (None, None)) for _ in labels]
    states = [one[0] for one, _ in itertools.islice(found, num_state) if one is not None]
    seen_buffers = list(zip(names[0], found))
    record.write(
        "step",
        **facts,
        rows=[[name, is_reduced, *grad, *weight] for (name, is_reduced), (grad, weight) in zip(labels, pairs)],
        state=hash(tuple(states)) & 0xFFFFFFFF if states else None,
        buffers=[[name, one[0], some[:8]] for name, (one, some) in seen_buffers if one is not None],
        local=[[name, one[1]] for name, (one, _) in zip(names[1], found) if one is not None],
    )


def _mismatched_parameters(names: dict[int, tuple[str, bool]], held: list[Any]) -> dict[str, Any]:
    """Parameters that the optimizer holds and the model does not, and the other way round."""
    own = {id(p) for p in held}
    unheld = [name for one in models.known for name, p in one.named() if p.grad is not None and id(p) not in own]
    return {"foreign": sum(id(p) not in names and p.grad is None for p in held) if names else 0, "unheld": unheld[:4]}


def _part_of(items: list[Any], n: int) -> list[Any]:
    """All items of a small model; of a large one the first, the last, and a part that changes with each sample."""
    if len(items) <= _MOST or record.LEVEL == "full":
        return items
    num_parts = -(-len(items) // (_MOST - 2))
    part = (n if n < 16 else n * 2654435761 % 2**32 >> 16) % num_parts  # those looked at are multiples of large powers of two
    return [items[0], *items[1 + part : -1 : num_parts], items[-1]]


def _settings(optimizer: Any) -> str:
    groups = [{name: group[name] for name in _SETTINGS if name in group} for group in optimizer.param_groups[:8]]
    return "; ".join(", ".join(f"{name}={_plain(value)}" for name, value in group.items()) for group in groups)[:500]


def _plain(value: Any) -> Any:
    return "tensor" if hasattr(value, "dtype") else value  # reading it would wait for the GPU


def _state_of(optimizer: Any, parameters: list[Any]) -> list[Any]:
    """The first tensors of the optimizer's state, before this step changes them."""
    import torch

    states = [optimizer.state.get(p) or {} for p in parameters[:4]]
    return [value for state in states for value in state.values() if isinstance(value, torch.Tensor) and value.numel() > 1][:6]


def _buffers() -> list[tuple[str, Any]]:
    """Some floating-point buffers of wrapped models; the record of the wrapper says whether DDP broadcasts those of rank 0."""
    return [(name, b) for one in models.known if one.wrapper is not None for name, b in one.buffers() if b.is_floating_point()][:_BUFFERS]


_built: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


@record.budgeted
def _note_built(frame: Any, _: None, optimizer: Any, *args: Any, **kwargs: Any) -> None:
    _built[optimizer] = sites.number_of_caller(frame)


def _noted_zero(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        if record.is_step_observed and not torch.compiler.is_compiling():
            _zeroed(sys._getframe(1))
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            hooks.drop_wrapper_frame(error)
            raise

    return zero_grad


_zeroed = record.budgeted(window.zeroed)


@record.budgeted
def _note_load(what: str, frame: Any, *_: Any, **__: Any) -> None:
    record.write("loaded", what=what, site=sites.number_of_caller(frame), wrapped=len(models.known), steps=sum(s.steps for s in _all))


def steps_so_far() -> int:
    return max((seen.steps for seen in _all), default=0)


def at_end() -> None:
    """Write the last window, and gradients that no step has used."""
    _write_arrived()
    for seen in _all:
        end_window(seen)
    if window.pending():
        record.write("left", pattern=window.pending())
