"""What the user says about a model."""

from __future__ import annotations

import os
import pickle
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankwise.errors import UsageError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


@dataclass(frozen=True)
class Model:
    """One model of a pool.

    `build` is an import path ("my_models:build_mlp"), a picklable callable that returns the model, or the path of a `.pt2` program.
    """

    build: str | Path | Callable[..., Any]
    weights: str | Path | None = None
    device: str = "auto"
    replicas: int | None = None  # None: one, and more while it has all the load
    max_batch: int = 1  # rows that may run together; over 1, inputs and outputs have the rows in their first dimension
    max_delay_ms: float = 2.0  # how long a row may wait for others, where that pays
    memory: int | str | None = None  # how large it is, where that is known before it is loaded
    warmup: Any = None  # an input (or a tuple of them) to run once when loaded
    limit_s: float | None = 300.0  # a run that takes longer is taken for hung
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def check(self, name: str) -> None:
        """Raises UsageError for what can be seen to be wrong before anything runs."""
        if not callable(self.build) and not isinstance(self.build, (str, Path)):
            raise UsageError(f"model {name!r}: build must be an import path, a .pt2 file or a callable, not {type(self.build).__name__}")
        if callable(self.build) and hasattr(self.build, "state_dict") and not isinstance(self.build, type):  # its class makes one
            raise UsageError(
                f"model {name!r}: build is a model, but should make one",
                next=("give the function that builds it; workers load it themselves",),
            )
        if isinstance(self.build, str) and not self._is_program and not re.fullmatch(r"[\w.]+:[\w.]+", self.build):
            raise UsageError(
                f"model {name!r}: {self.build!r} is neither an import path nor a .pt2 file", next=('write it as "module:function"',)
            )
        if self._is_program and not Path(str(self.build)).exists():
            raise UsageError(f"model {name!r}: there is no file {str(self.build)!r}")
        if self.weights is not None and not Path(self.weights).exists():
            raise UsageError(f"model {name!r}: there are no weights at {str(self.weights)!r}")
        if self.max_batch < 1:
            raise UsageError(f"model {name!r}: max_batch is {self.max_batch}; it must be at least 1")
        if self.replicas is not None and self.replicas < 1:
            raise UsageError(f"model {name!r}: replicas is {self.replicas}; it must be at least 1")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise UsageError(f"model {name!r}: there is no device {self.device!r}", next=('use "auto", "cpu", "cuda" or "cuda:0"',))

    @property
    def _is_program(self) -> bool:
        return not callable(self.build) and str(self.build).endswith(".pt2")

    @property
    def expected_bytes(self) -> int:
        """Declared, or as large as the file of its weights, or not known (0)."""
        if self.memory is not None:
            return parse_bytes(self.memory)
        file = self.weights if self.weights is not None else self.build if self._is_program else ""
        try:
            return os.stat(str(file)).st_size if file else 0
        except OSError:
            return 0

    def spec(self, name: str, device: str) -> bytes:
        """All a worker needs to know, pickled."""
        pickled, main = _pickled(name, "build", self.build) if callable(self.build) else (None, "")
        given, main_of_given = _pickled(name, "args, kwargs or warmup", (self.args, self.kwargs, self.warmup))
        folder = os.getcwd()
        return pickle.dumps(
            {
                "name": name,
                "build": "" if callable(self.build) or self._is_program else str(self.build),
                "program": os.path.abspath(str(self.build)) if self._is_program else "",
                "pickled": pickled,
                "main": main or main_of_given,
                "given": given,
                "weights": os.path.abspath(self.weights) if self.weights is not None else "",
                "device": device,
                "path": [folder, *[path for path in sys.path if path]],
                "cwd": folder,
            }
        )


def parse_bytes(size: int | str) -> int:
    """1_000_000, "200MB", "1.5 GiB"."""
    if isinstance(size, int):
        return size
    match = re.fullmatch(r"\s*([\d.]+)\s*([a-zA-Z]*)\s*", size)
    if not match or match[2].upper() not in _UNITS:
        raise UsageError(f"{size!r} is not a size", next=('write it as 500_000_000, "500MB" or "1.5GiB"',))
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _pickled(name: str, what: str, value: Any) -> tuple[bytes, str]:
    """A callable or arguments, and the script a worker has to run to find what they name."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        pickled = pickle.dumps(value)
        if b"__main__" not in pickled:
            return pickled, ""
        if file:
            return pickled, os.path.abspath(file)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if file:
            raise _not_sent(name, what, error) from None
    return _pickled_by_value(name, what, value), ""  # a notebook or a prompt: nothing a worker could import


def _pickled_by_value(name: str, what: str, value: Any) -> bytes:
    """The code itself, with whatever it uses of the other cells as it is now."""
    try:
        import cloudpickle  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        raise UsageError(
            f"model {name!r}: its {what} is defined in a notebook or at a prompt, where workers cannot import it",
            next=('put it into a file and give its import path: Model("my_models:build")', 'or: pip install "rankwise[notebook]"'),
        ) from None
    try:
        return bytes(cloudpickle.dumps(value))
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:  # it uses an open file, a lock, a pool
        raise _not_sent(name, what, error) from None


def _not_sent(name: str, what: str, error: Exception) -> UsageError:
    return UsageError(
        f"model {name!r}: its {what} cannot be sent to a worker",
        why=str(error),
        next=("define it at the top of a module", 'or give an import path: Model("my_models:build")'),
    )
