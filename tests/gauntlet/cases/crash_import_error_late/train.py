import os

import torch
import torch.distributed as dist


def export(weights):
    from tensorflow_compat import save  # fault

    save(weights)


def main():
    dist.init_process_group("gloo")
    w = torch.zeros(4)
    for step in range(6):
        g = torch.rand(4)
        dist.all_reduce(g)
        w -= 0.1 * g
        if step == 3 and os.environ.get("EXPORT"):
            export(w)
    dist.destroy_process_group()


main()
