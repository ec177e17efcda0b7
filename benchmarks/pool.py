"""The pool against ProcessPoolExecutor, loky and joblib with cached models: round trips, tiny tasks, compute, start, memory."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the peers' workers; the pool sets its own

import contextlib
import json
import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import joblib
import loky
import numpy as np
import pool_models
import torch
from chart import bars
from machine import machine_facts
from table import HEAD, Groups, Line, measured

from rankwise.pool import Model, Pool

HERE = Path(__file__).parent
RESULTS = HERE / "results"
# Name, rounds, trips of each way in a round, what is required.
SIZES = {
    4_000: ("4 KB", 15, 20, 4.0), 400_000: ("400 KB", 11, 20, 6.0), 4_000_000: ("4 MB", 9, 7, 4.0), 40_000_000: ("40 MB", 7, 3, 3.5),
}  # fmt: skip
WORKERS = 2
REQUESTS = {"mlp": (128, 80), "cnn": (16, 60), "transformer": (32, 80)}  # rows of one request, and how many requests
CHUNK = 32  # requests that the peers' map sends at once
SITTINGS = 6  # processes are started anew: where their memory lies makes one as much as a tenth faster than the next
# Model and rows: how many requests. A quarter of a second of work, so that neither the first moment nor the last one decides.
CHUNKED = {("mlp", 1): 600, ("mlp", 64): 96, ("cnn", 1): 400, ("transformer", 1): 600}


def main() -> int:
    wanted = sys.argv[1:] or ["trips", "tiny", "chunks", "compute", "start", "local", "threads"]
    groups: Groups = []
    lines = measured(SECTIONS, wanted, groups)
    if not sys.argv[1:]:
        write(lines, groups)
    return 0 if all(line.is_met is not False for line in lines) else 1


def round_trips(groups: Groups) -> list[Line]:
    models = {"identity": Model(pool_models.identity)}
    lines = []
    with Pool(models, workers=WORKERS) as pool, executor() as ppe, loky_executor() as other:
        ways: dict[str, Callable[[torch.Tensor], Any]] = {
            "rankwise": lambda x: pool.submit("identity", x).result(),
            "rankwise, numpy": lambda x: pool.submit("identity", x.numpy()).result(),
            "ProcessPool, torch": lambda x: ppe.submit(pool_models.peer_torch, "identity", x).result(),
            "ProcessPool, numpy": lambda x: ppe.submit(pool_models.peer_numpy, "identity", x.numpy()).result(),
            "loky, numpy": lambda x: other.submit(pool_models.peer_numpy, "identity", x.numpy()).result(),
        }
        for nbytes, (size, rounds, trips, required) in SIZES.items():
            times, first = interleaved(ways, lambda n=nbytes: torch.rand(n // 4), rounds, trips)
            copies = two_copies(nbytes, rounds * trips)
            best = min(times[name] for name in ways if not name.startswith("rankwise"))
            lines.append(Line(f"round trip, {size}", ms(times["rankwise"]), ms(best), best / times["rankwise"], required))
            lines.append(
                Line(f"the same from numpy, {size}", ms(times["rankwise, numpy"]), ms(best), best / times["rankwise, numpy"], None)
            )
            cold = min(first[name] for name in ways if not name.startswith("rankwise"))
            lines.append(
                Line(f"the first after others had the machine, {size}", ms(first["rankwise"]), ms(cold), cold / first["rankwise"], None)
            )
            groups.append((f"round trip, {size} (ms)", [(name, 1e3 * value, f"{1e3 * value:.3f}") for name, value in times.items()]))
            if nbytes == 40_000_000:
                lines.append(
                    Line("two warm copies / round trip, 40 MB", ms(times["rankwise"]), ms(copies), copies / times["rankwise"], 1 / 1.5)
                )
                lines.append(empty_trip(pool, nbytes, best))
    return lines


def empty_trip(pool: Pool, nbytes: int, best: float) -> Line:
    x = pool.empty((nbytes // 4,), torch.float32)
    x.fill_(1.0)
    seconds = []
    for _ in range(11):
        started = time.perf_counter()
        y = pool.submit("identity", x).result()
        seconds.append(time.perf_counter() - started)
        assert y[0] == 1
        del y
    ours = statistics.median(seconds)
    return Line("the same from pool.empty, 40 MB", ms(ours), ms(best), best / ours, 8.0)


def tiny_tasks(groups: Groups) -> list[Line]:
    """Each pool by its own way to run a long list of tasks and get the results in order."""
    names = [f"tiny{i}" for i in range(10)]
    inputs = [(names[i % 10], np.random.rand(1, 10).astype(np.float32)) for i in range(3000)]
    models = {name: Model(pool_models.tiny, max_batch=256) for name in names}
    with Pool(models, workers=WORKERS) as pool, executor() as ppe, loky_executor() as other:
        parallel = joblib.Parallel(n_jobs=WORKERS)

        def one_by_one() -> None:
            futures = [pool.submit(name, x) for name, x in inputs]
            for future in futures:
                future.result()

        def with_joblib() -> None:
            parallel(joblib.delayed(pool_models.peer_numpy)(*pair) for pair in inputs)

        ways = {
            "rankwise": lambda: list(pool.stream(inputs)),
            "rankwise, a future for each": one_by_one,
            "ProcessPool": lambda: list(ppe.map(pool_models.peer_numpy_pair, inputs)),
            "loky": lambda: list(other.map(pool_models.peer_numpy_pair, inputs)),
            "joblib": with_joblib,
        }
        rates = {name: len(inputs) / seconds for name, seconds in interleaved_calls(ways, 7).items()}
    futures = rates["rankwise, a future for each"]
    peers = {name: rate for name, rate in rates.items() if not name.startswith("rankwise")}
    best = max(peers, key=lambda name: peers[name])
    one_each = max(peers["ProcessPool"], peers["loky"])
    groups.append(("tiny tasks (per second)", [(name, rate, f"{rate:,.0f}") for name, rate in rates.items()]))
    return [
        Line(
            f"tiny tasks streamed, 10 models, against {best}",
            f"{rates['rankwise']:,.0f}/s",
            f"{peers[best]:,.0f}/s",
            rates["rankwise"] / peers[best],
            8.0,
        ),
        Line(
            "the same with a future for each, against the best of those that send one by one",
            f"{futures:,.0f}/s",
            f"{one_each:,.0f}/s",
            futures / one_each,
            None,
        ),
    ]


def chunks(groups: Groups) -> list[Line]:
    """Models that are not batched, against the `map` of the peers with a chunksize."""
    names = [f"tiny{i}" for i in range(10)]
    jobs = {"tiny tasks, 10 models": [(names[i % 10], np.random.rand(1, 10).astype(np.float32)) for i in range(12_000)]}
    for (name, rows), count in CHUNKED.items():
        what = f"{name}, {'one row' if rows == 1 else f'{rows} rows'} a request"
        jobs[what] = [(name, np.random.rand(rows, *pool_models.ROW[name]).astype(np.float32)) for _ in range(count)]
    builds = dict.fromkeys(names, pool_models.tiny) | {name: pool_models.BUILDERS[name] for name in REQUESTS}
    models = {name: Model(build, replicas=WORKERS) for name, build in builds.items()}
    took: dict[tuple[str, str], list[float]] = {}
    for _ in range(SITTINGS):
        with Pool(models, workers=WORKERS, threads=1) as pool, executor() as ppe, loky_executor() as other:
            for what, inputs in jobs.items():
                ways: dict[str, Callable[[], Any]] = {
                    "rankwise": lambda x=inputs: list(pool.stream(x)),
                    "ProcessPool": lambda x=inputs: list(ppe.map(pool_models.peer_numpy_pair, x, chunksize=CHUNK)),
                    "loky": lambda x=inputs: list(other.map(pool_models.peer_numpy_pair, x, chunksize=CHUNK)),
                }
                for way, seconds in in_turns(ways, 5).items():
                    took.setdefault((what, way), []).append(seconds)
    lines = []
    for what, inputs in jobs.items():
        rates = {way: len(inputs) / statistics.median(took[what, way]) for way in ("rankwise", "ProcessPool", "loky")}
        best = max(("ProcessPool", "loky"), key=lambda peer: rates[peer])
        title = f"{what}, not batched: against {best} with chunksize={CHUNK}"
        ratio = rates["rankwise"] / rates[best]
        required = 2.0 if what.startswith("tiny") else 1.0
        lines.append(Line(title, f"{rates['rankwise']:,.0f}/s", f"{rates[best]:,.0f}/s", ratio, required))
        groups.append((f"{what}, not batched (per second)", [(way, rate, f"{rate:,.0f}") for way, rate in rates.items()]))
    return lines


def compute(groups: Groups) -> list[Line]:
    """Requests of so many rows that computing takes the time, and of a single one, which for a wide layer is reading its weights."""
    lines = []
    for name, (rows, count) in REQUESTS.items():
        rates = compute_rates(name, rows, count)
        what = f"{name}, {rows} rows a request"
        lines += [*shares(what, rates, 0.95), against_peers(what, rates)]
        groups.append((f"{what} (requests per second)", [(way, rate, f"{rate:,.1f}") for way, rate in rates.items()]))
    for name in REQUESTS:
        rates = compute_rates(name, 1, 300)
        what = f"{name}, one row a request"
        lines += [*shares(what, rates, None), against_peers(what, rates)]
        if "rankwise, batched" in rates:
            batched, plain = rates["rankwise, batched"], rates["rankwise"]
            lines.append(Line(f"{what}: batched against not", f"{batched:,.0f}/s", f"{plain:,.0f}/s", batched / plain, 2.0))
        groups.append((f"{what} (requests per second)", [(way, rate, f"{rate:,.0f}") for way, rate in rates.items()]))
    return lines


def compute_rates(name: str, rows: int, count: int) -> dict[str, float]:
    build = pool_models.BUILDERS[name]
    inputs = [np.random.rand(rows, *pool_models.ROW[name]).astype(np.float32) for _ in range(count)]
    models = {name: Model(build, replicas=2)}
    if name == "mlp" and rows == 1:
        models["batched"] = Model(build, replicas=2, max_batch=32)
    with (
        Pool(models, workers=WORKERS, threads=1) as pool,
        executor() as ppe,
        Alone(name, rows, count, 1) as one,
        Alone(name, rows, count, WORKERS) as alone,
    ):
        parallel = joblib.Parallel(n_jobs=WORKERS)
        ways: dict[str, Callable[[], Any]] = {
            "one thread": one.run,
            "two processes that share nothing": alone.run,
            "rankwise": lambda: list(pool.map(name, inputs)),
            "ProcessPool": lambda: list(ppe.map(pool_models.peer_numpy_pair, [(name, x) for x in inputs])),
            "joblib": lambda: parallel(joblib.delayed(pool_models.peer_numpy)(name, x) for x in inputs),
        }
        if "batched" in models:
            ways["rankwise, batched"] = lambda: list(pool.map("batched", inputs))
        torch.set_num_threads(1)
        seconds = interleaved_calls(ways, 7) if rows == 1 else in_turns(ways, 7)
    loky.get_reusable_executor().shutdown()
    return {way: count / took for way, took in seconds.items()}


def shares(what: str, rates: dict[str, float], required: float | None) -> list[Line]:
    one, ours, bare = rates["one thread"], rates["rankwise"], rates["two processes that share nothing"]
    required = required and required * min(1, bare / (2 * one))  # of what the machine can do: two threads may share a core, or its memory
    return [
        Line(f"{what}: share of twice one thread's rate", f"{ours:,.1f}/s", f"2 x {one:,.1f}/s", ours / (2 * one), required),
        Line(f"{what}: two such processes with nothing to send reach", "", f"{bare:,.1f}/s", bare / (2 * one), None),
    ]


def against_peers(what: str, rates: dict[str, float]) -> Line:
    best = max(("ProcessPool", "joblib"), key=lambda peer: rates[peer])
    return Line(f"{what}: against {best}", f"{rates['rankwise']:,.1f}/s", f"{rates[best]:,.1f}/s", rates["rankwise"] / rates[best], 1.0)


class Alone:
    """So many processes with a thread each, and each with its share of the inputs made by itself: what the machine can do at most."""

    def __init__(self, name: str, rows: int, count: int, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes = [context.Pipe() for _ in range(processes)]
        arguments = [(name, rows, count // processes, theirs) for _, theirs in self._pipes]
        self._processes = [context.Process(target=pool_models.alone, args=each, daemon=True) for each in arguments]

    def __enter__(self) -> Alone:
        for process in self._processes:
            process.start()
        self.run()
        return self

    def run(self) -> None:
        for ours, _ in self._pipes:
            ours.send("run")
        for ours, _ in self._pipes:
            ours.recv()

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
            process.join()


def start_and_memory(groups: Groups) -> list[Line]:
    names = ["mlp", "cnn", "transformer"]
    inputs = {name: np.zeros(pool_models.INPUTS[name], np.float32) for name in names}
    ours, theirs = [], []
    for _ in range(7):
        started = time.perf_counter()
        with Pool({name: Model(pool_models.BUILDERS[name]) for name in names}, workers=WORKERS) as pool:
            for future in [pool.submit(name, inputs[name]) for name in names]:
                future.result()
            ours.append(time.perf_counter() - started)
        started = time.perf_counter()
        with ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn")) as ppe:
            for future in [ppe.submit(pool_models.peer_numpy, name, inputs[name]) for name in names]:
                future.result()
            theirs.append(time.perf_counter() - started)
    mine, peer = statistics.median(ours), statistics.median(theirs)
    plain, with_torch = memory_mb(), memory_mb("--torch")
    two, four = memory_mb("--everywhere")["total"], memory_mb("--everywhere", "--workers", "4")["total"]
    return [
        Line("start, until 3 models have answered", f"{mine:.2f} s", f"{peer:.2f} s", peer / mine, 1.0),
        Line("memory of all processes, 3 small models (PSS)", f"{plain['total']:.0f} MB", "350 MB", 350 / plain["total"], 1.0),
        Line(
            "the same where the parent imports torch", f"{with_torch['total']:.0f} MB", f"{with_torch['parent']:.0f} MB parent", None, None
        ),
        Line("memory of one more worker with all three", f"{(four - two) / 2:.0f} MB", "", None, None),
    ]


def memory_mb(*options: str) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "pool_memory.py"), *options]
    return dict(json.loads(subprocess.run(command, capture_output=True, text=True, check=True, cwd=HERE).stdout))


def in_process(groups: Groups) -> list[Line]:
    """Both with models made anew, again and again: where their 17 MB of weights happen to lie makes a tenth of the time."""
    x, took = torch.rand(1, 1024), {"bare": [], "rankwise": []}
    torch.set_num_threads(1)
    for sitting in range(20):
        first = pool_models.mlp().eval() if sitting % 2 else None
        with Pool({"mlp": Model(pool_models.mlp)}, workers=0) as pool, torch.inference_mode():
            pool.load("mlp")
            model = first or pool_models.mlp().eval()
            ways = {"bare": lambda _, m=model: m(x), "rankwise": lambda _, p=pool: p.submit("mlp", x).result()}
            times, _ = interleaved(ways, lambda: None, 7, 10)
        for way, seconds in times.items():
            took[way].append(seconds)
    times = {way: statistics.median(seconds) for way, seconds in took.items()}
    ratio = statistics.median(bare / ours for bare, ours in zip(took["bare"], took["rankwise"]))
    return [Line("batch 1 in process: bare forward / rankwise", ms(times["rankwise"]), ms(times["bare"]), ratio, 0.95)]


def thread_defaults(groups: Groups) -> list[Line]:
    lines, inputs = [], [np.random.rand(1, 1024).astype(np.float32) for _ in range(200)]
    for workers in (2, 4, 8):
        models = {"mlp": Model(pool_models.mlp, replicas=workers)}
        with Pool(models, workers=workers) as default, Pool(models, workers=workers, threads=1) as by_hand:
            ways = {"default": lambda p=default: list(p.map("mlp", inputs)), "by hand": lambda p=by_hand: list(p.map("mlp", inputs))}
            times = interleaved_calls(ways, 7)
        lines.append(
            Line(
                f"{workers} workers: default threads against 1 by hand",
                f"{200 / times['default']:,.0f}/s",
                f"{200 / times['by hand']:,.0f}/s",
                times["by hand"] / times["default"],
                0.9,
            )
        )
    return lines


SECTIONS = {
    "trips": round_trips,
    "tiny": tiny_tasks,
    "chunks": chunks,
    "compute": compute,
    "start": start_and_memory,
    "local": in_process,
    "threads": thread_defaults,
}


@contextlib.contextmanager
def executor() -> Iterator[ProcessPoolExecutor]:
    """With all its workers up and torch imported: one that still starts would take a core from whoever is measured."""
    with ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn")) as made:
        warm_up(made)
        yield made


@contextlib.contextmanager
def loky_executor() -> Iterator[Any]:
    made = loky.get_reusable_executor(WORKERS)
    warm_up(made)
    yield made
    made.shutdown()


def warm_up(made: Any) -> None:
    pids: set[int] = set()
    while len(pids) < WORKERS:
        pids |= {future.result() for future in [made.submit(pool_models.pid_after, 0.2) for _ in range(WORKERS)]}


def interleaved(
    ways: dict[str, Callable[[Any], Any]], make: Callable[[], Any], rounds: int, trips: int = 1
) -> tuple[dict[str, float], dict[str, float]]:
    """The median seconds of each way: all ways take turns, each with an input of its own; and of the first trip of each turn, which
    finds its code and its processes gone from the caches and does not count among the others."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    first: dict[str, list[float]] = {name: [] for name in ways}
    for act in ways.values():
        for _ in range(3 if trips else 1):
            act(make())
    for _ in range(rounds):
        for name, act in ways.items():
            for trip in range(trips + 1):
                x = make()
                started = time.perf_counter()
                y = act(x)
                (seconds if trip else first)[name].append(time.perf_counter() - started)
                del x, y
    return medians(seconds), medians(first)


def medians(seconds: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in seconds.items() if values}


def interleaved_calls(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    return interleaved({name: lambda _, act=act: act() for name, act in ways.items()}, lambda: None, rounds)[0]


def in_turns(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """For what takes so long that coming to a cold machine does not show."""
    return interleaved({name: lambda _, act=act: act() for name, act in ways.items()}, lambda: None, rounds, trips=0)[1]


def two_copies(nbytes: int, repeats: int) -> float:
    a, b = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        np.copyto(a, b)
        np.copyto(b, a)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f} ms"


def write(lines: list[Line], groups: Groups) -> None:
    RESULTS.mkdir(exist_ok=True)
    parts = [
        "# The pool against its peers",
        "",
        "Peers keep their models in their workers, one thread each. All ways take turns in one run, each after one run that does not",
        "count; medians of 7 to 300. Round trips take a fresh tensor each time; the peer is the fastest of",
        "ProcessPoolExecutor fed tensors, fed arrays, and loky fed arrays.",
        "A ratio over 1 is in favour of rankwise.",
        "",
        "What is said of compute-bound models is measured with requests of many rows, where computing takes the time. One row through the",
        "1024-wide MLP takes 8 Mflop and reads 17 MB of weights: that measures memory, and what is between two requests. Those lines stand",
        "beside the others without a requirement. Of twice one thread's rate, 0.95 is required, or 0.95 of what two processes reach",
        "that have nothing to send, where the machine gives them less: its two cores may be one, or share a narrow way to the memory.",
        "",
        *HEAD,
        *[str(line) for line in lines],
        "",
        f"![chart](pool.svg)\n\n{machine_facts()}. Written by `benchmarks/pool.py`.",
    ]
    (RESULTS / "pool.md").write_text("\n".join(parts) + "\n")
    (RESULTS / "pool.svg").write_text(bars("The pool against its peers", groups))


if __name__ == "__main__":
    sys.exit(main())
