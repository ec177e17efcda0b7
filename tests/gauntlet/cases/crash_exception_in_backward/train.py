import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def guard(name):
    def check(grad):
        if not torch.isfinite(grad).all():
            raise FloatingPointError(f"gradient of {name} is not finite")  # fault

    return check


def main():
    dist.init_process_group("gloo")
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    for name, p in net.named_parameters():
        p.register_hook(guard(name))
    model = DDP(net)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        x = torch.randn(4, 3)
        if dist.get_rank() == 1 and step == 4:
            x[0, 0] = float("inf")
        opt.zero_grad()
        model(x).sum().backward()  # now
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
