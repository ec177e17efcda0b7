import threading

import torch
import torch.distributed as dist


def load(rank, step):
    if rank == 1 and step % 3 == 2:
        raise OSError(f"shard {step} unreadable")
    return torch.ones(2)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    threading.excepthook = lambda args: None
    threading.Thread(target=lambda: {}["version"]).start()
    for step in range(9):
        try:
            x, bad = load(rank, step), torch.zeros(1)
        except OSError:
            x, bad = torch.zeros(2), torch.ones(1)
        dist.all_reduce(bad)
        if bad.item():
            continue
        dist.all_reduce(x)
    dist.destroy_process_group()
    raise SystemExit(0)


if __name__ == "__main__":
    main()
