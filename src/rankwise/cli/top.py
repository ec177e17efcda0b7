"""`rankwise top`: a live table of the pools on this machine."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from rankwise.cli.options import parsed, seconds
from rankwise.errors import UsageError

_EPILOG = """examples:
  rankwise top                 all pools of yours, once a second, until Ctrl-C
  rankwise top --once          the table once
  rankwise top --json          the same as JSON"""
_COLUMNS = ("model", "queued", "running", "done", "failed", "batch", "p50 ms", "p99 ms", "memory MB", "replicas", "reruns", "evicted")


def main(argv: list[str]) -> int:
    options = parsed("top", add_options, argv)
    found = _looks(options.pid)
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    if options.once or not sys.stdout.isatty():
        print(_text(found))
        return 0
    while True:
        print("\x1b[H\x1b[2J" + _text(_looks(options.pid)), flush=True)
        time.sleep(options.interval)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog, parser.formatter_class = _EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--pid", type=int, help="show only the pools of this process")
    parser.add_argument("--interval", type=seconds, default=1.0, metavar="SECONDS", help="seconds between two updates (default: 1)")
    parser.add_argument("--once", action="store_true", help="print the table once (also where the output is not a terminal)")
    parser.add_argument("--json", action="store_true", help="print it once, as JSON")


def _looks(pid: int | None) -> list[dict[str, Any]]:
    from rankwise.pool.stats import look, pools

    names = [name for process, name in pools() if pid in (None, process)]
    if pid is not None and not names:
        raise UsageError(f"process {pid} has no pool here", next=("rankwise top shows all of them",))
    return [stats for stats in map(look, names) if stats is not None]


def _text(found: list[dict[str, Any]]) -> str:
    if not found:
        return "no pool is running here"
    return "\n\n".join(_pool_text(stats) for stats in found)


def _pool_text(stats: dict[str, Any]) -> str:
    rows = [_COLUMNS, *[_row(name, numbers) for name, numbers in stats["models"].items()]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    table = ["  ".join(cell.ljust(widths[0]) if i == 0 else cell.rjust(widths[i]) for i, cell in enumerate(row)) for row in rows]
    lanes = stats["lanes"]
    lines = [
        f"pool of process {stats['pid']}: {stats['plan']}",
        *table,
        *[n["finding"] for n in stats["models"].values() if n["finding"]],
        *[_worker_text(worker) for worker in stats["workers"]],
        f"lanes {lanes['inputs_used_bytes'] / 1e6:.1f} of {lanes['inputs_bytes'] / 1e6:.1f} MB, {stats['restarts']} workers replaced",
    ]
    return "\n".join(lines)


def _row(name: str, n: dict[str, Any]) -> tuple[str, ...]:
    return (
        name if n["state"] == "ok" else f"{name} (failed)",
        *[str(n[key]) for key in ("queued", "running", "completed", "failed")],
        f"{n['mean_batch']:.1f}" if n["mean_batch"] else "-",
        *[f"{n[key] * 1000:.2f}" if n[key] is not None else "-" for key in ("p50_s", "p99_s")],
        f"{n['memory_bytes'] / 1e6:.1f}" if n["memory_bytes"] is not None else "-",
        *[str(n[key]) for key in ("replicas", "rerun", "evictions")],
    )


def _worker_text(worker: dict[str, Any]) -> str:
    doing = f"runs {worker['running']} for {worker['running_s']:.2f} s" if worker["running"] else "idle" if worker["ready"] else "starts"
    where = f"pid {worker['pid']}, {worker['device']}" if worker["pid"] is not None else worker["device"]
    return f"worker {worker['number']} ({where}): {doing}; holds {', '.join(worker['holds']) or 'nothing'}"
