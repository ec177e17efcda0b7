"""Runs cases as ranks of small jobs: a process that has torch and the probe loaded forks them, so that a job takes a second.

Reads one request per line (JSON) and answers each with a line: the ranks' exit codes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which the first optimizer would import, in every rank
import torch.distributed as dist
import torch.nn.parallel
import torch.utils.data

PATIENCE_S = 60.0


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps({"codes": run(request)}), flush=True)


def run(request: dict[str, Any]) -> dict[int, int]:
    pids = {}
    for rank in range(request["world"]):
        pid = os.fork()
        if pid == 0:
            os._exit(be_rank(rank, request))
        pids[rank] = pid
    deadline = time.monotonic() + PATIENCE_S
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        for rank, pid in pids.items():
            if rank in codes:
                continue
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[rank] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return codes


def be_rank(rank: int, request: dict[str, Any]) -> int:
    """As a process of its own would begin: with its rank in the environment, its folder and its log."""
    os.chdir(request["work"])
    log = os.open(f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(request["world"]), MASTER_ADDR="127.0.0.1")
    probe = sys.modules["_rankwise_probe"]
    process = sys.modules[f"{probe.__name__}.process"]
    process.live = request["live"]
    sys.modules[f"{probe.__name__}.recording"].start()
    getattr(random.seed, "__wrapped__", random.seed)(os.urandom(8))  # as Python and torch do at their start
    torch.seed()
    code = 0
    try:
        case = load(Path(request["script"]))
        dist.init_process_group("gloo", init_method=f"file://{request['work']}/store", rank=rank, world_size=request["world"])
        case.main(bool(request["fault"]))
        dist.destroy_process_group()
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.modules[f"{probe.__name__}.exits"]._note_end("finished", code)
    return code


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("__main__", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
