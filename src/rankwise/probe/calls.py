"""Notes one call of the user's in the ring: its beginning and its end. Never raises, and costs a few microseconds."""

from collections.abc import Callable
from typing import Any

from . import hooks, process, ring, splits

Opened = tuple[ring.Ring, int] | None


def noted(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function itself, with each call noted under this name."""
    op = ring.NUMBER[name]
    return hooks.surround(original, lambda frame, _args, _kwargs: begin(op, frame), end)


def begin(op: int, frame: Any, mode: str | None = None) -> Opened:
    """Note that a call begins at this frame; None where it cannot be noted."""
    try:
        record = ring.current or ring.open_ring(process.live)
        return None if record is None else (record, record.enter(op, frame, reduce_op=mode))
    except Exception as error:
        hooks.note_broken(ring.OPS[op], error)
        return None


def note_splits(record: ring.Ring, n: int, splits_of: Callable[..., splits.Splits], args: Any, kwargs: Any) -> None:
    """Note how much an all_to_all sends to each rank; nothing for arguments that torch will refuse."""
    try:
        record.note_splits(n, *splits_of(*args, **kwargs))
    except Exception:
        return


def end(opened: Opened, _result: Any = None, error: BaseException | None = None) -> int:
    """Note that the call has ended; returns the nanoseconds it took, 0 where that is not known."""
    try:
        return 0 if opened is None else opened[0].leave(opened[1], error is not None)
    except Exception as failure:
        hooks.note_broken("leave", failure)
        return 0


def note(op: int, frame: Any, number: int | None = None) -> None:
    """Note something done at this frame that takes no time, with its number (the batches so far where none is given)."""
    try:
        record = ring.current
        if record is not None:
            noted = record.count_of(ring.NUMBER["next_batch"]) if number is None else number
            record.leave(record.enter(op, frame, peer=noted))
    except Exception as error:
        hooks.note_broken(ring.OPS[op], error)


def count(op: int) -> None:
    try:
        record = ring.current
        if record is not None:
            record.mark(op)
    except Exception as error:
        hooks.note_broken("mark", error)
