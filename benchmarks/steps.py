"""The cost of the watch to running ranks: the same job of two ranks, watched and not, again and again in turns.

Fresh jobs each time, because two processes of the same program can differ by some percent for as long as they live.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from compare import Comparison, Row, in_turns, percent

JOB = Path(__file__).with_name("steps_job.py")
SIZES = {3: 150, 30: 90, 300: 6}  # milliseconds of a step: how many are made
NUM_PAIRS = 21


def step_rows(torchrun: tuple[str, ...], run: tuple[str, ...], deadline: float) -> Iterator[Row]:
    """Rows for the step times, the watcher's own CPU and the ranks' memory; the arguments are the two commands but for the script."""
    repeats = answers(torchrun, [str(target_ms) for target_ms in SIZES])[0]["repeats"]
    sizes = [f"{times}:{steps}" for times, steps in zip(repeats, SIZES.values())]
    print(f"steps of {', '.join(map(str, SIZES))} ms in {NUM_PAIRS} pairs of jobs", flush=True)
    pairs = in_turns(partial(seen_in, torchrun, sizes), partial(seen_in, run, sizes), NUM_PAIRS, deadline)
    share = median(watched.watcher_share for _, watched in pairs.results)
    for i, target_ms in enumerate(SIZES):
        wall, cpu = (Comparison([a.steps[i][k] for a, _ in pairs.results], [b.steps[i][k] for _, b in pairs.results]) for k in (0, 1))
        limit = "≤ 1 %" if target_ms >= 30 else ""
        is_met = wall.is_ratio_within(1.01) if limit and pairs.is_calm else None
        yield Row(f"step of about {target_ms} ms", *times_of(wall), str(pairs), limit, is_met)
        yield Row("… CPU time of it, per rank", *times_of(cpu), str(pairs))
        yield Row("… CPU of the rank and the watcher together", "", "", percent(median(cpu.ratios) + share))
    yield Row("CPU of the watcher, share of one core", "", f"{share:.2%}", "")
    yield memory_row([(a.memory, b.memory) for a, b in pairs.results])


@dataclass(frozen=True)
class Seen:
    """What one job told, on average over its ranks: wall and CPU seconds of a step of each size, the watcher's CPU, MiB of a rank."""

    steps: list[tuple[float, float]]
    watcher_share: float
    memory: tuple[float, float]


def seen_in(command: tuple[str, ...], sizes: list[str]) -> Seen:
    told = answers(command, sizes)
    blocks = [tuple(sum(values) / len(values) for values in zip(*of_size)) for of_size in zip(*(one["blocks"] for one in told))]
    pss, rss = (sum(values) / len(values) for values in zip(*(one["memory"] for one in told)))
    return Seen([(wall, cpu) for wall, cpu in blocks], told[0]["watcher_share"], (pss, rss))


def answers(command: tuple[str, ...], arguments: list[str]) -> list[dict]:
    """What each rank of the job wrote."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, str(JOB), f"{folder}/answer", *arguments], env=env, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        return [json.loads(path.read_text()) for path in sorted(Path(folder).glob("answer.*"))]


def times_of(seen: Comparison) -> tuple[str, str, str]:
    return f"{median(seen.plain) * 1e3:.2f} ms", f"{median(seen.watched) * 1e3:.2f} ms", seen.ratio_text()


def memory_row(seen: list[tuple[tuple[float, float], tuple[float, float]]]) -> Row:
    plain, watched = ([median(values) for values in zip(*side)] for side in zip(*seen))
    pss, rss = (median(b[k] - a[k] for a, b in seen) for k in (0, 1))
    return Row(
        "memory of a rank (PSS; RSS)",
        f"{plain[0]:.0f}; {plain[1]:.0f} MiB",
        f"{watched[0]:.0f}; {watched[1]:.0f} MiB",
        f"{pss:+.1f}; {rss:+.1f} MiB",
        f"{len(seen)}",
        "< 15 MiB",
        max(pss, rss) < 15,
    )
