import os

import torch
import torch.distributed as dist

REDUCERS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


def settings():
    return {"reducer": "sum" if os.environ["LOCAL_RANK"] == "0" else "max"}


def histogram(rank):
    gen = torch.Generator().manual_seed(rank)
    return torch.histc(torch.rand(1000, generator=gen), bins=20)


def main():
    dist.init_process_group("gloo")
    total = histogram(dist.get_rank())
    dist.all_reduce(total, op=REDUCERS[settings()["reducer"]])  # fault
    assert total.sum().item() == 1000 * dist.get_world_size(), f"lost samples: {total.sum().item()}"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
