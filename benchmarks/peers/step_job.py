"""Two ranks that train with each library in turn, block by block in the same processes; rank 0 prints the seconds of every block."""

import json
import os
import time

import torch
import torch.distributed as dist
from loops import LOOPS, in_turns
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

NUM_ROUNDS = int(os.environ.get("BENCH_ROUNDS", "30"))
BATCHES, BATCH_SIZE, ACCUMULATE = 16, 64, 4


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = TensorDataset(torch.randn(2 * BATCHES * BATCH_SIZE, 256), torch.randn(2 * BATCHES * BATCH_SIZE, 16))
    loops = {}
    for name, loop in LOOPS.items():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 16))
        loops[name] = loop(net, torch.optim.AdamW(net.parameters(), lr=1e-4), data, BATCH_SIZE, ACCUMULATE)
    for name in loops:
        block(loops[name])
    rounds = []
    for number in range(NUM_ROUNDS):
        rounds.append({name: block(loops[name]) for name in in_turns(list(loops), number)})
    if dist.get_rank() == 0:
        print("RESULT " + json.dumps(rounds), flush=True)
    dist.barrier()
    time.sleep(0.2)
    os._exit(0)  # Accelerate and Fabric each want to end the group in their own way


def block(loop: object) -> tuple[float, float]:
    """Wall and CPU seconds of a batch, on average over an epoch."""
    dist.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    loop.epoch(lambda model, batch: mse_loss(model(batch[0]), batch[1]))
    return (time.perf_counter() - wall) / BATCHES, (time.process_time() - cpu) / BATCHES


if __name__ == "__main__":
    main()
