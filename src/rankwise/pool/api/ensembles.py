"""Several models behind one `submit`: ensembles, weighted splits, routers. Each has `submit` and `map` like the pool."""

from __future__ import annotations

import functools
import hashlib
import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from numbers import Number
from typing import Any, Protocol

import numpy as np

from rankwise.errors import UsageError
from rankwise.pool.api.model import check_number
from rankwise.pool.api.streams import WINDOW, Stream, check_window, checked_seed
from rankwise.pool.memory.encoding import Uneven, is_same, items_of, like, torch_module
from rankwise.pool.schedule.state import seed_of

log = logging.getLogger("rankwise.pool")
Combine = str | Callable[[list[Any]], Any]
Key = str | int | bytes
COMBINES = "rankwise-combine"  # the name of threads in which functions of ensembles, and callbacks on their results, run


class PoolLike(Protocol):
    @property
    def models(self) -> tuple[str, ...]: ...
    def submit(self, model: str, *inputs: Any, **options: Any) -> Future[Any]: ...
    def has_open_tasks(self) -> bool: ...
    def await_at_close(self, future: Future[Any]) -> None: ...


class Ensemble:
    """Runs all models on the same input, and combines their outputs."""

    def __init__(self, pool: PoolLike, models: Iterable[str], combine: Combine) -> None:
        self._pool, self._models = pool, _known(pool, models)
        self._calls: CallQueue | None = None
        if isinstance(combine, str) and combine in MERGES:
            self._combine = MERGES[combine]
        elif callable(combine):
            self._combine, self._calls = combine, CallQueue()
        else:
            raise UsageError(f"there is no way to combine called {combine!r}", why=f"there are {', '.join(MERGES)}, or any callable")

    def submit(self, *inputs: Any, seed: int | None = None, **options: Any) -> Future[Any]:
        parts: list[Future[Any]] = []
        seed = checked_seed(seed)
        try:
            for number, model in enumerate(self._models):
                parts.append(self._pool.submit(model, *inputs, seed=seed_of(seed, number), **options))
        except BaseException:
            for part in parts:
                part.cancel()
            raise
        return self._whole(parts)

    def map(self, inputs: Iterable[Any], window: int | None = None) -> Iterator[Any]:
        return _map(self._pool, self.submit, inputs, window)

    def _whole(self, parts: list[Future[Any]]) -> Future[Any]:
        whole: Future[Any] = Future()
        missing, lock = [len(parts)], threading.Lock()

        def combine() -> None:
            if not whole.set_running_or_notify_cancel():
                return
            try:
                combined = self._combine([part.result() for part in parts])
            except BaseException as error:
                whole.set_exception(error)
            else:
                whole.set_result(combined)
            finally:
                parts.clear()  # the futures and this function refer to each other: all outputs would wait for the garbage collector

        def cancel_parts(whole: Future[Any]) -> None:
            """Cancel the models' tasks. A task that runs already goes on, and its result is thrown away."""
            for part in list(parts) if whole.cancelled() else ():
                part.cancel()

        def on_done(_: Future[Any]) -> None:
            with lock:
                missing[0] -= 1
                if missing[0]:
                    return
            if self._calls is None:
                combine()
            else:
                self._calls.add(combine)

        whole.add_done_callback(cancel_parts)
        self._pool.await_at_close(whole)
        for part in list(parts):
            part.add_done_callback(on_done)
        return whole


class CallQueue:
    """Runs the user's function in a thread of its own, one call after the other. It may take its time and use the pool, while the thread
    that reads the workers' answers goes on. The thread exists only while there is something to do."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()  # the first call is running
        self._lock = threading.Lock()

    def add(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._calls.append(call)
            if len(self._calls) > 1:
                return
        try:
            threading.Thread(target=self._run, name=COMBINES, daemon=True).start()
        except RuntimeError:  # the interpreter is about to end, and makes no more threads
            self._run()

    def _run(self) -> None:
        while True:
            try:
                self._calls[0]()
            except BaseException:  # sys.exit in a callback, say: the other calls still have to run
                log.exception("a callback tried to end the thread that it ran in")
            with self._lock:
                self._calls.popleft()
                if not self._calls:
                    return


class Split:
    """Chooses one of several models by weight; the same key always gets the same one."""

    def __init__(self, pool: PoolLike, weights: Mapping[str, float]) -> None:
        if not isinstance(weights, Mapping):
            raise UsageError(f"the weights of a split are a dict, not {weights!r}", next=('pool.split({"old": 0.9, "new": 0.1})',))
        self._pool, self._models = pool, _known(pool, weights)
        self._weights = checked_weights("", weights, "give at least one model a share above 0")

    def choose(self, key: Key | None = None) -> str:
        """The model for this key; without a key, a random one by weight."""
        return by_weight(self._weights, key)

    def submit(self, *inputs: Any, key: Key | None = None, **options: Any) -> Future[Any]:
        return self._pool.submit(self.choose(key), *inputs, **options)

    def map(self, inputs: Iterable[Any], window: int | None = None, key: Callable[..., Key] | None = None) -> Iterator[Any]:
        """`key(*inputs)` names the key of each."""
        return _map(self._pool, lambda *given: self.submit(*given, key=key(*given) if key is not None else None), inputs, window)


def checked_weights(where: str, weights: Mapping[str, Any], step: str) -> dict[str, float]:
    """The weights as floats. Raises UsageError, whose text begins with `where` and whose next step is `step`."""
    for name, weight in weights.items():
        check_number(f"{where}the weight of {name!r}", weight, least=0)
    if not sum(weights.values()) > 0:
        raise UsageError(f"{where}the weights {dict(weights)} do not say how to split", next=(step,))
    return {name: float(weight) for name, weight in weights.items()}


def by_weight(weights: Mapping[str, float], key: Key | None) -> str:
    """One of the names; the same key always gets the same one."""
    if key is None:
        point = random.random()
    else:
        data = key if isinstance(key, bytes) else str(key).encode()
        point = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") / 2**64
    sums = np.cumsum(list(weights.values()))
    last = [name for name, weight in weights.items() if weight][-1]  # for a point that rounding has moved to the very end
    return next((name for name, upto in zip(weights, sums) if point * sums[-1] < upto), last)


class Router:
    """Runs the model that a callable names for each input."""

    def __init__(self, pool: PoolLike, choose: Callable[..., str]) -> None:
        if not callable(choose):
            raise UsageError(f"a router is a callable that names a model for its inputs, not {choose!r}")
        self._pool, self._choose = pool, choose

    def submit(self, *inputs: Any, **options: Any) -> Future[Any]:
        return self._pool.submit(self._choose(*inputs), *inputs, **options)

    def map(self, inputs: Iterable[Any], window: int | None = None) -> Iterator[Any]:
        return _map(self._pool, self.submit, inputs, window)


def _known(pool: PoolLike, models: Iterable[str]) -> list[str]:
    if isinstance(models, str):
        raise UsageError(f"the models are a list of names, not one string ({models!r})", next=(f"[{models!r}]",))
    names = list(models)
    if not names:
        raise UsageError("no models were named", why=f"the pool has {', '.join(pool.models)}")
    for name in names:
        if name not in pool.models:
            raise UsageError(f"the pool has no model {name!r}", why=f"it has {', '.join(pool.models)}")
    return names


def _map(pool: PoolLike, submit: Callable[..., Future[Any]], inputs: Iterable[Any], window: int | None) -> Iterator[Any]:
    check_window(window)
    return Stream(submit, pool.has_open_tasks, window or WINDOW).results(inputs)


Merge = Callable[[list[Any]], Any]
_OWN_COMBINE = ("give combine= a function of the list of outputs",)


def _each(outputs: list[Any], merge: Merge) -> Any:
    """Merge containers of the same kind item by item."""
    first = outputs[0]
    _check_same(outputs, lambda output: type(output) is type(first) and len(output) == len(first))
    if isinstance(first, dict):
        _check_same(outputs, lambda output: is_same(set(output), set(first)))
        columns = [[output[key] for output in outputs] for key in first]
    else:
        columns = [list(column) for column in zip(*outputs)]
    items = [merge(column) for column in columns]
    try:
        return like(first, items)
    except Uneven:
        raise _do_not_fit(f"a {type(first).__name__} cannot be made with other items in it") from None


def mean(outputs: list[Any]) -> Any:
    """The mean of tensors, arrays and numbers; other values (None, a name) have to be the same in all outputs. Floating point keeps its
    type, though the mean is computed in double precision; integers and booleans become floating point."""
    if items_of(outputs[0]) is not None:
        return _each(outputs, mean)
    torch, first = torch_module(), outputs[0]
    if torch is not None and isinstance(first, torch.Tensor):
        _check_shapes(outputs)
        dtype = functools.reduce(torch.promote_types, [output.dtype for output in outputs])
        wide = torch.complex128 if dtype.is_complex else torch.float64
        total = sum([output.to(wide) for output in outputs[1:]], start=first.to(wide))
        return (total / len(outputs)).to(dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype())
    if isinstance(first, (np.ndarray, np.generic)) and first.dtype.kind in "biufc":
        _check_shapes(outputs)
        dtype = np.result_type(*[np.asarray(output).dtype for output in outputs])
        total = np.mean(np.stack(outputs), 0, dtype=np.complex128 if dtype.kind == "c" else np.float64)
        return total.astype(dtype) if dtype.kind in "fc" else total
    if all(isinstance(output, Number) for output in outputs):
        return sum(outputs[1:], start=first) / len(outputs)
    _check_same(outputs, lambda output: is_same(output, first))
    return first


def vote(outputs: list[Any]) -> Any:
    """The class that most models choose. Outputs are labels (integers, booleans, words), or scores, whose largest entry chooses. In a
    draw the lowest label wins."""
    if items_of(outputs[0]) is not None:
        return _each(outputs, vote)
    _check_shapes(outputs)
    labels = np.sort(np.stack([_labels(output) for output in outputs]), axis=0)
    votes = np.stack([(labels == own).sum(0) for own in labels])
    winners = np.take_along_axis(labels, votes.argmax(0)[None], 0)[0]  # argmax takes the first of equals, and the labels are sorted
    torch = torch_module()
    if torch is not None and isinstance(outputs[0], torch.Tensor):
        return torch.from_numpy(np.asarray(winners))
    return winners if isinstance(outputs[0], np.ndarray) else winners.item()


MERGES: dict[str, Merge] = {"mean": mean, "vote": vote}


def _labels(output: Any) -> np.ndarray[Any, Any]:
    why = "a vote is over labels (integers, booleans, words), or over scores, with one for each class in the last dimension"
    torch = torch_module()
    try:
        if hasattr(output, "shape") and bool((output != output).any()):
            raise ValueError("some scores are not a number (NaN), which argmax would take for the largest")
        if hasattr(output, "shape") and tuple(output.shape[-1:]) == (1,) and "float" in str(output.dtype):
            raise ValueError("one score alone (a sigmoid's) is the largest in any case")
        if torch is not None and isinstance(output, torch.Tensor):  # numpy does not have all of torch's types
            output = (output.argmax(-1) if output.is_floating_point() and output.dim() else output).detach().cpu().numpy()
        array = np.asarray(output)
        labels = array.argmax(-1) if array.dtype.kind == "f" and array.ndim else array
        if labels.dtype.kind in "biuUS":
            return labels
    except (RuntimeError, ValueError, TypeError, IndexError) as error:  # scores of no class, sparse tensors, float8
        why = f"{str(error).splitlines()[0]}; {why}"
    raise UsageError(
        f"there is no vote over {getattr(output, 'dtype', type(output).__name__)}{list(np.shape(output))}",
        why=why,
        next=_OWN_COMBINE,
    )


def _check_shapes(outputs: list[Any]) -> None:
    shapes = [tuple(np.shape(output)) for output in outputs]
    if len(set(shapes)) > 1:
        raise _do_not_fit(f"their shapes are {', '.join(str(list(shape)) for shape in shapes)}")


def _check_same(outputs: list[Any], is_like_first: Callable[[Any], bool]) -> None:
    for output in outputs:
        if not is_like_first(output):
            raise _do_not_fit(f"one gave {repr(outputs[0])[:80]}, another {repr(output)[:80]}")


def _do_not_fit(why: str) -> UsageError:
    return UsageError("the outputs of the ensemble's models cannot be combined", why=why, next=_OWN_COMBINE)
