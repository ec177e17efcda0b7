"""What watching a job costs it: step time, memory, start-up, and what a process pays that never uses torch."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median

from compare import CALM_CORES, Comparison, Pairs, Row, children_cpu_s, in_turns
from machine import machine_facts
from steps import step_rows

import rankwise

HERE = Path(__file__).parent
RESULT = HERE / "results" / "watch.md"
RANKS = ("--standalone", "--nproc-per-node", "2")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", *RANKS)
RUN = (sys.executable, "-m", "rankwise", "run", "--audit", "light", *RANKS)
SITE = Path(rankwise.__file__).parent / "probe" / "site"
NUM_STARTS, NUM_BARE_STARTS, NUM_AT_ONCE = 9, 30, 4
PATIENCE_S = 900.0  # how long to wait for moments in which nobody else uses the machine


def main() -> int:
    deadline = time.monotonic() + PATIENCE_S
    rows = []
    for row in chain(step_rows(TORCHRUN, RUN, deadline), start_rows(deadline), bare_rows(deadline)):  # told as they come
        print(f"{row.what}: {row.plain}, {row.watched}, {row.difference}", flush=True)
        rows.append(row)
    text = report(rows)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(text)
    print(text)
    return 0 if all(row.is_met is not False for row in rows) else 1


def report(rows: list[Row]) -> str:
    lines = [
        "# What watching a job costs it",
        "",
        "Two ranks on the CPU (gloo, one thread each), with the light audit, the default. Everything is measured in pairs, one with",
        "and one without the watch, a moment apart and in changing order.",
        f"Pairs during which other programs used more than {CALM_CORES:g} of a core do not count; where",
        "hardly any were calmer, all count, the row says so, and only CPU times are judged. Medians; after ±: how far the median",
        "itself may be off (95 %); in brackets: the middle half of the pairs. Where that is too much to tell, the last column says so.",
        "",
        "| what | plain | watched | watched over plain | pairs | required | met |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {r.what} | {r.plain} | {r.watched} | {r.difference} | {r.pairs} | {r.required} | {MET[r.is_met] if r.required else ''} |"
            for r in rows
        ),
        "",
        f"{machine_facts()}. Written by `benchmarks/watch.py`.",
    ]
    return "\n".join(lines) + "\n"


MET = {True: "yes", False: "no", None: "cannot be told here"}
START = """import os, time
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    open(os.environ["BENCH_FILE"], "w").write(str(time.time()))
dist.barrier()
dist.destroy_process_group()
"""


def start_rows(deadline: float) -> Iterator[Row]:
    print("starting jobs", flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        (Path(name) / "job.py").write_text(START)
        pairs = in_turns(partial(start_job, TORCHRUN, name), partial(start_job, RUN, name), NUM_STARTS, deadline)
    yield start_row("start, until the ranks are one group", pairs, 0, "s", 1, 0.5)
    yield start_row("start and end of that job", pairs, 1, "s", 1)


def start_job(command: tuple[str, ...], folder: str) -> tuple[float, float]:
    """Seconds until the ranks are one group, and until the command has ended."""
    first = Path(folder) / "first"
    env = {**os.environ, "BENCH_FILE": str(first), "OMP_NUM_THREADS": "1"}
    began, clock = time.time(), time.perf_counter()
    subprocess.run([*command, "job.py"], cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
    return float(first.read_text()) - began, time.perf_counter() - clock


def bare_rows(deadline: float) -> Iterator[Row]:
    print("starting Python without torch", flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as live:
        plain, probed = dict(os.environ), {**os.environ, "PYTHONPATH": str(SITE), "RANKWISE_PROBE": live, "RANKWISE_SINK": f"{live}/sink"}
        for code, what in (("pass", "a Python process without torch"), ("import subprocess, json", "one that imports subprocess and json")):
            pairs = in_turns(partial(start_python, code, plain), partial(start_python, code, probed), NUM_BARE_STARTS, deadline)
            yield start_row(what, pairs, 0, "ms", 1e3, 0.005)
            yield start_row("… CPU time of it", pairs, 1, "ms", 1e3, 0.005, is_cpu=True)
        assert not os.listdir(live), "a process that never uses torch must leave nothing behind"


def start_python(code: str, env: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU seconds of a few fresh interpreters, one after the other, for one of them."""
    clock, cpu = time.perf_counter(), children_cpu_s()
    for _ in range(NUM_AT_ONCE):
        subprocess.run([sys.executable, "-c", code], env=env, check=True)
    return (time.perf_counter() - clock) / NUM_AT_ONCE, (children_cpu_s() - cpu) / NUM_AT_ONCE


def start_row(
    what: str, pairs: Pairs[tuple[float, float]], i: int, unit: str, scale: float, limit_s: float | None = None, is_cpu: bool = False
) -> Row:
    seen = Comparison([a[i] for a, _ in pairs.results], [b[i] for _, b in pairs.results])
    is_judged = limit_s is not None and (pairs.is_calm or is_cpu)
    return Row(
        what,
        f"{median(seen.plain) * scale:.2f} {unit}",
        f"{median(seen.watched) * scale:.2f} {unit}",
        seen.difference_text(unit, scale),
        str(pairs),
        f"≤ {limit_s * scale:g} {unit}" if limit_s is not None else "",
        median(seen.differences) <= limit_s if is_judged and limit_s is not None else None,
    )


if __name__ == "__main__":
    sys.exit(main())
