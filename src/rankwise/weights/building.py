"""Makes a model from `my_models:build_mlp`, and inputs from `float32[8,784]`, as the command line writes them."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from rankwise.errors import UsageError
from rankwise.weights.tensor_records import ITEM_SIZES

_SPEC = re.compile(r"(\w+)\[([\d,\s]*)\]$")
_MAX_EXAMPLE_BYTES = 4 << 30


def import_callable(path: str) -> Any:
    """The callable at `module:name`, found as `python -c "import module"` in this folder would find it."""
    module_name, colon, attribute = path.partition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(f"{path!r} is not an import path", why="it is written module:callable", next=("my_models:build",))
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise  # the user's module exists, but something that it imports does not; the traceback says it best
        raise UsageError(
            f"there is no module {module_name!r}",
            why=f"looked in {Path.cwd()} and the rest of sys.path",
            next=(f"go to the folder of {module_name.split('.')[0]}.py, or put it into PYTHONPATH",),
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{module_name!r} has no {attribute!r}", next=(f"it has {', '.join(_callables(found)[:8])}",))
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{path} is a {type(found).__name__}, not a callable")
    return found


def build_model(path: str) -> torch.nn.Module:
    model = _called(path)
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"{path} returned a {type(model).__name__}, not a torch.nn.Module")
    return evaluating(model)


def evaluating(model: torch.nn.Module) -> torch.nn.Module:
    """The model, set to inference. The module of an exported program refuses `eval()`, also inside of another module: it keeps the mode
    that it was exported in."""
    try:
        return model.eval()
    except NotImplementedError:
        for module in model.modules():
            module.training = False
        return model


def example_inputs(specs: list[str]) -> tuple[Any, ...]:
    """Inputs as in `float32[8,784]`, one for each spec; or what one callable returns."""
    if len(specs) == 1 and ":" in specs[0]:
        made = _called(specs[0])
        return tuple(made) if isinstance(made, (tuple, list)) else (made,)
    generator = torch.Generator().manual_seed(0)
    return tuple(_random_input(spec, generator) for spec in specs)


def _called(path: str) -> Any:
    """What the callable returns. An exception of the user's code becomes a UsageError that names its line."""
    try:
        return import_callable(path)()
    except UsageError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        module, _, name = path.partition(":")
        why = f"{place.filename}:{place.lineno} {place.name}(): {type(error).__name__}: {error}"
        raise UsageError(f"{path} failed", why=why, next=(f'python -c "import {module}; {module}.{name}()" shows all of it',)) from error


def _random_input(spec: str, generator: torch.Generator) -> torch.Tensor:
    match = _SPEC.match(spec.strip())
    if match is None or match[1] not in ITEM_SIZES:
        raise UsageError(
            f"{spec!r} is not an example input", why="it is written dtype[sizes], or module:callable", next=("float32[8,784]",)
        )
    shape = [int(size) for size in match[2].split(",") if size.strip()]
    dtype: torch.dtype = getattr(torch, match[1])
    if torch.Size(shape).numel() * ITEM_SIZES[match[1]] > _MAX_EXAMPLE_BYTES:
        raise UsageError(f"an example of {spec} would not fit into memory")
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype)
    return torch.randint(0, 2, shape, generator=generator).to(dtype)


def _callables(module: Any) -> list[str]:
    own = [
        name for name, value in vars(module).items() if not name.startswith("_") and (inspect.isfunction(value) or inspect.isclass(value))
    ]
    return own or ["nothing that can be called"]
