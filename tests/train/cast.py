"""Many ranks for little: one process imports torch once and forks a rank whenever it is told to, on a host of the lab if need be.

Started by path. Each line on stdin is a role as JSON: id, env (added to the own; None removes), log, act (name of a function below), args,
and where the rank is to live: namespace (of the network) and host (its name). The exit code of each rank comes back as a line on stdout.
Nothing of torch may run here but its import: its threads would not survive the fork.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import select
import signal
import sys
import time
import traceback
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore

from rankwise.errors import RankwiseError
from rankwise.train import agreement, rank_info
from rankwise.train.session import Job, session

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWNET = 0x20000, 0x4000000, 0x40000000
MS_REC, MS_PRIVATE, MS_BIND = 0x4000, 1 << 18, 0x1000
libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    ranks: dict[int, str] = {}
    waker, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    tell({"ready": True})
    pending = b""
    while True:
        ready, _, _ = select.select([0, waker], [], [])
        if waker in ready:
            os.read(waker, 4096)
            reap(ranks)
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:
                break
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                if "kill" in order:
                    for pid in [pid for pid, name in ranks.items() if name == order["kill"]]:
                        os.kill(pid, order["signal"])
                else:
                    ranks[fork(order)] = order["id"]
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)


def reap(ranks: dict[int, str]) -> None:
    while ranks:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        tell({"id": ranks.pop(pid), "code": os.waitstatus_to_exitcode(status)})


def tell(facts: dict[str, Any]) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


def fork(role: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        libc.prctl(1, signal.SIGKILL)
        log = os.open(role["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for name, value in role.get("env", {}).items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        if role.get("namespace"):
            move(role["namespace"], role["host"])
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", force=True)
        code = act(role)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def move(namespace: str, host: str) -> None:
    """To another host of the lab: its network, its name, its /etc/hosts."""
    check(libc.unshare(CLONE_NEWNS | CLONE_NEWUTS))
    check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    with open(f"/run/netns/{namespace}") as file:
        check(libc.setns(file.fileno(), CLONE_NEWNET))
    check(libc.sethostname(host.encode(), len(host)))
    check(libc.mount(f"/etc/netns/{namespace}/hosts".encode(), b"/etc/hosts", None, MS_BIND, None))


def check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


# -- what a rank can do; what it has to say is one line of JSON after "TOLD " ----------------------------------------------------------


def act(role: dict[str, Any]) -> int:
    args = dict(role.get("args", {}))
    if role["act"] == "keep_store":
        keep_store(**args)
    if versions := args.pop("versions", None):  # the lowest level at which another version can be pretended
        original = rank_info.own_versions
        rank_info.own_versions = lambda backend: {**original(backend), **versions}
    for name, seconds in args.pop("limits", {}).items():  # "module.CONSTANT" of rankwise.train: what a rank waits for, in less time
        module, _, constant = name.rpartition(".")
        assert hasattr(import_module(f"rankwise.train.{module}"), constant), name
        setattr(import_module(f"rankwise.train.{module}"), constant, seconds)
    if patience_s := args.pop("patience_s", None):
        agreement.PARAMETERS = replace(agreement.PARAMETERS, limit_s=patience_s)
    time.sleep(args.pop("late_s", 0.0))
    options = {name: args.pop(name) for name in ("backend", "timeout_s", "collective_timeout_s") if name in args}
    began = time.monotonic()
    try:
        for _ in range(args.pop("num_sessions_before", 0)):
            with session(**options):
                pass
        with session(**options) as job:
            facts = {"rank": job.rank, "world": job.world_size, "local": job.local_rank, "backend": job.backend}
            facts |= {"notes": [note.to_dict() for note in job.notes], "seconds": time.monotonic() - began}
            facts |= SCENES[role["act"]](job, **args)
        say(facts | {"left": not dist.is_initialized()})
    except RankwiseError as error:
        say(
            {"finding": error.finding.to_dict(), "text": str(error), "seconds": time.monotonic() - began, "left": not dist.is_initialized()}
        )
        return 3
    return 0


def keep_store(port: int, num_lost: int = 0) -> None:
    """As torchrun's agent does: a store that outlives the ranks."""
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    store.add("rankwise/events", num_lost)  # as ranks do that are killed before they have written
    print("open", store.port, flush=True)
    time.sleep(120)


def say(facts: dict[str, Any]) -> None:
    print("TOLD " + json.dumps(facts), flush=True)


def scene_sum(job: Job) -> dict[str, Any]:
    total = torch.tensor([float(job.rank)])
    dist.all_reduce(total)
    return {"sum": total.item()}


def scene_mesh(job: Job) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    spread = distribute_tensor(torch.arange(4.0), init_device_mesh("cpu", (1,)), [Shard(0)])
    return {"sum": spread.sum().full_tensor().item()}


def scene_agree(
    job: Job, layers: dict[str, list[int]] | None = None, skip_on: tuple[int, ...] = (), leave_on: tuple[int, ...] = ()
) -> dict[str, Any]:
    if job.rank in leave_on:
        return {}
    if job.rank in skip_on:
        time.sleep(4)
    torch.manual_seed(job.rank)
    sizes = (layers or {}).get(str(job.rank), [3, 4])
    model = torch.nn.Sequential(torch.nn.Linear(sizes[0], sizes[1]), torch.nn.BatchNorm1d(sizes[1]))
    job.agree(model)
    return {"weights": [round(value, 6) for value in model[0].weight.reshape(-1).tolist()]}


def scene_gradients(job: Job, synchronised: bool = True, alike: bool = False, unused_on: int | None = None) -> dict[str, Any]:
    """Gradients averaged by hand: DistributedDataParallel takes seconds to import."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    job.agree(model)
    x = torch.full((4, 2), 1.0 if alike else float(job.rank + 1))
    (model[0](x) if job.rank == unused_on else model(x)).sum().backward()
    for parameter in model.parameters() if synchronised else ():
        dist.all_reduce(parameter.grad)
    job.check_gradients(model)
    return {}


def scene_raise(job: Job, rank: int) -> dict[str, Any]:
    if job.rank == rank:
        raise ValueError("bad sample")
    total = torch.zeros(1)
    dist.all_reduce(total)
    return {}


def scene_die(job: Job, rank: int) -> dict[str, Any]:
    """Vanish after everything was well; the others are on their way to the next stage."""
    if job.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    job.agree(torch.nn.Linear(2, 2))
    return {}


def scene_wait(job: Job) -> dict[str, Any]:
    say({"started": job.rank})
    time.sleep(60)
    return {}


SCENES = {name.removeprefix("scene_"): thing for name, thing in list(globals().items()) if name.startswith("scene_")}

if __name__ == "__main__":
    main()
