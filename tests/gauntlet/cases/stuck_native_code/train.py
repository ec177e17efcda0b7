import torch
import torch.distributed as dist

from keys import derive


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(5):
        key = derive("secret", rounds=10**10 if rank == 1 and step == 2 else 1000)
        t = torch.tensor(list(key[:4]))
        dist.all_reduce(t)
    print(t)
    dist.destroy_process_group()


main()
