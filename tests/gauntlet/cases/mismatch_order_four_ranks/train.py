import torch
import torch.distributed as dist

from callbacks import Metrics, Schedule


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    callbacks = [Schedule(), Metrics()]
    if rank == 2:
        callbacks.sort(key=lambda c: c.priority)
    for step in range(6):
        for callback in callbacks:
            callback.on_step(step)
    dist.destroy_process_group()


main()
