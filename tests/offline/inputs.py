"""The same rows in every format that can be read."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

WIDTH = 6


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, WIDTH)).astype(np.float32)


def write(folder: Path, kind: str, count: int) -> tuple[Path, dict[str, tuple[str, ...]]]:
    """The input and the columns to choose from it."""
    x = rows(count)
    path = folder / f"x.{kind}"
    ids = [f'k"{i},\n' if i % 7 == 3 else f"k{i}" for i in range(count)]
    table = pa.table({"id": pa.array(ids, pa.string()), "x": pa.array(x.tolist(), pa.list_(pa.float32(), WIDTH))})
    if kind == "npy":
        np.save(path, x)
        return path, {}
    if kind == "safetensors":
        save_file({"x": x, "y": x.astype(np.float64)}, path)
        return path, {"columns": ("x",)}
    if kind == "files":
        path.mkdir()
        for i, row in enumerate(x):
            np.save(path / f"{i:05}.npy", row)
        return path, {}
    if kind == "csv":
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", *"abcdef"])
            writer.writerows([[name, *map(float, row)] for name, row in zip(ids, x, strict=True)])
        return path, {"columns": tuple("abcdef"), "keep": ("id",)}
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=37)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"id": name, "x": row.tolist()}) + "\n" for name, row in zip(ids, x, strict=True)))
    elif kind == "arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=23)
    elif kind == "feather":  # the streaming format
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=23)
    return path, {"columns": ("x",), "keep": ("id",)}


KINDS = ["npy", "safetensors", "parquet", "arrow", "feather", "jsonl", "csv", "files"]
