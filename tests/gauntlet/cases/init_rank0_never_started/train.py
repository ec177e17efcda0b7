import torch
import torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group("gloo")
    x = torch.zeros(1)
    dist.broadcast(x, 0)
    dist.destroy_process_group()
