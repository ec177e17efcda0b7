import torch
import torch.distributed as dist

from filters import is_clean

LINES = ["a short line", "numbers 1 2 3"] * 5


def corpus(rank):
    lines = list(LINES)
    if rank == 0:
        lines[6] = "word " * 40 + "!"
    return lines


def main():
    dist.init_process_group("gloo")
    kept = torch.zeros(1)
    for line in corpus(dist.get_rank()):
        good = torch.tensor([float(is_clean(line))])
        dist.all_reduce(good)
        kept += good
    print(kept)
    dist.destroy_process_group()


main()
