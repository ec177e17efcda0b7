"""Results of made-up batches, as a job would have them."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rankwise.offline.parts import NextPart, Results, read_part, write_part

COUNT = 1000


FAILED = {17, 400, 401, 999}


def results(first: int, stop: int) -> Results:
    good = [row for row in range(first, stop) if row not in FAILED]
    x = np.asarray(good, np.float32)
    return Results(
        rows=good,
        columns={"file": [f"f{row}" for row in good], "output": np.stack([x, x / 3], axis=1), "label": np.asarray(good) % 5}
        if good
        else {},
        errors=[{"row": row, "error": "ValueError", "message": "ü"} for row in range(first, stop) if row in FAILED],
        first_row=first,
        length=stop - first,
        file_column="file",
    )


def batches(count: int = COUNT) -> list[Results]:
    """One of them a failed row alone."""
    edges = [0, 17, 18, *range(30, count, 30), count]
    return [results(start, stop) for start, stop in itertools.pairwise(edges)]


def in_parts(folder: Path, batches: list[Results], seed: int) -> Any:
    """In parts that were written and read again, cut behind some batches, or behind none, or behind all."""
    count = len(batches)
    cut = random.Random(seed).sample(range(1, count), (0, count - 1, min(count - 1, 3))[seed])
    paths = []
    for start, stop in itertools.pairwise(sorted({0, count, *cut})):
        paths.append(folder / f"part-{seed}-{start}")
        write_part(paths[-1], NextPart(*batches[start:stop]))
    return lambda: itertools.chain.from_iterable(read_part(path) for path in paths)


def only_output(parts: list[Results]) -> list[Results]:
    return [replace(part, columns={name: column for name, column in part.columns.items() if name in ("file", "output")}) for part in parts]


def content(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path.parent)): file.read_bytes() for file in files}


ROWS = 60
TENSORS = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 2, 2))
