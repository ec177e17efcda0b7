"""`rankwise predict` of two million Parquet rows against the DataLoader loop that one would write by hand."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from machine import machine_facts
from predict_models import COLUMNS, MODELS
from table import HEAD, Groups, Line, measured

HERE = Path(__file__).parent
RESULTS = HERE / "results"
ROWS = 2_000_000
REPEATS = int(os.environ.get("RANKWISE_REPEATS", "7"))
SIZES = (4096, 16384, 65536)  # of the loop's batches; the fastest counts
MOST_SLOWER = 1.3  # than the loop, where the model computes next to nothing


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_input(Path("in.parquet"))
        sections: dict[str, Callable[[Groups], list[Line]]] = {name: lambda _, name=name: of_model(name) for name in MODELS}  # type: ignore[misc]
        lines = measured(sections, sys.argv[1:] or list(sections), [])
    if not sys.argv[1:]:
        (RESULTS / "predict_rows.md").write_text(report(lines))
    return 0 if all(line.is_met is not False for line in lines) else 1


def write_input(path: Path) -> None:
    random = np.random.default_rng(0)
    numbers = {name: random.standard_normal(ROWS, dtype=np.float32) for name in COLUMNS}
    pq.write_table(pa.table({"id": np.arange(ROWS), **numbers}), path)


def of_model(name: str) -> list[Line]:
    """Whole commands, start and imports included, in turns; a ratio is the median of those of each turn."""
    loops = {f"loop, {workers} workers, batches of {size:,}": loop(name, size, workers) for workers, size in loop_ways()}
    tuned = min(loops, key=lambda way: spent(loops[way]).wall_s)
    ours = {workers: predict(name, workers) for workers in (0, 2)}
    turns = [{way: spent(command) for way, command in {**ours, tuned: loops[tuned]}.items()} for _ in range(REPEATS)]
    lines = []
    for workers in ours:
        what, needed = f"{name} model, {workers} workers", required(name, workers)
        lines.append(compared(f"{what}: {tuned}", [(turn[workers].wall_s, turn[tuned].wall_s) for turn in turns], needed))
        lines.append(compared(f"{what}: CPU seconds of both", [(turn[workers].cpu_s, turn[tuned].cpu_s) for turn in turns], None))
    return lines


def compared(what: str, pairs: list[tuple[float, float]], needed: float | None) -> Line:
    mine, theirs = (statistics.median(times) for times in zip(*pairs))
    return Line(what, f"{mine:.2f} s", f"{theirs:.2f} s", statistics.median(other / own for own, other in pairs), needed)


def required(name: str, workers: int) -> float | None:
    if name == "tiny":
        return None if workers else 1 / MOST_SLOWER
    return 1.0 if workers else None


def loop_ways() -> list[tuple[int, int]]:
    return [(0, size) for size in SIZES] + [(2, SIZES[1])]


def loop(name: str, size: int, workers: int) -> list[str]:
    return [sys.executable, str(HERE / "predict_loop.py"), "in.parquet", "loop.parquet", name, str(size), str(workers)]


def predict(name: str, workers: int) -> list[str]:
    columns = ["--columns", ",".join(COLUMNS), "--keep", "id"]
    where = ["--input", "in.parquet", "--output", "out.parquet", "--overwrite", "--restart"]
    return [sys.executable, "-m", "rankwise", "predict", "--build", f"predict_models:{name}", *where, *columns, "--workers", str(workers)]


class Spent(NamedTuple):
    wall_s: float
    cpu_s: float  # of the command and all processes it started; hardly changes when the machine is busy


def spent(command: list[str]) -> Spent:
    for left in Path().glob("*out.parquet*"):
        left.unlink()
    started, before = time.monotonic(), _cpu_s()
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": path})
    return Spent(time.monotonic() - started, _cpu_s() - before)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def report(lines: list[Line]) -> str:
    head = f"""# Predict against a loop by hand

{ROWS:,} rows of eight float32 numbers in a Parquet file, through a model, into a Parquet file with their ids. Against it: a DataLoader
over `iter_batches`, the fastest of {len(loop_ways())} settings (benchmarks/predict_loop.py). Whole commands, imports included, in turns;
medians of {REPEATS}, ratios of those of each turn. rankwise finds its batch size, writes every row through to the disk on the way, and
can be killed at any moment; the loop cannot. A ratio over 1 is in favour of rankwise.
"""
    return "\n".join([head, *HEAD, *map(str, lines), "", machine_facts(), ""])


if __name__ == "__main__":
    sys.exit(main())
