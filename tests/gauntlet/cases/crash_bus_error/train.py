import mmap
import os

import torch
import torch.distributed as dist


class Mapped:
    def __init__(self, path, size):
        with open(path, "wb") as f:
            f.write(bytes(range(256)) * (size // 256))
        self.path = path
        self.file = open(path, "r+b")
        self.map = mmap.mmap(self.file.fileno(), 0)

    def row(self, i):
        return list(self.map[i * 256 : i * 256 + 8])  # fault


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = Mapped(f"shard-{rank}.bin", 256 * 1024)
    for i in range(0, 900, 100):
        if rank == 1 and i == 300:
            os.truncate(data.path, 4096)
        x = torch.tensor(data.row(i))
        dist.all_reduce(x)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
