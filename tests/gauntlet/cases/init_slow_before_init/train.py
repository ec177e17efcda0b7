import datetime
import os

import torch
import torch.distributed as dist

from corpus import tokenise


def main():
    rank = int(os.environ["RANK"])
    tokens = tokenise(40_000_000 if rank == 1 else 400)  # now
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=6))
    total = torch.tensor([len(tokens)])
    dist.all_reduce(total)
    print("tokens", total.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
