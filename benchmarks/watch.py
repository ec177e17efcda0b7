"""What watching a job costs it: step time, memory, start-up, and what a process pays that never uses torch."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from compare import Comparison, Row, in_turns
from machine import machine_facts
from steps import step_rows

import rankwise

HERE = Path(__file__).parent
RESULT = HERE / "results" / "watch.md"
RANKS = ("--standalone", "--nproc-per-node", "2")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", *RANKS)
RUN = (sys.executable, "-m", "rankwise", "run", *RANKS)
SITE = Path(rankwise.__file__).parent / "probe" / "site"
NUM_STARTS, NUM_BARE_STARTS = 9, 150


def main() -> int:
    rows = [*step_rows(TORCHRUN, RUN), *start_rows(), *bare_rows()]
    text = report(rows)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(text)
    print(text)
    return 0 if all(row.is_met is not False for row in rows) else 1


def report(rows: list[Row]) -> str:
    lines = [
        "# What watching a job costs it",
        "",
        "Two ranks on the CPU (gloo, one thread each). Medians over pairs, one with and one without the watch, measured in turns, a moment",
        "apart. After ±: how far the median itself may be off (95 %); in brackets: the middle half of all pairs.",
        "",
        "| what | plain | watched | watched over plain | required | met |",
        "|---|---|---|---|---|---|",
        *(f"| {r.what} | {r.plain} | {r.watched} | {r.difference} | {r.required} | {MET[r.is_met]} |" for r in rows),
        "",
        f"{machine_facts()}. Written by `benchmarks/watch.py`.",
    ]
    return "\n".join(lines) + "\n"


MET = {True: "yes", False: "no", None: ""}
FIRST_LINE = """import os, time
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    open(os.environ["BENCH_FILE"], "w").write(str(time.time()))
dist.destroy_process_group()
"""


def start_rows() -> Iterator[Row]:
    print(f"starting jobs: {NUM_STARTS} pairs", flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        (folder / "job.py").write_text(FIRST_LINE)

        def start(command: tuple[str, ...]) -> tuple[float, float]:
            """Seconds until the ranks are one group, and until the command has ended."""
            env = {**os.environ, "BENCH_FILE": str(folder / "first"), "OMP_NUM_THREADS": "1"}
            began, clock = time.time(), time.perf_counter()
            subprocess.run([*command, "job.py"], cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
            return float((folder / "first").read_text()) - began, time.perf_counter() - clock

        pairs = in_turns(NUM_STARTS, lambda: start(TORCHRUN), lambda: start(RUN))
    for i, (what, limit_s) in enumerate((("start, until the ranks are one group", 0.5), ("start and end of that job", None))):
        seen = Comparison([a[i] for a, _ in pairs], [b[i] for _, b in pairs])
        yield seen.row(what, "s", 1, limit_s)


def bare_rows() -> Iterator[Row]:
    print(f"starting Python without torch: {NUM_BARE_STARTS} pairs", flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as live:
        probed = {**os.environ, "PYTHONPATH": str(SITE), "RANKWISE_PROBE": live, "RANKWISE_SINK": f"{live}/sink"}
        for code, words in (("pass", "does nothing"), ("import subprocess, json", "imports subprocess")):

            def start(env: dict[str, str], code: str = code) -> tuple[float, float]:
                """Wall and CPU seconds of a fresh interpreter."""
                clock = time.perf_counter()
                pid = os.posix_spawn(sys.executable, [sys.executable, "-c", code], env)
                _, status, usage = os.wait4(pid, 0)
                assert status == 0
                return time.perf_counter() - clock, usage.ru_utime + usage.ru_stime

            pairs = in_turns(NUM_BARE_STARTS, lambda: start(dict(os.environ)), lambda: start(probed))
            for i, name in enumerate(("a Python process that {}, without torch", "… CPU time of it")):
                seen = Comparison([a[i] for a, _ in pairs], [b[i] for _, b in pairs])
                yield seen.row(name.format(words), "ms", 1e3, 0.005 if i == 0 else None)
        assert not os.listdir(live), "a process that never uses torch must leave nothing behind"


if __name__ == "__main__":
    sys.exit(main())
