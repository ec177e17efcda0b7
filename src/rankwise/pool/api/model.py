"""What the user says about a model, what its inputs and outputs are called, and how it travels to a worker."""

from __future__ import annotations

import math
import os
import pickle
import re
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankwise.errors import UsageError


@dataclass(frozen=True)
class Model:
    """One model of a pool.

    `build` is an import path ("my_models:build_mlp"), a picklable callable that returns the model, or the path of a `.pt2` program.
    """

    build: str | Path | Callable[..., Any]
    weights: str | Path | None = None
    device: str = "auto"
    replicas: int | None = None  # None: one, and more while so many tasks wait that another load pays
    max_batch: int = 1  # rows that may run together; over 1, inputs and outputs have the rows in their first dimension
    max_delay_ms: float = 2.0  # how long a row may wait for others, if that pays
    check_rows: bool = True  # whether batches are checked now and then; a model whose rows depend on each other is then not batched
    memory: int | str | None = None  # its size, if that is known before it is loaded
    warmup: Any = None  # an input (or a tuple of them) to run once when loaded
    limit_s: float | None = 300.0  # a run that takes longer counts as hung
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def check(self, name: str) -> None:
        """Raise UsageError for mistakes that can be found before anything runs."""
        build = self.build
        weights: Any = self.weights
        if not callable(build) and not isinstance(build, (str, Path)):
            raise _wrong(name, f"build must be an import path, a .pt2 file or a callable, not {type(build).__name__}")
        if callable(build) and hasattr(build, "state_dict") and not isinstance(build, type):  # a class is fine: calling it makes a model
            raise _wrong(name, "build is a model, but should make one", "give the function that builds it; workers load it themselves")
        if isinstance(build, str) and not self.is_program and not re.fullmatch(r"[\w.]+:[\w.]+", build):
            raise _wrong(name, f"{build!r} is neither an import path nor a .pt2 file", 'write it as "module:function"')
        if self.is_program and not Path(str(build)).exists():
            raise _wrong(name, f"there is no file {str(build)!r}")
        if weights is not None and not isinstance(weights, (str, os.PathLike)):
            steps = ("torch.save them and give the path", "or load them inside build")
            raise _wrong(name, f"weights is of type {type(weights).__name__}; it must be the path of a checkpoint", *steps)
        if weights is not None and not (str(weights) and Path(weights).exists()):  # Path("") would mean this folder
            raise _wrong(name, f"there are no weights at {str(weights)!r}")
        check_number(f"model {name!r}: max_batch", self.max_batch, least=1, whole=True)
        check_number(f"model {name!r}: max_delay_ms", self.max_delay_ms, least=0)
        check_number(f"model {name!r}: replicas", self.replicas, least=1, whole=True, none=True)
        check_number(f"model {name!r}: limit_s", self.limit_s, least=0, above=True, none=True)
        if not isinstance(self.check_rows, bool):
            raise _wrong(name, f"check_rows is {self.check_rows!r}; it must be True or False")
        if self.memory is not None:
            parse_bytes(self.memory, f"model {name!r}: memory")
        if not isinstance(self.args, (tuple, list)) or not isinstance(self.kwargs, dict):
            raise _wrong(name, "args must be a tuple and kwargs a dict, for its build")
        if not isinstance(self.device, str) or not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise _wrong(name, f"there is no device {self.device!r}", 'use "auto", "cpu", "cuda" or "cuda:0"')

    @property
    def is_program(self) -> bool:
        return not callable(self.build) and str(self.build).endswith(".pt2")

    @property
    def expected_bytes(self) -> int:
        """The declared size, or else the size of its file of weights; 0 if neither is known."""
        if self.memory is not None:
            return parse_bytes(self.memory)
        file = self.weights if self.weights is not None else self.build if self.is_program else ""
        try:
            return os.stat(str(file)).st_size if file else 0
        except OSError:
            return 0

    def spec(self, name: str, device: str, seed: int | None) -> bytes:
        """Everything that a worker needs to know, pickled; `seed` seeds the random numbers of the build."""
        try:
            folder = os.getcwd()
        except FileNotFoundError:
            steps = ("change to a folder that exists (os.chdir, cd) before making the pool",)
            raise UsageError("the folder this process runs in was removed, and workers run in the same", next=steps) from None
        pickled, main = _pickled(name, "build", self.build) if callable(self.build) else (None, "")
        given, main_of_given = _pickled(name, "args, kwargs or warmup", (self.args, self.kwargs, self.warmup))
        return pickle.dumps(
            {
                "name": name,
                "build": "" if callable(self.build) or self.is_program else str(self.build),
                "program": os.path.abspath(str(self.build)) if self.is_program else "",
                "pickled": pickled,
                "main": main or main_of_given,
                "script": _script(),
                "module": _module(),
                "script_name": getattr(sys.modules.get("__main__"), "__name__", "__main__"),
                "given": given,
                "weights": os.path.abspath(self.weights) if self.weights is not None else "",
                "device": device,
                "check_rows": self.check_rows,
                "seed": seed,
                "path": [folder, *[path for path in sys.path if path]],
                "cwd": folder,
            }
        )


def _wrong(name: str, what: str, *steps: str, why: str = "") -> UsageError:
    return UsageError(f"model {name!r}: {what}", why=why, next=steps)


_EXAMPLE = 'Pool({"mlp": Model("my_models:build_mlp")})'


def check_models(models: Any) -> None:
    if not isinstance(models, Mapping):
        raise UsageError(f"models is {shown(models)}; it must be a dict of names and models", next=(_EXAMPLE,))
    if not models:
        raise UsageError("a pool needs at least one model", next=(_EXAMPLE,))
    for name in models:
        if not isinstance(name, str):
            raise UsageError(f"the name of a model is {shown(name)}; it must be a string", next=(_EXAMPLE,))


def check_number(
    what: str, value: Any, *, least: float | None = None, above: bool = False, whole: bool = False, none: bool = False
) -> None:
    """Raise UsageError unless it is such a number. `above`: it must be more than `least`; `none`: it may be None."""
    if value is None and none:
        return
    is_number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool) and (whole or math.isfinite(value))
    if is_number and (least is None or value > least or (value == least and not above)):
        return
    bound = "" if least is None else f" {'above' if above else 'of at least'} {least:g}"
    raise UsageError(f"{what} is {shown(value)}; it must be a {'whole number' if whole else 'number'}{bound}{', or None' if none else ''}")


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(size: Any, what: str = "") -> int:
    """The number of bytes in 1_000_000, 1.5e9, "200MB" or "1.5 GiB"; raises UsageError below 1."""
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-zA-Z]*)\s*", size) if isinstance(size, str) else None
    if match and match[2].upper() in _UNITS:
        nbytes = int(float(match[1]) * _UNITS[match[2].upper()]) if match[2] or "." in match[1] else int(match[1])
    elif isinstance(size, (int, float)) and not isinstance(size, bool) and float(size).is_integer():
        nbytes = int(size)
    else:
        nbytes = 0
    if nbytes < 1:
        given = f"{what} is {shown(size)}" if what else shown(size)
        raise UsageError(f"{given}, which is not a size", next=('write it as 500_000_000, "500MB" or "1.5GiB"',))
    return nbytes


def shown(value: Any) -> str:
    is_short = isinstance(value, (str, int, float, type(None), tuple)) and len(repr(value)) < 80
    return repr(value) if is_short else f"of type {type(value).__name__}"


def _script() -> str:
    """The path of the script that runs, or an empty string if a worker could not run it too: a script that Python read from standard input
    or a pipe cannot be read again. Workers know the script as `__mp_main__`, so the name is made known here as well."""
    main = sys.modules.get("__main__")
    file: str = getattr(main, "__file__", None) or ""
    path = os.path.realpath(file) if file.startswith(("/dev/", "/proc/")) else os.path.abspath(file)
    if main is None or not file or not os.path.isfile(path):
        return ""
    sys.modules.setdefault("__mp_main__", main)
    return path


def _module() -> str:
    """The script's name as a module (`python -m app.train`) if it is part of a package, because its relative imports need that name."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec.name if spec is not None and spec.parent else ""


def _pickled(name: str, what: str, value: Any) -> tuple[bytes, str]:
    """The pickled callable or arguments, and the script that a worker has to run to find what they name, if there is one."""
    script = _script()
    try:
        pickled = pickle.dumps(value)
        if b"__main__" not in pickled:
            return pickled, ""
        if script:
            return pickled, script
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if script:
            raise _not_sent(name, what, error) from None
    return _pickled_by_value(name, what, value), ""  # defined in a notebook, at a prompt or on standard input: a worker could not import it


def _pickled_by_value(name: str, what: str, value: Any) -> bytes:
    """Pickle the code itself, with the present values of whatever it uses from other cells."""
    try:
        import cloudpickle  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        where = "is defined in a notebook, at a prompt or on standard input, where workers cannot import it"
        steps = ('put it into a file and give its import path: Model("my_models:build")', 'or: pip install "rankwise[notebook]"')
        raise _wrong(name, f"its {what} {where}", *steps) from None
    try:
        return bytes(cloudpickle.dumps(value))
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:  # it uses an open file, a lock, a pool
        raise _not_sent(name, what, error) from None


def _not_sent(name: str, what: str, error: Exception) -> UsageError:
    steps = ("define it at the top of a module", 'or give an import path: Model("my_models:build")')
    why = str(error)
    if "on __main__ failed" in why and "<lambda>" not in why:
        why += "\n__main__ is not the script where another program runs it: python -m cProfile, python -m trace"
    return _wrong(name, f"its {what} cannot be sent to a worker", *steps, why=why)


# In a worker: the caller's script, for a `build` or an input that is defined in it.
_script_run = ""  # its path, once it has run here
_is_importing = False
_is_worker = False


def become_like_the_caller(spec: dict[str, Any]) -> None:
    """Set up a worker so that imports find what they find in the pool's process. In that process itself, scripts would run twice."""
    global _is_worker
    _is_worker = True
    for folder in reversed(spec["path"]):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    if os.path.isdir(spec["cwd"]):  # it may be missing on another machine; there Ray has chosen this process's folder
        os.chdir(spec["cwd"])
    if spec["main"]:
        become(spec["main"], spec["module"])
    elif spec["script"] and not _script_run:  # run only when an input names something of it, which most pools never need
        # The script's other name is taken only if the caller uses it too. pickle searches every module but __main__ for objects that do not
        # name their module (a tensor's qscheme, say), and looking into this one would run the script.
        sys.modules["__main__"] = sys.modules[spec["script_name"]] = _Unread(spec["script"], spec["module"])


def become(path: str, module_name: str = "") -> None:
    """Run the script once under another name, as multiprocessing does, so that its functions can be found. `module_name` is the script's
    own name, if it is part of a package."""
    global _is_importing, _script_run
    import runpy

    if _script_run == path:
        return
    _script_run = path
    module = types.ModuleType("__mp_main__")
    _is_importing = True
    try:
        run, what = (runpy.run_module, module_name) if module_name else (runpy.run_path, path)
        module.__dict__.update(run(what, run_name="__mp_main__"))
    except BaseException:
        _script_run = ""  # so that the next caller runs it again, and gets the same error
        raise
    finally:
        _is_importing = False
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module


def is_importing_script() -> bool:
    """Whether the script is being imported. A Pool made meanwhile means that the script has no main guard."""
    return _is_importing


def is_imported_by_worker() -> bool:
    """Whether a worker is importing a module, for a build or an input that is defined there: where that is a server's app, which makes its
    pool when it is imported, workers would start workers."""
    return _is_worker and any(frame.f_code.co_filename == "<frozen importlib._bootstrap>" for frame, _ in traceback.walk_stack(None))


class _Unread(types.ModuleType):
    """Stands for the script until one of its names is looked up."""

    def __init__(self, path: str, module_name: str = "") -> None:
        super().__init__("__main__")
        self.__file__, self._module_name = path, module_name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or _is_importing:
            raise AttributeError(name)
        become(str(self.__file__), self._module_name)
        return getattr(sys.modules["__main__"], name)


ONE = "output"


def output_names(count: int | None, declared: Sequence[str] = ()) -> list[str]:
    """`output` where a model returns one tensor (`count` is None), `output_0`, `output_1`, … where it returns a list or tuple of them.

    Declared names are used where there are as many as outputs. A dict of outputs brings its own.
    """
    if len(declared) == (1 if count is None else count):
        return list(declared)
    return [ONE] if count is None else [f"{ONE}_{i}" for i in range(count)]


def named_list(outputs: Sequence[Any], declared: Sequence[str] = ()) -> dict[str, Any]:
    return dict(zip(output_names(len(outputs), declared), outputs))


def by_text(named: Mapping[Any, Any]) -> dict[str, Any]:
    """The same values under names as text; raises TypeError if two names are the same text, as 1 and "1" are."""
    found = {str(name): item for name, item in named.items()}
    if len(found) < len(named):
        twice = next(text for text in found if sum(str(name) == text for name in named) > 1)
        raise TypeError(f"two names are {twice!r} as text")
    return found
