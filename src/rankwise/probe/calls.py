"""Notes one call of the user's in the ring: its beginning and its end. Never raises, and costs a few microseconds."""

import functools
import sys
from collections.abc import Callable
from typing import Any

from . import hooks, ring, splits

Opened = tuple[ring.Ring, int] | None


def noted(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function itself, with each call noted under this name once the process has a ring."""
    op = ring.NUMBER[name]

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        opened = begin_if_open(op)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            end(opened, True)
            hooks.drop_wrapper_frame(error)
            raise
        end(opened)
        return result

    return call


def begin(op: int, frame: Any) -> Opened:
    """Note that a call begins at this frame; None where it cannot be noted."""
    try:
        record = ring.open_ring(hooks.live)
        return None if record is None else (record, record.enter(op, frame))
    except Exception as error:
        hooks.note_broken(ring.OPS[op], error)
        return None


def begin_if_open(op: int, mode: str | None = None) -> Opened:
    """The same for the caller's caller, but only in a process that has a ring already: a model without collectives needs none."""
    try:
        record = ring.existing()
        return None if record is None else (record, record.enter(op, sys._getframe(2), reduce_op=mode))
    except Exception as error:
        hooks.note_broken(ring.OPS[op], error)
        return None


def note_splits(record: ring.Ring, n: int, splits_of: Callable[..., splits.Splits], args: Any, kwargs: Any) -> None:
    """Note what an all_to_all sends to whom; nothing for arguments that torch will refuse."""
    try:
        record.note_splits(n, *splits_of(*args, **kwargs))
    except Exception:
        return


def end(opened: Opened, failed: bool = False) -> int:
    """Note that the call has ended; returns the nanoseconds it took, 0 where that is not known."""
    try:
        return 0 if opened is None else opened[0].leave(opened[1], failed)
    except Exception as error:
        hooks.note_broken("leave", error)
        return 0


def note(op: int, frame: Any, number: int | None = None) -> None:
    """Note something done at this frame that takes no time, with its number (the batches so far where none is given)."""
    try:
        record = ring.existing()
        if record is not None:
            noted = record.count_of(ring.NUMBER["next_batch"]) if number is None else number
            record.leave(record.enter(op, frame, peer=noted))
    except Exception as error:
        hooks.note_broken(ring.OPS[op], error)


def count(op: int) -> None:
    try:
        record = ring.existing()
        if record is not None:
            record.mark(op)
    except Exception as error:
        hooks.note_broken("mark", error)
