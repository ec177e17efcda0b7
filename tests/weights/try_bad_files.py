"""Tries to load and inspect each path it reads from stdin, with half a gigabyte to spare; prints what each came to and cost."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
import torch

import rankwise
from rankwise.weights.inspecting import inspect_checkpoint
from rankwise.weights.loading import load_weights, verify_checkpoint
from tests.weights.nets import Net


def outcome(path: str) -> str:
    codes = []
    for use in (lambda: load_weights(Net(), path), lambda: inspect_checkpoint(path), lambda: verify_checkpoint(path)):
        try:
            use()
            codes.append("")
        except rankwise.RankwiseError as error:
            codes.append(error.finding.code)
            assert error.finding.summary and error.finding.next
        except BaseException as error:
            return f"{type(error).__name__}: {error}"
    return codes[0]


def peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    torch.manual_seed(0)
    load_weights(Net(), sys.argv[1])  # everything is imported and warm
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20), resource.RLIM_INFINITY))
    for line in sys.stdin:
        before, started = peak_kb(), time.process_time()  # of this process alone: others may have the machine
        came_to = outcome(line.strip())
        print(json.dumps({"path": line.strip(), "came_to": came_to, "mb": (peak_kb() - before) / 1024, "s": time.process_time() - started}))


if __name__ == "__main__":
    main()
