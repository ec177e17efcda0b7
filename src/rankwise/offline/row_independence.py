"""Checks whether the output for a row depends on the rows it is batched with: some of the first rows run together, alone, and among copies.

If it does, another batch size would give another output, and the batch size depends on how busy the machine is."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankwise.offline.executing import Executor
from rankwise.offline.format import Source
from rankwise.offline.parts import Results
from rankwise.offline.row_batches import Batch, taken
from rankwise.offline.source import batches_of

VARIES = "the model gives something else for the same row each time, so whether rows depend on each other cannot be seen"

_ROWS = 8
_TOLERANCE = 0.01  # of the row's largest number: other batch shapes round at other places, in bfloat16 by nearly as much
_NOISE = 4.0  # a difference may be so many times what a row among copies of itself shows
_SMALL = 0.01  # a row's differences are compared with at least this part of the batch's largest number


def find_dependence(source: Source, executor: Executor, size: int) -> str:
    """Why rows of a batch of this size depend on each other. Empty if they do not, or if rows fail, so that nothing can be said."""
    batch = next(batches_of(source, min(size, _ROWS)), None) if size > 1 else None
    rows = [row for row in range(batch.length) if row not in batch.broken] if batch is not None else []
    if batch is None or len(rows) < 2:
        return ""
    looked_at = sorted({rows[0], rows[len(rows) // 3], rows[2 * len(rows) // 3], rows[-1]})
    together, copies = _run(executor, batch, rows), _run(executor, batch, rows[:1] * len(rows))
    alone, again = {row: _run(executor, batch, [row]) for row in looked_at}, _run(executor, batch, rows[:1])
    first = alone[rows[0]]
    if together is None or copies is None or first is None or again is None:
        return ""
    scale = _largest(list(together.columns.values()))
    if _apart(first, 0, again, 0, scale) > _TOLERANCE:
        return VARIES
    noise = _apart(first, 0, copies, len(rows) - 1, scale)
    limit = max(_TOLERANCE, _NOISE * noise) if noise <= _TOLERANCE else _TOLERANCE  # more than that is not rounding
    far = [_apart(one, 0, together, rows.index(row), scale) for row, one in alone.items() if one is not None]
    if sum(distance > limit for distance in far) < 2:  # a single one may be rounding near the tie of an argmax
        return ""
    worst = max(far)
    how_far = f"by {worst:.2g} of its largest number" if np.isfinite(worst) else "in its labels, texts, type or length"
    return f"a row alone differs from the same row in a batch of {len(rows)} {how_far}"


def _run(executor: Executor, batch: Batch, rows: list[int]) -> Results | None:
    """The results of these rows in one batch; None if one of them fails."""
    (results,) = executor.run([Batch(batch.first_row, taken(batch.columns, rows), len(rows), dtypes=batch.dtypes)])
    return results if len(results.rows) == len(rows) else None


def _apart(one: Results, row: int, other: Results, other_row: int, scale: float) -> float:
    """How far two results of a row are apart, relative to its largest number; infinite if they are not numbers of the same shape."""
    if one.columns.keys() != other.columns.keys():
        return float("inf")
    return max((_distance(column[row], other.columns[name][other_row], scale) for name, column in one.columns.items()), default=0.0)


def _distance(one: Any, other: Any, scale: float) -> float:
    if isinstance(one, dict) and isinstance(other, dict):
        return _distance([*one, *one.values()], [*other, *other.values()], scale)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return max((_distance(*pair, scale) for pair in zip(one, other)), default=0.0) if len(one) == len(other) else float("inf")
    if one is None or other is None or isinstance(one, (str, bytes)) or isinstance(other, (str, bytes)):
        return 0.0 if one == other else float("inf")
    a, b = np.asarray(one), np.asarray(other)
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if a.dtype.kind not in "fc":
        return 0.0 if np.array_equal(a, b) else float("inf")
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    difference = np.max(np.abs(a[finite].astype(wide) - b[finite].astype(wide)), initial=0.0)
    return float(difference / max(_largest(a), _largest(b), _SMALL * scale)) if difference else 0.0


def _largest(value: Any) -> float:
    """The largest finite number in it."""
    if isinstance(value, (list, tuple)):
        return max(map(_largest, value), default=0.0)
    array = np.asarray(value)
    return float(np.max(np.abs(array[np.isfinite(array)]), initial=0.0)) if array.dtype.kind in "fc" else 0.0
