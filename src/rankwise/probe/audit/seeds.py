"""Notes where this rank seeds its random generators, and the seeds."""

import functools
import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .. import hooks, process, sites
from . import record

_MOST = 40
_num_noted = 0


def attach(module: ModuleType) -> None:
    """Wrap the seeding functions of `torch.random`, and those of the standard library's `random`."""
    module.manual_seed = _noted(module.manual_seed, "torch")  # type: ignore[attr-defined]
    random.seed = _noted(random.seed, "random")
    random.seed.__qualname__ = "seed"  # pickle looks it up by this name
    hooks.after("numpy.random", "audit.seeds", "attach_numpy")


def attach_numpy(module: ModuleType) -> None:
    module.seed = _noted(module.seed, "numpy")  # type: ignore[attr-defined]


def _noted(original: Callable[..., Any], which: str) -> Callable[..., Any]:
    return hooks.wrap(original, functools.partial(_note, which))


def _is_called_by_user(frame: Any) -> bool:
    """False for the seeds that a DataLoader gives each worker. Frames of torch.compile may lie between."""
    while frame is not None and not sites.is_users(frame):
        if "_utils" in frame.f_code.co_filename and frame.f_code.co_name == "_worker_loop":
            return False
        frame = frame.f_back
    return frame is not None


@record.budgeted
def _note(which: str, frame: Any, *args: Any, **kwargs: Any) -> None:
    global _num_noted
    _num_noted += 1
    if _num_noted <= _MOST and process.is_recording() and _is_called_by_user(frame):
        value = args[0] if args else next(iter(kwargs.values()), None)
        record.write("seeded", which=which, value=str(value)[:40], site=sites.number_of_caller(frame))
