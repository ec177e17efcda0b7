"""Takes the state of a training as plain tensors, numbers and containers; checks whether a saved state fits what it is loaded into."""

from __future__ import annotations

import io
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from rankwise.causes import load_cause
from rankwise.findings import Finding
from rankwise.train.parameters import listed
from rankwise.train.sample_plan import mixed_seed


def rng_state() -> dict[str, Any]:
    """The states of this rank's random generators: torch's, the current GPU's, Python's and numpy's."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    state = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (str(name), torch.from_numpy(np.asarray(keys).astype(np.int64)), int(position), int(has_gauss), float(gauss)),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_rng(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"].to(torch.uint8).cpu())
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())


def seed_rng(*numbers: int) -> None:
    """Seed all random generators: of a rank that did not exist when the checkpoint was written, and of worker processes."""
    seed = mixed_seed(*numbers)
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def on_cpu(thing: Any, *, copy: bool) -> Any:
    """The same containers with tensors on the CPU, copied if asked for; tensors that shared memory share it again."""
    seen: dict[tuple[Any, ...], torch.Tensor] = {}

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if not copy and type(tensor) is torch.Tensor and tensor.is_cpu and not tensor.requires_grad and _is_whole(tensor):
            return tensor  # most tensors leave here; there may be many thousand
        if not _has_own_memory(tensor):
            return tensor  # check_plain refuses it
        if not tensor.numel() or _is_around_others(tensor):
            return _alone(tensor.detach(), copy)
        tensor = tensor.detach().as_subclass(torch.Tensor)  # a tensor of a user's class could not be loaded again
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        key = (*place, tensor.is_conj(), tensor.is_neg())
        if key not in seen:
            seen[key] = _alone(tensor, copy)
        return seen[key]

    return _rebuilt(thing, moved)


def plain_numbers(thing: Any) -> Any:
    """The same containers and tensors, with numpy's numbers made Python's own."""
    return _rebuilt(thing, lambda tensor: tensor)


def check_plain(state: Any) -> None:
    """Raise what `torch.load(weights_only=True)` would raise. Plain tensors and numbers are known to load, so only the rest is tried."""
    rest: list[Any] = []
    _gather_rest(state, rest)
    if rest:
        buffer = io.BytesIO()
        torch.save(rest, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)


def _gather_rest(thing: Any, rest: list[Any]) -> None:
    if isinstance(thing, torch.Tensor):
        _check_memory(thing)
    if type(thing) in _PLAIN or (isinstance(thing, torch.Tensor) and not _is_around_others(thing)):
        return
    if isinstance(thing, dict):
        for part in (*thing.keys(), *thing.values(), getattr(thing, "_metadata", None)):
            _gather_rest(part, rest)
    elif type(thing) in (list, tuple):
        for part in thing:
            _gather_rest(part, rest)
    else:
        rest.append(thing)


def first_not_plain(thing: Any, where: str = "state") -> str:
    """The place and type of the first object in a state that `torch.load(weights_only=True)` refuses; empty if none is found."""
    if type(thing) in _PLAIN:
        return ""
    if isinstance(thing, dict) or type(thing) in (list, tuple):
        items = thing.items() if isinstance(thing, dict) else enumerate(thing)
        return next((found for key, value in items if (found := first_not_plain(value, f"{where}[{key!r}]"))), "")
    return f"{where} is a {type(thing).__qualname__}"


_PLAIN = (torch.Tensor, nn.Parameter, DTensor, int, float, complex, bool, str, bytes, type(None), torch.Size, torch.dtype, torch.device)


def same_weights(one: Mapping[str, Any], other: Mapping[str, Any], model: nn.Module | None = None) -> bool:
    """Whether two state dicts hold the same bits. Only tensors are compared, without the model's buffers: a skipped step has already
    changed running statistics."""
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)} if model else ()
    ours, theirs = (
        {name: value for name, value in side.items() if isinstance(value, torch.Tensor) and name not in buffers} for side in (one, other)
    )
    return ours.keys() == theirs.keys() and all(_same_bits(tensor, theirs[name]) for name, tensor in ours.items())


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(*(tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)))


def _alone(tensor: torch.Tensor, copy: bool) -> torch.Tensor:
    """The tensor with memory of its own, because torch saves all of the memory that a tensor is a part of."""
    is_part = tensor.layout == torch.strided and not _is_whole(tensor)
    return tensor.to("cpu", copy=True) if copy or is_part else tensor.cpu()


def _is_whole(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_nested and tensor.untyped_storage().nbytes() == tensor.nbytes


def _check_memory(tensor: torch.Tensor) -> None:
    if not _has_own_memory(tensor):
        kind = "on the meta device" if tensor.is_meta else "that is nested" if tensor.is_nested else f"of layout {tensor.layout}"
        raise TypeError(f"it holds a tensor {kind}")


def _is_around_others(tensor: torch.Tensor) -> bool:
    """Whether it only wraps other tensors, as DTensor does: then it has no address of its own."""
    return type(tensor) not in (torch.Tensor, nn.Parameter) and not tensor.data_ptr()


def _has_own_memory(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_nested


def _rebuilt(thing: Any, changed: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same containers around the changed tensors. A module's notes about its format stay with its state dict."""
    if isinstance(thing, torch.Tensor):
        return changed(thing)
    if isinstance(thing, np.generic):  # a schedule written with numpy, a metric: torch.load(weights_only=True) refuses these
        return thing.item()
    if isinstance(thing, dict):
        plain = {key: _rebuilt(value, changed) for key, value in thing.items()}
        if (notes := getattr(thing, "_metadata", None)) is None:
            return Counter(plain) if isinstance(thing, Counter) else plain  # MultiStepLR asks for its elements
        noted = OrderedDict(plain)
        noted._metadata = OrderedDict(notes)  # type: ignore[attr-defined]  # where torch keeps it
        return noted
    if isinstance(thing, tuple) and hasattr(thing, "_make"):
        return thing._make(_rebuilt(value, changed) for value in thing)
    if isinstance(thing, (list, tuple)):
        return type(thing)(_rebuilt(value, changed) for value in thing)
    return thing


def find_misfit(name: str, thing: Any, state: dict[str, Any], path: Path) -> Finding | None:
    """The finding about a part of the state that does not fit; None if it fits."""
    if name not in state:
        saved = ", ".join(key for key in state if key not in ("rng", "rankwise"))
        return misfit(f"{path} holds no {name}", f"it holds {saved}")
    if isinstance(thing, nn.Module):
        shapes = {key: getattr(value, "shape", None) for key, value in state[name].items()}
        return find_names_misfit(thing.state_dict(), shapes, path)
    if isinstance(thing, torch.optim.Optimizer):
        now = [len(parameters["params"]) for parameters in thing.param_groups]
        then = [len(parameters["params"]) for parameters in state[name]["param_groups"]]
        if now != then:
            return misfit(f"{path} is of an optimizer with {then} parameters in its groups, this one has {now}")
    return None


def find_order_misfit(name: str, model: nn.Module, state: dict[str, Any], path: Path) -> Finding | None:
    """A finding if parameters come in another order: an optimizer's state goes by order, so it would be given to other parameters."""
    now = [key for key, parameter in model.named_parameters() if parameter.requires_grad and key in state[name]]
    own = set(now)
    then = [key for key in state[name] if key in own]
    if now == then:
        return None
    first, there = next((one, other) for one, other in zip(now, then) if one != other)
    summary = f"{path} has the parameters of {name} in another order: {there} where {first} is now"
    return misfit(summary, "the optimizer's state goes by order: layers were moved in the model, or made from a set, whose order changes")


def find_names_misfit(own: dict[str, Any], saved: Mapping[str, torch.Size | None], path: Path) -> Finding | None:
    """A finding about names that only one side has, or shapes that differ; `saved` has the shape of each tensor by its name."""
    missing, unknown = [key for key in own if key not in saved], [key for key in saved if key not in own]
    if missing or unknown:
        parts = [f"without {listed(missing)}"] if missing else []
        parts += [f"with {listed(unknown)}"] if unknown else []
        return misfit(f"{path} is of another model: {', '.join(parts)}")
    for key, tensor in own.items():
        if isinstance(tensor, torch.Tensor) and tensor.shape != saved[key]:
            return misfit(f"{path} has {key} of shape {tuple(saved[key] or ())}, the model has {tuple(tensor.shape)}")
    return None


def misfit(summary: str, why: str = "") -> Finding:
    return load_cause("RW710").finding(summary, certain=True, why=why)
