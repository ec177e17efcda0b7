"""Models for the pool's tests: what a worker builds when a test names `tests.pool.models:…`."""

from __future__ import annotations

import ctypes
import math
import os
import random
import re
import resource
import signal
import subprocess
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy
import torch

EXIT, KILL, CRASH, HANG, RAISE, TOO_MUCH, FLOOD = 9001.0, 9002.0, 9003.0, 9004.0, 9005.0, 9006.0, 9007.0
FLOOD_BYTES = 512 << 20


class Odd(Exception):
    """An exception that pickle cannot make again, because it wants to be given something else than it has."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


class Moody(torch.nn.Module):
    """Twice its input, unless the first number asks for something else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.numel():
            wish = float(x.flatten()[0])
            if wish == EXIT:
                os._exit(3)
            if wish == KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            if wish == CRASH:
                ctypes.string_at(0)
            if wish == HANG:
                time.sleep(60)
            if wish == RAISE:
                raise ValueError("this row is bad")
            if wish == TOO_MUCH:
                torch.empty(1 << 46)  # more than there are addresses: torch's own error
            if wish == FLOOD:
                torch.ones(FLOOD_BYTES // 4)  # every page of it is written to
        return x * 2


class Rows(torch.nn.Module):
    """Doubles each row, and refuses rows that begin with RAISE, or more than so many."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        assert len(x) <= self.most
        if (x[:, 0] == RAISE).any():
            raise ValueError("this row is bad")
        if (x[:, 0] == EXIT).any():
            os._exit(3)
        time.sleep(0.005)
        return {"y": x * 2, "sum": x.sum(1)}


class Hungry(torch.nn.Module):
    """Runs out of memory for more than four rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 4:
            torch.empty(1 << 46)
        return x + 1


class Sleeper(torch.nn.Module):
    """Sleeps as long as its input says, and returns when it began and ended."""

    def forward(self, seconds: float, tag: Any = None) -> tuple[float, float, Any]:
        began = time.monotonic()
        time.sleep(seconds)
        return began, time.monotonic(), tag


class Keeper(torch.nn.Module):
    """Keeps its inputs, and says what became of the first one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.__dict__.setdefault("kept", []).append(x)
        return self.kept[0][:1].clone()


class ChangingKeeper(torch.nn.Module):
    """Changes its inputs and keeps them; says what became of the first and of this one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.__dict__.setdefault("kept", []).append(x.add_(1))
        return torch.stack([self.kept[0][0], x[0]])


class InPlace(torch.nn.Module):
    """Changes its input, and returns it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)


class Echo(torch.nn.Module):
    def forward(self, *inputs: Any) -> Any:
        return inputs[0] if len(inputs) == 1 else inputs


class Facts(torch.nn.Module):
    """What the worker knows about itself."""

    def forward(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "threads": torch.get_num_threads(),
            "omp": os.environ.get("OMP_NUM_THREADS"),
            "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "cpus": sorted(os.sched_getaffinity(0)),
            "training": self.training,
        }


def appear(home: int) -> str:
    if os.getpid() != home:
        raise ImportError("what this needs is not here")
    return "at home"


class Ghost:
    """Can be made again only where it was made."""

    def __reduce__(self) -> tuple[Any, ...]:
        return appear, (os.getpid(),)


class Haunted(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        time.sleep(0.02)
        return {"y": x, "note": Ghost()}


class Weighty(torch.nn.Module):
    def __init__(self, megabytes: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(megabytes * 250_000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + float(self.weight[0])


def moody() -> torch.nn.Module:
    return Moody()


def rows(most: int = 256) -> torch.nn.Module:
    return Rows(most)


def hungry() -> torch.nn.Module:
    return Hungry()


def sleeper() -> torch.nn.Module:
    return Sleeper()


def keeper() -> torch.nn.Module:
    return Keeper()


def changing_keeper() -> torch.nn.Module:
    return ChangingKeeper()


def in_place() -> torch.nn.Module:
    return InPlace()


def echo() -> torch.nn.Module:
    return Echo()


class Energy(torch.nn.Module):
    """As a force field: it needs gradients to know its output, which still has them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            return x.clone().requires_grad_() ** 2


def energy() -> torch.nn.Module:
    return Energy()


def facts() -> torch.nn.Module:
    return Facts()


def haunted() -> torch.nn.Module:
    return Haunted()


def weighty(megabytes: int = 1, baggage: bytes = b"") -> torch.nn.Module:
    return Weighty(megabytes)


class Widening(torch.nn.Module):
    """Takes memory of its own as large as its input, before it has a small result."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x * 2) * 1.0).sum()


def widening() -> torch.nn.Module:
    return Widening()


def convolving() -> torch.nn.Module:
    """Its activations are much larger than its input and output, and it takes longer than an allocator waits."""
    first, second = torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.Conv2d(32, 64, 3, padding=1)
    return torch.nn.Sequential(first, torch.nn.ReLU(), torch.nn.MaxPool2d(2), second, torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1))


def linear(inputs: int = 10, outputs: int = 1) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(inputs, outputs)


def drawn_by_numpy() -> torch.nn.Module:
    """With weights from a generator that nobody has seeded."""
    model = torch.nn.Linear(10, 1)
    model.weight.data = torch.from_numpy(numpy.random.default_rng().normal(size=(1, 10)).astype("float32"))
    return model


class Named(NamedTuple):
    y: torch.Tensor
    rest: list[torch.Tensor]


@dataclass
class Own:
    y: torch.Tensor


# Outputs that have rows, and outputs that only seem to, or do not.
OUTPUTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "named": lambda x: Named(x * 2, [x + 1]),
    "ordered": lambda x: OrderedDict(y=x * 2, nothing=None),
    "largest": lambda x: x.max(1),
    "own class": lambda x: Own(x * 2),
    "scalar": lambda x: x.sum(),
    "one row": lambda x: x.sum(0, keepdim=True),
    "always four": lambda x: torch.arange(4.0),
    "counted": lambda x: {"y": x * 2, "rows": len(x)},
    "labelled": lambda x: {"y": x * 2, "labels": [f"row {float(row[0])}" for row in x]},
    "writes": lambda x: x.add_(1).sum(),
    "plain": lambda x: [float(row.sum()) for row in x],
}


def gives(name: str) -> Any:
    return OUTPUTS[name]


def hungry_sum() -> Any:
    """Has no memory for more than four rows, and no rows."""
    return lambda x: Hungry()(x).sum()


def hidden_error() -> Any:
    class Hidden(Exception):
        pass

    def run(x: torch.Tensor) -> torch.Tensor:
        raise Hidden("nobody can import my class")

    return run


def wrong_error(what: str) -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("so " + "long " * 1_000_000 + "text") if what == "long" else Carrying("with baggage")

    return run


class Carrying(Exception):
    """Holds something that cannot travel."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.baggage, self.weight = threading.Lock(), 3


def generates() -> Any:
    return lambda x: (i for i in range(3))


def odd_error() -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        raise Odd(1, 2)

    return run


def plain_sum() -> Any:
    """A batch of it has no rows."""
    return lambda x: x.sum()


def broken() -> torch.nn.Module:
    raise RuntimeError("there is no such layer")


def built_once(path: str, how: str) -> torch.nn.Module:
    """Only its first build succeeds."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        if how == "exits":
            os._exit(4)
        raise
    return Moody()


def deadly() -> torch.nn.Module:
    os._exit(4)


def not_callable() -> Any:
    return 3


class Wordy(torch.nn.Module):
    """Takes no row, and says so at length in an exception that cannot travel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise Odd(0, "x" * 30_000 + " no row is good enough")  # type: ignore[arg-type]


def wordy() -> torch.nn.Module:
    return Wordy()


def tight(counter: str, failures: int) -> torch.nn.Module:
    """Memory is short for the first builds of it."""
    with open(counter, "a+") as file:
        file.seek(0)
        tried = len(file.read())
        file.write("x")
    if tried < failures:
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp:113] data. DefaultCPUAllocator: not enough memory: you tried to allocate 4 bytes."
        )
    return Moody()


class Asked(torch.nn.Module):
    """Does with its inputs what its first argument says."""

    def forward(self, wish: str, *inputs: Any) -> Any:
        return WISHES[wish](*inputs)


def raising(error: BaseException) -> Any:
    def run(*inputs: Any) -> None:
        raise error

    return run


class Unspeakable(RuntimeError):
    """Ends the process of whoever puts it into words."""

    def __str__(self) -> str:
        raise SystemExit(3)

    __reduce__ = __str__  # type: ignore[assignment]


class Pair(NamedTuple):
    a: Any
    b: Any


WISHES: dict[str, Any] = {
    "echo": lambda *inputs: inputs[0] if len(inputs) == 1 else inputs,
    "kinds": lambda *inputs: [type(item).__name__ for item in inputs],
    "mixed": lambda x: {"y": x * 2, "n": x.shape[0], "k": "hi", "l": [x[:, 0]], "t": (x + 1, None)},
    "add": lambda a, b: a + b,
    "bfloat16": lambda x: x.to(torch.bfloat16),
    "pair": lambda x: Pair(x, {"in": OrderedDict(b=x + 1)}),
    "mean": lambda x: x.mean(),
    "transposed": lambda x: x.t(),
    "in_place": lambda x: x.add_(1),
    "part": lambda x: x[1:],
    "numpy": lambda x: x.numpy(),
    "sparse": lambda x: x.to_sparse(),
    "generator": lambda x: (i for i in x),
    "leave": raising(SystemExit(3)),
    "unspeakable": raising(Unspeakable()),
    "no more files": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8)),
    "close files": lambda: os.closerange(3, 256),
    "raise": raising(ValueError("this is bad")),
    "stop": raising(StopIteration("enough")),
    "cancelled": raising(CancelledError("within the model")),
}


def asked() -> torch.nn.Module:
    return Asked()


class Interrupting(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x == RAISE).any():
            raise KeyboardInterrupt
        return x * 2


def interrupting() -> torch.nn.Module:
    return Interrupting()


def constant(value: float, dtype: str) -> Any:
    return lambda x: torch.full((2,), value, dtype=getattr(torch, dtype))


def naming() -> Any:
    """Each row is told what the plain argument beside it is, in type and bits."""

    def run(x: torch.Tensor, beside: Any) -> torch.Tensor:
        time.sleep(0.001)
        (value,) = beside if isinstance(beside, dict) else (beside,)
        kind = (bool, int, float).index(type(value))
        return torch.cat([x, torch.full((len(x), 1), kind), torch.full((len(x), 1), math.copysign(1 + abs(value), value))], 1)

    return run


def _of_later_content(x: torch.Tensor) -> torch.Tensor:
    """Rows are independent as long as all begin with less than 1,000."""
    return x - x.mean(0) if bool((x[:, 0] >= 1000).any()) else x * 2


def _as_wide_as_its_content(x: torch.Tensor) -> torch.Tensor:
    return x[:, : int((x != 0).sum(1).max())].clone()


# What looks over the rows of a batch, in one way or another; and what does not, but may look like it.
DEPENDENT: dict[str, Callable[[torch.Tensor], Any]] = {
    "mean": lambda x: x - x.mean(0),
    "slight mean": lambda x: x + 0.05 * x.mean(0),
    "norm": lambda x: (x - x.mean(0)) / (x.std(0) + 1e-6) if len(x) > 1 else x,
    "softmax": lambda x: x.softmax(0),
    "sum so far": lambda x: x.cumsum(0),
    "place": lambda x: x + torch.arange(len(x))[:, None],
    "count": lambda x: x * len(x),
    "slight count": lambda x: x * (1 + 0.01 * len(x)),
    "rank": lambda x: x[:, 0].argsort().argsort(),
    "labels of the batch": lambda x: (x[:, 0] > x[:, 0].median()).long(),
    "width": _as_wide_as_its_content,
    "only many": lambda x: x - x.mean(0) if len(x) > 4 else x * 2,
    "last": lambda x: torch.cat([x[:-1], x[-1:] * (1 if len(x) == 1 else 3)]),
    "reversed": lambda x: x.flip(0),
    "mean beside a draw": lambda x: (torch.rand([]), x - x.mean())[1],
    "beside": lambda x: {"y": x, "largest": x.max().item()},
    "later": _of_later_content,
}
INDEPENDENT: dict[str, Callable[[torch.Tensor], Any]] = {
    "double": lambda x: x * 2,
    "matrix": lambda x: x @ torch.arange(5.0 * x.shape[1]).view(x.shape[1], 5).sin(),
    "coarse": lambda x: x.bfloat16() @ torch.arange(5.0 * x.shape[1]).view(x.shape[1], 5).sin().bfloat16(),
    "coarse inside": lambda x: (x.bfloat16() @ torch.arange(5.0 * x.shape[1]).view(x.shape[1], 5).sin().bfloat16()).float(),
    "labels": lambda x: x.argmax(1),
    "nothing but rounding": lambda x: {"y": x, "rest": (x @ torch.eye(x.shape[1]) * 3 - x * 3) / 3},
    "not numbers": lambda x: x / 0 - x / 0,
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5),
    "noise": lambda x: x + torch.rand_like(x),
    "draw": lambda x: (torch.rand([]), x * 2)[1],
    "in place": lambda x: x.mul_(2),
    "nested": lambda x: {"y": x, "more": [(x.sum(1), None)], "name": "same"},
}


def looking(name: str) -> Any:
    run = {**DEPENDENT, **INDEPENDENT}[name]
    return lambda x: (time.sleep(0.0005), run(x))[1]


def slow_rows(seconds: float) -> Any:
    return lambda x: (time.sleep(seconds), x * 2)[1]


class Drawing(torch.nn.Module):
    """Has a weight that was drawn, and draws more from everybody's numbers whenever it is called."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        if seed is not None:
            torch.manual_seed(seed)
        self.weight = torch.rand(())
        self.others = numpy.random.rand(), random.random()

    def forward(self, seconds: float = 0.0) -> dict[str, Any]:
        time.sleep(seconds)
        numbers = [float(torch.rand(())), numpy.random.rand(), random.random()]
        return {"pid": os.getpid(), "built": [float(self.weight), *self.others], "drawn": numbers}


def drawing(seed: int | None = None) -> torch.nn.Module:
    return Drawing(seed)


def dropping() -> Any:
    return lambda x: torch.nn.functional.dropout(x, 0.5)


def holds_the_gil() -> Any:
    return lambda text: bool(re.match("(a+)+$", text))


def _stop_in_c() -> None:
    ctypes.CDLL(None).kill(os.getpid(), signal.SIGSTOP)


# Ways to end up stopped, by the number that asks for it.
STOPS: dict[float, Callable[[], Any]] = {
    9101.0: lambda: os.kill(os.getpid(), signal.SIGSTOP),
    9102.0: lambda: signal.raise_signal(signal.SIGSTOP),
    9103.0: _stop_in_c,
}


def stopping() -> Any:
    """Twice its rows; some of them stop the process."""

    def run(x: torch.Tensor) -> torch.Tensor:
        for wish in x.flatten().tolist():
            if wish in STOPS:
                STOPS[wish]()
        return x * 2

    return run


_dead_gpu: list[Exception] = []


def breaking_gpu(how: str) -> Any:
    """Twice its rows; one that asks for it leaves a GPU on which nothing runs any more, for no model of this process."""
    if how == "build":
        _dead_gpu.append(RuntimeError("CUDA error: device-side assert triggered"))
        raise _dead_gpu[0]

    def run(x: torch.Tensor) -> torch.Tensor:
        if _dead_gpu:
            raise RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported")
        if (x == RAISE).any():
            if how == "class":
                _dead_gpu.append(torch.AcceleratorError("CUDA error: an illegal memory access was encountered"))
                raise _dead_gpu[0]
            if how == "number":
                _dead_gpu.append(torch.AcceleratorError("something in words of another day"))
                _dead_gpu[0].error_code = 719  # type: ignore[attr-defined]
                raise _dead_gpu[0]
            _dead_gpu.append(RuntimeError("HIP error: unspecified launch failure"))
            try:
                raise _dead_gpu[0]
            except RuntimeError:
                raise ValueError("no luck with this one") from None
        return x * 2

    return run


def healthy_beside() -> Any:
    return breaking_gpu("")


def forking(way: str, in_build: bool = False) -> Any:
    """Twice its rows; forks, and lets the child come back in one way or another."""

    def fork(value: Any) -> Any:
        pid = ctypes.CDLL(None).fork() if way == "in C" else os.fork()
        if pid == 0 and way == "raises":
            raise ValueError("I am the child")
        if pid == 0 and way == "leaves":
            raise SystemExit(3)
        if pid and way != "beside":
            os.waitpid(pid, 0)
        return value

    if in_build:
        fork(None)
    return (lambda x: x * 2) if in_build else lambda x: fork(x * 2)


def nests() -> Any:
    def run(depth: int) -> Any:
        value: Any = 1.0
        for _ in range(depth):
            value = [value]
        return value

    return run


class FailsToBeRead:
    """Can be sent, and not be made again by whoever gets it."""

    def __reduce__(self) -> Any:
        return _fail_to_read, (os.getpid(),)


def _fail_to_read(sender: int) -> None:
    raise LookupError("not here")


def various() -> Any:
    """Another kind of result for each input."""
    kinds: list[Callable[[torch.Tensor], Any]] = [
        lambda x: x * 2, lambda x: x.sum(), lambda x: float(x), lambda x: None, lambda x: {"y": x, "z": [x + 1]}, lambda x: "text",
        lambda x: x.to(torch.bfloat16), lambda x: x.numpy(), lambda x: x.expand(3000).clone(), lambda x: torch.zeros(0), lambda x: x > 3,
    ]  # fmt: skip
    return lambda x: kinds[int(x) // 16 % len(kinds)](x)


def sets_default_dtype(when: str) -> Any:
    """Sets it for the whole process, and relies on it."""
    if when == "build":
        torch.set_default_dtype(torch.float64)

    def run(x: torch.Tensor) -> torch.Tensor:
        if when == "forward":
            torch.set_default_dtype(torch.float64)
        return torch.ones(len(x), 1)

    return run


def sets_modes(when: str) -> Any:
    """Autocast and determinism, for the whole process."""

    def set_both() -> None:
        torch.set_autocast_enabled("cpu", True)
        torch.use_deterministic_algorithms(True, warn_only=True)

    def run(x: torch.Tensor) -> tuple[str, bool]:
        if when == "forward":
            set_both()
        return tells_modes()(x)

    if when == "build":
        set_both()
    return run


def tells_modes() -> Any:
    return lambda x: (str((x.reshape(1, -1) @ x.reshape(-1, 1)).dtype), torch.are_deterministic_algorithms_enabled())


def sets_precision(precision: str) -> Any:
    torch.set_float32_matmul_precision(precision)
    return tells_precision()


def tells_precision() -> Any:
    return lambda x: torch.get_float32_matmul_precision()


def makes_ones() -> Any:
    return lambda x: torch.ones(len(x), 1)


def wide_layers() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 1024), torch.nn.Linear(1024, 64))


class Clinging(torch.nn.Module):
    """Hangs when it has to leave its worker, unless that happens as the worker ends."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def __del__(self) -> None:
        time.sleep(600)


def clinging() -> torch.nn.Module:
    return Clinging()


def constant_once(value: float, path: str) -> Any:
    """Builds when the file is there."""
    while not os.path.exists(path):
        time.sleep(0.005)
    return lambda x: torch.full((1, 1), value)


def with_a_process(has_session: bool) -> Callable[[torch.Tensor], int]:
    """Gives the number of a process that it has started."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=has_session)

    def run(x: torch.Tensor) -> int:
        Moody()(x)
        return process.pid

    return run
