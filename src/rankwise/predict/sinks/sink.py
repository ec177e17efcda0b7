"""Which writer an output wants, and how its file appears: complete, or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rankwise.errors import UsageError
from rankwise.predict.parts import Results

# the parts, as often as they are wanted; the number of rows; where to write
Write = Callable[[Callable[[], Iterable[Results]], int, Path], None]

_KNOWN = ".parquet, .arrow, .jsonl, .csv, .tsv, .npy, .safetensors, or a folder (no suffix)"


def writer_for(output: Path) -> Write:
    """The writer by the output's suffix; UsageError if there is none."""
    suffix = output.suffix.lower()
    if suffix in (".parquet", ".pq", ".arrow", ".feather", ".ipc"):
        from rankwise.predict.sinks.tables import write_arrow, write_parquet

        return write_parquet if suffix in (".parquet", ".pq") else write_arrow
    if suffix in (".jsonl", ".ndjson", ".csv", ".tsv"):
        from rankwise.predict.sinks.lines import write_csv, write_json_lines

        return write_json_lines if suffix in (".jsonl", ".ndjson") else write_csv
    if suffix in (".npy", ".safetensors"):
        from rankwise.predict.sinks.arrays import write_npy, write_safetensors

        return write_npy if suffix == ".npy" else write_safetensors
    if suffix:
        raise UsageError(f"no writer for {output.name}", why=f"known are {_KNOWN}")
    from rankwise.predict.sinks.folder import write_folder

    return write_folder


def write_output(output: Path, parts: Callable[[], Iterable[Results]], total: int) -> None:
    """Write beside it, flush to the disk, then rename."""
    temporary = output.with_name(f".{output.stem}.unfinished{output.suffix}")
    _remove(temporary)
    try:
        writer_for(output)(parts, total, temporary)
        if temporary.is_file():
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        if output.is_dir():
            _remove(output)
        temporary.replace(output)
    except BaseException:
        _remove(temporary)
        raise


def write_errors(path: Path, parts: Iterable[Results]) -> int:
    """One line per failed row; no file where none failed."""
    temporary = path.with_name(f".{path.name}.unfinished")
    count = 0
    with temporary.open("w", encoding="utf-8") as file:
        for results in parts:
            for error in results.errors:
                file.write(json.dumps(error, ensure_ascii=False) + "\n")
                count += 1
    if count:
        temporary.replace(path)
    else:
        temporary.unlink()
    return count


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def first_columns(parts: Iterable[Results]) -> dict[str, Any]:
    """The columns of the first rows that worked; none if no row did."""
    return next((results.columns for results in parts if len(results.rows)), {})
