"""What the staged start-up of `session()` costs over plain `init_process_group`, at 4 ranks on this machine.

One process imports torch and forks the ranks of each start, before any of torch's threads run: what is measured is the start-up, not
Python's imports. Plain and staged starts take turns.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from compare import CALM_CORES, Comparison, Pairs, in_turns
from machine import machine_facts

from rankwise.train.session import session

RESULT = Path(__file__).parent / "results" / "session.md"
NUM_RANKS, NUM_PAIRS, LIMIT_S = 4, 21, 0.2
PATIENCE_S = 150.0  # how long to wait for moments in which nobody else uses the machine


def main() -> int:
    pairs = in_turns(partial(start, plain), partial(start, staged), NUM_PAIRS, time.monotonic() + PATIENCE_S)
    text = report(pairs)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(text)
    print(text)
    return 0 if median(_comparison(pairs, 0).differences) <= LIMIT_S else 1


def plain() -> tuple[float, float]:
    began = time.perf_counter()
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    ready = time.perf_counter()
    dist.destroy_process_group()
    return ready - began, time.perf_counter() - ready


def staged() -> tuple[float, float]:
    began = time.perf_counter()
    with session():
        ready = time.perf_counter()
    return ready - began, time.perf_counter() - ready


def start(way: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    """Seconds until the last rank was ready, and until the last rank had left, in one start of all ranks at once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    gate, opener = os.pipe()
    answers, answer = os.pipe()
    ranks = [_fork(way, rank, port, gate, opener, answer) for rank in range(NUM_RANKS)]
    os.close(gate)
    os.close(opener)  # all ranks begin now
    os.close(answer)
    with os.fdopen(answers) as lines:
        told = [tuple(map(float, line.split())) for line in lines]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    assert len(told) == NUM_RANKS and not any(codes), f"{way.__name__}: exit codes {codes}"
    return max(ready for ready, _ in told), max(left for _, left in told)


def _fork(way: Callable[[], tuple[float, float]], rank: int, port: int, gate: int, opener: int, answer: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.close(opener)
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": NUM_RANKS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in names.items()})
        os.read(gate, 1)
        ready, left = way()
        os.write(answer, f"{ready} {left}\n".encode())
        code = 0
    finally:
        os._exit(code)


def report(pairs: Pairs[tuple[float, float]]) -> str:
    lines = [
        "# What the staged start-up costs",
        "",
        f"{NUM_RANKS} ranks on the CPU (gloo), torch already imported; from the call until the slowest rank has done its first",
        "all_reduce, and from there until the slowest rank has left. Plain and staged starts take turns. Pairs during which other",
        f"programs used more than {CALM_CORES:g} of a core do not count, unless hardly any were calmer. Medians; after ±: how far the",
        "median itself may be off (95 %); in brackets: the middle half of the pairs.",
        "",
        "| what | init_process_group | session() | session() over plain | pairs | required | met |",
        "|---|---|---|---|---|---|---|",
        _row("start, until the first all_reduce is done", pairs, 0, LIMIT_S),
        _row("end", pairs, 1, None),
        "",
        f"{machine_facts()}. Written by `benchmarks/session.py`.",
    ]
    return "\n".join(lines) + "\n"


def _row(what: str, pairs: Pairs[tuple[float, float]], i: int, limit_s: float | None) -> str:
    seen = _comparison(pairs, i)
    met = "" if limit_s is None else "yes" if median(seen.differences) <= limit_s else "no"
    limit = f"≤ {limit_s * 1e3:.0f} ms" if limit_s else ""
    times = f"{median(seen.plain) * 1e3:.1f} ms | {median(seen.watched) * 1e3:.1f} ms"
    return f"| {what} | {times} | {seen.difference_text('ms', 1e3)} | {pairs} | {limit} | {met} |"


def _comparison(pairs: Pairs[tuple[float, float]], i: int) -> Comparison:
    return Comparison([a[i] for a, _ in pairs.results], [b[i] for _, b in pairs.results])
