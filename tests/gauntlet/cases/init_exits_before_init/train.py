import os
import sys

import torch
import torch.distributed as dist


class Shard:
    def __init__(self, rank, world):
        self.files = [f"part-{i}.bin" for i in range(2)][rank::world]

    def require(self):
        if not self.files:
            print("nothing to do", flush=True)
            sys.exit(0)  # fault


def main():
    shard = Shard(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    shard.require()
    dist.init_process_group("gloo")
    n = torch.tensor([len(shard.files)])
    dist.all_reduce(n)
    print(n.item())
    dist.destroy_process_group()


main()
