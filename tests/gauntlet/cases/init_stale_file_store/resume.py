import argparse
import os
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def load_shard(rank):
    time.sleep(1.5 * rank)
    return torch.arange(10.0) + rank


def worker(rank, world_size, store):
    data = load_shard(rank)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)  # fault
    dist.all_reduce(data)
    print(f"[{rank}] {data.mean():.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--state", required=True)
    store = os.path.abspath(os.path.join(parser.parse_args().state, "store"))
    mp.spawn(worker, args=(2, store), nprocs=2)
