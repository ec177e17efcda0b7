"""Single rows for three small models on one GPU: batches made by hand in one process against the pool, in turns.

python benchmarks/gpu.py            writes results/gpu.md; needs a CUDA device
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from machine import machine_facts
from pool_models import BUILDERS, ROW

from rankwise.pool import Model, Pool

RESULT = Path(__file__).parent / "results" / "gpu.md"
NAMES = ("mlp", "cnn", "transformer")
ROWS, BATCH, REPEATS, SHARE = 6000, 64, 15, 0.8

Rows = list[tuple[str, torch.Tensor]]


def main() -> int:
    if not torch.cuda.is_available():
        print("there is no CUDA device here")
        return 2
    torch.manual_seed(0)
    rows: Rows = [(NAMES[i % 3], torch.rand(1, *ROW[NAMES[i % 3]])) for i in range(ROWS)]
    with Pool({name: Model(f"pool_models:{name}", max_batch=BATCH) for name in NAMES}) as pool:
        ways: dict[str, Callable[[Rows], None]] = {"by hand, batches of 64": by_hand(), **of_pool(pool)}
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for repeat in range(-1, REPEATS):
            for name, way in ways.items():
                began = time.perf_counter()
                way(rows)
                if repeat >= 0:
                    rates[name].append(ROWS / (time.perf_counter() - began))
                    print(f"{name}: {rates[name][-1]:,.0f} rows/s", flush=True)
        workers = pool.plan.why
    text = report(rates, workers)
    RESULT.write_text(text)
    print(text)
    return 0 if median(rates["pool.stream"]) >= SHARE * median(rates["by hand, batches of 64"]) else 1


def by_hand() -> Callable[[Rows], None]:
    """What a user would write: rows of one model are stacked, copied, run and copied back, 64 at a time."""
    models = {name: BUILDERS[name]().eval().cuda() for name in NAMES}

    def run(rows: Rows) -> None:
        with torch.inference_mode():
            for name in NAMES:
                own = [x for of, x in rows if of == name]
                for start in range(0, len(own), BATCH):
                    outputs = models[name](torch.cat(own[start : start + BATCH]).cuda()).cpu()
                    assert len(list(outputs.split(1))) == len(own[start : start + BATCH])

    return run


def of_pool(pool: Pool) -> dict[str, Callable[[Rows], None]]:
    def stream(rows: Rows) -> None:
        assert sum(1 for _ in pool.stream(rows)) == len(rows)

    def submit(rows: Rows) -> None:
        for future in [pool.submit(name, x) for name, x in rows]:
            future.result()

    return {"pool.stream": stream, "pool.submit": submit}


def report(rates: dict[str, list[float]], workers: str) -> str:
    hand = median(rates["by hand, batches of 64"])
    lines = [
        "# Rows of three small models on one GPU",
        "",
        f"{ROWS:,} single rows, in turns for an MLP, a CNN and a transformer, from the CPU and back to it.",
        f"Medians of {REPEATS} runs, the ways in turns.",
        f"The pool: {workers}.",
        "",
        "| way | rows/s | of by hand | required |",
        "|---|---|---|---|",
    ]
    for name, seen in rates.items():
        required = f"≥ {SHARE}" if name == "pool.stream" else ""
        lines.append(f"| {name} | {median(seen):,.0f} | {median(seen) / hand:.2f} | {required} |")
    card = torch.cuda.get_device_name(0)
    return "\n".join([*lines, "", f"{card}, {machine_facts()}. Written by `benchmarks/gpu.py`."]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
