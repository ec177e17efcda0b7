"""Holds each library wrong in each way, on two ranks, and prints what they came to."""

import copy
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from loops import LOOPS
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

LENGTH = 37
TIMEOUT_S = 30.0  # after the ranks were forked; what ends takes a second or two
GRACE_S = 8.0


def main() -> None:
    """Try every misuse with every library: two forked ranks each, from one process that has imported everything once."""
    import accelerate  # noqa: F401  imported here, so that a rank pays nothing for it
    import lightning_fabric  # noqa: F401
    import torch._dynamo.utils  # noqa: F401

    import rankwise.train  # noqa: F401

    results: dict[str, dict[str, list[str]]] = {}
    for misuse in MISUSES:
        for library in LOOPS:
            said = killed_and_resumed(library) if misuse == "killed_while_saving" else tried(library, misuse)
            results.setdefault(misuse, {})[library] = said
            print(misuse, library, said, file=sys.stderr, flush=True)
    print("RESULT " + json.dumps(results), flush=True)


def tried(library: str, misuse: str) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        return attempt(library, misuse, folder)


def killed_and_resumed(library: str) -> list[str]:
    """Killed at several moments of a save, each followed by an attempt to resume; the worst of them."""
    worst = ["RIGHT", "RIGHT"]
    for moment in (0.1, 0.3, 0.5, 0.7, 0.9):
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            os.environ["BENCH_MOMENT"] = str(moment)
            if attempt(library, "killed_while_saving", folder)[0] != "NOTHING":
                continue  # rank 0 had finished
            said = attempt(library, "killed_while_saving", folder)
            worst = said if said != ["RIGHT", "RIGHT"] else worst
    return worst


def attempt(library: str, misuse: str, folder: str) -> list[str]:
    """What each of two ranks said last; a rank that said nothing until the timeout hangs, if the other one is not to blame for it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name in ("said-0", "said-1"):
        Path(folder, name).unlink(missing_ok=True)
    pids = [fork(library, misuse, folder, rank, port) for rank in (0, 1)]
    deadline = time.monotonic() + TIMEOUT_S
    left = set(pids)
    while left:
        for pid in list(left):
            if os.waitpid(pid, os.WNOHANG)[0]:
                left.discard(pid)
                deadline = min(deadline, time.monotonic() + GRACE_S)  # a launcher would end the other one soon
            elif time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    files = [Path(folder, f"said-{rank}") for rank in (0, 1)]
    return [file.read_text() if file.exists() else "NOTHING" for file in files]


def fork(library: str, misuse: str, folder: str, rank: int, port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in numbers.items()})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "bench"})  # what torchrun sets
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        said = MISUSES[misuse](LOOPS[library], folder)
    except BaseException as error:
        said = f"ERROR {type(error).__name__}: {error}"
    partial = Path(folder, f"partial-{rank}")
    partial.write_text(said)
    partial.rename(Path(folder, f"said-{rank}"))
    until = time.monotonic() + GRACE_S
    while not Path(folder, f"said-{1 - rank}").exists() and time.monotonic() < until:
        time.sleep(0.02)  # leaving at once would be an error for the other one
    os._exit(0)


def data(length: int = LENGTH) -> TensorDataset:
    x = torch.randn(length, 6, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, torch.sin(x[:, :3]), torch.arange(length))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return mse_loss(model(batch[0]), batch[1])


def made(loop: Any, length: int = LENGTH, accumulate: int = 4) -> tuple[nn.Sequential, Any]:
    net = network()
    return net, loop(net, torch.optim.SGD(net.parameters(), lr=0.1), data(length), 4, accumulate)


def drift(net: nn.Module) -> float:
    """How far the ranks' weights are apart."""
    mine = torch.cat([p.detach().flatten() for p in net.parameters()])
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    return float((everyone[0] - everyone[1]).abs().max())


def uneven_data(loop: Any, folder: str) -> str:
    """One epoch as one step: whatever the order, the result must be that of one process with all samples."""
    net, training = made(loop, accumulate=8)
    training.epoch(loss_of)
    alone = network()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    x, y, _ = data().tensors
    mse_loss(alone(x), y).backward()
    nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
    optimizer.step()
    before = torch.cat([p.detach().flatten() for p in network().parameters()])
    now, right = (torch.cat([p.detach().flatten() for p in model.parameters()]) for model in (net, alone))
    off = float((now - right).norm() / (right - before).norm())
    return "RIGHT" if off < 1e-4 else f"WRONG the step is off by {off:.0%}"


def evaluation(loop: Any, folder: str) -> str:
    _, training = made(loop)
    seen = training.predictions(data())
    if seen == list(range(LENGTH)):
        return "RIGHT"
    extra = len(seen) - len(set(seen))
    order = "in order" if seen == sorted(seen) else "out of order"
    return f"WRONG {len(seen)} rows for {LENGTH} samples, {extra} twice, {order}"


def reshuffling(loop: Any, folder: str) -> str:
    _, training = made(loop)
    orders: list[list[int]] = [[], []]
    for order in orders:
        training.epoch(lambda model, batch, order=order: order.extend(batch[2].tolist()) or loss_of(model, batch))
    return "RIGHT" if orders[0] != orders[1] else "WRONG the same order in every epoch"


def replaced_layer(loop: Any, folder: str) -> str:
    net, training = made(loop)
    torch.manual_seed(5)
    net[2] = nn.Linear(16, 3)
    training.optimizer.param_groups[0]["params"] = list(net.parameters())
    for _ in range(3):
        training.epoch(loss_of)
    far = drift(net)
    return f"WRONG the ranks' weights are {far:.2g} apart" if far > 1e-6 else "RIGHT"


def other_optimizer(loop: Any, folder: str) -> str:
    net = network()
    training = loop(net, torch.optim.SGD(copy.deepcopy(net).parameters(), lr=0.1), data(), 4, 4)
    before = [p.detach().clone() for p in net.parameters()]
    training.epoch(loss_of)
    return "WRONG nothing is trained" if all(torch.equal(a, b) for a, b in zip(before, net.parameters())) else "RIGHT"


def bare_model(loop: Any, folder: str) -> str:
    net, training = made(loop)
    training.epoch(loss_of, model=net)
    far = drift(net)
    return f"WRONG the ranks' weights are {far:.2g} apart" if far > 1e-6 else "RIGHT"


def skipped_batch(loop: Any, folder: str) -> str:
    """Rank 1 leaves out one batch that it does not like."""
    net, training = made(loop, length=64)
    number = [0]

    def sometimes(model: nn.Module, batch: Any) -> torch.Tensor | None:
        number[0] += 1
        return None if number[0] == 4 and dist.get_rank() == 1 else loss_of(model, batch)

    for _ in range(2):
        training.epoch(sometimes)
    far = drift(net)
    return f"WRONG the ranks' weights are {far:.2g} apart" if far > 1e-6 else "WRONG gradients of different steps were averaged"


def different_lengths(loop: Any, folder: str) -> str:
    """Rank 1 has found fewer files."""
    _, training = made(loop, length=LENGTH if dist.get_rank() == 0 else 20, accumulate=1)
    for _ in range(2):
        training.epoch(loss_of)
    return "WRONG the ranks trained on different datasets"


def not_finite(loop: Any, folder: str) -> str:
    net, training = made(loop, accumulate=1)
    number = [0]

    def broken(model: nn.Module, batch: Any) -> torch.Tensor:
        number[0] += 1
        return loss_of(model, batch) * (float("inf") if number[0] == 2 and dist.get_rank() == 1 else 1.0)

    training.epoch(broken)
    finite = all(p.isfinite().all() for p in net.parameters())
    return "RIGHT" if finite else "WRONG every weight is not a number"


def killed_while_saving(loop: Any, folder: str) -> str:
    """A good checkpoint, then rank 0 is killed while it writes the next one; can the training still be resumed?"""
    path = os.path.join(folder, "saved")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 4096), nn.Linear(4096, 4096), nn.Linear(4096, 3))
    training = loop(net, torch.optim.SGD(net.parameters(), lr=0.1), data(), 4, 1)
    if os.path.exists(path + ".marker"):
        training.resume(path)
        return "RIGHT"
    training.save(path)
    began = time.monotonic()
    training.save(path)
    took = time.monotonic() - began
    dist.barrier()
    if dist.get_rank() == 0:
        open(path + ".marker", "w").close()
        threading.Timer(took * float(os.environ["BENCH_MOMENT"]), os.kill, (os.getpid(), signal.SIGKILL)).start()
    training.save(path)
    time.sleep(took)
    return "the kill came too late"


MISUSES = {
    name: globals()[name]
    for name in (
        "uneven_data",
        "evaluation",
        "reshuffling",
        "replaced_layer",
        "other_optimizer",
        "bare_model",
        "skipped_batch",
        "different_lengths",
        "not_finite",
        "killed_while_saving",
    )
}

if __name__ == "__main__":
    main()
