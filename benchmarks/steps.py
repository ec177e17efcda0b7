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

import psutil
from compare import Comparison, Row, in_turns

JOB = Path(__file__).with_name("steps_job.py")
# milliseconds of a step: steps in a block, so that the watcher looks several times in each. As many pairs of blocks for every size.
SIZES = {3: 250, 30: 25, 300: 3}
NUM_PAIRS = 60


def step_rows(torchrun: tuple[str, ...], run: tuple[str, ...]) -> Iterator[Row]:
    """Rows for the step times, the watcher's own CPU and the ranks' memory; the arguments are the two commands but for the script."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name, contextlib.ExitStack() as stack:
        plain = stack.push(Job(torchrun, Path(name) / "plain", is_watched=False))
        watched = stack.push(Job((*run, "--out", f"{name}/run"), Path(name) / "watched", is_watched=True))
        plain.wait_until_ready()
        watched.wait_until_ready()
        cpu_before, watched_s = watched.watcher_cpu_s(), 0.0
        for target_ms, num_steps in SIZES.items():
            batch = calibrate(plain, target_ms / 1e3)
            print(f"steps of about {target_ms} ms: {NUM_PAIRS} pairs", flush=True)
            pairs = in_turns(NUM_PAIRS, partial(plain.measure, batch, num_steps), partial(watched.measure, batch, num_steps))
            watched_s += sum(b.wall_s for _, b in pairs) * num_steps
            yield from rows_of_steps(target_ms, pairs)
        share = (watched.watcher_cpu_s() - cpu_before) / watched_s
        yield Row("CPU of the watcher itself, share of one core", "", f"{share:.1%}", "")
        yield memory_row(plain, watched)


def rows_of_steps(target_ms: int, pairs: list[tuple[Block, Block]]) -> Iterator[Row]:
    wall = Comparison([a.wall_s for a, _ in pairs], [b.wall_s for _, b in pairs])
    cpu = Comparison([a.cpu_s for a, _ in pairs], [b.cpu_s for _, b in pairs])
    for name, seen, is_required in (("step", wall, target_ms >= 30), ("CPU time of it", cpu, False)):
        yield Row(
            f"{name}, about {target_ms} ms" if seen is wall else f"… {name} per rank",
            f"{median(seen.plain) * 1e3:.2f} ms",
            f"{median(seen.watched) * 1e3:.2f} ms",
            seen.ratio_text(),
            "≤ 1 %" if is_required else "",
            median(seen.ratios) <= 1.01 if is_required else None,
        )


def memory_row(plain: Job, watched: Job) -> Row:
    a, b = plain.memory_mib(), watched.memory_mib()
    return Row(
        "memory of a rank (PSS; RSS)",
        f"{a.pss:.0f}; {a.rss:.0f} MiB",
        f"{b.pss:.0f}; {b.rss:.0f} MiB",
        f"{b.pss - a.pss:+.1f}; {b.rss - a.rss:+.1f} MiB",
        "< 15 MiB",
        max(b.pss - a.pss, b.rss - a.rss) < 15,
    )


def calibrate(job: Job, target_s: float) -> int:
    """The batch size with which one step takes about so long on this machine."""
    sizes, times = [1], [job.typical_s(1)]
    while times[-1] < target_s and sizes[-1] < 1 << 20:
        sizes.append(sizes[-1] * 2)
        times.append(job.typical_s(sizes[-1]))
    if len(sizes) == 1:
        return 1
    slope = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
    return max(1, round(sizes[-1] - (times[-1] - target_s) / slope)) if slope > 0 else sizes[-2]


@dataclass(frozen=True)
class Block:
    """Wall and CPU seconds of one step, on average over a block and over the ranks."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Memory:
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
        self._watcher = self._process if is_watched else None

    def wait_until_ready(self) -> None:
        self._pids = [int(self._line(rank)) for rank in (0, 1)]
        self._pause()

    def measure(self, batch: int, num_steps: int) -> Block:
        """A first small step brings the ranks back onto the processor; only then the watcher goes on, and the block counts."""
        self._order(1, 1)
        self._resume()
        try:
            return self._order(batch, num_steps)
        finally:
            self._pause()

    def typical_s(self, batch: int) -> float:
        return median(self._order(batch, 3).wall_s for _ in range(5))

    def watcher_cpu_s(self) -> float:
        """CPU of `rankwise run` so far; the ranks are not its own children and not counted."""
        assert self._watcher is not None
        times = psutil.Process(self._watcher.pid).cpu_times()
        return times.user + times.system

    def memory_mib(self) -> Memory:
        infos = [psutil.Process(pid).memory_full_info() for pid in self._pids]
        return Memory(sum(i.pss for i in infos) / len(infos) / 2**20, sum(i.rss for i in infos) / len(infos) / 2**20)

    def __exit__(self, *_: object) -> None:
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

    def _pause(self) -> None:
        if self._watcher is not None:
            self._watcher.send_signal(signal.SIGSTOP)

    def _resume(self) -> None:
        if self._watcher is not None:
            self._watcher.send_signal(signal.SIGCONT)
