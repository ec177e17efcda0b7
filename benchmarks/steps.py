"""The cost of the watch to running ranks: two long-lived jobs of two ranks, one watched and one not, take turns.

While the plain job works, the watcher of the other one is stopped (SIGSTOP), so that it can disturb only the job it watches.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil
from compare import Comparison, Pairs, Row, in_turns, merged, percent

JOB = Path(__file__).with_name("steps_job.py")
SIZES = {3: 250, 30: 25, 300: 3}  # milliseconds of a step: steps in a block, so many that the watcher looks several times in each
NUM_ROUNDS = 17  # of fresh jobs: two processes of the same program can differ by some percent for as long as they live
NUM_FIRST = 400  # small steps before anything counts: the audit looks at each of the first 200, for 40 ms of CPU time at most
NUM_PAIRS = 3  # of blocks, for every size in every round; a round counts as one pair, of their medians


def step_rows(torchrun: tuple[str, ...], run: tuple[str, ...], deadline: float) -> Iterator[Row]:
    """Rows for the step times, the watcher's own CPU and the ranks' memory; the arguments are the two commands but for the script."""
    rounds = []
    for number in range(1, NUM_ROUNDS + 1):
        print(f"steps, round {number} of {NUM_ROUNDS}", flush=True)
        rounds.append(measure_round(torchrun, run, number % 2 == 1, deadline))
    share = median(seen.watcher_share for seen in rounds)
    for target_ms in SIZES:
        yield from rows_of_steps(target_ms, merged([seen.steps[target_ms] for seen in rounds]), share)
    yield Row("CPU of the watcher, share of one core", "", f"{share:.2%}", "")
    yield memory_row([seen.memory for seen in rounds])


@dataclass(frozen=True)
class Round:
    """What was seen of one plain and one watched job: a pair of blocks for each step size, the watcher's CPU, and the memory of a rank."""

    steps: dict[int, Pairs[Block]]
    watcher_share: float
    memory: tuple[Memory, Memory]


def measure_round(torchrun: tuple[str, ...], run: tuple[str, ...], is_plain_first: bool, deadline: float) -> Round:
    """Two plain jobs differ by half a percent of CPU time if one starts first and does other steps before: both do all alike, in turns."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name, contextlib.ExitStack() as stack:
        commands = {False: torchrun, True: (*run, "--out", f"{name}/run")}
        jobs = {}
        for is_watched in (not is_plain_first, is_plain_first):
            jobs[is_watched] = Job(commands[is_watched], Path(name) / f"{is_watched}", is_watched)
            stack.callback(jobs[is_watched].close)
            jobs[is_watched].wait_until_ready()
        plain, watched = jobs[False], jobs[True]
        for job in jobs.values():
            job.measure(1, NUM_FIRST)
        own = [psutil.Process(), *psutil.Process().children(recursive=True)]
        steps = {}
        for target_ms, num_steps in SIZES.items():
            batch = round(sum(calibrate(job, target_ms / 1e3) for job in jobs.values()) / 2)
            blocks = in_turns(
                partial(plain.measure, batch, num_steps),
                partial(watched.measure, batch, num_steps),
                partial(cpu_s_of, own),
                NUM_PAIRS,
                deadline,
            )
            steps[target_ms] = Pairs([(middle([a for a, _ in blocks.results]), middle([b for _, b in blocks.results]))], blocks.is_calm)
        return Round(steps, watched.watcher_share(), (plain.memory_mib(), watched.memory_mib()))


def cpu_s_of(processes: list[psutil.Process]) -> float:
    """Of those that are still there: a py-spy that the watcher had started is soon gone."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def rows_of_steps(target_ms: int, pairs: Pairs[Block], watcher_share: float) -> Iterator[Row]:
    """The step as it was; its CPU time, which other programs disturb less; and what that means where the watcher finds no core to spare."""
    wall = Comparison([a.wall_s for a, _ in pairs.results], [b.wall_s for _, b in pairs.results])
    cpu = Comparison([a.cpu_s for a, _ in pairs.results], [b.cpu_s for _, b in pairs.results])
    times = [(f"{median(seen.plain) * 1e3:.2f} ms", f"{median(seen.watched) * 1e3:.2f} ms", seen.ratio_text()) for seen in (wall, cpu)]
    worst = median(cpu.ratios) + watcher_share
    limit = "≤ 1 %" if target_ms >= 30 else ""
    yield Row(
        f"step of about {target_ms} ms", *times[0], str(pairs), limit, median(wall.ratios) <= 1.01 if limit and pairs.is_calm else None
    )
    yield Row("… CPU time of it, per rank", *times[1], str(pairs))
    yield Row("… CPU of the rank and the watcher together", "", "", percent(worst))


def memory_row(rounds: list[tuple[Memory, Memory]]) -> Row:
    a, b = (Memory(*(median(values) for values in zip(*side))) for side in zip(*rounds))
    added = [Memory(watched.pss - plain.pss, watched.rss - plain.rss) for plain, watched in rounds]
    pss, rss = median(more.pss for more in added), median(more.rss for more in added)
    return Row(
        "memory of a rank (PSS; RSS)",
        f"{a.pss:.0f}; {a.rss:.0f} MiB",
        f"{b.pss:.0f}; {b.rss:.0f} MiB",
        f"{pss:+.1f}; {rss:+.1f} MiB",
        f"{len(rounds)}",
        "< 15 MiB",
        max(pss, rss) < 15,
    )


def calibrate(job: Job, target_s: float) -> int:
    """The batch size with which one step takes about so long on this machine when nobody else uses it."""
    sizes, times = [1], [job.best_s(1)]
    while times[-1] < target_s and sizes[-1] < 1 << 20:
        sizes.append(sizes[-1] * 2)
        times.append(job.best_s(sizes[-1]))
    if len(sizes) == 1:
        return 1
    slope = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
    return max(1, round(sizes[-1] - (times[-1] - target_s) / slope)) if slope > 0 else sizes[-2]


@dataclass(frozen=True)
class Block:
    """Wall and CPU seconds of one step, on average over a block and over the ranks."""

    wall_s: float
    cpu_s: float


def middle(blocks: list[Block]) -> Block:
    return Block(median(block.wall_s for block in blocks), median(block.cpu_s for block in blocks))


class Memory(NamedTuple):
    """MiB of one rank: its share of what several processes map, or all of it."""

    pss: float
    rss: float


class Job:
    """Two ranks that wait for orders, and the process that started them."""

    def __init__(self, command: tuple[str, ...], folder: Path, is_watched: bool) -> None:
        folder.mkdir()
        for rank in (0, 1):
            os.mkfifo(folder / f"{rank}.orders")
            os.mkfifo(folder / f"{rank}.results")
        self._orders = [os.open(folder / f"{rank}.orders", os.O_RDWR) for rank in (0, 1)]
        self._results = [os.open(folder / f"{rank}.results", os.O_RDONLY | os.O_NONBLOCK) for rank in (0, 1)]
        self._buffers = [b"", b""]
        env = {**os.environ, "BENCH_FOLDER": str(folder), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen([*command, str(JOB)], env=env, stdout=subprocess.DEVNULL)
        self._watcher = psutil.Process(self._process.pid) if is_watched else None
        self._watcher_s = self._measured_s = 0.0

    def wait_until_ready(self) -> None:
        self._pids = [int(self._line(rank)) for rank in (0, 1)]
        self._pause()

    def measure(self, batch: int, num_steps: int) -> Block:
        """A first small step brings the ranks back onto the processor; only then the watcher goes on, and the block counts."""
        self._order(1, 1)
        before_s = self._resume()
        block = self._order(batch, num_steps)
        self._watcher_s += self._pause() - before_s
        self._measured_s += block.wall_s * num_steps
        return block

    def watcher_share(self) -> float:
        """CPU seconds of the watcher for every second in which the ranks were measured."""
        return self._watcher_s / self._measured_s

    def best_s(self, batch: int) -> float:
        return min(self._order(batch, 3).wall_s for _ in range(5))

    def memory_mib(self) -> Memory:
        infos = [psutil.Process(pid).memory_full_info() for pid in self._pids]
        return Memory(sum(i.pss for i in infos) / len(infos) / 2**20, sum(i.rss for i in infos) / len(infos) / 2**20)

    def close(self) -> None:
        """Without further orders the ranks end by themselves."""
        self._resume()
        for fd in (*self._orders, *self._results):
            os.close(fd)
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()

    def _order(self, batch: int, num_steps: int) -> Block:
        for fd in self._orders:
            os.write(fd, f"{batch} {num_steps}\n".encode())
        answers = [tuple(map(float, self._line(rank).split())) for rank in (0, 1)]
        return Block(*(sum(values) / len(values) for values in zip(*answers)))

    def _line(self, rank: int, timeout_s: float = 120.0) -> str:
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffers[rank]:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the job under measurement ended or hangs (exit code {self._process.poll()})")
            if select.select([self._results[rank]], [], [], 1.0)[0]:
                data = os.read(self._results[rank], 4096)
                self._buffers[rank] += data
                if not data:
                    time.sleep(0.02)  # not opened yet
        line, self._buffers[rank] = self._buffers[rank].split(b"\n", 1)
        return line.decode()

    def _pause(self) -> float:
        return self._signal_watcher(signal.SIGSTOP)

    def _resume(self) -> float:
        return self._signal_watcher(signal.SIGCONT)

    def _signal_watcher(self, number: int) -> float:
        """Stop the watcher, or let it go on; tells the CPU seconds it has used."""
        if self._watcher is None:
            return 0.0
        self._watcher.send_signal(number)
        return cpu_s_of([self._watcher])
