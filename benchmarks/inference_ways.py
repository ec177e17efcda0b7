"""The same model and the same requests through DDP with gathering, one process, `predict`, and the pool (with workers, and in process)."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from chart import bars
from inference_jobs import BATCH, MODELS, gathered
from machine import machine_facts
from table import HEAD, Groups, Line, measured

import rankwise
from rankwise.pool import Model, Pool

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SAMPLES = 10_000
SINGLE = 500  # of them at batch 1, for DDP takes its time
REPEATS = int(os.environ.get("RANKWISE_REPEATS", "7"))
STARTS = 3
ONE, ONE_WIDE, DDP, OURS, BATCHED, ONCE = (
    "one process",
    "one process, 2 threads",
    "DDP and all_gather, 2 ranks",
    "rankwise pool",
    "rankwise pool, batched",
    "rankwise gather_predictions, 2 ranks",
)

Times = dict[str, float]


def main() -> int:
    wanted = sys.argv[1:] or list(SECTIONS)
    groups: Groups = []
    lines = measured(SECTIONS, wanted, groups)
    if not sys.argv[1:]:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "inference_ways.md").write_text(report(lines))
        (RESULTS / "inference_ways.svg").write_text(bars("The same requests, five ways", groups))
    return 0 if all(line.is_met is not False for line in lines) else 1


def in_batches(groups: Groups) -> list[Line]:
    """Everything is warm: how fast the samples go through, and nothing else."""
    lines = []
    for name in MODELS:
        times = over_starts(lambda: offline(name, SAMPLES, BATCH))  # noqa: B023  (used at once)
        shown(groups, f"{name} model, {SAMPLES:,} samples, batch {BATCH} (samples/s)", SAMPLES, times)
        what = f"{SAMPLES:,} samples, batch {BATCH}, {name} model"
        lines += [
            against(f"{what}: one process, 1 thread", SAMPLES, times, OURS, ONE, 1.8 if name == "large" else None),
            against(f"{what}: one process, 2 threads", SAMPLES, times, OURS, ONE_WIDE),
            against(f"{what}: DDP and all_gather, 2 ranks", SAMPLES, times, OURS, DDP, 1.7 if name == "small" else None),
            against(f"{what}, in the same ranks, gathered once: the same", SAMPLES, times, ONCE, DDP),
        ]
    return lines


def one_by_one(groups: Groups) -> list[Line]:
    lines = []
    for name in ("small", "large"):
        times = over_starts(lambda: offline(name, SINGLE, 1))  # noqa: B023  (used at once)
        shown(groups, f"{name} model, {SINGLE:,} samples, batch 1 (samples/s)", SINGLE, times)
        what = f"{SINGLE:,} samples, batch 1, {name} model"
        required = 4.0 if name == "small" else None
        lines += [
            against(f"{what}: DDP and all_gather, 2 ranks", SINGLE, times, OURS, DDP, required),
            against(f"{what}, which the pool puts together: the same", SINGLE, times, BATCHED, DDP, required),
            against(f"{what}, in the same ranks, gathered once: the same", SINGLE, times, ONCE, DDP, required),
            against(f"{what}: one process, 1 thread", SINGLE, times, OURS, ONE),
        ]
    return lines


def offline(name: str, samples: int, batch: int) -> Times:
    build, width = MODELS[name]
    data = torch.rand(samples, width)
    chunks, model = list(data.split(batch)), build()
    models = {"alone": Model(build, replicas=2), "batched": Model(build, replicas=2, max_batch=BATCH)}
    with Pool(models, workers=2, threads=1) as pool, Ranks(2, name, samples, batch) as ranks:

        def one_process(threads: int) -> torch.Tensor:
            torch.set_num_threads(threads)
            try:
                with torch.inference_mode():
                    return torch.cat([model(chunk) for chunk in chunks])
            finally:
                torch.set_num_threads(1)

        ways: dict[str, Callable[[], Any]] = {
            ONE: lambda: one_process(1),
            ONE_WIDE: lambda: one_process(2),
            DDP: ranks.run,
            ONCE: lambda: ranks.run("once"),
            OURS: lambda: torch.cat(list(pool.map("alone", chunks))),
        }
        if batch == 1:
            ways[BATCHED] = lambda: torch.cat(list(pool.map("batched", chunks)))
        return interleaved(ways)


def whole_jobs(groups: Groups) -> list[Line]:
    """From the shell to the written file; and the same with two rows, which is what starting alone takes."""
    with tempfile.TemporaryDirectory() as folder:
        full, tiny = Path(folder, "x.npy"), Path(folder, "two.npy")
        np.save(full, np.random.default_rng(0).random((SAMPLES, 1024), np.float32))
        np.save(tiny, np.zeros((2, 1024), np.float32))
        ways = {f"{way}{kind}": job(way, path) for way in JOBS for kind, path in (("", full), (" start", tiny))}
        times = interleaved(ways)
    shown(groups, f"large model, whole job of {SAMPLES:,} samples from the shell (samples/s)", SAMPLES, {way: times[way] for way in JOBS})
    ours, start = times[PREDICT], times[f"{PREDICT} start"]
    lines = []
    for way in JOBS:
        if way == PREDICT:
            continue
        other, other_start = times[way], times[f"{way} start"]
        required = 1.8 if way == ONE else None
        lines += [
            Line(f"whole job, {SAMPLES:,} samples, large model, `predict`: {way}", seconds(ours), seconds(other), other / ours),
            Line(f"of that, starting: {way}", seconds(start), seconds(other_start), other_start / start),
            Line(f"the rest: {way}", seconds(ours - start), seconds(other - other_start), (other - other_start) / (ours - start), required),
        ]
    return lines


PREDICT, PREDICT_ALONE, BY_TORCHRUN = "rankwise predict, 2 workers", "rankwise predict, in process", "torchrun: DDP and all_gather, 2 ranks"
_WORDS = ["-m", "rankwise", "predict", "--build", "inference_jobs:large", "--batch", str(BATCH), "--overwrite", "--restart"]
JOBS: dict[str, list[str]] = {
    ONE: ["inference_jobs.py"],
    BY_TORCHRUN: ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "inference_jobs.py"],
    PREDICT: [*_WORDS, "--workers", "2"],
    PREDICT_ALONE: [*_WORDS, "--workers", "0"],
}


def job(way: str, source: Path) -> Callable[[], Any]:
    target = source.with_name("y.npy")
    paths = ["--input", str(source), "--output", str(target)] if "predict" in JOBS[way] else [str(source), str(target)]

    def run() -> None:
        for left in (target, target.with_name(".y.npy.predicted")):
            left.unlink(missing_ok=True)
        for _ in range(3):  # gloo sometimes fails while it is taken down; a second try would only make it slower in the table
            done = subprocess.run([sys.executable, *JOBS[way], *paths], cwd=HERE, capture_output=True, text=True)
            if not done.returncode and target.exists():
                return
        raise SystemExit(f"{way} failed three times:\n{done.stderr[-3000:]}")

    return run


def latency(groups: Groups) -> list[Line]:
    lines = []
    for name in ("large", "small"):
        times = over_starts(lambda: one_at_a_time(name))  # noqa: B023  (used at once)
        groups.append((f"{name} model, one sample (ms)", [(way, 1e3 * s, f"{1e3 * s:.3f}") for way, s in times.items()]))
        ours, bare, ddp = times["rankwise pool, in process"], times["bare forward"], times["DDP and all_gather, 4 ranks"]
        what = f"one sample, {name} model, in process (workers=0)"
        lines += [
            Line(f"{what}: a bare forward", ms(ours), ms(bare), bare / ours, 1 / 1.05 if name == "large" else None),
            Line(f"{what}: DDP and all_gather, 4 ranks", ms(ours), ms(ddp), ddp / ours, 10.0 if name == "small" else None),
        ]
    return lines


def one_at_a_time(name: str) -> Times:
    build, width = MODELS[name]
    model, x = build(), torch.rand(1, width)
    torch.set_num_threads(1)
    count = 50
    with Pool({"mlp": Model(build)}, workers=0) as pool, Ranks(4, name, 4 * count, 1) as ranks, torch.inference_mode():
        ways = {
            "bare forward": lambda: [model(x) for _ in range(count)],
            "rankwise pool, in process": lambda: [pool.submit("mlp", x).result() for _ in range(count)],
            "DDP and all_gather, 4 ranks": ranks.run,
        }
        return {way: total / count for way, total in interleaved(ways, 3 * REPEATS).items()}


SECTIONS = {"batches": in_batches, "singles": one_by_one, "jobs": whole_jobs, "latency": latency}


class Ranks:
    """DDP ranks that hold their share of the samples, wait for a word, run it with gathering, and say that they are done."""

    def __init__(self, world_size: int, model: str, samples: int, batch: int) -> None:
        context = mp.get_context("spawn")
        self._go = [context.SimpleQueue() for _ in range(world_size)]
        self._done = context.SimpleQueue()
        port = 29500 + os.getpid() % 2000
        arguments = [
            (rank, world_size, port, model, samples // world_size, batch, self._go[rank], self._done) for rank in range(world_size)
        ]
        self._ranks = [context.Process(target=rank_main, args=argument, daemon=True) for argument in arguments]
        for process in self._ranks:
            process.start()
        for _ in self._ranks:
            self._done.get()

    def run(self, word: str = "each") -> None:
        """Gather each batch through DDP, or run the bare model and gather "once"."""
        for queue in self._go:
            queue.put(word)
        for _ in self._ranks:
            self._done.get()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for queue in self._go:
            queue.put("end")
        for process in self._ranks:
            process.join()


def rank_main(rank: int, world_size: int, port: int, model: str, samples: int, batch: int, go: Any, done: Any) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    build, width = MODELS[model]
    wrapped = torch.nn.parallel.DistributedDataParallel(build()).eval()
    chunks = list(torch.rand(samples, width).split(batch))
    done.put(rank)
    while (word := go.get()) != "end":
        if word == "each":
            gathered(wrapped, chunks, world_size)
        else:
            with torch.inference_mode():
                rankwise.gather_predictions(torch.cat([wrapped.module(chunk) for chunk in chunks]), samples * world_size)
        done.put(rank)
    dist.destroy_process_group()


def interleaved(ways: dict[str, Callable[[], Any]], repeats: int = REPEATS) -> Times:
    """The median seconds of each way; all ways take turns, each after one turn that does not count."""
    measured: dict[str, list[float]] = {way: [] for way in ways}
    for act in ways.values():
        act()
    for _ in range(repeats):
        for way, act in ways.items():
            started = time.perf_counter()
            act()
            measured[way].append(time.perf_counter() - started)
    return {way: statistics.median(values) for way, values in measured.items()}


def over_starts(measure: Callable[[], Times]) -> Times:
    """The median over processes and models made anew: where their memory happens to lie is good for a third of the time, either way."""
    found = [measure() for _ in range(STARTS)]
    return {way: statistics.median(times[way] for times in found) for way in found[0]}


def against(what: str, samples: int, times: Times, ours: str, other: str, required: float | None = None) -> Line:
    rates = [f"{samples / times[way]:,.0f}/s" for way in (ours, other)]
    return Line(what, *rates, times[other] / times[ours], required)


def shown(groups: Groups, title: str, samples: int, times: Times) -> None:
    groups.append((title, [(way, samples / s, f"{samples / s:,.0f}") for way, s in times.items()]))


def seconds(value: float) -> str:
    return f"{value:.2f} s"


def ms(value: float) -> str:
    return f"{1e3 * value:.3f} ms"


TEXT = """# The same requests, five ways

Medians of {repeats} or more; all ways take turns, each after one turn that does not count. Except for whole jobs, all of that three
times, with processes and models made anew, because it matters where their memory happens to lie; the median of these. One thread per
process except where two are named. A ratio over 1 is in favour of rankwise; the last column says what is required of it, and whether
it is met.

Three models, because the ratios ask different questions. **Large** is a 1024-wide MLP with 4.2 million parameters. A batch of 256 is
2 Gflop, some tens of milliseconds: here it is computing that is measured, so this model is for what two processes gain over one. One
process with two threads, which is torch's own default on two cores, has the same two cores as two workers; nothing can be far ahead of
it. **Small** is a 128-wide MLP with batch norm, 34 thousand parameters, whose forward of a batch takes about as long as what DDP puts
around it: this model is for what gathering costs. **Medium** is the same, 256 wide: the more there is to compute, the less of the time
is gathering, and with the large model hardly any of it is. Those lines are here without a requirement. The other way round with a
single sample: `submit` costs some microseconds, which show beside the small model's forward and not beside the large one's.

DDP's ranks hold their samples already; the pool's come from one process and their results go back to it. Under `no_grad` DDP does not
broadcast buffers in each forward: what it costs is that every rank waits for every other in each gather, and that all get all results.
With four ranks on two cores that is waiting for one's turn, too.

Whole jobs are commands, timed from the shell until the output is written: imports, building, reading, computing, writing. Starting is
the same command with two rows.
"""


def report(lines: list[Line]) -> str:
    facts = f"![chart](inference_ways.svg)\n\n{machine_facts()}. Written by `benchmarks/inference_ways.py`."
    return "\n".join([TEXT.format(repeats=REPEATS), *HEAD, *[str(line) for line in lines], "", facts]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
