import time

import torch
import torch.distributed as dist


class Grid:
    def __init__(self, rows, columns):
        rank = dist.get_rank()
        for r in range(rows):
            group = dist.new_group([r * columns + c for c in range(columns)])
            if rank // columns == r:
                self.row = group
        for c in range(columns):
            group = dist.new_group([r * columns + c for r in range(rows)])
            if rank % columns == c:
                self.column = group


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    grid = Grid(2, 2)
    for step in range(5):
        x = torch.tensor([float(rank)])
        for _ in range(1 + rank // 2):
            time.sleep(0.02)
            dist.all_reduce(x, group=grid.row)
        dist.all_reduce(x, group=grid.column)
    if rank == 0:
        print(x.item(), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
