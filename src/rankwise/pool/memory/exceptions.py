"""An exception on its way from a worker to the caller: of its own class where that can be, with the worker's traceback as its cause."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

from rankwise.errors import text_of_error
from rankwise.pool.errors import Unsendable, cannot_be_sent, model_raised
from rankwise.pool.memory.encoding import (
    unpickled,
)

# Raised where a caller waits for results, these would end its loop, or look as if the task had been cancelled.
NOT_IN_A_LOOP = (StopIteration, StopAsyncIteration, CancelledError)
_LONGEST = 20_000  # bytes of an exception, or of its traceback


_NOT_RESIZED = "resize storage that is not resizable"  # torch's message
_SHARED = "rankwise: replicas of a model share the memory of its parameters; Model(..., replicas=1) gives it its own, which it may resize"


def failure(error: BaseException, longest: int = _LONGEST) -> tuple[bytes, str]:
    """The exception as the caller will see it, if it can be pickled, and the worker's traceback in any case. Exceptions that would end the
    caller's thread (SystemExit, KeyboardInterrupt) travel as text only."""
    try:
        if type(error) is RuntimeError and _NOT_RESIZED in str(error):
            error.add_note(_SHARED)
        text = "".join(traceback.format_exception(error))
        error.__traceback__ = None
    except BaseException:  # its class raises when it is printed
        return b"", type(error).__name__
    return (pickled(error, longest) if isinstance(error, Exception) else b""), text[-longest:]


def shortened(packed: tuple[bytes, str], longest: int) -> tuple[bytes, str]:
    """The exception in at most `longest` bytes, so that others fit into the packet; the traceback keeps its end."""
    data, text = packed
    return (data if len(data) <= longest else pickled(pickle.loads(data), longest)), text[-longest:]


_ELLIPSIS = " … "
_LEAST = 2000  # bytes; with fewer, a message that is cut says less than the end of the traceback


def pickled(error: BaseException, longest: int) -> bytes:
    """The exception in at most `longest` bytes; empty if not even its class can be pickled."""
    text = text_of_error(error)
    for form, is_exact in _forms(error, longest):
        try:
            data = pickle.dumps(form)
            found = pickle.loads(data)
            says = str(found)
            if len(data) <= longest and type(found) is type(error) and (says == text or not is_exact):
                return data
        except BaseException:  # its __reduce__, __init__ or __str__ may raise anything
            continue
    return b""


def made_without_init(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """An exception made without calling its __init__, which may take other arguments than those it keeps in `args`."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class _WithoutInit:
    def __init__(self, error: BaseException, args: tuple[Any, ...], state: dict[str, Any]) -> None:
        self._parts = type(error), args, state

    def __reduce__(self) -> tuple[Any, ...]:
        return made_without_init, self._parts


def _forms(error: BaseException, longest: int) -> Iterator[tuple[Any, bool]]:
    """Ways to pickle an exception, best first: whole, without its __init__, then only the parts that can be pickled. With each: whether its
    text must stay the same."""
    yield error, True
    yield _WithoutInit(error, error.args, error.__dict__), True
    if longest < _LEAST:
        return
    state = {key: value for key, value in error.__dict__.items() if _bytes_of(value) <= longest // 16}
    for room in (longest // 2, longest // 8):  # a character takes up to four bytes
        yield _WithoutInit(error, tuple([_cut(arg, room) for arg in error.args]), state), False
        yield _WithoutInit(error, (_cut(text_of_error(error), room),), state), False
        yield _WithoutInit(error, (_cut(text_of_error(error), room),), {}), False


def _bytes_of(value: Any) -> float:
    try:
        data = pickle.dumps(value)
        pickle.loads(data)
    except Exception:
        return float("inf")
    return len(data)


def _cut(value: Any, longest: int) -> Any:
    """The beginning and the end of a long text: most messages say there what happened."""
    return value[: longest // 2] + _ELLIPSIS + value[-longest // 2 :] if isinstance(value, str) and len(value) > longest else value


class RemoteTraceback(Exception):
    """The worker's traceback, shown as the cause of the exception that came from there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\nin the worker:\n{self.text}"


def raised(payload: tuple[bytes, str], model: str) -> BaseException:
    """The exception as it was raised in the worker, with the worker's traceback as its cause."""
    data, text = payload
    error: BaseException | None = None
    try:
        found = unpickled(lambda: pickle.loads(data)) if data else None
        error = found if isinstance(found, BaseException) and not isinstance(found, NOT_IN_A_LOOP) else None
    except Exception:  # its class cannot be imported here
        pass
    if isinstance(error, Unsendable):
        error = cannot_be_sent(model, error)
    elif error is None:
        error = model_raised(model, text)
    error.__cause__ = RemoteTraceback(text)
    return error
