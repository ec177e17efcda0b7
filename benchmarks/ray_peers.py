"""The pool on Ray beside plain Ray tasks and actors, Ray Serve and Ray Data: the same models, one worker on each of two nodes."""

from __future__ import annotations

import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
HERE = Path(__file__).parent
sys.path[:0] = [str(ROOT), str(HERE)]
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(ROOT)])
from machine import machine_facts  # noqa: E402
from ray_models import INPUTS, NAMES, All  # noqa: E402
from table import HEAD, Line  # noqa: E402

import rankwise  # noqa: E402

ROUNDS = int(os.environ.get("RANKWISE_REPEATS", "5"))
SMALL, LARGE, ROWS, PREDICTS = 1500, 30, 10_000, 5
# Between turns: what one way leaves to be tidied up, the next one does not pay for. Ray Data's actors take seconds to leave.
PAUSE_S, TIDY_S = 1.0, 6.0
Way = Callable[[list[tuple[str, torch.Tensor]]], list[torch.Tensor]]


def main() -> int:
    folder = tempfile.mkdtemp(prefix="rw-ray-", dir="/tmp")
    os.environ["RAY_TMPDIR"] = folder
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": 600 << 20})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=8, object_store_memory=600 << 20)  # shares, so that all ways can be there and take turns
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        lines = [*requests_lines(ray), *predict_lines(ray, Path(folder))]
        ray.shutdown()
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
    (HERE / "results" / "ray.md").write_text(report(lines))
    return 0 if all(line.is_met is not False for line in lines) else 1


def requests_lines(ray: Any) -> list[Line]:
    models = {name: rankwise.Model("ray_models:build", args=(name,), max_batch=32) for name in NAMES}
    models["sums"] = rankwise.Model("ray_models:build_sums")
    with rankwise.Pool(models, engine="ray", workers=2) as pool:
        ways: dict[str, Way] = {"rankwise": lambda asked: list(pool.stream(asked)), **plain_ways(ray), **serve_way(ray)}
        small = [(NAMES[i % 3], torch.randn(1, INPUTS)) for i in range(SMALL)]
        large = [("sums", torch.randn(1000, 1000)) for _ in range(LARGE)]
        rates = {"small": in_turns(ways, small), "large": in_turns({name: ways[name] for name in ways if name != "Ray Serve"}, large)}
    from ray import serve

    serve.shutdown()
    return [*lines_of("small tasks, 3 models", rates["small"], 3.0), *lines_of("4 MB a task", rates["large"], 1.0)]


def plain_ways(ray: Any) -> dict[str, Way]:
    actors = [ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(All).remote() for _ in range(2)]

    @ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
    def task(name: str, x: torch.Tensor) -> torch.Tensor:
        import ray_models

        holder = ray_models.__dict__.setdefault("kept", {})
        if "all" not in holder:
            holder["all"] = ray_models.All()
        return holder["all"].run(name, x)

    def fed_arrays(asked: list[tuple[str, torch.Tensor]]) -> list[torch.Tensor]:
        found = ray.get([actors[i % 2].run_array.remote(name, x.numpy()) for i, (name, x) in enumerate(asked)])
        return [torch.from_numpy(y.copy()) for y in found]

    return {
        "plain actors fed arrays": fed_arrays,
        "plain actors": lambda asked: ray.get([actors[i % 2].run.remote(name, x) for i, (name, x) in enumerate(asked)]),
        "plain tasks": lambda asked: ray.get([task.remote(name, x) for name, x in asked]),
    }


def serve_way(ray: Any) -> dict[str, Way]:
    """With batches of its own, as it offers them."""
    from ray import serve

    @serve.deployment(num_replicas=2, max_ongoing_requests=2000, ray_actor_options={"num_cpus": 1})
    class Served:
        def __init__(self) -> None:
            from ray_models import All

            self.all = All()

        @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.002)
        async def run(self, asked: list[tuple[str, torch.Tensor]]) -> list[torch.Tensor]:
            found: list[Any] = [None] * len(asked)
            for name in {name for name, _ in asked}:
                places = [i for i, (other, _) in enumerate(asked) if other == name]
                rows = self.all.run(name, torch.cat([asked[i][1] for i in places]))
                for k, i in enumerate(places):
                    found[i] = rows[k : k + 1].clone()
            return found

        async def __call__(self, one: tuple[str, torch.Tensor]) -> torch.Tensor:
            return await self.run(one)

    handle = serve.run(Served.bind(), route_prefix=None)
    return {"Ray Serve": lambda asked: [response.result() for response in [handle.remote(one) for one in asked]]}


def in_turns(ways: dict[str, Way], asked: list[tuple[str, torch.Tensor]]) -> dict[str, float]:
    """Requests per second, the median of some rounds, after one that does not count."""
    expected = None
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS + 1):
        for name, way in in_turn(ways, turn):
            time.sleep(PAUSE_S)
            started = time.perf_counter()
            found = way(asked)
            seconds[name].append(time.perf_counter() - started)
            print(f"{name}: {len(asked) / seconds[name][-1]:,.0f}/s", flush=True)
            expected = expected or found
            assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(expected, found, strict=True)), name
    return {name: len(asked) / statistics.median(times[1:]) for name, times in seconds.items()}


def in_turn(ways: dict[str, Any], turn: int) -> list[tuple[str, Any]]:
    """Each time another one begins, so that none always comes after the same."""
    first = turn % len(ways)
    return [*list(ways.items())[first:], *list(ways.items())[:first]]


def lines_of(what: str, rates: dict[str, float], over_actors: float) -> list[Line]:
    ours = rates.pop("rankwise")
    required = {name: over_actors for name in rates if name.startswith("plain actors")}
    return [
        Line(f"{what}, against {name}", f"{ours:,.0f}/s", f"{rate:,.0f}/s", ours / rate, required.get(name)) for name, rate in rates.items()
    ]


def predict_lines(ray: Any, folder: Path) -> list[Line]:
    """Whole jobs, from a file to a file, start of the workers included."""
    np.save(folder / "x.npy", np.random.default_rng(0).standard_normal((ROWS, INPUTS), dtype=np.float32))
    options = {"engine": "ray", "workers": 2, "batch": 256, "overwrite": True, "restart": True}
    ways: dict[str, Callable[[], Any]] = {
        "rankwise": lambda: rankwise.predict("ray_models:build_middle", str(folder / "x.npy"), folder / "y.parquet", **options),
        "Ray Data": lambda: (
            ray.data.read_numpy(str(folder / "x.npy"))
            .map_batches(All, batch_size=256, compute=ray.data.ActorPoolStrategy(size=2), num_cpus=1)
            .write_parquet(str(folder / f"data-{time.monotonic_ns()}"))
        ),
    }
    ray.data.DataContext.get_current().enable_progress_bars = False
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(PREDICTS + 1):
        for name, way in in_turn(ways, turn):
            time.sleep(TIDY_S)
            started = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - started)
            print(f"predict, {name}: {seconds[name][-1]:.1f} s", flush=True)
    ours, theirs = (statistics.median(seconds[name][1:]) for name in ("rankwise", "Ray Data"))
    return [Line(f"predict {ROWS:,} samples, against Ray Data", f"{ours:.1f} s", f"{theirs:.1f} s", theirs / ours, 1.0)]


def report(lines: list[Line]) -> str:
    head = [
        "# The pool on Ray beside Ray's own ways",
        "",
        "A cluster of two nodes on one machine (`ray.cluster_utils.Cluster`); every way has one worker with one thread on each node, and",
        "the models in it. All take turns in one run, another one first each time, with a pause between turns, because Ray tidies up",
        f"after a way when that is over; medians of {ROUNDS} after one that does not count. Ray Serve batches too (32 rows, 2 ms).",
        f"`predict` is the whole job from a file to a file, start of the workers included, median of {PREDICTS} after one that does not",
        "count. A ratio over 1 is in favour of rankwise.",
        "",
        *HEAD,
        *map(str, lines),
        "",
        f"{machine_facts()}, Ray {version('ray')}",
    ]
    print("\n".join(head))
    return "\n".join(head) + "\n"


if __name__ == "__main__":
    sys.exit(main())
