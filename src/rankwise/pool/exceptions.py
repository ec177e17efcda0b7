"""A model's exception on its way to the caller: as it was raised wherever that can be done, of its own class where it can be had at all."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

NOT_IN_A_LOOP = (StopIteration, StopAsyncIteration)  # raised where a caller waits for results one by one, they would end the loop
_ELLIPSIS = " … "
_LEAST = 2000  # bytes; with fewer, a message that is cut says less than the end of the traceback


class Unsendable(TypeError):
    """Something that cannot go from one process to another."""


def pickled(error: BaseException, longest: int) -> bytes:
    """At most so many bytes; none where not even its class can travel."""
    text = _text(error)
    for form, is_exact in _forms(error, longest):
        try:
            data = pickle.dumps(form)
            found = pickle.loads(data)
            says = str(found)
            if len(data) <= longest and type(found) is type(error) and (says == text or not is_exact):
                return data
        except Exception:  # whatever its __reduce__, its __init__ or its __str__ does
            continue
    return b""


def revived(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """An exception without its __init__, which may want to be given something else than what it has made of it."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class _Bare:
    """Pickles as an exception that `revived` makes."""

    def __init__(self, error: BaseException, args: tuple[Any, ...], state: dict[str, Any]) -> None:
        self._parts = type(error), args, state

    def __reduce__(self) -> tuple[Any, ...]:
        return revived, self._parts


def _forms(error: BaseException, longest: int) -> Iterator[tuple[Any, bool]]:
    """Whole, then without its __init__, then with what of it can travel; and whether it has to say the same."""
    yield error, True
    yield _Bare(error, error.args, error.__dict__), True
    if longest < _LEAST:
        return
    state = {key: value for key, value in error.__dict__.items() if _bytes_of(value) <= longest // 16}
    for room in (longest // 2, longest // 8):  # a character takes up to four bytes
        yield _Bare(error, tuple([_cut(arg, room) for arg in error.args]), state), False
        yield _Bare(error, (_cut(_text(error), room),), state), False
        yield _Bare(error, (_cut(_text(error), room),), {}), False


def _bytes_of(value: Any) -> float:
    try:
        data = pickle.dumps(value)
        pickle.loads(data)
    except Exception:
        return float("inf")
    return len(data)


def _cut(value: Any, longest: int) -> Any:
    """Of a long text its beginning and its end, where most say what they have to."""
    return value[: longest // 2] + _ELLIPSIS + value[-longest // 2 :] if isinstance(value, str) and len(value) > longest else value


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return type(error).__name__
