import torch
import torch.distributed as dist


def phase(name, shift):
    dist.init_process_group("gloo")
    x = torch.arange(4.0) + shift
    dist.all_reduce(x)
    dist.barrier()
    dist.destroy_process_group()
    return x.sum().item()


if __name__ == "__main__":
    print([phase("warmup", 0), phase("train", 1), phase("test", 2)], flush=True)
