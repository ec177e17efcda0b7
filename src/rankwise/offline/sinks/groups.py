"""The rows that worked in groups that are the same however the parts were cut: an output must not show where a job was interrupted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rankwise.offline.parts import Results, join
from rankwise.offline.row_bytes import row_bytes

_GROUP_BYTES = 16 << 20
_GROUP_ROWS = 65536


def regrouped(parts: Iterable[Results]) -> Iterator[Results]:
    """A group ends with the row that fills it."""
    held: list[Results] = []
    rows, nbytes = 0, 0
    for part in parts:
        at = 0
        sizes = np.cumsum(row_bytes(part.columns, len(part.rows)))
        while at < len(part.rows):
            before = int(sizes[at - 1]) if at else 0
            full = int(np.searchsorted(sizes, before + _GROUP_BYTES - nbytes)) + 1
            stop = min(full, at + _GROUP_ROWS - rows, len(part.rows))
            held.append(part.cut(at, stop))
            rows, nbytes = rows + stop - at, nbytes + int(sizes[stop - 1]) - before
            at = stop
            if rows == _GROUP_ROWS or nbytes >= _GROUP_BYTES:
                yield join(held)
                held, rows, nbytes = [], 0, 0
    if held:
        yield join(held)


def column_names(parts: Iterable[Results]) -> list[str]:
    """Of all parts, each where it first appears."""
    return list(dict.fromkeys(name for part in parts for name in part.columns))
