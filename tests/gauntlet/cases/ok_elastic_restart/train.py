import os

import torch
import torch.distributed as dist


def start(attempt):
    store = f"file://{os.getcwd()}/store-{attempt}"
    dist.init_process_group("gloo", init_method=store, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))


def main():
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    start(attempt)
    for step in range(6):
        x = torch.ones(4)
        dist.all_reduce(x)
        if attempt == 0 and step == 3 and dist.get_rank() == 1:
            raise ConnectionError("storage went away for a moment")
    print("attempt", attempt, "succeeded", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
